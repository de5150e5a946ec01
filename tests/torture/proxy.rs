//! A proxy in front of the server that loses one answer. It forwards everything that clients send. From the
//! moment a client has sent a certain word, it forwards nothing from the server on that connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The running proxy.
pub struct Proxy {
    /// The URL of the database through the proxy.
    pub url: String,
    shared: Arc<Shared>,
    withheld: watch::Receiver<bool>,
}

struct Shared {
    marker: &'static [u8],
    /// Only one answer is lost. Later ones arrive.
    lost: AtomicBool,
    withheld: watch::Sender<bool>,
    cut: watch::Sender<bool>,
}

impl Proxy {
    pub async fn before(url: &str, marker: &'static [u8]) -> Self {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let server_port = config.get_ports()[0];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, withheld) = watch::channel(false);
        let shared = Arc::new(Shared {
            marker,
            lost: AtomicBool::new(false),
            withheld: sender,
            cut: watch::channel(false).0,
        });
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await {
                    tokio::spawn(carry(client, server, serving.clone()));
                }
            }
        });
        Self {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            shared,
            withheld,
        }
    }

    /// Waits until a client has sent the word, at most a minute.
    pub async fn wait_for_marker(&mut self) {
        let limit = Duration::from_mins(1);
        let said = self.withheld.wait_for(|withheld| *withheld);
        let said = tokio::time::timeout(limit, said).await;
        assert!(said.is_ok_and(|said| said.is_ok()), "nobody said the word");
    }

    /// Closes the connection whose answer is withheld.
    pub fn cut(&self) {
        self.shared.cut.send_replace(true);
    }
}

async fn carry(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (shut, open) = watch::channel(false);
    let mut cut = shared.cut.subscribe();
    let upward = async {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            let said = &buffer[..count];
            let marked = said
                .windows(shared.marker.len())
                .any(|part| part == shared.marker);
            if marked && !shared.lost.swap(true, Ordering::SeqCst) {
                shut.send_replace(true);
                shared.withheld.send_replace(true);
            }
            if to_server.write_all(said).await.is_err() {
                break;
            }
        }
    };
    let downward = async {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            if !*open.borrow() && to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    let mine = shut.subscribe();
    let ended = async {
        // Only the connection that lost an answer is closed.
        while cut.changed().await.is_ok() {
            if *mine.borrow() {
                return;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = async { tokio::join!(upward, downward) } => {}
        () = ended => {}
    }
}
