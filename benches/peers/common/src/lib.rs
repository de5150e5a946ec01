//! What the runners in Rust share: the contract `prepare`, `publish N`, `drain N`, the payload, and when
//! three quarters of the jobs were done. It knows no queue.

pub mod steady;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The queue, or kind of job, of every peer.
pub const QUEUE: &str = "noop";
/// How many jobs are published at once.
const BATCH: usize = 1000;

/// The payload of every peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    pub number: usize,
    pub text: String,
}

impl Note {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            text: "x".repeat(170),
        }
    }
}

/// Payloads by the thousand.
pub fn batches(count: usize) -> impl Iterator<Item = Vec<Note>> {
    let end = move |start: usize| count.min(start + BATCH);
    (0..count)
        .step_by(BATCH)
        .map(move |start| (start..end(start)).map(Note::new).collect())
}

/// Whether the peer is to show its best rather than its defaults.
pub fn best() -> bool {
    std::env::var("PEER_MODE").as_deref() != Ok("default")
}

/// Does what the words on the command line ask for. `publish` says how long it took, `drain` what was
/// counted.
pub async fn run(
    prepare: impl AsyncFnOnce(&str) -> Outcome<()>,
    publish: impl AsyncFnOnce(&str, usize) -> Outcome<Duration>,
    drain: impl AsyncFnOnce(&str, usize) -> Outcome<Figures>,
) -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let url = std::env::var("DATABASE_URL")?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => {
            prepare(&url).await?;
            json!({})
        }
        Some("publish") => {
            json!({"jobs": count, "seconds": publish(&url, count).await?.as_secs_f64()})
        }
        Some("drain") => drain(&url, count).await?.0,
        other => {
            return Err(format!("verb: must be prepare, publish or drain, got {other:?}").into());
        }
    };
    println!("{answer}");
    Ok(())
}

/// What a drain answers.
pub struct Figures(Value);

/// Counts jobs from the moment a drain begins. There is one a process, since not every handler can be handed
/// something.
pub struct Count {
    expected: usize,
    began: Instant,
    done: AtomicUsize,
    most: OnceLock<(usize, Instant)>,
    all: Notify,
}

static COUNT: OnceLock<Count> = OnceLock::new();

impl Count {
    pub fn start(expected: usize) -> &'static Self {
        COUNT.get_or_init(|| Self {
            expected,
            began: Instant::now(),
            done: AtomicUsize::new(0),
            most: OnceLock::new(),
            all: Notify::new(),
        })
    }

    pub fn add(&self, jobs: usize) {
        let done = self.done.fetch_add(jobs, Ordering::Relaxed) + jobs;
        if done >= self.expected - self.expected / 4 {
            self.most.get_or_init(|| (done, Instant::now()));
        }
        if done >= self.expected {
            self.all.notify_one();
        }
    }

    /// Waits until every job was counted; for one who waits.
    pub async fn all(&self) {
        self.all.notified().await;
    }

    /// To be called when every completion is stored.
    pub fn figures(&self) -> Outcome<Figures> {
        let (jobs, seconds) = (
            self.done.load(Ordering::Relaxed),
            self.began.elapsed().as_secs_f64(),
        );
        let (before, at) = self
            .most
            .get()
            .ok_or("fewer jobs were done than expected")?;
        let last = json!({"jobs": jobs - before, "seconds": at.elapsed().as_secs_f64()});
        Ok(Figures(
            json!({"jobs": jobs, "seconds": seconds, "last": last}),
        ))
    }
}

/// For a handler that is handed nothing: counts its job.
pub fn done() {
    if let Some(count) = COUNT.get() {
        count.add(1);
    }
}

/// Where the source of a crate lies, for the schema that comes with it as files alone.
pub fn source_of(name: &str) -> Outcome<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let done = Command::new("cargo")
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--format-version=1",
            "--manifest-path",
        ])
        .arg(workspace)
        .output()?;
    let told: Value = serde_json::from_slice(&done.stdout)?;
    let packages = told["packages"].as_array().into_iter().flatten();
    let manifest = packages
        .filter(|package| package["name"] == name)
        .find_map(|found| found["manifest_path"].as_str());
    let folder = manifest
        .and_then(|path| Path::new(path).parent())
        .ok_or_else(|| format!("{name}: no source"))?;
    Ok(folder.to_path_buf())
}
