//! Operators change live events: they end by a cancel, whoever has them in hand, or start at another time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use test_support::probe::{
    Nothing, ProbeApp, act, disorder, drain, end_of, lease_request, live, number, options, probe,
    probe_sessions, publish_acts, service,
};
use test_support::{TestDb, begins, wait_for_a_lock};
use tidegate::connect::Client;
use tidegate::{Done, DrainOptions, DrainReport, HandlerError, NewEvent};
use tidegate_admin::{
    Audit, CancelReport, CancelRequest, Program, RescheduleReport, RescheduleRequest, Selection,
    StartAt,
};
use tidegate_core::queue;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

async fn publish(client: &Client, event: NewEvent) -> i64 {
    queue::publish(client, &event).await.unwrap().id
}

fn by_ids(ids: &[i64]) -> CancelRequest {
    of(Selection::of(ids))
}

fn of(select: Selection) -> CancelRequest {
    CancelRequest {
        select,
        audit: Audit::of("sent twice"),
    }
}

async fn cancel(db: &TestDb, request: &CancelRequest) -> CancelReport {
    service(db).run(request).await.unwrap()
}

/// One event alone, in leases that are renewed after a third of their time: long before its handler's limit.
fn one_event() -> DrainOptions {
    DrainOptions {
        max_events: Some(1),
        lease_timeout: Duration::from_secs(9),
        handler_timeout: Duration::from_secs(8),
        ..options()
    }
}

fn spawn_drain(
    db: &TestDb,
    app: &Arc<ProbeApp>,
) -> JoinHandle<Result<DrainReport, tidegate::DrainError>> {
    let (database, app) = (db.database(), app.clone());
    tokio::spawn(async move { tidegate::drain(&database, app, &one_event()).await })
}

