//! underway. Each worker takes one task after the other. Best: four of them, as its documentation shows for
//! scaling; default: one.

use std::time::{Duration, Instant};

use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres, Transaction};
use underway::{Queue, Task, Worker, task};

struct Noop;

impl Task for Noop {
    type Input = Note;
    type Output = ();

    async fn execute(&self, _: Transaction<'_, Postgres>, _: Note) -> task::Result<()> {
        peer_common::done();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    peer_common::run(prepare, publish, drain).await
}

async fn connect(url: &str) -> Outcome<PgPool> {
    Ok(PgPoolOptions::new()
        .max_connections(20)
        .connect(url)
        .await?)
}

async fn queue(pool: &PgPool) -> Outcome<Queue<Noop>> {
    Ok(Queue::builder()
        .name(QUEUE)
        .pool(pool.clone())
        .build()
        .await?)
}

async fn prepare(url: &str) -> Outcome<()> {
    let pool = connect(url).await?;
    underway::run_migrations(&pool).await?;
    queue(&pool).await?;
    Ok(())
}

async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let pool = connect(url).await?;
    let (queue, began) = (queue(&pool).await?, Instant::now());
    for notes in batches(count) {
        queue.enqueue_multi(&pool, &Noop, &notes).await?;
    }
    Ok(began.elapsed())
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let pool = connect(url).await?;
    let worker = Worker::new(queue(&pool).await?.into(), Noop);
    let count = Count::start(expected);
    let mut running = Vec::new();
    for _ in 0..if best() { 4 } else { 1 } {
        let worker = worker.clone();
        running.push(tokio::spawn(async move { worker.run().await }));
    }
    count.all().await;
    worker.shutdown();
    for each in running {
        each.await??;
    }
    count.figures()
}
