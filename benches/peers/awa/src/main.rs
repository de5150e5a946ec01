//! awa. Best: four claimers, many workers and no deadline, which its own throughput test uses to take the compact
//! path; default: its README's client.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use awa::model::insert::params_with;
use awa::{Client, InsertOpts, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const QUEUE: &str = "noop";

static DONE: AtomicUsize = AtomicUsize::new(0);
static MOST: OnceLock<Instant> = OnceLock::new();

#[derive(Serialize, Deserialize, JobArgs)]
struct Note {
    number: usize,
    text: String,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let pool = PgPoolOptions::new().max_connections(20).connect(&std::env::var("DATABASE_URL")?).await?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => {
            awa::migrations::run(&pool).await?;
            json!({})
        }
        Some("publish") => publish(&pool, count).await?,
        Some("drain") => drain(pool, count).await?,
        other => return Err(format!("verb: prepare, publish and drain are allowed, got {other:?}").into()),
    };
    println!("{answer}");
    Ok(())
}

async fn publish(pool: &PgPool, count: usize) -> Outcome<Value> {
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    let began = Instant::now();
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(1000) {
        let jobs: Result<Vec<_>, _> = batch.iter().map(|&number| job(number)).collect();
        store.enqueue_params_copy(pool, &jobs?).await?;
    }
    Ok(json!({"jobs": count, "seconds": began.elapsed().as_secs_f64()}))
}

fn job(number: usize) -> Result<awa::InsertParams, awa::AwaError> {
    let options = InsertOpts { queue: QUEUE.into(), ..InsertOpts::default() };
    params_with(&Note { number, text: "x".repeat(170) }, options)
}

fn settings() -> QueueConfig {
    if std::env::var("PEER_MODE").as_deref() == Ok("default") {
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

async fn drain(pool: PgPool, expected: usize) -> Outcome<Value> {
    let before = expected - expected / 4;
    let client = Client::builder(pool.clone())
        .queue(QUEUE, settings())
        .register::<Note, _, _>(move |_, _| async move {
            if DONE.fetch_add(1, Ordering::Relaxed) + 1 == before {
                let _ = MOST.set(Instant::now());
            }
            Ok(JobResult::Completed)
        })
        .build()?;
    let began = Instant::now();
    client.start().await?;
    while DONE.load(Ordering::Relaxed) < expected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    while store.queue_counts(&pool, QUEUE).await?.running > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (jobs, seconds) = (DONE.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    let at = MOST.get().ok_or("the worker ended early")?;
    let last = json!({"jobs": jobs - before, "seconds": at.elapsed().as_secs_f64()});
    client.shutdown(Duration::from_secs(10)).await;
    Ok(json!({"jobs": jobs, "seconds": seconds, "last": last}))
}
