//! Calls that events share: how many, whose fault a call is that fails as a whole, and that order, attempts
//! and limits are as without them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::TestDb;
use test_support::probe::{Probe, ProbeApp, act, drain, number, pair, probe};
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Batch, Done, DrainOptions, Event as _, HandlerError, NewEvent, Policy, StopReason};
use tidegate_core::queue;

type Items = Vec<(i64, String)>;
type Answers = Result<Vec<Result<(), HandlerError>>, HandlerError>;

/// Where no test may depend on who joins in time: a call begins when it is full.
const UNTIL_FULL: Duration = Duration::from_mins(1);

async fn declare(db: &TestDb, policy: Policy) {
    let database = db.database();
    let migrate = Migrate::new(Probe::KINDS);
    migrate
        .policies(&[("act", policy)])
        .run(&database)
        .await
        .unwrap();
}

/// An application whose events of the kind `act` share calls, and what those were given.
fn sharing(
    call: impl Fn(&Items) -> Answers + Clone + Send + Sync + 'static,
) -> (Arc<ProbeApp>, Arc<Mutex<Vec<Items>>>) {
    let calls: Arc<Mutex<Vec<Items>>> = Arc::default();
    let noted = calls.clone();
    let batch = Arc::new(Batch::new(move |items: Items| {
        noted.lock().unwrap().push(items.clone());
        let call = call.clone();
        async move {
            tokio::task::yield_now().await;
            call(&items)
        }
    }));
    let app = ProbeApp::new(move |call, ctx| {
        let batch = batch.clone();
        Box::pin(async move {
            if call.handler == "act" {
                batch.call(ctx, (call.id, call.name)).await?;
            }
            Ok(Done::ok())
        })
    });
    (app, calls)
}

/// All is well.
#[expect(clippy::unnecessary_wraps, reason = "it is what a call answers")]
fn well(items: &Items) -> Answers {
    Ok(items.iter().map(|_| Ok(())).collect())
}

fn sizes(calls: &Mutex<Vec<Items>>) -> Vec<usize> {
    calls.lock().unwrap().iter().map(Vec::len).collect()
}

async fn publish(client: &Client, names: impl Iterator<Item = String>) {
    let events: Vec<NewEvent> = names.map(|name| act(&name)).collect();
    queue::publish_batch(client, &events).await.unwrap();
}

async fn ended(client: &Client, status: &str, attempts: i32) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM tidegate.event_log WHERE status = '{status}' AND attempts = {attempts}"
    );
    number(client, &sql).await
}

#[tokio::test]
async fn so_many_events_share_a_call_and_each_has_its_own_verdict() {
    let (db, client) = probe().await;
    declare(&db, Policy::default().batch(100, UNTIL_FULL)).await;
    publish(&client, (0..3000).map(|n| format!("{}", n % 3))).await;
    let pairs: Vec<NewEvent> = (0..500).map(|_| pair("beside")).collect();
    queue::publish_batch(&client, &pairs).await.unwrap();
    let (app, calls) = sharing(|items| {
        let answers = items.iter().map(|(_, name)| match name.as_str() {
            "0" => Ok(()),
            "1" => Err(HandlerError::reject("one", "this item alone")),
            _ => Err(HandlerError::retry("two", "this item alone").after(Duration::from_hours(1))),
        });
        Ok(answers.collect())
    });
    let report = drain(&db, &app, &DrainOptions::default()).await;
    assert_eq!(report.stop_reason, StopReason::QueueEmpty, "{report:?}");
    assert_eq!(sizes(&calls), [100; 30]);
    assert_eq!(ended(&client, "COMPLETED", 1).await, 1500);
    assert_eq!(ended(&client, "COMPLETED_WITH_ERRORS", 1).await, 1000);
    let charged =
        "SELECT count(*) FROM tidegate.event_queue WHERE attempts = 1 AND last_error LIKE 'two%'";
    assert_eq!(number(&client, charged).await, 1000);
    for call in calls.lock().unwrap().iter() {
        assert!(call.is_sorted_by_key(|(id, _)| *id));
    }
}

#[tokio::test]
async fn whoever_comes_first_waits_no_longer_than_was_said_and_a_single_event_has_its_call_too() {
    let (db, client) = probe().await;
    let soon = Duration::from_millis(20);
    declare(&db, Policy::default().batch(1000, soon)).await;
    publish(&client, std::iter::once("alone".to_owned())).await;
    let (app, calls) = sharing(well);
    drain(&db, &app, &DrainOptions::default()).await;
    assert_eq!(sizes(&calls), [1]);
    assert_eq!(ended(&client, "COMPLETED", 1).await, 1);
}

/// How a call goes wrong that the event "spoils" is in.
type Spoil = fn(usize) -> Answers;

