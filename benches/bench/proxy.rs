//! A TCP proxy that adds a delay to every round trip, as a database in another zone does.
//!
//! It has threads of its own, because tokio's timer counts in whole milliseconds.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Listens on a free port for the life of this process; what clients send arrives `delay` later. The
/// way back is not delayed, so that a round trip has the delay once.
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

/// Reads in one thread and writes in another, so that a delay holds up nothing behind it.
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
        // Tells the other side; it may be gone already.
        let _ = to.shutdown(Shutdown::Both);
    });
}
