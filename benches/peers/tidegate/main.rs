//! Tidegate's runner for `make bench-peers`: `prepare`, `publish N`, `drain N`, with the library's defaults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::migrate::Migrate;
use tidegate::{
    Context, Database, Dispatch, Done, DrainOptions, DrainReport, Event, Handlers, Hooks,
    drain_with, publish_batch,
};
use tokio::sync::watch;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The payload of every peer.
#[derive(Serialize, Deserialize)]
struct Note {
    number: u64,
    text: String,
}

tidegate::events! {
    enum Work {
        Noop(Note) = "noop",
    }
}

struct App;

impl Dispatch for App {
    type Event = Work;

    fn handlers<'a>(&'a self, event: &'a Work, _: &'a Context) -> Handlers<'a> {
        match event {
            Work::Noop(_) => Handlers::one("noop", async { Ok(Done::ok()) }),
        }
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let count = words.get(1).map_or(Ok(0), |word| word.parse())?;
    let database = Database::new(&std::env::var("DATABASE_URL")?, 8)?;
    let answer = match words.first().map(String::as_str) {
        Some("prepare") => {
            Migrate::new(&database, Work::KINDS).run().await?;
            json!({})
        }
        Some("publish") => publish(&database, count).await?,
        Some("drain") => drain(&database, count).await?,
        other => {
            return Err(format!("verb: must be prepare, publish or drain, got {other:?}").into());
        }
    };
    println!("{answer}");
    Ok(())
}

async fn publish(database: &Database, count: u64) -> Outcome<Value> {
    let client = database.connect().await?;
    let began = Instant::now();
    let numbers: Vec<u64> = (0..count).collect();
    for batch in numbers.chunks(1000) {
        let events: Vec<Work> = batch
            .iter()
            .map(|&number| {
                Work::Noop(Note {
                    number,
                    text: "x".repeat(170),
                })
            })
            .collect();
        publish_batch(&client, &events).await?;
    }
    Ok(json!({"jobs": count, "seconds": began.elapsed().as_secs_f64()}))
}

async fn drain(database: &Database, count: u64) -> Outcome<Value> {
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
        let _ = told
            .wait_for(|report| report.completed >= count - count / 4)
            .await;
        (told.borrow().completed, began.elapsed().as_secs_f64())
    });
    let report = drain_with(database, Arc::new(App), &options, hooks).await?;
    let seconds = began.elapsed().as_secs_f64();
    let (before, at) = most.await?;
    Ok(json!({"jobs": report.completed, "seconds": seconds,
              "last": {"jobs": report.completed - before, "seconds": seconds - at}}))
}
