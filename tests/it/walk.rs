//! A drain that walks a long queue asks for the first event of a group only where it does not know what stands
//! ahead (`src/drain/behind.rs`). Here something does, far behind what it is about to lease. And where it meets
//! another's work it leaps ahead (`src/drain/pace.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate::queue::{self, LeaseRequest, LeasedBatch};
use tidegate::{Done, DrainOptions, Event, HandlerError, NewEvent};
use tokio::sync::Mutex;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::probe::{Probe, ProbeApp, act, drain, live, number, options, probe_database};

/// Between a group's first event and its second; each in a group of its own, so that every lease has groups to know.
const BETWEEN: usize = 100;

/// Many leases, none of which takes much of what is between.
fn walking() -> DrainOptions {
    DrainOptions {
        batch: 4,
        concurrency: 2,
        linger: Duration::from_millis(200),
        ..options()
    }
}

fn of_the_group(name: &str) -> NewEvent {
    act(name).group("g")
}

fn between() -> Vec<NewEvent> {
    let each = |n: usize| act(&n.to_string()).group(format!("other {n}"));
    (0..BETWEEN).map(each).collect()
}

async fn publish(client: &Client, events: &[NewEvent]) -> Vec<i64> {
    let published = queue::publish_batch(client, events).await.unwrap();
    published.iter().map(|published| published.id).collect()
}

/// The group's first event, those between and its second; the ids of those two.
async fn publish_line(client: &Client) -> (i64, i64) {
    let mut events = between();
    events.insert(0, of_the_group("first"));
    events.push(of_the_group("second"));
    let ids = publish(client, &events).await;
    (ids[0], ids[BETWEEN + 1])
}

/// So many behind this id.
fn behind(after: i64, limit: u32) -> LeaseRequest<'static> {
    LeaseRequest {
        limit,
        page: limit,
        after,
        token: Uuid::new_v4(),
        held: &[],
        timeout: Duration::from_mins(1),
        kinds: Probe::KINDS,
        blocked: &[],
        known: None,
        now: None,
    }
}

async fn lease(client: &Client, request: &LeaseRequest<'_>) -> LeasedBatch {
    queue::lease(client, request).await.unwrap()
}

/// What was started, but for what stands between.
fn of_the_groups_events(app: &ProbeApp) -> Vec<(String, u32)> {
    let calls = app.calls().into_iter();
    calls
        .filter(|call| call.name.parse::<usize>().is_err())
        .map(|call| (call.name, call.attempt))
        .collect()
}

/// How many of those between have ended.
const ENDED: &str = "SELECT count(*) FROM tidegate.event_log WHERE group_key <> 'g'";

#[tokio::test]
async fn i4_b10_what_went_back_keeps_what_is_far_behind_it_from_being_leased() {
    let db = probe_database().await;
    let client = db.client().await;
    publish_line(&client).await;
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            if call.name == "first" && call.attempt == 1 {
                let later = Duration::from_secs(1);
                return Err(HandlerError::retry("down", "once").after(later));
            }
            Ok(Done::ok())
        })
    });
    let patient = DrainOptions {
        linger: Duration::from_secs(2),
        ..walking()
    };
    let report = drain(&db, &app, &patient).await;
    assert_eq!((report.completed, report.retried), (102, 1), "{report:?}");
    let expected = [("first", 1), ("first", 2), ("second", 1)];
    assert_eq!(
        of_the_groups_events(&app),
        expected.map(|(name, attempt)| (name.to_owned(), attempt))
    );
}

#[tokio::test]
async fn i4_b10_what_is_in_anothers_hands_keeps_what_is_far_behind_it_from_being_leased() {
    let db = probe_database().await;
    let client = db.client().await;
    let (first, _) = publish_line(&client).await;
    let held = lease(&client, &behind(0, 1)).await.events;
    assert_eq!(held[0].lease.id, first);
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &walking()).await;
    assert_eq!((report.completed, report.backlog), (100, 2), "{report:?}");
    assert!(of_the_groups_events(&app).is_empty());
}

