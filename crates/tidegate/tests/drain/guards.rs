//! What a whole drain does where one guard in its loop matters: each of these tests fails without it.

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{
    Probe, ProbeApp, act, drain, end_of, number, options, probe, probe_database, probe_sessions,
    publish, publish_acts,
};
use test_support::{TestDb, cannot_be_pooled, counted, execute, wait_until};
use tidegate::connect::Client;
use tidegate::{Database, Done, DrainOptions, HandlerError, NewEvent};
use tokio::sync::Notify;

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";

/// A session that has published to the group `shared`, and keeps it.
async fn holder_of_shared(db: &TestDb) -> Client {
    let holder = db.client().await;
    let idles = "BEGIN; SELECT count(*) FROM tidegate.publish('note', NULL, group_key => 'shared')";
    holder.batch_execute(idles).await.unwrap();
    holder
}

fn follow_up() -> NewEvent {
    NewEvent::of(&Probe::Note(())).unwrap().group("shared")
}

// leases

// Postgres forgets live rows of a GiST index whose first page is split while one statement looks into it
// several times, and passes dead rows at the first look.
#[tokio::test]
async fn i6_a_lease_is_found_however_many_others_are_taken_during_the_look() {
    let (_db, [client, other]) = probe_sessions().await;
    let set_up = "ALTER TABLE tidegate.lease SET (autovacuum_enabled = off);
        CREATE FUNCTION take(first int, last int, ids int8range) RETURNS void LANGUAGE sql AS $$
            INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
            SELECT gen_random_uuid(), gen_random_uuid(),
                   int8multirange(coalesce(ids, int8range(10 * n, 10 * n + 5))), 0, now(), now(), now(), 0, '0'
              FROM generate_series(first, last) AS n $$";
    other.batch_execute(set_up).await.unwrap();
    for _ in 0..40 {
        let gone = "SELECT take(1, 1, '[9000, 9001)'); DELETE FROM tidegate.lease";
        other.batch_execute(gone).await.unwrap();
    }
    let rows = "SELECT take(1, 100, NULL); SELECT pg_advisory_lock(1)";
    other.batch_execute(rows).await.unwrap();
    let looking = tokio::spawn(async move {
        let usual = "SET enable_seqscan = off; SET enable_bitmapscan = off";
        client.batch_execute(usual).await.unwrap();
        let looks = "SELECT (SELECT count(*) FROM tidegate.lease AS l WHERE l.ids @> x.id),
                            CASE WHEN x.waits THEN pg_advisory_lock(1) END
                       FROM (VALUES (9000::bigint, true), (21, false), (31, false)) AS x(id, waits)";
        client.query(looks, &[]).await.unwrap();
        let missed = "SELECT count(*) FROM generate_series(1, 100) AS n
                       WHERE NOT EXISTS (SELECT FROM tidegate.lease AS l WHERE l.ids @> (10 * n)::bigint)";
        number(&client, missed).await
    });
    wait_until("it waits", async || number(&other, WAITING).await == 1).await;
    let more = "SELECT take(101, 400, NULL); SELECT pg_advisory_unlock(1)";
    other.batch_execute(more).await.unwrap();
    assert_eq!(looking.await.unwrap(), 0, "leases that are not found");
}

// the pool

#[tokio::test]
async fn whoever_is_stopped_in_a_statement_leaves_the_pool_a_connection_that_waits_for_nothing() {
    let (db, [holder, witness]) = probe_sessions().await;
    let lock = "SELECT pg_advisory_lock(1)";
    holder.batch_execute(lock).await.unwrap();
    // As a run's handlers have it.
    let database = Database::new(&db.url, 1).unwrap();
    let database = database.with_own_pool().unwrap();
    let pooled = database.pooled().await.unwrap();
    let stopped = tokio::spawn(async move { pooled.batch_execute(lock).await });
    wait_until("it waits", async || number(&witness, WAITING).await == 1).await;
    stopped.abort();
    let next = tokio::time::timeout(Duration::from_secs(30), async {
        let next = database.pooled().await.unwrap();
        next.batch_execute("SELECT 1").await.unwrap();
    });
    next.await.expect("the next one waits for nobody's lock");
    wait_until("nobody waits any more", async || {
        number(&witness, WAITING).await == 0
    })
    .await;
}

