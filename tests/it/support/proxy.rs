//! A TCP proxy in front of a server: remembers what clients say, and can lose connections as a
//! firewall does, without a word to either side.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The running proxy. It stops when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    lost: watch::Sender<u32>,
    server: AbortHandle,
}

#[derive(Default)]
struct Shared {
    accepted: AtomicUsize,
    said: Mutex<Vec<u8>>,
}

impl Proxy {
    /// Starts one in front of the server of this URL.
    pub async fn before(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let port = config.get_ports()[0];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let (lost, losing) = watch::channel(0);
        let serving = shared.clone();
        let server = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                serving.accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(carry(client, port, serving.clone(), losing.clone()));
            }
        });
        Self {
            address,
            shared,
            lost,
            server: server.abort_handle(),
        }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Connections that clients have opened so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// All that clients have said so far.
    pub fn said(&self) -> Vec<u8> {
        self.shared.said.lock().unwrap().clone()
    }

    /// Carries nothing more for the connections that are open now. They stay open.
    pub fn lose_connections(&self) {
        self.lost.send_modify(|times| *times += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn carry(
    client: TcpStream,
    port: u16,
    shared: Arc<Shared>,
    mut losing: watch::Receiver<u32>,
) {
    losing.mark_unchanged();
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let upward = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            shared.said.lock().unwrap().extend(&buffer[..count]);
            if to_server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = upward => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
        changed = losing.changed() => {
            // Until the test is over.
            let _ = changed;
            std::future::pending::<()>().await;
        }
    }
}
