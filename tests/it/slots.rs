//! How many drains work at once, and what they say is left to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::drain::StopReason;
use tidegate::queue::{self, Left};
use tidegate::{Done, DrainOptions, DrainReport, HandlerError, drain};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::probe::{ProbeApp, act, number, options, probe_database, publish_acts};
use crate::support::{PATIENCE, wait_until};

const KINDS: &[&str] = &["act", "note", "pair"];

const TAKEN: &str = "SELECT count(*) FROM tidegate.drain_slot WHERE until > clock_timestamp()";

async fn left(client: &Client) -> Left {
    queue::left_to_do(client, KINDS).await.unwrap()
}

async fn due(client: &Client) -> Option<f64> {
    let due = left(client).await.next_due_at?;
    let seconds = "SELECT extract(epoch FROM $1::text::timestamptz - clock_timestamp())::float8";
    let row = client.query_one(seconds, &[&due]).await.unwrap();
    Some(row.get(0))
}

#[tokio::test]
async fn what_is_left_is_what_a_drain_could_take() {
    let db = probe_database().await;
    let client = db.client().await;
    assert_eq!(left(&client).await, Left::default());
    for event in [
        act("planned").delay(Duration::from_hours(2)),
        act("first of a group")
            .group("g")
            .delay(Duration::from_hours(1)),
        act("behind it").group("g"),
        act("free"),
        act("first of another").group("h"),
        act("behind that").group("h"),
    ] {
        queue::publish(&client, &event).await.unwrap();
    }
    assert_eq!(left(&client).await.ready, 3);
    let seconds = due(&client).await.unwrap();
    assert!((3500.0..=3600.0).contains(&seconds), "{seconds}");
    let pause = "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'act'";
    client.execute(pause, &[]).await.unwrap();
    assert_eq!(left(&client).await, Left::default());
    let resume = "UPDATE tidegate.event_kind SET paused = false";
    client.execute(resume, &[]).await.unwrap();
    let others = queue::left_to_do(&client, &["note"]).await.unwrap();
    assert_eq!(others, Left::default());
    let down = "INSERT INTO tidegate.service (service, state, kinds, retry_at)
                VALUES ('s', 'open', '{act}', clock_timestamp() + interval '1 minute')";
    client.execute(down, &[]).await.unwrap();
    assert_eq!(left(&client).await.ready, 0);
    let seconds = due(&client).await.unwrap();
    assert!((1.0..=60.0).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_drain_tells_what_it_has_left_and_when_there_is_more_to_do() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 300).await;
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            match call.id % 2 {
                0 => Err(HandlerError::retry("x", "y").after(Duration::from_mins(5))),
                _ => Ok(Done::ok()),
            }
        })
    });
    let limited = DrainOptions {
        max_events: Some(100),
        ..DrainOptions::default()
    };
    let report = drain(&db.database(), app.clone(), &limited).await.unwrap();
    assert_eq!((report.leased, report.ready_left), (100, 200), "{report:?}");
    let report = drain(&db.database(), app, &DrainOptions::default())
        .await
        .unwrap();
    // Retries are no work that is left.
    assert_eq!((report.backlog, report.ready_left), (150, 0), "{report:?}");
    let seconds = due(&client).await.unwrap();
    assert!((1.0..=300.0).contains(&seconds), "{seconds}");
    assert!(report.next_due_at.is_some());
    assert_eq!(number(&client, TAKEN).await, 0);
}

/// Drains that are invoked a hundred times at once.
async fn hundred(db: &crate::support::TestDb, app: &Arc<ProbeApp>, most: u16) -> Vec<DrainReport> {
    let options = DrainOptions {
        max_drains: most,
        ..DrainOptions::default()
    };
    let database = db.database();
    let drains = (0..100).map(|_| drain(&database, app.clone(), &options));
    let ended = futures_util::future::join_all(drains).await;
    ended.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn however_often_one_is_invoked_so_many_drains_work_at_once() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 400).await;
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let counted = running.clone();
    let app = ProbeApp::new(move |_, _| {
        let counted = counted.clone();
        Box::pin(async move {
            let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
            counted.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            counted.0.fetch_sub(1, Ordering::SeqCst);
            Ok(Done::ok())
        })
    });
    let reports = hundred(&db, &app, 3).await;
    let completed: u64 = reports.iter().map(|report| report.completed).sum();
    assert_eq!(completed, 400);
    assert_eq!(app.calls().len(), 400);
    let at_once = running.1.load(Ordering::SeqCst);
    assert!(at_once <= 3 * 8, "{at_once} handlers at once");
    for report in &reports {
        let has_none = report.stop_reason == StopReason::NoSlot;
        assert_eq!(has_none, report.slot == 0, "{report:?}");
        assert!(report.slot <= 3, "{report:?}");
        assert!(!has_none || (report.leased, report.backlog) == (0, 0));
    }
    assert!(reports.iter().any(|report| report.slot == 0), "all had one");
    assert_eq!(number(&client, TAKEN).await, 0);
}

#[tokio::test]
async fn the_slot_of_a_drain_that_is_gone_is_free_when_its_leases_are() {
    let db = probe_database().await;
    let client = db.client().await;
    let (gone, next) = (Uuid::new_v4(), Uuid::new_v4());
    let short = Duration::from_millis(300);
    let slot = queue::take_slot(&client, gone, 1, short).await.unwrap();
    assert_eq!(slot, Some(1));
    // The answer was lost and it asks again.
    let slot = queue::take_slot(&client, gone, 1, short).await.unwrap();
    assert_eq!(slot, Some(1));
    let other = queue::take_slot(&client, next, 1, PATIENCE).await.unwrap();
    assert_eq!(other, None);
    wait_until("a free slot", async || {
        let taken = queue::take_slot(&client, next, 1, PATIENCE).await.unwrap();
        taken == Some(1)
    })
    .await;
    let keep = async |worker| {
        queue::keep_slot(&client, (1, worker), PATIENCE, Some(7.0))
            .await
            .unwrap()
    };
    assert!(!keep(gone).await && keep(next).await);
    queue::leave_slot(&client, 1, gone).await.unwrap();
    assert_eq!(number(&client, TAKEN).await, 1, "it was not its own");
    queue::leave_slot(&client, 1, next).await.unwrap();
    assert_eq!(number(&client, TAKEN).await, 0);
}

#[tokio::test]
async fn a_drain_that_has_lost_its_slot_gives_back_what_it_has_not_started() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_acts(&client, 500).await;
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Done::ok())
        })
    });
    let options = DrainOptions {
        concurrency: 1,
        lease_timeout: Duration::from_secs(3),
        handler_timeout: Duration::from_secs(2),
        ..options()
    };
    let database = db.database();
    let running = tokio::spawn(async move { drain(&database, app, &options).await.unwrap() });
    wait_until("a slot", async || number(&client, TAKEN).await == 1).await;
    let steal = "UPDATE tidegate.drain_slot SET worker = gen_random_uuid() WHERE slot = 1";
    client.execute(steal, &[]).await.unwrap();
    let report = running.await.unwrap();
    assert_eq!(report.stop_reason, StopReason::NoSlot, "{report:?}");
    assert!(report.is_balanced() && report.released > 0, "{report:?}");
    assert_eq!(report.retried + report.failed, 0);
    let held = "SELECT count(*) FROM tidegate.lease WHERE NOT ended";
    assert_eq!(number(&client, held).await, 0);
    assert_eq!(
        number(&client, TAKEN).await,
        1,
        "the other's slot is its own"
    );
}
