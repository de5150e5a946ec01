//! Publishing: the functions of the schema and of the library, compared with bare SQL into the same
//! table, with the same columns, in transactions of the same size.

use std::fmt::Write;
use std::io::Cursor;
use std::pin::pin;
use std::time::Instant;

use futures_util::SinkExt;
use serde_json::{Value, json};
use tidegate::NewEvent;
use tidegate_core::queue;
use tokio_postgres::types::Type;

use crate::events::{Note, Work};
use crate::measure::{Findings, Outcome, rate};
use crate::setup::{Bench, Queue, ROUNDS};

const RATE: &str = "events/s";

/// Events in one transaction.
const BATCH: u32 = 1000;

/// What an event has besides its kind and its payload.
#[derive(Debug, Clone, Copy)]
struct Keys {
    name: &'static str,
    /// One of a hundred groups.
    group: bool,
    /// A unique deduplication key.
    dedup: bool,
}

const KEYS: [Keys; 3] = [
    Keys {
        name: "",
        group: false,
        dedup: false,
    },
    Keys {
        name: ", groups",
        group: true,
        dedup: false,
    },
    Keys {
        name: ", groups and dedup keys",
        group: true,
        dedup: true,
    },
];

/// One event as a producer holds it.
struct Sample {
    payload: String,
    group: Option<String>,
    dedup: Option<String>,
}

impl Keys {
    fn samples(self, count: u32) -> Outcome<Vec<Sample>> {
        let sample = |n: u32| {
            Ok(Sample {
                payload: serde_json::to_string(&Note::new(n.into()))?,
                group: self.group.then(|| format!("group-{}", n % 100)),
                dedup: self.dedup.then(|| format!("key-{n}")),
            })
        };
        (0..count).map(sample).collect()
    }

    fn events(self, count: u32) -> Outcome<Vec<NewEvent>> {
        let event = |n: u32| {
            let mut event = NewEvent::of(&Work::Noop(Note::new(n.into())))?;
            if self.group {
                event = event.group(format!("group-{}", n % 100));
            }
            if self.dedup {
                event = event.dedup(format!("key-{n}"));
            }
            Ok(event)
        };
        (0..count).map(event).collect()
    }
}

pub async fn run(bench: &Bench) -> Outcome<Findings> {
    let queue = bench.queue("publish").await?;
    let mut found = Findings::default();
    for _ in bench.rounds(ROUNDS) {
        single(&queue, bench.scaled(2000), &mut found).await?;
        for keys in KEYS {
            batches(&queue, bench.scaled(50_000), keys, &mut found).await?;
        }
    }
    for name in ["SQL publish, one by one", "Rust publish, one by one"] {
        found.compare(name, "bare INSERT, one by one");
    }
    for Keys { name, .. } in KEYS {
        let bare = format!("bare INSERT of 1,000{name}");
        found.at_least(&format!("Rust publish_batch of 1,000{name}"), 0.95, &bare);
        found.at_least(&format!("SQL publish_many of 1,000{name}"), 0.85, &bare);
        found.compare(&format!("COPY of 1,000{name}"), &bare);
    }
    found.compare("bare INSERT of 1,000, as VALUES", "bare INSERT of 1,000");
    found.note("bare INSERT: four arrays, SELECT … FROM unnest, no RETURNING, no checks, no locks; groups: 100 in each 1,000");
    bench.drop(queue).await?;
    Ok(found)
}

/// Publishes into an empty queue while the disk is idle, checks that all events arrived, and
/// returns the rate.
async fn timed(queue: &Queue, count: u32, work: impl Future<Output = Outcome<()>>) -> Outcome<f64> {
    queue.clear().await?;
    queue.settle().await?;
    let began = Instant::now();
    work.await?;
    let elapsed = began.elapsed();
    let rows = queue
        .number("SELECT count(*) FROM tidegate.event_queue")
        .await?;
    if rows != i64::from(count) {
        return Err(format!("{count} events were published, {rows} are there").into());
    }
    Ok(rate(count, elapsed))
}

async fn single(queue: &Queue, count: u32, found: &mut Findings) -> Outcome<()> {
    let plain = KEYS[0];
    let (samples, events) = (plain.samples(count)?, plain.events(count)?);
    for (name, sql) in [
        (
            "SQL publish, one by one",
            "SELECT * FROM tidegate.publish('bench_noop', $1::text::jsonb)",
        ),
        (
            "bare INSERT, one by one",
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('bench_noop', $1::text::json)",
        ),
    ] {
        let one_by_one = async {
            for sample in &samples {
                let payload = (&sample.payload as _, Type::TEXT);
                queue.client.query_typed(sql, &[payload]).await?;
            }
            Ok(())
        };
        found.add(name, RATE, timed(queue, count, one_by_one).await?);
    }
    let one_by_one = async {
        for event in &events {
            queue::publish(&queue.client, event).await?;
        }
        Ok(())
    };
    let rate = timed(queue, count, one_by_one).await?;
    found.add("Rust publish, one by one", RATE, rate);
    Ok(())
}

