//! Tidegate's runner for `make bench-peers`: `prepare`, `publish N`, `drain N`, with the library's defaults.
//! At a steady rate, `steady SECONDS RATE`, one drain follows another: each has the default budget and
//! lingers.

#[path = "../../common/src/steady.rs"]
mod steady;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::migrate::Migrate;
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, DrainReport, Event, Handlers, Hooks,
    drain_with, publish_batch,
};

use self::steady::Steady;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The payload of every peer.
#[derive(Serialize, Deserialize)]
struct Note {
    number: usize,
    text: String,
}

impl Work {
    fn new(number: usize) -> Self {
        Self::Noop(Note {
            number,
            text: "x".repeat(170),
        })
    }
}

tidegate::events! {
    enum Work {
        Noop(Note) = "noop",
    }
}

/// The program, which notes when jobs start that were published at a steady rate.
struct App(Option<Arc<Steady>>);

impl Dispatch for App {
    type Event = Work;

    fn handlers<'a>(&'a self, event: &'a Work, _: &'a Context) -> Handlers<'a> {
        match event {
            Work::Noop(note) => Handlers::one("noop", async {
                if let Some(steady) = &self.0 {
                    steady.started(note.number);
                }
                Ok(Done::ok())
            }),
        }
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let database = Database::new(&std::env::var("DATABASE_URL")?, 8)?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => {
            Migrate::new(Work::KINDS).run(&database).await?;
            json!({})
        }
        Some("publish") => publish(&database, count).await?,
        Some("drain") => drain(&database, count).await?,
        Some("steady") => run_steadily(database).await?,
        other => {
            return Err(
                format!("verb: must be prepare, publish, drain or steady, got {other:?}").into(),
            );
        }
    };
    println!("{answer}");
    Ok(())
}

async fn publish(database: &Database, count: usize) -> Outcome<Value> {
    let client = database.connect().await?;
    let began = Instant::now();
    for start in (0..count).step_by(1000) {
        let events: Vec<Work> = (start..count.min(start + 1000)).map(Work::new).collect();
        publish_batch(&client, &events).await?;
    }
    Ok(json!({"jobs": count, "seconds": began.elapsed().as_secs_f64()}))
}

async fn drain(database: &Database, count: usize) -> Outcome<Value> {
    let most = u64::try_from(count - count / 4)?;
    let (progress, mut told) = watch::channel(DrainReport::default());
    let hooks = Hooks {
        progress: Some(progress),
        ..Hooks::default()
    };
    let options = DrainOptions {
        budget: Duration::from_mins(30),
        ..DrainOptions::default()
    };
    let began = Instant::now();
    let most = tokio::spawn(async move {
        let _ = told.wait_for(|report| report.completed >= most).await;
        (told.borrow().completed, began.elapsed().as_secs_f64())
    });
    let report = drain_with(database, Arc::new(App(None)), &options, hooks).await?;
    let seconds = began.elapsed().as_secs_f64();
    let (before, at) = most.await?;
    Ok(json!({"jobs": report.completed, "seconds": seconds,
              "last": {"jobs": report.completed - before, "seconds": seconds - at}}))
}

async fn run_steadily(database: Database) -> Outcome<Value> {
    let asked = steady::asked().ok_or("steady: must be followed by seconds and jobs a second")?;
    let steady = Arc::new(Steady::default());
    let client = database.connect().await?;
    let (stop, stopped) = watch::channel(false);
    let draining = tokio::spawn(drain_steadily(database, steady.clone(), stopped));
    let send = async |numbers: Range<usize>| {
        let events: Vec<Work> = numbers.map(Work::new).collect();
        publish_batch(&client, &events).await.map(|_| ())
    };
    steady.publish(asked, send).await?;
    stop.send_replace(true);
    draining.await??;
    Ok(steady.answer())
}

async fn drain_steadily(
    database: Database,
    steady: Arc<Steady>,
    stopped: watch::Receiver<bool>,
) -> Outcome<()> {
    let options = DrainOptions::default();
    let options = DrainOptions {
        linger: options.budget,
        ..options
    };
    while !*stopped.borrow() {
        let hooks = Hooks {
            stop: Some(stopped.clone()),
            ..Hooks::default()
        };
        drain_with(
            &database,
            Arc::new(App(Some(steady.clone()))),
            &options,
            hooks,
        )
        .await?;
    }
    Ok(())
}
