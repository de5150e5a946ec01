//! fang, with its asynchronous workers. Best and default alike: one worker, since it takes a task in two
//! statements without a transaction, so that several workers take the same task.

use std::time::{Duration, Instant};

use fang::asynk::async_queue::{AsyncQueue, AsyncQueueable};
use fang::asynk::async_worker_pool::AsyncWorkerPool;
use fang::{AsyncRunnable, FangError, async_trait, typetag};
use peer_common::{Count, Figures, Note, Outcome, batches, source_of};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

const MIGRATION: &str = "postgres_migrations/migrations/2022-08-20-151615_create_fang_tasks/up.sql";

#[derive(Serialize, Deserialize)]
struct Noop(Note);

#[typetag::serde]
#[async_trait]
impl AsyncRunnable for Noop {
    async fn run(&self, _: &dyn AsyncQueueable) -> Result<(), FangError> {
        peer_common::done();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    peer_common::run(prepare, publish, drain).await
}

async fn connect(url: &str) -> Outcome<AsyncQueue> {
    let mut queue = AsyncQueue::builder().uri(url).max_pool_size(2_u32).build();
    queue.connect().await?;
    Ok(queue)
}

async fn prepare(url: &str) -> Outcome<()> {
    let schema = std::fs::read_to_string(source_of("fang")?.join(MIGRATION))?;
    sqlx::raw_sql(&schema)
        .execute(&PgPool::connect(url).await?)
        .await?;
    Ok(())
}

/// It has no way to add several tasks at once.
async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let queue = connect(url).await?;
    let began = Instant::now();
    for note in batches(count).flatten() {
        queue.insert_task(&Noop(note)).await?;
    }
    Ok(began.elapsed())
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let (pool, queue) = (PgPool::connect(url).await?, connect(url).await?);
    let mut workers = AsyncWorkerPool::<AsyncQueue>::builder()
        .number_of_workers(1_u32)
        .queue(queue)
        .build();
    let count = Count::start(expected);
    workers.start().await;
    count.all().await;
    while sqlx::query("SELECT FROM fang_tasks LIMIT 1")
        .fetch_optional(&pool)
        .await?
        .is_some()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    count.figures()
}
