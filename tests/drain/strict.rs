//! Strict order: `TIDEGATE_ORDER=strict` makes one group of all events that are published without one. Then
//! the queue is first in, first out over any number of drains, whatever fails and whoever dies.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use test_support::TestDb;
use test_support::cli::Cli;
use test_support::probe::{
    Probe, ProbeApp, act, end_of, expire_leases, live, number, options, probe_database,
};
use tidegate::connect::Client;
use tidegate::migrate::{Migrate, Order, StoredSettings};
use tidegate::{Done, DrainOptions, Event, HandlerError, queue};

async fn order(db: &TestDb, order: Order) {
    let database = db.database();
    let settings = StoredSettings {
        order: Some(order),
        ..StoredSettings::default()
    };
    let migrate = Migrate::new(&database, Probe::KINDS).stored(settings);
    migrate.run().await.unwrap();
}

/// A queue in strict order.
async fn strict_database() -> TestDb {
    let db = probe_database().await;
    order(&db, Order::Strict).await;
    db
}

/// The ids that were done, and those that started before the one before them was done.
type Seen = (BTreeSet<i64>, Vec<i64>);

/// An application in which a third of all first attempts fails, and which takes its time.
fn moody() -> (Arc<ProbeApp>, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new((BTreeSet::new(), Vec::new())));
    let (noted, first) = (seen.clone(), 1);
    let app = ProbeApp::new(move |call, _| {
        let noted = noted.clone();
        Box::pin(async move {
            if call.id > first && !noted.lock().unwrap().0.contains(&(call.id - 1)) {
                noted.lock().unwrap().1.push(call.id);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            if call.attempt == 1 && call.id % 3 == 0 {
                return Err(HandlerError::retry("moody", "not now"));
            }
            noted.lock().unwrap().0.insert(call.id);
            Ok(Done::ok())
        })
    });
    (app, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_over_four_drains_failures_and_kills_events_start_in_the_order_of_their_publish() {
    let db = strict_database().await;
    let client = db.client().await;
    for n in 0..60 {
        queue::publish(&client, &act(&n.to_string())).await.unwrap();
        let sql = "SELECT FROM tidegate.publish('act', '{\"name\": \"by SQL\"}')";
        client.batch_execute(sql).await.unwrap();
    }
    let batch: Vec<_> = (0..30).map(|n| act(&n.to_string())).collect();
    queue::publish_batch(&client, &batch).await.unwrap();
    let (app, seen) = moody();
    while live(&client).await > 0 {
        let drains: Vec<_> = (0..4)
            .map(|_| tokio::spawn(die_or_drain(db.database(), app.clone())))
            .collect();
        for drain in drains {
            drain.await.unwrap();
        }
        expire_leases(&client).await;
    }
    let (done, early) = seen.lock().unwrap().clone();
    assert_eq!((done.len(), early), (150, Vec::new()));
    let ended = "SELECT count(*) FROM (SELECT id, lag(id) OVER (ORDER BY finished_at, id) AS before FROM tidegate.event_log) AS l
                  WHERE before > id";
    assert_eq!(number(&client, ended).await, 0);
    let completed = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED'";
    assert_eq!(number(&client, completed).await, 150);
}

/// Half of the drains die within a few events.
async fn die_or_drain(database: tidegate::Database, app: Arc<ProbeApp>) {
    static DIES: AtomicBool = AtomicBool::new(false);
    let dies = DIES.fetch_xor(true, Ordering::Relaxed);
    let options = DrainOptions {
        budget: Duration::from_secs(20),
        ..options()
    };
    let drain = tidegate::drain(&database, app, &options);
    if dies {
        let _ = tokio::time::timeout(Duration::from_millis(30), drain).await;
    } else {
        let _ = drain.await;
    }
}

async fn group_of(client: &Client, id: i64) -> Option<String> {
    let sql = "SELECT group_key FROM tidegate.event_queue WHERE id = $1";
    client.query_one(sql, &[&id]).await.unwrap().get(0)
}

#[tokio::test]
async fn every_way_in_leads_into_the_one_group_or_is_refused() {
    let db = strict_database().await;
    let client = db.client().await;
    let own = queue::publish(&client, &act("own").group("g"))
        .await
        .unwrap()
        .id;
    assert_eq!(group_of(&client, own).await.as_deref(), Some("g"));
    let plain = "INSERT INTO tidegate.event_queue (kind) VALUES ('note')";
    let refused = client.batch_execute(plain).await.unwrap_err();
    let said = refused.as_db_error().unwrap().message();
    assert_eq!(
        said,
        "group_key: must be set by publish(), because this queue is in strict order (TIDEGATE_ORDER=strict)"
    );
    let many = json!([{"kind": "note"}, {"kind": "note", "group_key": "g"}, {"kind": "note", "dedup_key": "k"}]);
    let rows = client
        .query("SELECT id FROM tidegate.publish_many($1)", &[&many])
        .await
        .unwrap();
    let mut groups = Vec::new();
    for row in rows {
        groups.push(group_of(&client, row.get(0)).await);
    }
    let strict = || Some("strict".to_owned());
    assert_eq!(groups, [strict(), Some("g".to_owned()), strict()]);
    // A replay goes behind what is live.
    let first = queue::publish(&client, &act("a")).await.unwrap().id;
    client
        .execute("DELETE FROM tidegate.events WHERE id = $1", &[&first])
        .await
        .unwrap();
    let replay = ["replay", "--id", &first.to_string(), "--reason", "again"];
    let replayed = Cli::on(&db).json(&replay).await["events"][0]["id"]
        .as_i64()
        .unwrap();
    assert_eq!(group_of(&client, replayed).await, strict());
    // It ends with what is published then.
    order(&db, Order::Id).await;
    let free = queue::publish(&client, &act("free")).await.unwrap().id;
    assert_eq!(group_of(&client, free).await, None);
    client.batch_execute(plain).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_holds_up_all_others_until_it_has_ended() {
    let db = strict_database().await;
    let client = db.client().await;
    let stubborn = queue::publish(&client, &act("stubborn").max_attempts(2))
        .await
        .unwrap()
        .id;
    queue::publish(&client, &act("behind")).await.unwrap();
    let app = ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "stubborn" => Err(HandlerError::retry("no", "never").after(Duration::from_hours(1))),
            _ => Ok(Done::ok()),
        }
    });
    let drain = async || test_support::probe::drain(&db, &app, &options()).await;
    drain().await;
    assert_eq!((app.ids(), live(&client).await), (vec![stubborn], 2));
    let unblock = ["unblock", "strict", "--retry", "--reason", "try again"];
    Cli::on(&db).json(&unblock).await;
    drain().await;
    let end = end_of(&client, stubborn).await;
    assert!(end.starts_with("FAILED "), "{end}");
    assert_eq!(live(&client).await, 0);
}