#[tokio::test]
async fn one_event_that_spoils_every_call_it_is_in_costs_thousands_beside_it_no_attempt() {
    let ways: [(&str, Spoil); 4] = [
        ("retry", |_| Err(HandlerError::retry("spoilt", "all of it"))),
        ("reject", |_| {
            Err(HandlerError::reject("spoilt", "all of it"))
        }),
        ("batch", |count| Ok((1..count).map(|_| Ok(())).collect())),
        ("panic", |_| panic!("the client has a bug")),
    ];
    for (way, spoil) in ways {
        let (db, client) = probe().await;
        declare(&db, Policy::default().batch(100, Duration::from_millis(20))).await;
        let names = (0..2001).map(|n| if n == 700 { "spoils" } else { "neighbour" });
        let events: Vec<NewEvent> = names.map(|name| act(name).max_attempts(1)).collect();
        queue::publish_batch(&client, &events).await.unwrap();
        let (app, calls) = sharing(move |items| {
            let spoilt = items.iter().any(|(_, name)| name == "spoils");
            if spoilt {
                spoil(items.len())
            } else {
                well(items)
            }
        });
        let report = drain(&db, &app, &DrainOptions::default()).await;
        let found = ended(&client, "COMPLETED", 1).await;
        assert_eq!(found, 2000, "{way}: {report:?}");
        let spoiler = "SELECT count(*) FROM tidegate.event_log
             WHERE status <> 'COMPLETED' AND attempts = 1 AND payload->>'name' = 'spoils'";
        assert_eq!(number(&client, spoiler).await, 1, "{way}");
        let spoilt: Vec<usize> = {
            let calls = calls.lock().unwrap();
            let of_it = calls
                .iter()
                .filter(|items| items.iter().any(|(_, name)| name == "spoils"));
            of_it.map(Vec::len).collect()
        };
        // A quarter at a time, in the end alone.
        let shrinks = |pair: &[usize]| pair[1] <= (pair[0] / 4).max(1);
        assert!(spoilt.windows(2).all(shrinks), "{way}: {spoilt:?}");
        assert_eq!(spoilt.last(), Some(&1), "{way}: {spoilt:?}");
    }
}

#[tokio::test]
async fn a_call_that_hangs_while_others_share_it_is_nobodys_attempt() {
    let (db, client) = probe().await;
    let policy = Policy::default()
        .batch(8, Duration::from_millis(20))
        .handler_timeout(Duration::from_secs(1));
    declare(&db, policy).await;
    let names = (0..200).map(|n| if n == 50 { "hangs" } else { "neighbour" });
    let events: Vec<NewEvent> = names.map(|name| act(name).max_attempts(1)).collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let batch = Arc::new(Batch::new(|items: Vec<String>| async move {
        if items.iter().any(|name| name == "hangs") {
            std::future::pending::<()>().await;
        }
        Ok(items.iter().map(|_| Ok(())).collect())
    }));
    let app = ProbeApp::new(move |call, ctx| {
        let batch = batch.clone();
        Box::pin(async move {
            batch.call(ctx, call.name).await?;
            Ok(Done::ok())
        })
    });
    drain(&db, &app, &DrainOptions::default()).await;
    let hung = "SELECT count(*) FROM tidegate.event_log WHERE status = 'FAILED' AND payload->>'name' = 'hangs'
                    AND attempts = 1 AND errors @> '[{\"code\": \"timeout\"}]'";
    assert_eq!(number(&client, hung).await, 1);
    assert_eq!(ended(&client, "COMPLETED", 1).await, 199);
}

#[tokio::test]
async fn a2_events_of_one_group_are_never_in_one_call_and_keep_their_order() {
    let (db, client) = probe().await;
    declare(&db, Policy::default().batch(10, Duration::from_millis(20))).await;
    let events: Vec<NewEvent> = (0..400)
        .map(|n| act(&format!("g{}", n % 20)).group(format!("g{}", n % 20)))
        .collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let (app, calls) = sharing(well);
    drain(&db, &app, &DrainOptions::default()).await;
    let calls = calls.lock().unwrap();
    for call in calls.iter() {
        let groups: BTreeSet<&str> = call.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(groups.len(), call.len(), "{call:?}");
    }
    for group in 0..20 {
        let name = format!("g{group}");
        let of_group = calls.iter().flatten().filter(|(_, of)| *of == name);
        let ids: Vec<i64> = of_group.map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), 20);
        assert!(ids.is_sorted(), "{ids:?}");
    }
}

#[tokio::test]
async fn a2_a_drain_of_concurrency_one_keeps_the_order_of_all_and_each_event_has_its_own_call() {
    let (db, client) = probe().await;
    declare(&db, Policy::default().batch(100, UNTIL_FULL)).await;
    publish(&client, (0..50).map(|n| n.to_string())).await;
    let (app, calls) = sharing(well);
    let options = DrainOptions {
        concurrency: 1,
        ..DrainOptions::default()
    };
    drain(&db, &app, &options).await;
    assert_eq!(sizes(&calls), [1; 50]);
    let calls = calls.lock().unwrap();
    assert!(calls.iter().flatten().is_sorted_by_key(|(id, _)| *id));
}

#[tokio::test]
async fn large_items_share_calls_as_far_as_there_is_room_for_them() {
    let (db, client) = probe().await;
    declare(&db, Policy::default().batch(50, Duration::from_millis(20))).await;
    for size in [5_000, 1_000_000] {
        let name = "x".repeat(size);
        publish(&client, (0..100).map(|_| name.clone())).await;
    }
    let (app, calls) = sharing(well);
    let report = drain(&db, &app, &DrainOptions::default()).await;
    assert_eq!(ended(&client, "COMPLETED", 1).await, 200, "{report:?}");
    assert!(sizes(&calls).iter().all(|size| *size <= 50));
}
