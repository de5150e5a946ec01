//! What a walk knows. A drain that walks a long queue asks for the first event of a group only where it does
//! not know what stands ahead; here something does, far behind what it is about to lease. And drains share
//! one walk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, disorder, drain, lease_request, live, number, options, probe, probe_database,
    probe_sessions, publish, publish_acts,
};
use test_support::{counted, execute};
use tidegate::connect::Client;
use tidegate::{Done, DrainOptions, HandlerError, NewEvent};
use tidegate_core::queue::{self, LeaseRequest, LeasedBatch, Walk};
use tokio::sync::Mutex;

/// Between a group's first event and its second; each in a group of its own, so that every lease has groups
/// to know.
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

/// The group's first event, those between and its second; the ids of those two.
async fn publish_line(client: &Client) -> (i64, i64) {
    let mut events = between();
    events.insert(0, of_the_group("first"));
    events.push(of_the_group("second"));
    let ids = publish(client, events).await;
    (ids[0], ids[BETWEEN + 1])
}

/// So many from where a walk stands.
fn from(walk: Walk, limit: u32) -> LeaseRequest<'static> {
    LeaseRequest {
        limit,
        walk,
        ..lease_request()
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
    let (db, client) = probe().await;
    publish_line(&client).await;
    let app = ProbeApp::doing(|call| async move {
        if call.name == "first" && call.attempt == 1 {
            let later = Duration::from_secs(1);
            return Err(HandlerError::retry("down", "once").after(later));
        }
        Ok(Done::ok())
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
async fn i4_b10_an_event_leased_by_another_worker_bars_the_events_far_behind_it() {
    let (db, client) = probe().await;
    let (first, _) = publish_line(&client).await;
    let held = lease(&client, &from(Walk::default(), 1)).await.events;
    assert_eq!(held[0].lease.id, first);
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &walking()).await;
    assert_eq!(
        (report.completed, report.backlog),
        (100, Some(2)),
        "{report:?}"
    );
    assert!(of_the_groups_events(&app).is_empty());
}

#[tokio::test]
async fn i4_a_requeued_event_bars_the_events_far_behind_it() {
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
            // It may lease both of them again, and the first may have ended by then.
            let leased = "SELECT count(*) FROM tidegate.events WHERE id = $1 AND lease_token IS NOT NULL
                             AND EXISTS (SELECT FROM tidegate.events WHERE id = $2 AND lease_token IS NULL)";
            let leased: i64 = operator
                .query_one(leased, &[&second, &call.id])
                .await?
                .get(0);
            seen.store(leased, Ordering::Relaxed);
            Ok(Done::ok())
        })
    });
    let report = drain(&db, &app, &walking()).await;
    counted(&report, "completed 102, lease_lost 1");
    assert_eq!(too_early.load(Ordering::Relaxed), 0);
    let expected = [("first", 1), ("first", 2), ("second", 1)];
    assert_eq!(
        of_the_groups_events(&app),
        expected.map(|(name, attempt)| (name.to_owned(), attempt))
    );
}