#[tokio::test]
async fn i4_what_is_taken_out_of_its_hands_keeps_what_is_far_behind_it_from_being_leased() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let (first, second) = publish_line(&client).await;
    let operator = client.clone();
    let too_early = Arc::new(AtomicI64::new(-1));
    let seen = too_early.clone();
    let app = ProbeApp::new(move |call, _| {
        let (operator, seen) = (operator.clone(), seen.clone());
        Box::pin(async move {
            if call.id != first || call.attempt > 1 {
                return Ok(Done::ok());
            }
            let requeue = "UPDATE tidegate.events SET status = 'PENDING' WHERE id = $1";
            operator.execute(requeue, &[&call.id]).await?;
            while number(&operator, ENDED).await < 100 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The drain has time for another lease.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let leased = "SELECT count(*) FROM tidegate.event_queue WHERE id = $1 AND lease_token IS NOT NULL";
            let leased: i64 = operator.query_one(leased, &[&second]).await?.get(0);
            seen.store(leased, Ordering::Relaxed);
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &walking()).await;
    assert_eq!(
        (report.completed, report.lease_lost),
        (102, 1),
        "{report:?}"
    );
    assert_eq!(too_early.load(Ordering::Relaxed), 0);
    let expected = [("first", 1), ("first", 2), ("second", 1)];
    assert_eq!(
        of_the_groups_events(&app),
        expected.map(|(name, attempt)| (name.to_owned(), attempt))
    );
}

/// Publishes the group's two events with those of others between, and commits the first, or both, when the walk has
/// passed where the first one will appear.
async fn committed_behind_the_cursor(both_at_once: bool) {
    let db = probe_database().await;
    let client = db.client().await;
    let producer = db.client().await;
    producer.batch_execute("BEGIN").await.unwrap();
    publish(&producer, &[of_the_group("first")]).await;
    publish(&client, &between()).await;
    if both_at_once {
        publish(&producer, &[of_the_group("second")]).await;
    }
    let producer = Arc::new(Mutex::new(producer));
    let app = ProbeApp::new(move |call, _| {
        let producer = producer.clone();
        Box::pin(async move {
            if call.name == "50" {
                let producer = producer.lock().await;
                producer.batch_execute("COMMIT").await?;
                if !both_at_once {
                    publish(&producer, &[of_the_group("second")]).await;
                }
            }
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &walking()).await;
    assert_eq!((report.completed, live(&client).await), (102, 0));
    let expected = ["first", "second"].map(|name| (name.to_owned(), 1));
    assert_eq!(of_the_groups_events(&app), expected, "{report:?}");
}

#[tokio::test]
async fn i4_b10_what_was_committed_behind_the_cursor_keeps_its_group() {
    committed_behind_the_cursor(false).await;
}

#[tokio::test]
async fn i4_b10_what_was_committed_behind_the_cursor_keeps_what_was_committed_with_it() {
    committed_behind_the_cursor(true).await;
}

#[tokio::test]
async fn a_lease_says_that_it_is_crowded_if_it_has_passed_what_others_are_at() {
    let db = probe_database().await;
    let client = db.client().await;
    let events: Vec<NewEvent> = (0..40).map(|n: usize| act(&n.to_string())).collect();
    let ids = publish(&client, &events).await;
    let others = behind(ids[0], 6);
    assert!(!lease(&client, &others).await.crowded, "nothing was passed");
    let own = [others.token];
    for (after, held, limit, crowded) in [
        (ids[0], &[][..], 2, true),
        (ids[0], &[], 3, false),
        (ids[0], &own, 2, false),
        (0, &[], 2, false),
    ] {
        let request = LeaseRequest {
            held,
            ..behind(after, limit)
        };
        let token = request.token;
        let batch = lease(&client, &request).await;
        assert_eq!(batch.events.len(), limit as usize);
        assert_eq!(batch.crowded, crowded, "{after}, {held:?}, {limit}");
        let undo = "UPDATE tidegate.event_queue SET status = 'PENDING', lease_token = NULL, lease_expires_at = NULL,
                           processing_started_at = NULL WHERE lease_token = $1";
        client.execute(undo, &[&token]).await.unwrap();
    }
    let ended = "DELETE FROM tidegate.event_queue WHERE lease_token = $1";
    client.execute(ended, &[&others.token]).await.unwrap();
    assert!(!lease(&client, &behind(ids[0], 2)).await.crowded, "a gap");
}

#[tokio::test]
async fn a_drain_that_leaps_over_events_comes_back_for_them() {
    let db = probe_database().await;
    let client = db.client().await;
    let events: Vec<NewEvent> = (0..1200).map(|n: usize| act(&n.to_string())).collect();
    let ids = publish(&client, &events).await;
    lease(&client, &behind(ids[50], 100)).await;
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &walking()).await;
    assert_eq!(
        (report.completed, report.backlog),
        (1100, 100),
        "{report:?}"
    );
    assert_eq!(app.calls().len(), 1100);
}
