//! Tidegate's runner for a public harness, hardbyte/postgresql-job-queue-benchmarking: it publishes what the
//! harness asks for on standard input, drains at the same time, and prints samples. One drain follows
//! another, and each lingers, as ticks would start them. The harness sets the environment: its
//! `CONTRIBUTING_ADAPTERS.md` is the contract.

use std::collections::VecDeque;
use std::io::BufRead;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, Event, Handlers, Hooks, drain_with,
    publish_batch,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How long to wait after a failure of a connection or a drain.
const PAUSE: Duration = Duration::from_millis(200);
/// How many requests to publish may wait.
const REQUESTS: usize = 4096;
/// What the harness calls a rolling window of latencies.
const WINDOW_S: u64 = 30;
/// Classes of waits: each is a thousandth wider than the one before, up to three hours in microseconds.
const CLASSES: usize = 23_200;

/// A job of a process, `run`, which numbers its jobs: what is lost can be counted in the database.
#[derive(Serialize, Deserialize)]
struct Job {
    run: u64,
    number: u64,
    /// In microseconds since 1970, just before it was published.
    at: u64,
    text: String,
}

tidegate::events! {
    enum Work {
        Job(Job) = "job",
    }
}

/// What the harness asks for.
struct Asked {
    rate: f64,
    batch: usize,
    tick: Duration,
    workers: usize,
    bytes: usize,
    work: Duration,
    every_s: u64,
    instance: u64,
    paces: bool,
}

impl Asked {
    fn read() -> Outcome<Self> {
        if variable("PRODUCER_MODE", String::from("fixed"))? != "fixed" {
            return Err("PRODUCER_MODE: must be fixed".into());
        }
        Ok(Self {
            rate: variable("PRODUCER_RATE", 800.0)?,
            batch: variable("PRODUCER_BATCH_MAX", 128)?,
            tick: Duration::from_millis(variable("PRODUCER_BATCH_MS", 25)?),
            workers: variable("WORKER_COUNT", 32)?,
            bytes: variable("JOB_PAYLOAD_BYTES", 256)?,
            work: Duration::from_millis(variable("JOB_WORK_MS", 1)?),
            every_s: variable("SAMPLE_EVERY_S", 5)?,
            instance: variable("BENCH_INSTANCE_ID", 0)?,
            paces: variable("PRODUCER_PACING", String::from("harness"))? == "harness",
        })
    }
}

fn variable<T: FromStr>(name: &str, default: T) -> Outcome<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name}: {text}").into()),
        Err(_) => Ok(default),
    }
}

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// Counts since the start, and waits of the last 30 s.
struct Figures {
    published: AtomicU64,
    completed: AtomicU64,
    /// How many waits of each class, for each sample; the newest is the last.
    waits: Mutex<VecDeque<Vec<u32>>>,
}