/// Publishes the group's two events with those of others between, and commits the first, or both, when the
/// walk has passed where the first one will appear.
async fn committed_behind_the_cursor(both_at_once: bool) {
    let (db, client) = probe().await;
    let producer = db.client().await;
    producer.batch_execute("BEGIN").await.unwrap();
    publish(&producer, [of_the_group("first")]).await;
    publish(&client, between()).await;
    if both_at_once {
        publish(&producer, [of_the_group("second")]).await;
    }
    let producer = Arc::new(Mutex::new(producer));
    let app = ProbeApp::new(move |call, _| {
        let producer = producer.clone();
        Box::pin(async move {
            if call.name == "50" {
                let producer = producer.lock().await;
                producer.batch_execute("COMMIT").await?;
                if !both_at_once {
                    publish(&producer, [of_the_group("second")]).await;
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

fn leased(batch: &LeasedBatch) -> Vec<i64> {
    batch.events.iter().map(|event| event.lease.id).collect()
}

#[tokio::test]
async fn a_blocked_group_is_reported_and_passed_when_named() {
    let (_db, client) = probe().await;
    let events: Vec<NewEvent> = (0..4).map(|_| of_the_group("x")).collect();
    publish(&client, events).await;
    let free = publish(&client, [act("free")]).await;
    lease(&client, &from(Walk::default(), 1)).await;
    let batch = lease(&client, &from(Walk::default(), 2)).await;
    assert_eq!((leased(&batch), batch.scanned), (vec![], 2));
    assert_eq!(batch.blocked, ["g"]);
    let passes = LeaseRequest {
        passed_by: &batch.blocked,
        probe: None,
        ..from(batch.walk, 2)
    };
    let batch = lease(&client, &passes).await;
    assert_eq!((leased(&batch), batch.scanned), (free, 1));
    assert!(batch.blocked.is_empty());
    assert_eq!(disorder(&client).await, [""; 0]);
}

#[tokio::test]
async fn a_walk_is_clear_up_to_what_it_had_to_leave_behind() {
    let (_db, client) = probe().await;
    let line = ["a", "b", "c", "d"].map(|group| act(group).group(group));
    let ids = publish(&client, line).await;
    let batch = lease(&client, &from(Walk::default(), 2)).await;
    assert_eq!(batch.walk.clear_to, Some(ids[1]));
    let pause = "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'act'";
    client.execute(pause, &[]).await.unwrap();
    let free = publish(&client, [NewEvent::raw("note", None)]).await;
    let batch = lease(&client, &from(batch.walk, 2)).await;
    assert_eq!((leased(&batch), batch.walk.after), (free.clone(), free[0]));
    // Nothing with a group was taken, so nobody has looked for what else was passed.
    assert_eq!(batch.walk.clear_to, Some(ids[1]));
    let grouped = NewEvent::raw("note", None).group("e");
    let next = publish(&client, [grouped]).await;
    let again = lease(&client, &from(batch.walk, 2)).await;
    assert_eq!(leased(&again), next);
    assert_eq!(again.walk.clear_to, Some(ids[1]));
    assert_eq!(disorder(&client).await, [""; 0]);
}

#[tokio::test]
async fn a_walk_knows_which_transactions_had_ended_when_it_began_and_how_old_leases_are() {
    let (_db, [client, writer]) = probe_sessions().await;
    let under_way = "SELECT pg_current_xact_id()::text::bigint";
    writer.batch_execute("BEGIN").await.unwrap();
    let under_way = number(&writer, under_way).await;
    publish(&client, between()).await;
    let first = lease(&client, &from(Walk::default(), 10)).await;
    assert!(first.walk.as_of <= Some(under_way), "{:?}", first.walk);
    writer.batch_execute("COMMIT").await.unwrap();
    let second = lease(&client, &from(first.walk, 10)).await;
    assert_eq!(second.walk.as_of, first.walk.as_of);
    let older = "SELECT count(*) FROM tidegate.lease WHERE born < $1::bigint::text::xid8";
    let older: i64 = client
        .query_one(older, &[&second.walk.low])
        .await
        .unwrap()
        .get(0);
    assert_eq!(older, 0);
}

#[tokio::test]
async fn what_a_walk_knows_of_a_server_that_counts_anew_is_not_believed() {
    let (_db, client) = probe().await;
    let ids = publish(
        &client,
        [of_the_group("first"), act("x"), of_the_group("second")],
    )
    .await;
    let delay = "UPDATE tidegate.event_queue SET available_at = available_at + interval '1 hour' WHERE id = $1";
    client.execute(delay, &[&ids[0]]).await.unwrap();
    let of_elsewhere = Walk {
        after: ids[1],
        clear_to: Some(ids[1]),
        as_of: Some(1 << 60),
        low: Some(1 << 60),
        connection: 0,
    };
    let batch = lease(&client, &from(of_elsewhere, 10)).await;
    assert!(batch.events.is_empty());
    assert!(batch.walk.as_of < Some(1 << 60) && batch.walk.low < Some(1 << 60));
    assert_eq!(batch.walk.clear_to, Some(0));
}

/// What stands in front of ten events, and may not be leased.
const IN_FRONT: [&str; 3] = [
    "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'pair'",
    "UPDATE tidegate.event_queue SET kind = 'of another program' WHERE kind = 'pair';
     INSERT INTO tidegate.event_kind (kind) VALUES ('of another program')",
    "INSERT INTO tidegate.service (service, state, retry_at, kinds) VALUES ('down', 'open', now() + interval '1 hour', '{pair}')",
];

/// Rows of the queue that a session has read by an index.
const READ: &str = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'tidegate.event_queue'::regclass";

#[tokio::test]
async fn one_call_passes_a_bounded_number_of_events_that_may_not_be_leased() {
    for in_front in IN_FRONT {
        let (db, client) = probe().await;
        let fill = "INSERT INTO tidegate.event_queue (kind, payload)
                    SELECT 'pair', '{\"name\": \"\"}' FROM generate_series(1, 250000)";
        execute(&client, fill).await;
        execute(&client, in_front).await;
        publish_acts(&client, 10).await;
        // As far from the others as the next event may be.
        execute(
            &client,
            "SELECT setval('tidegate.event_queue_id_seq', 3000000000)",
        )
        .await;
        publish_acts(&client, 10).await;
        let (mut walk, mut calls, mut taken) = (Walk::default(), 0, 0);
        loop {
            execute(&client, "BEGIN").await;
            let request = LeaseRequest {
                limit: 15,
                walk,
                ..lease_request()
            };
            let before = number(&client, READ).await;
            let batch = queue::lease(&client, &request).await.unwrap();
            let read = number(&client, READ).await - before;
            assert!(read < 160_000, "{read} rows in one call");
            execute(&client, "COMMIT").await;
            (walk, calls, taken) = (batch.walk, calls + 1, taken + batch.events.len());
            if batch.scanned < 15 {
                break;
            }
        }
        assert_eq!(taken, 20, "{in_front}");
        assert!(calls <= 6, "{calls} calls");
        let report = drain(&db, &ProbeApp::succeeding(), &options()).await;
        assert_eq!(report.leased, 0, "{report:?}");
    }
}

#[tokio::test]
async fn a_lease_is_limited_by_what_earlier_attempts_have_stored_too() {
    let (_db, client) = probe().await;
    publish_acts(&client, 10).await;
    let steps = "UPDATE tidegate.event_queue SET progress = jsonb_build_object('steps', (
                     SELECT jsonb_object_agg(n, md5(id::text || n)) FROM generate_series(1, 2000) AS n))";
    execute(&client, steps).await;
    let request = LeaseRequest {
        bytes: 200_000,
        ..lease_request()
    };
    let taken = queue::lease(&client, &request).await.unwrap().events.len();
    assert!((1..5).contains(&taken), "{taken}");
}