async fn batches(queue: &Queue, count: u32, keys: Keys, found: &mut Findings) -> Outcome<()> {
    let size = usize::try_from(BATCH)?;
    let (samples, events) = (keys.samples(count)?, keys.events(count)?);
    let documents = documents(&samples, size)?;
    let mut add = |name: &str, rate| found.add(format!("{name}{}", keys.name), RATE, rate);
    let publish_batch = async {
        for batch in events.chunks(size) {
            queue::publish_batch(&queue.client, batch).await?;
        }
        Ok(())
    };
    let rate = timed(queue, count, publish_batch).await?;
    add("Rust publish_batch of 1,000", rate);
    let publish_many = async {
        for document in &documents {
            let events = [(document as _, Type::TEXT)];
            queue.client.query_typed(PUBLISH_MANY, &events).await?;
        }
        Ok(())
    };
    let rate = timed(queue, count, publish_many).await?;
    add("SQL publish_many of 1,000", rate);
    let insert = async {
        for batch in samples.chunks(size) {
            bare_insert(queue, batch).await?;
        }
        Ok(())
    };
    let rate = timed(queue, count, insert).await?;
    add("bare INSERT of 1,000", rate);
    let rate = timed(queue, count, copy(queue, &samples, size)).await?;
    add("COPY of 1,000", rate);
    if !keys.group {
        let rate = timed(queue, count, insert_values(queue, &samples, size)).await?;
        add("bare INSERT of 1,000, as VALUES", rate);
    }
    Ok(())
}

const PUBLISH_MANY: &str = "SELECT * FROM tidegate.publish_many($1::text::jsonb)";

async fn copy(queue: &Queue, samples: &[Sample], size: usize) -> Outcome<()> {
    let sql = "COPY tidegate.event_queue (kind, payload, group_key, dedup_key) FROM STDIN";
    for batch in samples.chunks(size) {
        let mut sink = pin!(queue.client.copy_in(sql).await?);
        sink.send(Cursor::new(copy_text(batch).into_bytes()))
            .await?;
        sink.finish().await?;
    }
    Ok(())
}

async fn insert_values(queue: &Queue, samples: &[Sample], size: usize) -> Outcome<()> {
    for batch in samples.chunks(size) {
        queue.client.batch_execute(&values_text(batch)).await?;
    }
    Ok(())
}

fn documents(samples: &[Sample], size: usize) -> Outcome<Vec<String>> {
    let document = |batch: &[Sample]| {
        let events: Vec<Value> = batch
            .iter()
            .map(|sample| {
                let payload: Value = serde_json::from_str(&sample.payload)?;
                let mut event = json!({"kind": "bench_noop", "payload": payload});
                for (name, key) in [("group_key", &sample.group), ("dedup_key", &sample.dedup)] {
                    if let Some(key) = key {
                        event[name] = json!(key);
                    }
                }
                Ok(event)
            })
            .collect::<Outcome<_>>()?;
        Ok(serde_json::to_string(&events)?)
    };
    samples.chunks(size).map(document).collect()
}

async fn bare_insert(queue: &Queue, batch: &[Sample]) -> Outcome<()> {
    let kinds = vec!["bench_noop"; batch.len()];
    let payloads: Vec<&str> = batch.iter().map(|sample| &*sample.payload).collect();
    let groups: Vec<Option<&str>> = batch.iter().map(|sample| sample.group.as_deref()).collect();
    let dedups: Vec<Option<&str>> = batch.iter().map(|sample| sample.dedup.as_deref()).collect();
    let sql = "INSERT INTO tidegate.event_queue (kind, payload, group_key, dedup_key)
               SELECT kind, payload::json, group_key, dedup_key
                 FROM unnest($1, $2, $3, $4) AS e(kind, payload, group_key, dedup_key)";
    let array = Type::TEXT_ARRAY;
    let client = &queue.client;
    client
        .query_typed(
            sql,
            &[
                (&kinds, array.clone()),
                (&payloads, array.clone()),
                (&groups, array.clone()),
                (&dedups, array),
            ],
        )
        .await?;
    Ok(())
}

/// The payloads contain nothing that needs escaping in COPY's text format or in a quoted literal.
fn copy_text(batch: &[Sample]) -> String {
    let column = |key: &Option<String>| key.clone().unwrap_or_else(|| "\\N".to_owned());
    batch.iter().fold(String::new(), |mut text, sample| {
        let (group, dedup) = (column(&sample.group), column(&sample.dedup));
        let _ = writeln!(text, "bench_noop\t{}\t{group}\t{dedup}", sample.payload);
        text
    })
}

fn values_text(batch: &[Sample]) -> String {
    let rows: Vec<String> = batch
        .iter()
        .map(|sample| format!("('bench_noop', '{}')", sample.payload))
        .collect();
    format!(
        "INSERT INTO tidegate.event_queue (kind, payload) VALUES {}",
        rows.join(", ")
    )
}
