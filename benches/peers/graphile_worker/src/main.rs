//! graphile_worker, the Rust one. Best: local queue and batched completion as in its own performance test;
//! default: its README's worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

static DONE: AtomicUsize = AtomicUsize::new(0);
static THREE_QUARTERS: AtomicUsize = AtomicUsize::new(usize::MAX);
static MOST: OnceLock<Instant> = OnceLock::new();

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    number: usize,
    text: String,
}

impl TaskHandler for Note {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        if DONE.fetch_add(1, Ordering::Relaxed) + 1 == THREE_QUARTERS.load(Ordering::Relaxed) {
            let _ = MOST.set(Instant::now());
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => {
            options()?.init().await?;
            json!({})
        }
        Some("publish") => publish(count).await?,
        Some("drain") => drain(count).await?,
        other => return Err(format!("verb: prepare, publish and drain are allowed, got {other:?}").into()),
    };
    println!("{answer}");
    Ok(())
}

fn options() -> Outcome<WorkerOptions> {
    let url = std::env::var("DATABASE_URL")?;
    let options = WorkerOptions::default().database_url(&url).define_job::<Note>();
    Ok(if std::env::var("PEER_MODE").as_deref() == Ok("default") {
        options
    } else {
        options
            .concurrency(500)
            .poll_interval(Duration::from_millis(5))
            .complete_job_batch_delay(Duration::from_millis(5))
            .local_queue(LocalQueueConfig::default().with_size(5000))
    })
}

async fn publish(count: usize) -> Outcome<Value> {
    let utils = options()?.init().await?.create_utils();
    let began = Instant::now();
    let (numbers, spec): (Vec<usize>, _) = ((0..count).collect(), JobSpec::default());
    for batch in numbers.chunks(1000) {
        let jobs: Vec<_> = batch
            .iter()
            .map(|&number| (Note { number, text: "x".repeat(170) }, &spec))
            .collect();
        utils.add_jobs::<Note>(&jobs).await?;
    }
    Ok(json!({"jobs": count, "seconds": began.elapsed().as_secs_f64()}))
}

async fn drain(expected: usize) -> Outcome<Value> {
    let before = expected - expected / 4;
    THREE_QUARTERS.store(before, Ordering::Relaxed);
    let worker = Arc::new(options()?.init().await?);
    let began = Instant::now();
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });
    while DONE.load(Ordering::Relaxed) < expected && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.request_shutdown();
    running.await??;
    let (jobs, seconds) = (DONE.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    let at = MOST.get().ok_or("the worker ended early")?;
    Ok(json!({"jobs": jobs, "seconds": seconds,
              "last": {"jobs": jobs - before, "seconds": at.elapsed().as_secs_f64()}}))
}