impl Figures {
    fn new() -> Self {
        Self {
            published: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            waits: Mutex::new(VecDeque::from([vec![0; CLASSES]])),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    fn waited(&self, micros: u64) {
        let class = ((micros.max(1) as f64).ln() * 1000.0) as usize;
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = waits.back_mut() {
            newest[class.min(CLASSES - 1)] += 1;
        }
    }

    /// The waits in milliseconds that so many of a hundred do not exceed. Begins a new sample.
    #[expect(clippy::cast_precision_loss)]
    fn percentiles(&self, samples: usize) -> [f64; 3] {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |class: usize| waits.iter().map(|sample| u64::from(sample[class])).sum();
        let classes: Vec<u64> = (0..CLASSES).map(sum).collect();
        waits.push_back(vec![0; CLASSES]);
        while waits.len() > samples {
            waits.pop_front();
        }
        let all: u64 = classes.iter().sum();
        [50, 95, 99].map(|percent| {
            let mut before = 0;
            let reached = classes.iter().position(|count| {
                before += count;
                all > 0 && before * 100 >= all * percent
            });
            reached.map_or(0.0, |class| ((class as f64 + 0.5) / 1000.0).exp() / 1000.0)
        })
    }
}

/// The program: a handler that takes as long as the harness asks for.
struct App {
    work: Duration,
    figures: Arc<Figures>,
}

impl Dispatch for App {
    type Event = Work;

    fn handlers<'a>(&'a self, event: &'a Work, _: &'a Context) -> Handlers<'a> {
        let Work::Job(job) = event;
        Handlers::one("work", async {
            self.figures.waited(micros().saturating_sub(job.at));
            sleep(self.work).await;
            self.figures.completed.fetch_add(1, Ordering::Relaxed);
            Ok(Done::ok())
        })
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let asked = Arc::new(Asked::read()?);
    let database = Database::new(&std::env::var("DATABASE_URL")?, 8)?;
    Migrate::new(Work::KINDS).run(&database).await?;
    emit(
        &asked,
        &json!({"kind": "descriptor", "event_tables": ["tidegate.event_queue", "tidegate.lease"], "extensions": [],
                "version": env!("CARGO_PKG_VERSION"), "db_name": "tidegate_bench", "started_at": now()}),
    );
    let figures = Arc::new(Figures::new());
    let (stop, stopped) = watch::channel(false);
    let drains = tokio::spawn(drains(
        database.clone(),
        asked.clone(),
        figures.clone(),
        stopped,
    ));
    let (requests, wanted) = mpsc::channel(REQUESTS);
    tokio::spawn(publisher(
        database.clone(),
        asked.clone(),
        figures.clone(),
        wanted,
    ));
    if asked.paces {
        std::thread::spawn(move || read_requests(&requests));
    } else {
        tokio::spawn(pace(asked.clone(), requests));
    }
    let sampler = tokio::spawn(sampler(database, asked.clone(), figures.clone()));
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    sampler.abort();
    stop.send_replace(true);
    // The harness waits for 10 s.
    let _ = tokio::time::timeout(Duration::from_secs(5), drains).await;
    std::process::exit(0)
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn emit(asked: &Asked, line: &serde_json::Value) {
    let mut line = line.clone();
    line["system"] = json!("tidegate");
    line["instance_id"] = json!(asked.instance);
    println!("{line}");
}

/// Passes on `ENQUEUE n`, until the harness ends.
fn read_requests(requests: &mpsc::Sender<usize>) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let asked = line
            .strip_prefix("ENQUEUE ")
            .and_then(|count| count.trim().parse().ok());
        if let Some(count) = asked
            && requests.blocking_send(count).is_err()
        {
            return;
        }
    }
}

/// Asks in place of the harness, at the rate of its file, which alone knows of its phases with more load.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
async fn pace(asked: Arc<Asked>, requests: mpsc::Sender<usize>) {
    let file = std::env::var("PRODUCER_RATE_CONTROL_FILE").unwrap_or_default();
    let (mut credit, mut last, mut ticks) = (0.0, Instant::now(), interval(asked.tick));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let told = std::fs::read_to_string(&file).ok();
        let rate = told.and_then(|text| text.trim().parse().ok());
        credit += rate.unwrap_or(asked.rate) * last.elapsed().as_secs_f64();
        last = Instant::now();
        while credit >= 1.0 {
            let count = (credit as usize).min(asked.batch);
            credit -= count as f64;
            if requests.send(count).await.is_err() {
                return;
            }
        }
    }
}

