//! awa. Best: four claimers, many workers and no deadline, which its own throughput test uses to take the
//! compact path; default: its README's client.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use awa::model::insert::params_with;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage,
    QueueStorageConfig,
};
use peer_common::steady::{self, Steady};
use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Serialize, Deserialize, JobArgs)]
struct Noop(Note);

#[tokio::main]
async fn main() -> Outcome<()> {
    if let Some(asked) = steady::asked() {
        println!("{}", run_steadily(asked).await?);
        return Ok(());
    }
    peer_common::run(prepare, publish, drain).await
}

async fn connect(url: &str) -> Outcome<PgPool> {
    Ok(PgPoolOptions::new()
        .max_connections(20)
        .connect(url)
        .await?)
}

/// A database is given to the queue storage by the first client that starts on it, and only while it holds no
/// jobs: one that starts later drains the tables of older versions and leaves what is in the queue storage
/// for ever.
async fn prepare(url: &str) -> Outcome<()> {
    let pool = connect(url).await?;
    awa::migrations::run(&pool).await?;
    let client = client(&pool, |_| ())?;
    client.start().await?;
    client.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let pool = connect(url).await?;
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    let began = Instant::now();
    for notes in batches(count) {
        enqueue(&store, &pool, notes).await?;
    }
    Ok(began.elapsed())
}

async fn enqueue(store: &QueueStorage, pool: &PgPool, notes: Vec<Note>) -> Outcome<()> {
    let jobs: Result<Vec<_>, _> = notes.into_iter().map(job).collect();
    store.enqueue_params_copy(pool, &jobs?).await?;
    Ok(())
}

fn job(note: Note) -> Result<InsertParams, awa::AwaError> {
    params_with(
        &Noop(note),
        InsertOpts {
            queue: QUEUE.into(),
            ..InsertOpts::default()
        },
    )
}

fn settings() -> QueueConfig {
    if !best() {
        return QueueConfig::default();
    }
    QueueConfig {
        max_workers: 2000,
        claimers: 4,
        poll_interval: Duration::from_millis(50),
        deadline_duration: Duration::ZERO,
        ..QueueConfig::default()
    }
}

fn client(pool: &PgPool, handle: impl Fn(Note) + Send + Sync + 'static) -> Outcome<Client> {
    let client = Client::builder(pool.clone())
        .queue(QUEUE, settings())
        .register::<Noop, _, _>(move |Noop(note), _| {
            handle(note);
            async { Ok(JobResult::Completed) }
        })
        .build()?;
    Ok(client)
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let client = client(&connect(url).await?, |_| peer_common::done())?;
    let count = Count::start(expected);
    client.start().await?;
    count.all().await;
    // Returns when the last completions are stored.
    client.shutdown(Duration::from_mins(1)).await;
    count.figures()
}

async fn run_steadily(asked: (Duration, usize)) -> Outcome<Value> {
    let pool = connect(&std::env::var("DATABASE_URL")?).await?;
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    let steady = Arc::new(Steady::default());
    let started = steady.clone();
    let client = client(&pool, move |note| started.started(note.number))?;
    client.start().await?;
    let send = async |numbers: Range<usize>| {
        enqueue(&store, &pool, numbers.map(Note::new).collect()).await
    };
    steady.publish(asked, send).await?;
    // Returns when the last completions are stored.
    client.shutdown(Duration::from_mins(1)).await;
    Ok(steady.answer())
}
