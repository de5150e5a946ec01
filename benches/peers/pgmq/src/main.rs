//! pgmq, by its own Rust client. It has no worker: a loop reads and archives. Best: a thousand messages at a
//! time in two loops; default: one message at a time, as its README shows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pgmq::{Message, PGMQueueExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const QUEUE: &str = "noop";
/// Seconds until a message that was read is visible again.
const LEASE: i32 = 60;

#[derive(Serialize, Deserialize)]
struct Note {
    number: usize,
    text: String,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let queue = PGMQueueExt::new(std::env::var("DATABASE_URL")?, 4).await?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => prepare(&queue).await?,
        Some("publish") => publish(&queue, count).await?,
        Some("drain") => drain(queue, count).await?,
        other => return Err(format!("verb: prepare, publish and drain are allowed, got {other:?}").into()),
    };
    println!("{answer}");
    Ok(())
}

async fn prepare(queue: &PGMQueueExt) -> Outcome<Value> {
    queue.install_sql_from_embedded().await?;
    queue.create(QUEUE).await?;
    Ok(json!({}))
}

async fn publish(queue: &PGMQueueExt, count: usize) -> Outcome<Value> {
    let began = Instant::now();
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(1000) {
        let notes: Vec<Note> =
            batch.iter().map(|&number| Note { number, text: "x".repeat(170) }).collect();
        queue.send_batch(QUEUE, &notes).await?;
    }
    Ok(json!({"jobs": count, "seconds": began.elapsed().as_secs_f64()}))
}

/// How many are archived, and when three quarters were.
struct Count {
    expected: usize,
    done: usize,
    most: Option<(usize, Instant)>,
}

impl Count {
    fn add(&mut self, jobs: usize) {
        self.done += jobs;
        if self.most.is_none() && self.done >= self.expected - self.expected / 4 {
            self.most = Some((self.done, Instant::now()));
        }
    }
}

async fn drain(queue: PGMQueueExt, expected: usize) -> Outcome<Value> {
    let best = std::env::var("PEER_MODE").as_deref() != Ok("default");
    let (loops, batch) = if best { (2, 1000) } else { (1, 1) };
    let (queue, began) = (Arc::new(queue), Instant::now());
    let count = Arc::new(Mutex::new(Count { expected, done: 0, most: None }));
    let mut running = Vec::new();
    for _ in 0..loops {
        running.push(tokio::spawn(work(queue.clone(), count.clone(), batch)));
    }
    for each in running {
        each.await??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let count = count.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, at) = count.most.ok_or("fewer messages were archived than expected")?;
    Ok(json!({"jobs": count.done, "seconds": seconds,
              "last": {"jobs": count.done - before, "seconds": at.elapsed().as_secs_f64()}}))
}

async fn work(queue: Arc<PGMQueueExt>, count: Arc<Mutex<Count>>, batch: i32) -> Outcome<()> {
    loop {
        let read: Vec<Message<Note, Value>> = queue.read_batch(QUEUE, LEASE, batch).await?;
        let ids: Vec<i64> = read.iter().map(|message| message.msg_id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let archived = queue.archive_batch(QUEUE, &ids).await?.len();
        count.lock().unwrap_or_else(PoisonError::into_inner).add(archived);
    }
}
