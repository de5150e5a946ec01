//! The end of a run costs no event an attempt. What no run can finish ends after ten of them.

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, drain, end_of, live, number, options, pair, probe, publish,
};
use test_support::{TestDb, ended, wait_until};
use tidegate::{Done, DrainOptions, HandlerError, Hooks, drain_with};
use tidegate_core::queue;

/// `sleeps` never ends, `blocks` keeps its thread, `fails` fails.
fn app() -> Arc<ProbeApp> {
    ProbeApp::new(|call, _| {
        Box::pin(async move {
            match &*call.name {
                "sleeps" => std::future::pending().await,
                "blocks" => std::thread::sleep(Duration::from_millis(1500)),
                "fails" => return Err(HandlerError::retry("down", "not yet")),
                _ => {}
            }
            Ok(Done::ok())
        })
    })
}

/// A run that ends before such handlers do.
fn short() -> DrainOptions {
    DrainOptions {
        budget: Duration::from_millis(300),
        ..options()
    }
}

const ATTEMPTS: &str = "SELECT sum(attempts)::bigint FROM tidegate.event_queue";

/// Drains until a run has ended during an attempt. On a slow machine, some end before they begin one.
async fn run_that_ends_too_early(db: &TestDb) {
    for _ in 0..100 {
        let report = drain(db, &app(), &short()).await;
        if report.leased > report.released {
            assert_eq!(
                report.leased,
                report.released + report.retried + report.failed
            );
            return;
        }
    }
    panic!("no run begins an attempt");
}

#[tokio::test]
async fn an_event_whose_run_ends_keeps_its_last_attempt() {
    for event in [act("sleeps"), pair("sleeps"), act("blocks")] {
        let (db, client) = probe().await;
        let event = event.max_attempts(1);
        let published = queue::publish(&client, &event).await.unwrap();
        run_that_ends_too_early(&db).await;
        assert_eq!(number(&client, ATTEMPTS).await, 0);
        let code = "SELECT count(*) FROM tidegate.event_queue WHERE last_error LIKE 'cut: %' AND lapses = 0";
        assert_eq!(number(&client, code).await, 1);
        // With time enough, that attempt is still there.
        drain(&db, &ProbeApp::succeeding(), &options()).await;
        let end = end_of(&client, published.id).await;
        assert!(end.starts_with("COMPLETED 1"), "{end}");
    }
}

#[tokio::test]
async fn an_event_that_no_run_can_finish_ends_after_ten_of_them() {
    let (db, client) = probe().await;
    let published = queue::publish(&client, &act("sleeps").group("g")).await;
    publish(&client, [act("waits").group("g")]).await;
    for _ in 0..4 {
        run_that_ends_too_early(&db).await;
    }
    // An attempt with an outcome begins the count anew.
    let fails = ProbeApp::doing(|_| async { Err(HandlerError::retry("down", "not yet")) });
    let one = DrainOptions {
        max_events: Some(1),
        ..options()
    };
    drain(&db, &fails, &one).await;
    for _ in 0..10 {
        assert_eq!(live(&client).await, 2);
        run_that_ends_too_early(&db).await;
    }
    let end = end_of(&client, published.unwrap().id).await;
    // Two interruptions after the same time, to the millisecond, have one error.
    let mut words: Vec<&str> = end.split(' ').collect();
    words.dedup();
    assert_eq!(words, ["FAILED", "2", "cut", "down", "cut", "abandoned"]);
    drain(&db, &app(), &options()).await;
    assert_eq!(live(&client).await, 0, "the next of its group has run");
}

#[tokio::test]
async fn a_deploy_costs_no_attempt_and_a_handlers_own_limit_does() {
    let (db, client) = probe().await;
    publish(&client, [act("sleeps").max_attempts(2)]).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let hooks = Hooks {
        stop: Some(stopped),
        ..Hooks::default()
    };
    let (database, app) = (db.database(), app());
    let long = options();
    let run = drain_with(&database, app.clone(), &long, hooks);
    let signal = async {
        wait_until("its handler has begun", async || app.calls().len() == 1).await;
        stop.send(true).unwrap();
    };
    let (report, ()) = ended("a drain that is stopped", async {
        tokio::join!(run, signal)
    })
    .await;
    assert_eq!(report.unwrap().retried, 1);
    assert_eq!(number(&client, ATTEMPTS).await, 0);
    let limited = DrainOptions {
        handler_timeout: Duration::from_millis(100),
        max_events: Some(1),
        ..options()
    };
    drain(&db, &app, &limited).await;
    assert_eq!(number(&client, ATTEMPTS).await, 1);
}
