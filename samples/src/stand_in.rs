//! Runs a stand-in for the services of the shipped systems until its input closes or it is stopped.
//!
//! It prints the base URLs as `NAME=value` lines, ready for an environment. `PUT /control/archive` with
//! `{"mode":"down"}` makes the archive fail, and `{"mode":"up"}` repairs it. `GET /control` returns the
//! calls of every service.

use std::io::Read;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::Outcome;
use crate::services::Services;

pub(crate) async fn run() -> Outcome<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let services = Services::start().await;
    for (variable, url) in services.variables() {
        println!("{variable}={url}");
    }
    tokio::select! {
        _ = input_closed() => {}
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    // The thread that reads the input may be blocked in a read. There is no need to wait for it.
    std::process::exit(0)
}

/// Ends when the input closes. If the process at the other end of the input dies, this process ends too.
fn input_closed() -> oneshot::Receiver<()> {
    let (closed, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        while matches!(input.read(&mut [0; 256]), Ok(count) if count > 0) {}
        let _ = closed.send(());
    });
    receiver
}
