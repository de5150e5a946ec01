//! graphile_worker, the Rust one. Best: local queue and batched completion as in its own performance test;
//! default: its README's worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
};
use peer_common::{Count, Figures, Note, Outcome, QUEUE, batches, best};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Noop(Note);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = QUEUE;

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        peer_common::done();
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    peer_common::run(prepare, publish, drain).await
}

fn options(url: &str) -> WorkerOptions {
    let options = WorkerOptions::default()
        .database_url(url)
        .define_job::<Noop>();
    if !best() {
        return options;
    }
    options
        .concurrency(500)
        .poll_interval(Duration::from_millis(5))
        .complete_job_batch_delay(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(5000))
}

async fn prepare(url: &str) -> Outcome<()> {
    options(url).init().await?;
    Ok(())
}

async fn publish(url: &str, count: usize) -> Outcome<Duration> {
    let utils = options(url).init().await?.create_utils();
    let (spec, began) = (JobSpec::default(), Instant::now());
    for notes in batches(count) {
        let jobs: Vec<_> = notes.into_iter().map(|note| (Noop(note), &spec)).collect();
        utils.add_jobs::<Noop>(&jobs).await?;
    }
    Ok(began.elapsed())
}

async fn drain(url: &str, expected: usize) -> Outcome<Figures> {
    let worker = Arc::new(options(url).init().await?);
    let count = Count::start(expected);
    let mut running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });
    tokio::select! {
        () = count.all() => {
            worker.request_shutdown();
            running.await??;
        }
        ended = &mut running => ended??,
    }
    count.figures()
}
