//! apalis with its Postgres storage. Best: a thousand tasks at a time, each in a task of the runtime, not
//! locked one by one, as in its basic example; default: its README's worker.

use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use futures::stream;
use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best};

#[tokio::main]
async fn main() -> Outcome<()> {
    peer_common::run(prepare, publish, drain).await
}

async fn storage(url: &str) -> Outcome<PostgresStorage<Note>> {
    let config = Config::default().queue(QUEUE);
    let config = if best() {
        config.batch_size(1000).lock_tasks(false)
    } else {
        config
    };
    Ok(PostgresStorage::new(&PgPool::connect(url).await?).with_config(config))
}

async fn prepare(url: &str) -> Outcome<()> {
    PostgresStorage::setup(&PgPool::connect(url).await?).await?;
    Ok(())
}

async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let mut storage = storage(url).await?;
    let began = Instant::now();
    for notes in batches(count) {
        storage.push_stream(&mut stream::iter(notes)).await?;
    }
    Ok(began.elapsed())
}

async fn noop(_: Note) {
    peer_common::done();
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let worker = WorkerBuilder::new(QUEUE).backend(storage(url).await?);
    let count = Count::start(expected);
    let all = async {
        count.all().await;
        Ok::<_, WorkerError>(())
    };
    if best() {
        worker
            .parallelize(tokio::spawn)
            .build(noop)
            .run_until(all)
            .await?;
    } else {
        worker.build(noop).run_until(all).await?;
    }
    count.figures()
}
