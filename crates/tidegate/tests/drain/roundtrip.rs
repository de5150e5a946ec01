//! Payloads of every size and make, by every way in, through a drain, the log and a replay: what comes out is
//! what went in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::value::RawValue;
use test_support::probe::{live, number, options};
use test_support::{TestDb, opened_for};
use tidegate::connect::Client;
use tidegate::{Context, Dispatch, Done, Handlers, NewEvent};
use tidegate_core::queue;
use tokio_postgres::{Error, Row};

tidegate::events! {
    pub enum Raw {
        Raw(Box<RawValue>) = "raw",
    }
}

/// Keeps what its handler is given.
#[derive(Default)]
struct Keeper(Mutex<BTreeMap<i64, String>>);

impl Dispatch for Keeper {
    type Event = Raw;

    fn handlers<'a>(&'a self, Raw::Raw(payload): &'a Raw, ctx: &'a Context) -> Handlers<'a> {
        Handlers::one("keep", async move {
            let text = payload.get().to_owned();
            self.0.lock().unwrap().insert(ctx.event_id(), text);
            Ok(Done::ok())
        })
    }
}

/// As long as a payload may be, in bytes.
const LIMIT: usize = 1 << 20;

fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

/// Of a size, in characters of two bytes.
fn wide_text_of(bytes: usize) -> String {
    format!("\"{}\"", "\u{e9}".repeat(bytes / 2 - 1))
}

fn nested(depth: usize) -> String {
    format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
}

/// Payloads that every way in takes.
fn taken() -> Vec<String> {
    let made = [
        text_of(20),
        text_of(1 << 10),
        text_of(64 << 10),
        text_of(LIMIT),
        wide_text_of(LIMIT),
        nested(1000),
    ];
    let written = [
        "null",
        "0",
        "{}",
        r#"{"order_id":1234567}"#,
        // Numbers that no double holds.
        "1e400",
        "-1.5e-400",
        "0.12345678901234567",
        "12345678901234567",
        "123456789012345678901234567890.000",
        // An accent of its own and one that is part of its letter, a family, a direction, no character.
        "\"e\u{301} \u{e9} \u{1f469}\u{200d}\u{1f467} \u{202e}a \u{ffff} \u{10ffff}\"",
        r#""\ud83d\ude00 \u00e9 \u0001 \" \\ \/ \b\f\n\r\t""#,
        r#""\\u0000""#,
        r#"{"":{"a\"b":[]}}"#,
    ];
    made.into_iter()
        .chain(written.map(ToOwned::to_owned))
        .collect()
}

/// The ways in. The last two take `jsonb`, and with it what that makes of a text.
const WAYS: [&str; 5] = ["publish", "publish_batch", "INSERT", "SQL", "publish_many"];

fn as_jsonb(way: &str) -> bool {
    ["SQL", "publish_many"].contains(&way)
}

async fn publish(client: &Client, way: &str, text: &str) -> Result<i64, String> {
    let raw = RawValue::from_string(text.to_owned()).unwrap();
    let event = NewEvent::raw("raw", Some(raw));
    let sql = match way {
        "publish" => {
            let published = queue::publish(client, &event).await;
            return published.map(|it| it.id).map_err(|error| error.to_string());
        }
        "publish_batch" => {
            let published = queue::publish_batch(client, &[event]).await;
            return published
                .map(|them| them[0].id)
                .map_err(|error| error.to_string());
        }
        "INSERT" => {
            "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('raw', $1::text::json) RETURNING id"
        }
        "SQL" => "SELECT id FROM tidegate.publish('raw', $1::text::jsonb)",
        _ => {
            "SELECT id FROM tidegate.publish_many(jsonb_build_array(jsonb_build_object('kind', 'raw', 'payload', $1::text::jsonb)))"
        }
    };
    let published: Result<Row, Error> = client.query_one(sql, &[&text]).await;
    published.map(|row| row.get(0)).map_err(|error| {
        let told = error.as_db_error().map(|told| told.message().to_owned());
        told.unwrap_or_else(|| error.to_string())
    })
}

