//! pgmq, by its own Rust client. It has no worker: a loop reads and archives. Best: a thousand messages at a
//! time in two loops; default: one message at a time, as its README shows. At a steady rate, a loop that
//! finds nothing looks again after 10 ms.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peer_common::steady::{self, Steady};
use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best};
use pgmq::{Message, PGMQueueExt};
use serde_json::Value;
use tokio::sync::watch;

/// Seconds until a message that was read is visible again.
const LEASE: i32 = 60;
/// How soon an empty queue is read again.
const POLL: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() -> Outcome<()> {
    if let Some(asked) = steady::asked() {
        println!("{}", run_steadily(asked).await?);
        return Ok(());
    }
    peer_common::run(prepare, publish, drain).await
}

async fn connect(url: &str) -> Outcome<PGMQueueExt> {
    Ok(PGMQueueExt::new(url.to_owned(), 4).await?)
}

async fn prepare(url: &str) -> Outcome<()> {
    let queue = connect(url).await?;
    queue.install_sql_from_embedded().await?;
    queue.create(QUEUE).await?;
    Ok(())
}

async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let queue = connect(url).await?;
    let began = Instant::now();
    for notes in batches(count) {
        queue.send_batch(QUEUE, &notes).await?;
    }
    Ok(began.elapsed())
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let (loops, batch) = if best() { (2, 1000) } else { (1, 1) };
    let queue = Arc::new(connect(url).await?);
    let count = Count::start(expected);
    let mut running = Vec::new();
    for _ in 0..loops {
        running.push(tokio::spawn(work(queue.clone(), count, batch)));
    }
    for each in running {
        each.await??;
    }
    count.figures()
}

async fn work(queue: Arc<PGMQueueExt>, count: &Count, batch: i32) -> Outcome<()> {
    loop {
        let read: Vec<Message<Note, Value>> = queue.read_batch(QUEUE, LEASE, batch).await?;
        let ids: Vec<i64> = read.iter().map(|message| message.msg_id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        count.add(queue.archive_batch(QUEUE, &ids).await?.len());
    }
}

async fn run_steadily(asked: (Duration, usize)) -> Outcome<Value> {
    let queue = Arc::new(connect(&std::env::var("DATABASE_URL")?).await?);
    let steady = Arc::new(Steady::default());
    let (stop, stopped) = watch::channel(false);
    let workers: Vec<_> = (0..2)
        .map(|_| {
            tokio::spawn(work_steadily(
                queue.clone(),
                steady.clone(),
                stopped.clone(),
            ))
        })
        .collect();
    let send = async |numbers: Range<usize>| {
        let notes: Vec<Note> = numbers.map(Note::new).collect();
        queue.send_batch(QUEUE, &notes).await.map(|_| ())
    };
    steady.publish(asked, send).await?;
    stop.send_replace(true);
    for each in workers {
        each.await??;
    }
    Ok(steady.answer())
}

async fn work_steadily(
    queue: Arc<PGMQueueExt>,
    steady: Arc<Steady>,
    stopped: watch::Receiver<bool>,
) -> Outcome<()> {
    while !*stopped.borrow() {
        let read: Vec<Message<Note, Value>> = queue.read_batch(QUEUE, LEASE, 1000).await?;
        if read.is_empty() {
            tokio::time::sleep(POLL).await;
            continue;
        }
        for message in &read {
            steady.started(message.message.number);
        }
        let ids: Vec<i64> = read.iter().map(|message| message.msg_id).collect();
        queue.archive_batch(QUEUE, &ids).await?;
    }
    Ok(())
}
