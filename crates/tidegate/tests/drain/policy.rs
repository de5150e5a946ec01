//! How events of a kind are handled, as their program declares.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use test_support::probe::{Probe, ProbeApp, act, drain, end_of, number, pair, probe, publish_acts};
use test_support::{TestDb, column, contains};
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{DrainOptions, Event as _, HandlerError, NewEvent, Policy};
use tidegate_core::queue;

async fn declare(db: &TestDb, policies: &[(&str, Policy)]) -> Result<(), tidegate::Error> {
    let migrate = Migrate::new(Probe::KINDS).policies(policies);
    migrate.run(&db.database()).await.map(drop)
}

async fn attempts(client: &Client) -> Vec<i32> {
    let sql = "SELECT max_attempts FROM tidegate.event_queue ORDER BY id";
    column(client, sql).await
}

#[tokio::test]
async fn a_declared_limit_of_attempts_is_that_of_every_publish_of_its_kind_and_of_no_other() {
    let (db, client) = probe().await;
    let twice = [("act", Policy::default().attempts(2))];
    declare(&db, &twice).await.unwrap();
    let events = [act("a"), act("own").max_attempts(9), pair("other")];
    queue::publish(&client, &events[0]).await.unwrap();
    queue::publish_batch(&client, &events).await.unwrap();
    let keyed: Vec<NewEvent> = ["k", "k"].map(|key| act("a").dedup(key)).into();
    queue::publish_batch(&client, &keyed).await.unwrap();
    let sql = "SELECT tidegate.publish('act', '{}'), tidegate.publish_many('[{\"kind\": \"act\"}, {\"kind\": \"pair\"}]')";
    client.batch_execute(sql).await.unwrap();
    assert_eq!(attempts(&client).await, [2, 2, 9, 5, 2, 2, 2, 5]);
    // A program that says nothing of policies, and one that declares it no more.
    let silent = Migrate::new(Probe::KINDS);
    silent.run(&db.database()).await.unwrap();
    queue::publish(&client, &act("a")).await.unwrap();
    declare(&db, &[]).await.unwrap();
    queue::publish(&client, &act("a")).await.unwrap();
    assert_eq!(attempts(&client).await[8..], [2, 5]);
}

#[tokio::test]
async fn what_is_no_policy_is_refused_by_the_field_and_changes_nothing() {
    let (db, client) = probe().await;
    let (usual, day) = (Policy::default(), Duration::from_hours(24));
    for (policy, field) in [
        (
            usual.attempts(0),
            "max_attempts: must be a whole number of 1 to 1000, got 0",
        ),
        (
            usual.handler_timeout(day),
            "handler_timeout_ms: must be a whole number of 1 to 900000",
        ),
        (usual.backoff(day * 2, day), "backoff_ms: must be"),
        (
            usual.backoff(day, Duration::ZERO),
            "backoff_max_ms: must be",
        ),
        (usual.concurrency(10_001), "concurrency: must be"),
    ] {
        let refused = declare(&db, &[("act", policy)]).await.unwrap_err();
        contains(&refused.to_string(), &format!("policy of act: {field}"));
    }
    let other = declare(&db, &[("deed", usual.attempts(3))]).await;
    contains(&other.unwrap_err().to_string(), "\"deed\"");
    for wrong in [
        "[]",
        "{\"speed\": 1}",
        "{\"max_attempts\": \"3\"}",
        "{\"max_attempts\": 1.5}",
        "{\"max_attempts\": 1001}",
    ] {
        let by_hand = format!("UPDATE tidegate.event_kind SET policy = '{wrong}'");
        client.batch_execute(&by_hand).await.unwrap_err();
    }
    let changed = "SELECT count(*) FROM tidegate.event_kind WHERE policy <> '{}'";
    assert_eq!(number(&client, changed).await, 0);
}

#[tokio::test]
async fn a_kinds_own_time_limit_and_backoff_are_kept_by_drains_and_its_neighbours_have_the_usual_ones()
 {
    let (db, client) = probe().await;
    let quick = Policy::default()
        .handler_timeout(Duration::from_millis(50))
        .backoff(Duration::from_hours(2), Duration::from_hours(3));
    declare(&db, &[("act", quick)]).await.unwrap();
    queue::publish(&client, &act("hangs")).await.unwrap();
    queue::publish(&client, &pair("fails")).await.unwrap();
    let app = ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.name == "hangs" {
                let left = ctx.deadline() - tokio::time::Instant::now();
                assert!(left <= Duration::from_millis(50));
                std::future::pending::<()>().await;
            }
            Err(HandlerError::retry("x", "y"))
        })
    });
    let report = drain(&db, &app, &DrainOptions::default()).await;
    assert_eq!(report.retried, 2, "{report:?}");
    let later = "SELECT count(*) FROM tidegate.event_queue WHERE kind = 'act' AND last_error LIKE 'timeout%'
                    AND available_at BETWEEN clock_timestamp() + interval '50 minutes' AND clock_timestamp() + interval '3 hours'";
    assert_eq!(number(&client, later).await, 1);
    let soon = "SELECT count(*) FROM tidegate.event_queue WHERE kind = 'pair' AND available_at < clock_timestamp() + interval '10 minutes'";
    assert_eq!(number(&client, soon).await, 1);
}

#[tokio::test]
async fn so_many_of_a_kind_run_at_once_over_all_drains_and_its_neighbours_wait_for_none() {
    let (db, client) = probe().await;
    declare(&db, &[("act", Policy::default().concurrency(2))])
        .await
        .unwrap();
    publish_acts(&client, 60).await;
    let pairs: Vec<NewEvent> = (0..2000).map(|_| pair("p")).collect();
    queue::publish_batch(&client, &pairs).await.unwrap();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let app = {
        let (running, most) = (running.clone(), most.clone());
        ProbeApp::new(move |call, _| {
            let (running, most) = (running.clone(), most.clone());
            Box::pin(async move {
                if call.handler == "act" {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
                Ok(tidegate::Done::ok())
            })
        })
    };
    let options = DrainOptions::default();
    let reports = tokio::join!(drain(&db, &app, &options), drain(&db, &app, &options));
    let completed = reports.0.completed + reports.1.completed;
    assert_eq!(completed, 2060, "{reports:?}");
    assert!(most.load(Ordering::SeqCst) <= 2);
    let at_once = "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1";
    assert_eq!(number(&client, at_once).await, 0);
    // Lifted, and so is the limit.
    declare(&db, &[]).await.unwrap();
    let limits = "SELECT count(*) FROM tidegate.service WHERE max_running IS NOT NULL";
    assert_eq!(number(&client, limits).await, 0);
    let id = queue::publish(&client, &act("a")).await.unwrap().id;
    drain(&db, &app, &options).await;
    let end = end_of(&client, id).await;
    assert!(end.starts_with("COMPLETED "), "{end}");
    // And with the kind itself.
    declare(&db, &[("act", Policy::default().concurrency(2))])
        .await
        .unwrap();
    assert_eq!(number(&client, limits).await, 1);
    // An operator limits it as any service.
    let lower = "SELECT tidegate.limit_service('kind:act', 1, NULL, 'it is slow')";
    client.batch_execute(lower).await.unwrap();
    let lowered = "SELECT count(*) FROM tidegate.service WHERE max_running = 1 AND kinds = '{act}'";
    assert_eq!(number(&client, lowered).await, 1);
    let retire = "SELECT tidegate.retire('act', 'nobody handles it')";
    client.batch_execute(retire).await.unwrap();
    assert_eq!(number(&client, limits).await, 0);
}
