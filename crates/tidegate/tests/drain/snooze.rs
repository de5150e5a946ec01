//! Handlers that say "not now".

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{ProbeApp, act, drain, end_of, number, pair, probe, publish_acts};
use tidegate::drain::StopReason;
use tidegate::{Done, DrainOptions, HandlerError, NewEvent};
use tidegate_core::queue;

const DUE: &str = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";

/// Events called "later" are snoozed for an hour until the attempt is told to end them.
fn snoozing() -> Arc<ProbeApp> {
    ProbeApp::doing(|call| async move {
        match call.name.as_str() {
            "later" => Err(HandlerError::snooze(Duration::from_hours(1), "no document")),
            "later, and fails" if call.handler == "first" => {
                Err(HandlerError::retry("x", "no good").after(Duration::ZERO))
            }
            "later, and fails" => Err(HandlerError::snooze(Duration::ZERO, "no document")),
            _ => Ok(Done::ok()),
        }
    })
}

#[tokio::test]
async fn a_snooze_costs_no_attempt_and_is_no_error_and_its_neighbours_go_on() {
    let (db, client) = probe().await;
    let later: Vec<NewEvent> = (0..500).map(|_| act("later").max_attempts(1)).collect();
    queue::publish_batch(&client, &later).await.unwrap();
    let grouped = [act("later").group("g"), act("behind").group("g")];
    queue::publish_batch(&client, &grouped).await.unwrap();
    publish_acts(&client, 2000).await;
    let app = snoozing();
    for times in 1..=3_i64 {
        let report = drain(&db, &app, &DrainOptions::default()).await;
        assert!(report.is_balanced(), "{report:?}");
        assert_eq!(report.stop_reason, StopReason::QueueEmpty);
        let completed = if times == 1 { 2000 } else { 0 };
        let found = (
            report.completed,
            report.snoozed,
            report.retried,
            report.failed,
        );
        assert_eq!(found, (completed, 501, 0, 0), "{report:?}");
        let waits = format!(
            "SELECT count(*) FROM tidegate.event_queue
              WHERE attempts = 0 AND errors = '[]' AND last_error IS NULL AND progress->'snoozed' = '{{\"times\": {times}, \"why\": \"no document\"}}'
                AND available_at BETWEEN clock_timestamp() + interval '50 minutes' AND clock_timestamp() + interval '1 hour'"
        );
        assert_eq!(number(&client, &waits).await, 501);
        client.execute(DUE, &[]).await.unwrap();
    }
    // What stands behind a snoozed event in its group waits with it.
    assert!(app.calls().iter().all(|call| call.name != "behind"));
    let costless = "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1";
    assert_eq!(number(&client, costless).await, 0);
}

#[tokio::test]
async fn a_thousand_snoozes_are_enough_and_then_attempts_are_spent() {
    let (db, client) = probe().await;
    let event = act("later").max_attempts(2);
    let id = queue::publish(&client, &event).await.unwrap().id;
    let before = "UPDATE tidegate.event_queue SET progress = '{\"snoozed\": {\"times\": 999, \"why\": \"x\"}}'";
    client.execute(before, &[]).await.unwrap();
    let app = snoozing();
    for (snoozed, retried, failed) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let report = drain(&db, &app, &DrainOptions::default()).await;
        let found = (report.snoozed, report.retried, report.failed);
        assert_eq!(found, (snoozed, retried, failed), "{report:?}");
        client.execute(DUE, &[]).await.unwrap();
    }
    let end = "FAILED 2 snoozed_too_often snoozed_too_often attempts_exhausted";
    assert_eq!(end_of(&client, id).await, end);
}

#[tokio::test]
async fn a_snooze_beside_a_failure_is_an_attempt_like_any_other() {
    let (db, client) = probe().await;
    let event = pair("later, and fails").max_attempts(3);
    let id = queue::publish(&client, &event).await.unwrap().id;
    let app = snoozing();
    for _ in 0..3 {
        drain(&db, &app, &DrainOptions::default()).await;
    }
    let found = end_of(&client, id).await;
    assert_eq!(found, "FAILED 3 x x x attempts_exhausted");
}

#[tokio::test]
async fn b13_a_snoozed_event_ends_when_its_deadline_has_passed() {
    let (db, client) = probe().await;
    let event = act("later").start_within(Duration::from_hours(2));
    let id = queue::publish(&client, &event).await.unwrap().id;
    let app = snoozing();
    drain(&db, &app, &DrainOptions::default()).await;
    let over = "UPDATE tidegate.event_queue SET available_at = clock_timestamp(), expires_at = clock_timestamp()";
    client.execute(over, &[]).await.unwrap();
    let report = drain(&db, &app, &DrainOptions::default()).await;
    assert_eq!((report.expired, report.snoozed), (1, 0), "{report:?}");
    assert_eq!(end_of(&client, id).await, "FAILED 0 expired");
}

/// Handlers that leave their work to another event: "now" does not, "in a transaction" ends its event itself,
/// and "to nobody" emits an event that no program has registered.
fn putting_off() -> Arc<ProbeApp> {
    ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            let later = |kind| NewEvent::raw(kind, None).delay(Duration::from_hours(1));
            match (call.name.as_str(), call.handler) {
                ("now", _) | ("half", "second") => return Ok(Done::ok()),
                ("to nobody", _) => ctx.emit(&later("nobody"))?,
                _ => ctx.emit(&later("note"))?,
            }
            let done = Done::ok().put_off();
            if call.name == "in a transaction" {
                return ctx.transaction().await?.complete(done).await;
            }
            Ok(done)
        })
    })
}

#[tokio::test]
async fn what_is_put_off_is_no_finished_work_and_no_attempt() {
    let (db, client) = probe().await;
    let events = [
        act("now"),
        act("alone"),
        act("in a transaction"),
        pair("both"),
        pair("half"),
    ];
    queue::publish_batch(&client, &events).await.unwrap();
    let report = drain(&db, &putting_off(), &DrainOptions::default()).await;
    assert!(report.is_balanced(), "{report:?}");
    let ends = (report.completed, report.snoozed, report.published);
    assert_eq!(ends, (2, 3, 5), "{report:?}");
    let log = "SELECT count(*) FROM tidegate.event_log WHERE status = 'COMPLETED' AND attempts =";
    for (attempts, events) in [(0, 3), (1, 2)] {
        assert_eq!(number(&client, &format!("{log} {attempts}")).await, events);
    }
    let ended =
        "SELECT sum(events)::bigint FROM tidegate.minute_stats WHERE kind <> 'note' AND status =";
    for (status, events) in [("PUT_OFF", 3), ("COMPLETED", 2)] {
        let found = number(&client, &format!("{ended} '{status}'")).await;
        assert_eq!(found, events);
    }
    let finished = "SELECT sum(events)::bigint FROM tidegate.ended(now() - interval '1 hour') WHERE kind <> 'note'";
    assert_eq!(number(&client, finished).await, 2);
}

#[tokio::test]
async fn what_cannot_be_put_off_fails_with_its_attempt() {
    let (db, client) = probe().await;
    let event = act("to nobody").max_attempts(2);
    let id = queue::publish(&client, &event).await.unwrap().id;
    let report = drain(&db, &putting_off(), &DrainOptions::default()).await;
    assert_eq!((report.failed, report.snoozed), (1, 0), "{report:?}");
    assert_eq!(end_of(&client, id).await, "FAILED 1 unstorable");
}