/// What is to come out of a way.
async fn stored(client: &Client, way: &str, text: &str) -> String {
    if !as_jsonb(way) {
        return text.to_owned();
    }
    let printed = "SELECT $1::text::jsonb::text";
    client.query_one(printed, &[&text]).await.unwrap().get(0)
}

async fn drained(db: &TestDb, events: usize) -> BTreeMap<i64, String> {
    let keeper = Arc::new(Keeper::default());
    let report = tidegate::drain(&db.database(), keeper.clone(), &options()).await;
    let report = report.unwrap();
    assert_eq!(report.completed, u64::try_from(events).unwrap());
    let kept = keeper.0.lock().unwrap();
    kept.clone()
}

/// A text for a message: the beginning of it, and how long it is.
fn short(text: &str) -> String {
    let beginning: String = text.chars().take(60).collect();
    format!("{beginning} ({} bytes)", text.len())
}

#[tokio::test]
async fn b2_payloads_of_every_size_and_make_come_out_of_the_log_and_a_replay_as_they_went_in() {
    let (db, client) = opened_for::<Raw>().await;
    let mut expected = BTreeMap::new();
    for text in taken() {
        for way in WAYS {
            let id = publish(&client, way, &text).await;
            let id = id.unwrap_or_else(|error| panic!("{way}: {}: {error}", short(&text)));
            expected.insert(id, (way, stored(&client, way, &text).await));
        }
    }
    let handled = drained(&db, expected.len()).await;
    // To publish_many a null is no payload, which a handler reads as null.
    let log = "SELECT id, coalesce(payload::text, 'null') FROM tidegate.event_log";
    let logged = client.query(log, &[]).await.unwrap();
    assert_eq!(logged.len(), expected.len());
    for row in logged {
        let (id, logged): (i64, String) = (row.get(0), row.get(1));
        let (way, text) = &expected[&id];
        assert!(handled[&id] == *text, "handled: {way}: {}", short(text));
        assert!(logged == *text, "logged: {way}: {}", short(text));
    }

    let ids: Vec<i64> = expected.keys().copied().collect();
    let replay = "SELECT tidegate.replay(ids => $1, reason => 'once more')::text";
    client.query_one(replay, &[&ids]).await.unwrap();
    let replayed = drained(&db, expected.len()).await;
    let whose = "SELECT id, replay_of FROM tidegate.event_log WHERE replay_of IS NOT NULL";
    for row in client.query(whose, &[]).await.unwrap() {
        let (id, of): (i64, i64) = (row.get(0), row.get(1));
        let (way, text) = &expected[&of];
        assert!(replayed[&id] == *text, "replayed: {way}: {}", short(text));
    }
    assert_eq!((replayed.len(), live(&client).await), (expected.len(), 0));
}

#[tokio::test]
async fn b25_what_is_longer_than_the_limit_is_refused_by_every_way_in() {
    let (db, client) = opened_for::<Raw>().await;
    let too_long = "payload: must have at most 1048576 bytes, got";
    for text in [text_of(LIMIT + 1), wide_text_of(LIMIT + 2)] {
        for way in WAYS {
            let refused = publish(&client, way, &text).await.expect_err(way);
            assert!(refused.contains(too_long), "{way}: {refused}");
        }
    }
    // Half of a character: no text for jsonb; as json it is kept as it was written.
    let half = r#""\ud83d""#;
    for way in WAYS {
        let published = publish(&client, way, half).await;
        assert_eq!(published.is_err(), as_jsonb(way), "{way}: {published:?}");
    }
    let handled = drained(&db, 3).await;
    assert!(handled.values().all(|text| text == half), "{handled:?}");
    let log = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, log).await, 3);
}