#[tokio::test]
async fn a_lent_connection_goes_back_to_its_pool_unless_it_is_closed() {
    if cannot_be_pooled("a pooler's sessions serve one client after another") {
        return;
    }
    let session = "SELECT pg_backend_pid()::bigint";
    let db = probe_database().await;
    let database = Database::new(&db.url, 1).unwrap();
    for database in [database.with_own_pool().unwrap(), database] {
        let client = database.pooled().await.unwrap();
        let first = number(&client, session).await;
        drop(client);
        let client = database.pooled().await.unwrap();
        assert_eq!(number(&client, session).await, first);
        client.close();
        let client = database.pooled().await.unwrap();
        assert_ne!(number(&client, session).await, first);
    }
}

// groups

#[tokio::test(flavor = "multi_thread")]
async fn b10_a_transaction_begins_when_the_end_before_it_in_its_group_is_in_the_log() {
    let (db, client) = probe().await;
    let events = (0..2).map(|n| act(&n.to_string()).group("g"));
    publish(&client, events).await;
    let holder = holder_of_shared(&db).await;
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let begun = begins.clone();
        Box::pin(async move {
            if call.name == "0" {
                ctx.emit(&follow_up())?;
                return Ok(Done::ok());
            }
            let transaction = ctx.transaction().await?;
            let before = "SELECT count(*) FROM tidegate.event_log WHERE group_key = 'g'";
            let before: i64 = transaction.query_one(before, &[]).await?.get(0);
            begun.notify_one();
            if before != 1 {
                return Err(HandlerError::reject(
                    "early",
                    "the one before has not ended",
                ));
            }
            transaction.complete(Done::ok()).await
        })
    });
    let release = async {
        // If the second has not begun by then, it begins behind the first.
        let _ = tokio::time::timeout(Duration::from_secs(4), begun.notified()).await;
        holder.batch_execute("COMMIT").await.unwrap();
    };
    let options = options();
    let (report, ()) = tokio::join!(drain(&db, &app, &options), release);
    counted(&report, "completed_with_errors 0, failed 0");
}

// deadlines

/// Waits until the one deadline in the queue has passed, and a little longer, for this machine's clock.
async fn deadline_passes(client: &Client) {
    let passed = "SELECT count(*) FROM tidegate.event_queue
                   WHERE expires_at < clock_timestamp() - interval '200 ms'";
    while number(client, passed).await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The event `slow` ends when the deadline has passed, all others at once.
fn slow_beyond_the_deadline(client: &Arc<Client>) -> Arc<ProbeApp> {
    let clock = client.clone();
    ProbeApp::new(move |call, _| {
        let clock = clock.clone();
        Box::pin(async move {
            if call.name == "slow" {
                deadline_passes(&clock).await;
            }
            Ok(Done::ok())
        })
    })
}

#[tokio::test]
async fn b13_an_event_whose_deadline_passes_in_the_buffer_expires_there() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let late = act("late").start_within(Duration::from_secs(2));
    let ids = publish(&client, vec![act("slow"), late]).await;
    let app = slow_beyond_the_deadline(&client);
    let one = DrainOptions {
        concurrency: 1,
        ..options()
    };
    let report = tidegate::drain(&db.database(), app.clone(), &one).await;
    let report = report.unwrap();
    assert_eq!(app.ids(), ids[..1], "it started after its deadline");
    let ends = (report.completed, report.expired, report.released);
    assert_eq!(ends, (1, 1, 0), "{report:?}");
    assert_eq!(end_of(&client, ids[1]).await, "FAILED 0 expired");
}