#[tokio::test]
async fn waiting_events_that_a_filter_names_end_with_the_reason_and_their_groups_go_on() {
    let (db, client) = probe().await;
    let (mine, other) = ("order-7", "order-8");
    let mut ids = Vec::new();
    for (name, correlation) in [("0", mine), ("1", other), ("2", mine)] {
        ids.push(publish(&client, act(name).group("g").correlation(correlation)).await);
    }
    let planned = act("3").correlation(mine).delay(Duration::from_hours(1));
    ids.push(publish(&client, planned).await);
    let asked = Selection {
        correlation_id: Some(mine.to_owned()),
        ..Selection::default()
    };
    let preview = Selection {
        dry_run: true,
        ..asked.clone()
    };
    let preview = cancel(&db, &of(preview)).await.changed;
    assert_eq!(preview.ids, [ids[0], ids[2], ids[3]]);
    assert_eq!((live(&client).await, preview.kinds["act"]), (4, 3));

    let report = cancel(&db, &of(asked)).await;
    assert_eq!((report.cancelled, report.begun), (3, 0), "{report:?}");
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [ids[1]]);
    for id in [ids[0], ids[2], ids[3]] {
        assert_eq!(end_of(&client, id).await, "FAILED 0 cancelled");
    }
    let told = "SELECT count(*) FROM tidegate.event_log
                 WHERE errors->-1->>'message' = 'cancelled by an operator: sent twice'";
    assert_eq!(number(&client, told).await, 3);
    let audit = "SELECT sum(count)::bigint FROM tidegate.audit
                  WHERE action = 'cancel' AND reason = 'sent twice' AND filter->>'correlation_id' = 'order-7'";
    assert_eq!(number(&client, audit).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_learns_at_the_next_renewal_that_its_event_was_cancelled() {
    let (db, client) = probe().await;
    let (begun, told) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (begins, tells) = (begun.clone(), told.clone());
    let app = ProbeApp::new(move |call, ctx| {
        let (begun, told) = (begins.clone(), tells.clone());
        Box::pin(async move {
            if call.name != "0" {
                return Ok(Done::ok());
            }
            assert!(!ctx.is_cancelled());
            begun.notify_one();
            ctx.emit(&act("follow-up"))?;
            // Without being told it hangs until its limit.
            ctx.cancelled().await;
            told.store(ctx.is_cancelled(), Ordering::SeqCst);
            Ok(Done::ok())
        })
    });
    let first = publish(&client, act("0").group("g")).await;
    let next = publish(&client, act("1").group("g")).await;
    let drained = spawn_drain(&db, &app);
    begun.notified().await;
    let report = cancel(&db, &by_ids(&[first])).await;
    assert_eq!((report.cancelled, report.begun), (1, 1), "{report:?}");
    let report = drained.await.unwrap().unwrap();
    assert_eq!((report.lease_lost, report.retried), (1, 0), "{report:?}");
    assert!(told.load(Ordering::SeqCst), "it ran into its limit");
    // An attempt that has begun counts; nothing of it was published, and the group goes on.
    assert_eq!(end_of(&client, first).await, "FAILED 1 cancelled");
    drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [first, next]);
    assert_eq!(live(&client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_cancelled_handler_writes_in_the_queues_name_is_committed() {
    let (db, client) = probe().await;
    let table = "CREATE TABLE public.written (event_id bigint)";
    client.batch_execute(table).await.unwrap();
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let app = ProbeApp::new(move |call, ctx| {
        let (begun, go) = (begins.clone(), goes.clone());
        Box::pin(async move {
            let transaction = ctx.transaction().await?;
            let write = "INSERT INTO public.written VALUES ($1)";
            let written = transaction.execute(write, &[&call.id]).await;
            written.unwrap();
            begun.notify_one();
            go.notified().await;
            assert!(ctx.progress(0.5, "half").await.is_err() && ctx.is_cancelled());
            let ended = transaction.complete(Done::ok()).await;
            assert!(ended.is_err() && ctx.is_cancelled());
            let step = ctx.once("after", async { Ok::<_, HandlerError>(1) }).await;
            assert!(step.is_err(), "{step:?}");
            ended
        })
    });
    let id = publish_acts(&client, 1).await[0];
    let drained = spawn_drain(&db, &app);
    begun.notified().await;
    assert_eq!(cancel(&db, &by_ids(&[id])).await.begun, 1);
    go.notify_one();
    let report = drained.await.unwrap().unwrap();
    assert_eq!((report.lease_lost, report.completed), (1, 0), "{report:?}");
    let written = number(&client, "SELECT count(*) FROM public.written").await;
    assert_eq!((written, app.calls().len()), (0, 1));
}

#[tokio::test]
async fn a_lease_taken_during_a_cancel_learns_of_it() {
    let (db, [mut worker, witness]) = probe_sessions().await;
    let id = publish_acts(&witness, 1).await[0];
    let transaction = worker.transaction().await.unwrap();
    let leased = queue::lease(&transaction, &lease_request()).await.unwrap();
    assert_eq!(leased.events.len(), 1);
    let database = db.url.clone();
    let cancelling = tokio::spawn(async move {
        let lookup = move |name: &str| (name == "DATABASE_URL").then(|| database.clone());
        let service = Program::new(|_| Ok(Nothing)).start(&lookup).unwrap();
        service.run(&by_ids(&[id])).await.unwrap()
    });
    wait_for_a_lock(&witness).await;
    transaction.commit().await.unwrap();
    let report = cancelling.await.unwrap();
    assert_eq!((report.cancelled, report.begun), (1, 1), "{report:?}");
    test_support::probe::sweep(&witness).await;
    let sql = "SELECT sum(cuts) FROM tidegate.lease";
    assert_eq!(number(&witness, sql).await, 1);
    assert_eq!(end_of(&witness, id).await, "FAILED 1 cancelled");
}

#[tokio::test]
async fn a_cancel_of_many_waits_for_no_lock_and_reports_what_it_missed() {
    let (db, [mut holder, mut worker]) = probe_sessions().await;
    let client = db.client().await;
    let leased = publish_acts(&client, 1).await[0];
    queue::lease(&client, &lease_request()).await.unwrap();
    let [locked, free] = publish_acts(&client, 2).await[..] else {
        panic!("two");
    };
    // As a publisher that replaces the event, and as a worker in the middle of writing an end.
    let held = holder.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.event_queue WHERE id = $1 FOR NO KEY UPDATE";
    held.query(lock, &[&locked]).await.unwrap();
    let writing = worker.transaction().await.unwrap();
    let lock = "SELECT FROM tidegate.lease FOR KEY SHARE";
    writing.query(lock, &[]).await.unwrap();
    let ids = vec![leased, locked, free];
    for (verb, changed) in [
        ("reschedule($1, available_at => now(),", json!([free])),
        // Nobody waits for a lease.
        ("cancel($1,", json!([leased, free])),
    ] {
        let sql = format!("SELECT tidegate.{verb} reason => 'r')");
        // A statement that waits is as good as one that never ends.
        let asked = async { client.query_one(&sql, &[&ids]).await };
        let row = tokio::time::timeout(Duration::from_secs(15), asked).await;
        let report: Value = row.unwrap().unwrap().get(0);
        assert_eq!(report["ids"], changed, "{report}");
        assert_eq!(report["missed"], json!([locked]), "{report}");
    }
    writing.rollback().await.unwrap();
    held.rollback().await.unwrap();
    let report = cancel(&db, &by_ids(&ids)).await;
    assert_eq!((report.cancelled, report.begun), (1, 0), "{report:?}");
    test_support::probe::sweep(&client).await;
    let sql = "SELECT sum(cuts) FROM tidegate.lease";
    assert_eq!(number(&client, sql).await, 1);
}

#[tokio::test]
async fn thousands_are_cancelled_a_thousand_at_a_time_up_to_the_limit() {
    let (db, client) = probe().await;
    let many = "INSERT INTO tidegate.event_queue (kind) SELECT CASE n % 10 WHEN 0 THEN 'note' ELSE 'act' END FROM generate_series(1, 3000) AS n";
    client.batch_execute(many).await.unwrap();
    let asked = of(Selection {
        kind: Some("act".to_owned()),
        limit: Some(2500),
        ..Selection::default()
    });
    let report = cancel(&db, &asked).await;
    let changed = &report.changed;
    assert_eq!((report.cancelled, changed.limit_reached), (2500, true));
    assert_eq!((changed.ids.len(), changed.kinds["act"]), (100, 2500));
    let rest = cancel(&db, &asked).await;
    assert_eq!((rest.cancelled, rest.changed.limit_reached), (200, false));
    assert_eq!(live(&client).await, 300);
    let largest = "SELECT max(count) * 10 + count(*) FROM tidegate.audit WHERE action = 'cancel'";
    assert_eq!(number(&client, largest).await, 10_000 + 4);
}

#[tokio::test]
async fn a_delete_from_the_view_cancels() {
    let (_db, client) = probe().await;
    let ids = publish_acts(&client, 3).await;
    queue::lease(&client, &lease_request()).await.unwrap();
    let delete = "DELETE FROM tidegate.events WHERE id < $1";
    assert_eq!(client.execute(delete, &[&ids[2]]).await.unwrap(), 2);
    for id in &ids[..2] {
        assert_eq!(end_of(&client, *id).await, "FAILED 1 cancelled");
    }
    let audit =
        "SELECT count(*) FROM tidegate.audit WHERE action = 'cancel' AND filter->>'via' = 'events'";
    assert_eq!(number(&client, audit).await, 2);
    assert_eq!(live(&client).await, 1);
}

#[tokio::test]
async fn a_cancel_reports_why_an_id_is_no_live_event() {
    let (db, client) = probe().await;
    let ids = publish_acts(&client, 2).await;
    cancel(&db, &by_ids(&ids[..1])).await;
    let report = cancel(&db, &by_ids(&[ids[0], ids[1], i64::MAX])).await;
    let skipped = report.changed.skipped.iter();
    let told: Vec<_> = skipped.map(|s| s.reason.as_str()).collect();
    assert_eq!((report.cancelled, report.changed.skipped_count), (1, 2));
    let expected = [
        "ended as FAILED",
        "unknown: neither in the queue nor in the log",
    ];
    assert_eq!(told, expected);
}

fn rescheduled(ids: &[i64], start: StartAt) -> RescheduleRequest {
    RescheduleRequest {
        select: Selection::of(ids),
        start,
        audit: Audit::of("later"),
    }
}

async fn reschedule(db: &TestDb, request: &RescheduleRequest) -> RescheduleReport {
    service(db).run(request).await.unwrap()
}

#[tokio::test]
async fn a_planned_event_runs_now_and_a_ready_one_later_and_groups_keep_their_order() {
    let (db, client) = probe().await;
    let first = act("0").group("g").delay(Duration::from_hours(1));
    let first = publish(&client, first).await;
    let second = publish(&client, act("1").group("g")).await;
    let alone = publish(&client, act("2")).await;
    let later = StartAt {
        delay: Some(Duration::from_hours(2)),
        ..StartAt::default()
    };
    let later = rescheduled(&[alone], later);
    assert_eq!(reschedule(&db, &later).await.rescheduled, 1);
    let app = ProbeApp::succeeding();
    drain(&db, &app, &options()).await;
    assert_eq!(app.calls(), [], "all of it waits");
    let now = StartAt {
        now: true,
        ..StartAt::default()
    };
    let now = RescheduleRequest {
        select: Selection {
            group: Some("g".to_owned()),
            ..Selection::default()
        },
        ..rescheduled(&[], now)
    };
    let report = reschedule(&db, &now).await;
    assert_eq!(report.changed.ids, [first, second]);
    assert_eq!(disorder(&client).await, [""; 0]);
    drain(&db, &app, &options()).await;
    assert_eq!(app.ids(), [first, second]);
    assert_eq!(live(&client).await, 1);
}

#[tokio::test]
async fn leased_events_are_reported_and_left_alone_by_the_view_too() {
    let (db, client) = probe().await;
    let id = publish_acts(&client, 1).await[0];
    queue::lease(&client, &lease_request()).await.unwrap();
    let row = "SELECT count(*) FROM tidegate.event_queue WHERE NOT delayed AND NOT stray AND expires_at IS NULL";
    let later = StartAt {
        delay: Some(Duration::from_hours(2)),
        expires_in: Some(Duration::from_hours(3)),
        ..StartAt::default()
    };
    let report = reschedule(&db, &rescheduled(&[id], later)).await;
    assert_eq!((report.rescheduled, report.in_hand), (0, 1), "{report:?}");
    assert_eq!(report.changed.skipped[0].reason, "in a worker's hands");
    let update = "UPDATE tidegate.events SET available_at = now() + interval '1 hour'";
    let refused = client.execute(update, &[]).await.unwrap_err();
    let told = refused.as_db_error().unwrap().message().to_owned();
    assert!(told.contains("because a worker holds event"), "{told}");
    assert_eq!(number(&client, row).await, 1);
    let both =
        "UPDATE tidegate.events SET status = 'PENDING', available_at = now() + interval '1 hour'";
    assert_eq!(client.execute(both, &[]).await.unwrap(), 1);
    assert_eq!(number(&client, row).await, 0);
}

#[tokio::test]
async fn a_new_deadline_or_a_later_time_leaves_a_waiting_event_waiting() {
    let (db, client) = probe().await;
    let planned = act("0").delay(Duration::from_hours(1));
    let id = publish(&client, planned).await;
    let update = "UPDATE tidegate.events SET expires_at = now() + interval '2 hours'";
    client.execute(update, &[]).await.unwrap();
    let waits = "SELECT count(*) FROM tidegate.event_queue WHERE delayed AND max_attempts = 5";
    assert_eq!(number(&client, waits).await, 1);
    let later = StartAt {
        delay: Some(Duration::from_hours(3)),
        ..StartAt::default()
    };
    let report = reschedule(&db, &rescheduled(&[id], later)).await;
    assert_eq!(report.past_deadline_ids, [id], "{report:?}");
    let without = StartAt {
        no_deadline: true,
        ..StartAt::default()
    };
    let report = reschedule(&db, &rescheduled(&[id], without)).await;
    assert_eq!(report.past_deadline, 0);
    let has_none = "SELECT count(*) FROM tidegate.event_queue WHERE delayed AND expires_at IS NULL";
    assert_eq!(number(&client, has_none).await, 1);
}

#[tokio::test]
async fn nobody_holds_up_a_group_by_an_event_of_it_for_longer_than_a_publisher_may() {
    let (db, client) = probe().await;
    let of_group = publish(&client, act("0").group("g")).await;
    let alone = publish(&client, act("1")).await;
    let late = StartAt {
        delay: Some(Duration::from_hours(31 * 24)),
        ..StartAt::default()
    };
    let report = reschedule(&db, &rescheduled(&[of_group, alone], late)).await;
    assert_eq!((report.changed.ids, report.too_late), (vec![alone], 1));
    let update =
        "UPDATE tidegate.events SET available_at = now() + interval '31 days' WHERE id = $1";
    let refused = client.execute(update, &[&of_group]).await.unwrap_err();
    let told = refused.as_db_error().unwrap().message().to_owned();
    begins(&told, "available_at: must be within 30 days");
}
