//! Owns the bench's events and their handlers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate::{Context, Dispatch, Done, HandlerResult, Handlers};

tidegate::events! {
    pub enum Work {
        /// Does nothing.
        Noop(Note) = "bench_noop",
        /// Waits for [`WAIT`], like a call to a service.
        Wait(Note) = "bench_wait",
        /// Writes one row in the transaction that completes the event.
        Write(Note) = "bench_write",
        /// Records the time from publish to handler.
        Stamp(Note) = "bench_stamp",
    }
}

/// A payload of about 200 bytes.
#[derive(Serialize, Deserialize)]
pub struct Note {
    pub number: i64,
    pub text: String,
}

/// The size of the text in a payload.
pub const TEXT_BYTES: usize = 170;

/// How long a waiting handler waits.
pub const WAIT: Duration = Duration::from_millis(50);

impl Note {
    pub fn new(number: i64) -> Self {
        Self {
            number,
            text: "x".repeat(TEXT_BYTES),
        }
    }
}

/// The program with the handlers.
pub struct App {
    began: Instant,
    pickups: Mutex<Vec<f64>>,
}

impl App {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            pickups: Mutex::default(),
        })
    }

    /// Returns an event that contains the current time.
    pub fn stamp(&self) -> Work {
        let now = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
        Work::Stamp(Note::new(now))
    }

    /// Returns the milliseconds from stamp to handler, for all events so far.
    pub fn pickups(&self) -> Vec<f64> {
        let pickups = self.pickups.lock();
        pickups.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pick_up(&self, note: &Note) {
        let stamped = Duration::from_micros(note.number.unsigned_abs());
        let waited = self.began.elapsed().saturating_sub(stamped);
        let pickups = self.pickups.lock();
        let mut pickups = pickups.unwrap_or_else(PoisonError::into_inner);
        pickups.push(waited.as_secs_f64() * 1000.0);
    }
}

impl Dispatch for App {
    type Event = Work;

    fn handlers<'a>(&'a self, event: &'a Work, ctx: &'a Context) -> Handlers<'a> {
        match event {
            Work::Noop(_) => Handlers::one("noop", async { Ok(Done::ok()) }),
            Work::Wait(_) => Handlers::one("wait", async {
                tokio::time::sleep(WAIT).await;
                Ok(Done::ok())
            })
            .calls("stand-in"),
            Work::Write(note) => Handlers::one("write", write(note, ctx)),
            Work::Stamp(note) => Handlers::one("stamp", async {
                self.pick_up(note);
                Ok(Done::ok())
            }),
        }
    }
}

async fn write(note: &Note, ctx: &Context) -> HandlerResult {
    let tx = ctx.transaction().await?;
    let sql = "INSERT INTO bench_effect (number, text) VALUES ($1, $2)";
    tx.execute(sql, &[&note.number, &note.text]).await?;
    tx.complete(Done::ok()).await
}