#[tokio::test]
async fn b13_an_event_that_waits_for_its_group_behind_quick_ones_expires_there_too() {
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    // After quick events, those of a group are handed over together.
    let mut events: Vec<NewEvent> = (0..50).map(|n| act(&format!("quick {n}"))).collect();
    let late = act("late").start_within(Duration::from_secs(2));
    events.extend([act("slow").group("g"), late.group("g")]);
    let ids = publish(&client, events).await;
    let app = slow_beyond_the_deadline(&client);
    let report = drain(&db, &app, &options()).await;
    assert!(
        !app.ids().contains(&ids[51]),
        "it started after its deadline"
    );
    assert_eq!((report.completed, report.expired), (51, 1), "{report:?}");
    assert_eq!(end_of(&client, ids[51]).await, "FAILED 0 expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_learn_of_a_lease_that_is_gone_at_its_renewal() {
    let (db, client) = probe().await;
    publish_acts(&client, 1).await;
    let (begun, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, tells) = (begun.clone(), told.clone());
    let app = ProbeApp::new(move |_, ctx| {
        let (begun, told) = (begins.clone(), tells.clone());
        Box::pin(async move {
            begun.notify_one();
            ctx.cancelled().await;
            if ctx.is_cancelled() {
                told.notify_one();
            }
            Ok(Done::ok())
        })
    });
    // Renewed after a third of its time, long before the handler's limit. Nothing is written meanwhile.
    let one = DrainOptions {
        max_events: Some(1),
        lease_timeout: Duration::from_secs(9),
        handler_timeout: Duration::from_secs(8),
        ..options()
    };
    let (database, at_work) = (db.database(), app.clone());
    let drained = tokio::spawn(async move { tidegate::drain(&database, at_work, &one).await });
    begun.notified().await;
    execute(&client, "DELETE FROM tidegate.lease").await;
    let report = drained.await.unwrap().unwrap();
    assert_eq!((report.lease_lost, report.retried), (1, 0), "{report:?}");
    let told = tokio::time::timeout(Duration::ZERO, told.notified()).await;
    assert!(told.is_ok(), "it ran into its limit");
}

// time limits

#[tokio::test]
async fn f2_an_event_that_was_stopped_at_its_limit_does_not_end_the_run_for_its_kind() {
    let (db, client) = probe().await;
    publish_acts(&client, 2).await;
    let app = ProbeApp::doing(|call| async move {
        if call.name == "0" && call.attempt == 1 {
            std::future::pending::<()>().await;
        }
        Ok(Done::ok())
    });
    // After the time-out, less time is left than it took, and more than anything else takes.
    let limit = Duration::from_secs(6);
    let options = DrainOptions {
        concurrency: 1,
        budget: Duration::from_secs(13),
        handler_timeout: limit,
        ..options()
    };
    let report = drain(&db, &app, &options).await;
    counted(&report, "completed 2, retried 1, backlog 0");
}

#[tokio::test]
async fn b10_nothing_of_a_group_ends_before_an_end_that_waits_for_another_publisher() {
    let (db, client) = probe().await;
    let events = (0..3).map(|n| act(&n.to_string()).group("g"));
    let ids = publish(&client, events).await;
    let holder = holder_of_shared(&db).await;
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.name == "0" {
                ctx.emit(&follow_up())?;
            }
            Ok(Done::ok())
        })
    });
    // One event in each lease, so that each end is written by itself.
    let one_each = DrainOptions {
        batch: 1,
        ..DrainOptions::default()
    };
    let report = drain(&db, &app, &one_each).await;
    assert_eq!((report.completed, report.failed), (0, 0), "{report:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    let due = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";
    client.execute(due, &[]).await.unwrap();
    let report = drain(&db, &app, &one_each).await;
    assert_eq!(
        (report.completed, report.backlog),
        (4, Some(0)),
        "{report:?}"
    );
    let in_order = "SELECT array_agg(id ORDER BY finished_at, id) FROM tidegate.event_log WHERE group_key = 'g'";
    let in_order: Vec<i64> = client.query_one(in_order, &[]).await.unwrap().get(0);
    assert_eq!(in_order, ids);
}