/// Publishes each request as one batch. A batch without an answer is not sent again: it may be stored.
/// Standard error has its numbers, so that whoever counts knows which may be missing.
async fn publisher(
    database: Database,
    asked: Arc<Asked>,
    figures: Arc<Figures>,
    mut wanted: mpsc::Receiver<usize>,
) {
    let (run, mut number, text) = (micros(), 0, "x".repeat(asked.bytes.saturating_sub(80)));
    let mut client: Option<Client> = None;
    while let Some(count) = wanted.recv().await {
        let client = connected(&database, &mut client).await;
        let (from, at) = (number, micros());
        number += count as u64;
        let job = |number| Job {
            run,
            number,
            at,
            text: text.clone(),
        };
        let jobs: Vec<Work> = (from..number).map(job).map(Work::Job).collect();
        match publish_batch(&**client, &jobs).await {
            Ok(_) => {
                figures.published.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) => eprintln!("no answer: run {run}, {from} to {}: {error}", number - 1),
        }
    }
}

/// Returns the client, or another if its connection has ended; waits until there is one.
async fn connected<'a>(database: &Database, client: &'a mut Option<Client>) -> &'a mut Client {
    if client.as_ref().is_some_and(|client| client.is_closed()) {
        *client = None;
    }
    while client.is_none() {
        match database.connect().await {
            Ok(opened) => *client = Some(opened),
            Err(_) => sleep(PAUSE).await,
        }
    }
    client.as_mut().expect("there is one")
}

async fn drains(
    database: Database,
    asked: Arc<Asked>,
    figures: Arc<Figures>,
    stopped: watch::Receiver<bool>,
) {
    let options = DrainOptions::default();
    let options = DrainOptions {
        linger: options.budget,
        concurrency: asked.workers,
        ..options
    };
    let app = Arc::new(App {
        work: asked.work,
        figures,
    });
    while !*stopped.borrow() {
        let hooks = Hooks {
            stop: Some(stopped.clone()),
            ..Hooks::default()
        };
        if let Err(error) = drain_with(&database, app.clone(), &options, hooks).await {
            eprintln!("drain failed: {error}");
            sleep(PAUSE).await;
        }
    }
}

/// Prints what the harness requires, on multiples of its interval.
#[expect(clippy::cast_precision_loss)]
async fn sampler(database: Database, asked: Arc<Asked>, figures: Arc<Figures>) {
    let every = asked.every_s.max(1);
    let samples = usize::try_from((WINDOW_S / every).max(1)).unwrap_or(1);
    let (mut published, mut completed) = (0, 0);
    let mut client = None;
    loop {
        let period = every * 1_000_000;
        sleep(Duration::from_micros(period - micros() % period)).await;
        let [p50, p95, p99] = figures.percentiles(samples);
        let rate = |counter: &AtomicU64, before: &mut u64| {
            let count = counter.load(Ordering::Relaxed);
            (count - std::mem::replace(before, count)) as f64 / every as f64
        };
        let enqueued = rate(&figures.published, &mut published);
        let done = rate(&figures.completed, &mut completed);
        let mut lines = vec![
            ("claim_p50_ms", p50, WINDOW_S),
            ("claim_p95_ms", p95, WINDOW_S),
            ("claim_p99_ms", p99, WINDOW_S),
            ("enqueue_rate", enqueued, every),
            ("completion_rate", done, every),
        ];
        if asked.instance == 0
            && let Some(depth) = depth(&database, &mut client).await
        {
            lines.push(("queue_depth", depth, 0));
        }
        for (metric, value, window) in lines {
            emit(
                &asked,
                &json!({"t": now(), "kind": "adapter", "subject_kind": "adapter", "subject": "",
                                 "metric": metric, "value": value, "window_s": window}),
            );
        }
    }
}

/// Counts the jobs that have not ended. A database that is away is not waited for.
#[expect(clippy::cast_precision_loss)]
async fn depth(database: &Database, client: &mut Option<Client>) -> Option<f64> {
    if client.as_ref().is_none_or(|client| client.is_closed()) {
        *client = database.connect().await.ok();
    }
    let counted = client
        .as_ref()?
        .query_one("SELECT count(*) FROM tidegate.event_queue", &[])
        .await;
    Some(counted.ok()?.get::<_, i64>(0) as f64)
}
