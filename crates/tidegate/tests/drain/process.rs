//! Real worker processes that die: killed after the effect, aborted by a poison event, stopped by a
//! signal; and several of them on one queue.
//!
//! A worker is this very test binary, started again for one ignored test that drains with handlers
//! as its environment says.

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, drain, end_of, live, number, options, probe, publish, publish_acts,
};
use test_support::worker::Worker;
use test_support::{TestDb, contains, execute, wait_until};
use tidegate::connect::Client;
use tidegate::{Database, Done, DrainOptions, DrainReport, HandlerError, NewEvent, Verdicts};
use tidegate_core::queue;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

/// The environment variable that makes this process a worker.
const WORKER: &str = "TIDEGATE_TEST_WORKER";

/// A worker whose handlers behave so.
fn start(db: &TestDb, behaviour: &str) -> Worker {
    Worker::of("process::worker", db, &[(WORKER, behaviour.to_owned())])
}

/// Waits a little for what others give back.
fn lingering() -> DrainOptions {
    DrainOptions {
        linger: Duration::from_millis(1500),
        ..options()
    }
}

/// Leases that run out soon after their worker's death.
fn short_lease() -> DrainOptions {
    DrainOptions {
        lease_timeout: Duration::from_secs(1),
        handler_timeout: Duration::from_millis(900),
        ..lingering()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the tests in this file"]
async fn worker() {
    let behaviour = std::env::var(WORKER).expect("only other tests start this one");
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .init();
    let url = std::env::var("DATABASE_URL").unwrap();
    let dies = ["hang", "abort"].contains(&behaviour.as_str());
    let app = ProbeApp::new(move |call, _| {
        let (behaviour, url) = (behaviour.clone(), url.clone());
        Box::pin(async move {
            if behaviour == "rejects" {
                return Err(HandlerError::reject("unfit", "for ever"));
            }
            record_effect(&url, call.id).await?;
            match behaviour.as_str() {
                "hang" => std::future::pending::<()>().await,
                "abort" if call.name == "poison" => std::process::abort(),
                "flaky" if call.attempt == 1 && call.id % 7 == 3 => {
                    return Err(HandlerError::retry("down", "once"));
                }
                "down" => return Err(HandlerError::retry("down", "again")),
                "slow" => tokio::time::sleep(Duration::from_millis(100)).await,
                _ => {}
            }
            Ok(Done::ok())
        })
    });
    let database = Database::new(&std::env::var("DATABASE_URL").unwrap(), 2).unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    tokio::spawn(async move { terminate.recv().await.map(|()| stop.send(true)) });
    let hooks = tidegate::Hooks {
        stop: Some(stopped),
        ..tidegate::Hooks::default()
    };
    let options = if dies { short_lease() } else { lingering() };
    let report = tidegate::drain_with(&database, app, &options, hooks)
        .await
        .unwrap();
    println!("REPORT {}", serde_json::to_string(&report).unwrap());
}

/// An effect outside the event's own transaction, as a call to another system is.
async fn record_effect(url: &str, id: i64) -> Result<(), HandlerError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.retryable()?;
    tokio::spawn(connection);
    // It may be through a pooler.
    client
        .execute_typed("INSERT INTO effect (id) VALUES ($1)", &[(&id, Type::INT8)])
        .await?;
    Ok(())
}

async fn database_with_effects() -> (TestDb, Client) {
    let (db, client) = probe().await;
    let sql = "CREATE TABLE effect (id bigint, position bigint GENERATED ALWAYS AS IDENTITY)";
    execute(&client, sql).await;
    (db, client)
}

async fn effects(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM effect").await
}

fn counting() -> Arc<ProbeApp> {
    ProbeApp::succeeding()
}

#[tokio::test]
async fn a14_b5_c3_c4_a_worker_killed_after_the_effect_loses_nothing_and_the_event_runs_again() {
    let (db, client) = database_with_effects().await;
    let id = publish_acts(&client, 1).await[0];
    let worker = start(&db, "hang");
    wait_until("the effect is there", async || effects(&client).await == 1).await;
    worker.signal("-KILL");
    assert!(worker.report().is_none());
    let places = "SELECT (SELECT count(*) FROM tidegate.event_queue) + (SELECT count(*) FROM tidegate.event_log)";
    assert_eq!(number(&client, places).await, 1, "in exactly one place");
    let app = counting();
    let report = drain(&db, &app, &short_lease()).await;
    assert_eq!((app.ids(), report.completed), (vec![id], 1));
    assert_eq!(end_of(&client, id).await, "COMPLETED 2 lapsed");
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn c14_d12_a_poison_event_that_aborts_its_process_ends_failed_and_others_go_on() {
    let (db, client) = database_with_effects().await;
    let poison = publish(&client, [act("poison").max_attempts(2)]).await[0];
    let good = publish_acts(&client, 5).await;
    let mut deaths = 0;
    let report = loop {
        match start(&db, "abort").report() {
            Some(report) => break report,
            None => deaths += 1,
        }
        assert!(deaths <= 2, "the poison event runs for ever");
        wait_until("its leases run out", async || {
            number(
                &client,
                "SELECT count(*) FROM tidegate.lease WHERE expires_at > clock_timestamp()",
            )
            .await
                == 0
        })
        .await;
    };
    assert_eq!(deaths, 2, "as many as its attempts");
    assert_eq!(report.abandoned, 1, "{report:?}");
    let end = "FAILED 2 lapsed lapsed abandoned";
    assert_eq!(end_of(&client, poison).await, end);
    for id in good {
        let end = end_of(&client, id).await;
        assert!(end.starts_with("COMPLETED "), "{end}");
    }
}

#[tokio::test]
async fn f2_a_stopped_worker_process_gives_back_what_it_has_not_started() {
    let (db, client) = database_with_effects().await;
    publish_acts(&client, 500).await;
    let worker = start(&db, "slow");
    wait_until("it is at work", async || effects(&client).await > 0).await;
    worker.signal("-TERM");
    let report = worker.report().expect("it ends by itself");
    assert!(report.is_balanced(), "{report:?}");
    assert!(
        report.completed >= 1 && report.retried == 0 && report.backlog > Some(0),
        "{report:?}"
    );
    let sql = "SELECT sum(attempts) FROM tidegate.event_queue";
    assert_eq!(number(&client, sql).await, 0);
    let found = effects(&client).await;
    assert_eq!(found, i64::try_from(report.completed).unwrap());
}

#[tokio::test]
async fn d1_three_worker_processes_share_a_thousand_events_and_handle_each_once() {
    let (db, client) = database_with_effects().await;
    publish_acts(&client, 1000).await;
    let workers: Vec<Worker> = (0..3).map(|_| start(&db, "quick")).collect();
    let reports: Vec<DrainReport> = workers
        .into_iter()
        .map(|worker| worker.report().expect("it ends by itself"))
        .collect();
    let found = reports.iter().map(|report| report.completed).sum::<u64>();
    assert_eq!(found, 1000, "{reports:?}");
    assert!(reports.iter().all(DrainReport::is_balanced));
    let once =
        "SELECT count(*) FROM (SELECT id FROM effect GROUP BY id HAVING count(*) = 1) AS once";
    let seen = (effects(&client).await, number(&client, once).await);
    assert_eq!(seen, (1000, 1000));
}

#[tokio::test]
async fn b10_e5_e7_e8_three_worker_processes_keep_each_groups_order_through_retries() {
    let (db, client) = database_with_effects().await;
    let events: Vec<NewEvent> = (0..900)
        .map(|n| act("x").group(format!("g{}", n % 20)))
        .collect();
    queue::publish_batch(&client, &events).await.unwrap();
    let workers: Vec<Worker> = (0..3).map(|_| start(&db, "flaky")).collect();
    let reports: Vec<DrainReport> = workers
        .into_iter()
        .map(|worker| worker.report().expect("it ends by itself"))
        .collect();
    let found = reports.iter().map(|report| report.completed).sum::<u64>();
    assert_eq!(found, 900, "{reports:?}");
    assert!(
        reports.iter().filter(|report| report.completed > 0).count() > 1,
        "{reports:?}"
    );
    // Of two effects of one group, the later one is of the same event or of a later one.
    let out_of_order = "SELECT count(*) FROM (
        SELECT l.id, lag(l.id) OVER (PARTITION BY l.group_key ORDER BY e.position) AS ahead
          FROM effect AS e JOIN tidegate.event_log AS l USING (id)) AS pairs WHERE ahead > id";
    assert_eq!(number(&client, out_of_order).await, 0);
}

#[tokio::test]
async fn b30_failures_that_will_be_retried_and_final_ones_are_two_different_log_lines() {
    let (db, client) = database_with_effects().await;
    publish(&client, [act("secret-canary").max_attempts(2)]).await;
    let log = start(&db, "down").output();
    let found = log.matches("event failed, will be retried").count();
    assert_eq!(found, 1, "{log}");
    assert_eq!(log.matches("event failed for good").count(), 1, "{log}");
    contains(&log, "ERROR");
    contains(&log, "event.attempt=2");
    assert!(!log.contains("canary"), "a payload is in the log: {log}");
}

#[tokio::test]
async fn a_run_in_which_everything_fails_logs_some_events_and_counts_the_others() {
    for (name, attempts, line, summary) in [
        (
            "rejects",
            5,
            "event rejected by a handler",
            "rejected act unfit: 3000",
        ),
        ("down", 1, "event failed for good", "failed act down: 3000"),
    ] {
        let (db, client) = database_with_effects().await;
        publish_acts(&client, 3000).await;
        let limit = format!("UPDATE tidegate.event_queue SET max_attempts = {attempts}");
        client.batch_execute(&limit).await.unwrap();
        let log = start(&db, name).output();
        // The first ten, the hundredth and the thousandth.
        assert_eq!(log.matches(line).count(), 12, "{log}");
        assert_eq!(log.matches("events=1000").count(), 1, "{log}");
        let left_out = log.lines().find(|line| line.contains("were left out"));
        contains(left_out.expect("it ends with their numbers"), summary);
        let all = log.lines().filter(|line| line.contains("tidegate"));
        assert!(all.count() <= 12 + 10, "{log}");
    }
}
