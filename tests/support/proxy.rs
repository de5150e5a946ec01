//! A TCP proxy in front of a server. It records what clients send. It can drop connections silently, like a
//! firewall. It can cause harm when a client sends a certain word, and it can be as slow as a bad line.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

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
    closed: AtomicUsize,
    said: Mutex<Vec<u8>>,
    harm: Mutex<Option<(&'static str, Harm)>>,
    cut: Notify,
    up: Lane,
    down: Lane,
}

/// One direction of the line, shared by all connections.
#[derive(Default)]
struct Lane {
    /// Bytes per second. 0 means unlimited.
    speed: AtomicU32,
    /// When the data accepted so far will have passed.
    through: Mutex<Option<Instant>>,
}

/// What happens to a connection whose client has sent a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// It is closed before the server receives the word.
    Cut,
    /// The server receives it. Its answer is discarded and the connection is closed.
    CutBeforeAnswer,
    /// The server receives it. Then no data passes in either direction, while the connection stays open.
    Silence,
    /// The server receives it, and all that follows. Its answers are discarded, until
    /// [`Proxy::cut_withheld`].
    Withhold,
    /// The server receives it. The client receives garbage as the answer, and the connection stays open.
    Garbage,
}

impl Proxy {
    /// Starts a proxy in front of the server at this URL.
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
                let (shared, losing) = (serving.clone(), losing.clone());
                tokio::spawn(async move {
                    carry(client, port, &shared, losing).await;
                    shared.closed.fetch_add(1, Ordering::Relaxed);
                });
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

    /// Returns the URL of one of the server's databases, through the proxy.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address)
    }

    /// Returns how many connections clients have opened so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many of these connections still carry data.
    pub fn open(&self) -> usize {
        self.accepted() - self.shared.closed.load(Ordering::Relaxed)
    }

    /// Returns everything that clients have sent so far.
    pub fn said(&self) -> Vec<u8> {
        self.shared.said.lock().unwrap().clone()
    }

    /// Does this harm to the first connection whose client sends `word` from now on, and to no other.
    pub fn harm_when_said(&self, word: &'static str, harm: Harm) {
        *self.shared.harm.lock().unwrap() = Some((word, harm));
    }

    /// Limits the speed from now on to this many bytes per second in each direction, for all connections
    /// together.
    pub fn throttle(&self, bytes_a_second: u32) {
        for lane in [&self.shared.up, &self.shared.down] {
            lane.speed.store(bytes_a_second, Ordering::Relaxed);
        }
    }

    /// Whether the word was sent since, and the harm is done.
    pub fn has_harmed(&self) -> bool {
        self.shared.harm.lock().unwrap().is_none()
    }

    /// Waits until the word was sent.
    pub async fn wait_for_harm(&self) {
        let limit = Instant::now() + Duration::from_mins(1);
        while !self.has_harmed() {
            assert!(Instant::now() < limit, "nobody said the word");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Closes the connection whose answers are withheld.
    pub fn cut_withheld(&self) {
        self.shared.cut.notify_one();
    }

    /// Stops carrying data for all open connections. They stay open.
    pub fn lose_connections(&self) {
        self.lost.send_modify(|times| *times += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn carry(client: TcpStream, port: u16, shared: &Shared, mut losing: watch::Receiver<u32>) {
    losing.mark_unchanged();
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let upward = async {
        let mut buffer = vec![0; 16 * 1024];
        // The last bytes are kept, because the network may split a word.
        let mut heard = Vec::new();
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            shared.said.lock().unwrap().extend(&buffer[..count]);
            heard.extend(&buffer[..count]);
            let harm = shared.harm_due(&heard);
            let said = &buffer[..count];
            if harm == Some(Harm::Cut) || shared.up.carry(said, &mut to_server).await.is_err() {
                return None;
            }
            if harm.is_some() {
                return harm;
            }
            heard.drain(..heard.len().saturating_sub(LONGEST_WORD));
        }
        None
    };
    let harm = tokio::select! {
        harm = upward => harm,
        () = shared.down.carry_all(&mut from_server, &mut to_client) => None,
        changed = losing.changed() => {
            let _ = changed;
            Some(Harm::Silence)
        }
    };
    match harm {
        None | Some(Harm::Cut) => return,
        // When the server answers, it has done its work.
        Some(Harm::CutBeforeAnswer) => {
            let _ = from_server.read(&mut [0; 1024]).await;
            return;
        }
        Some(Harm::Withhold) => {
            let discarded = &mut tokio::io::sink();
            tokio::select! {
                _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                _ = tokio::io::copy(&mut from_server, discarded) => {}
                () = shared.cut.notified() => {}
            }
            return;
        }
        Some(Harm::Silence) => {}
        Some(Harm::Garbage) => {
            let garbage: Vec<u8> = (0..512_u32)
                .map(|n| (n.to_le_bytes()[0]).wrapping_mul(37) | 0x80)
                .collect();
            let _ = to_client.write_all(&garbage).await;
        }
    }
    // Until the test ends.
    std::future::pending::<()>().await;
}

/// Number of bytes that a slow line carries at once.
const PART: usize = 256;

impl Lane {
    /// Forwards data until one side closes.
    async fn carry_all(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if self.carry(&buffer[..count], to).await.is_err() {
                return;
            }
        }
    }

    async fn carry(&self, said: &[u8], to: &mut OwnedWriteHalf) -> std::io::Result<()> {
        let speed = self.speed.load(Ordering::Relaxed);
        if speed == 0 {
            return to.write_all(said).await;
        }
        for part in said.chunks(PART) {
            tokio::time::sleep_until(self.book(part.len(), speed)).await;
            to.write_all(part).await?;
        }
        Ok(())
    }

    /// Returns when a part that is queued now will have passed.
    fn book(&self, bytes: usize, speed: u32) -> Instant {
        let now = Instant::now();
        let mut through = self.through.lock().unwrap();
        let begins = through.map_or(now, |earlier| earlier.max(now));
        let takes = Duration::from_secs(1) * u32::try_from(bytes).unwrap() / speed;
        *through.insert(begins + takes)
    }
}

/// Maximum length of a word to wait for, in bytes.
const LONGEST_WORD: usize = 64;

impl Shared {
    /// Returns the harm if the data contains its word. It is done only once.
    fn harm_due(&self, heard: &[u8]) -> Option<Harm> {
        let mut due = self.harm.lock().unwrap();
        let said = due.is_some_and(|(word, _)| {
            heard
                .windows(word.len())
                .any(|window| window == word.as_bytes())
        });
        if said {
            due.take().map(|(_, harm)| harm)
        } else {
            None
        }
    }
}
