//! sqlxmq. Best: up to a thousand jobs at once, since it takes as many at a time as it may run; default: its
//! own limits, 16 to 32.

use std::time::{Duration, Instant};

use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best, source_of};
use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlxmq::{CurrentJob, JobRegistry, job};

#[job(channel_name = "noop")]
async fn noop(mut current: CurrentJob) -> Outcome<()> {
    current.json::<Note>()?;
    current.complete().await?;
    peer_common::done();
    Ok(())
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

async fn prepare(url: &str) -> Outcome<()> {
    let migrations = source_of("sqlxmq")?.join("migrations");
    Migrator::new(migrations)
        .await?
        .run(&connect(url).await?)
        .await?;
    Ok(())
}

/// It has no way to add several jobs at once, but adds them in the caller's transaction.
async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let pool = connect(url).await?;
    let began = Instant::now();
    for notes in batches(count) {
        let mut transaction = pool.begin().await?;
        for note in notes {
            noop.builder()
                .set_json(&note)?
                .spawn(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
    }
    Ok(began.elapsed())
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let pool = connect(url).await?;
    let mut runner = JobRegistry::new(&[noop]).runner(&pool);
    runner.set_channel_names(&[QUEUE]);
    if best() {
        runner.set_concurrency(500, 1000);
    }
    let count = Count::start(expected);
    let mut running = runner.run().await?;
    count.all().await;
    let figures = count.figures();
    running.stop().await;
    figures
}
