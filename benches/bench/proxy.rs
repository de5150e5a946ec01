//! A TCP proxy that adds a delay to every round trip, like a database in another zone.
//!
//! It uses threads of its own, because tokio's timer has a resolution of one millisecond.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Listens on a free port until this process ends. Data from clients arrives `delay` later. The way
/// back has no delay, so that a round trip is delayed once.
pub fn start(upstream: SocketAddr, delay: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming() {
            // A client whose server is gone sees its connection end.
            let _ = client.and_then(|client| connect(client, upstream, delay));
        }
    });
    Ok(address)
}

fn connect(client: TcpStream, upstream: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    forward(client.try_clone()?, server.try_clone()?, delay);
    forward(server, client, Duration::ZERO);
    Ok(())
}

/// Reads in one thread and writes in another, so that a delay does not hold up the data behind it.
fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count) = from.read(&mut buffer) {
            let due = Instant::now() + delay;
            if count == 0 || sender.send((due, buffer[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // Notifies the other side, which may already be gone.
        let _ = to.shutdown(Shutdown::Both);
    });
}
