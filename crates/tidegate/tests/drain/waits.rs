//! What a handler's transaction holds while it commits, or while it waits for another publisher, keeps no
//! other event of its drain from going back. A wait is nobody's fault: it costs no attempt.

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{ProbeApp, act, live, number, probe, probe_sessions};
use test_support::{ended, execute};
use tidegate::connect::Client;
use tidegate::{DrainOptions, DrainReport, HandlerError, NewEvent};
use tidegate_core::queue;

/// Commits take as long as with a standby that lags, or a disk that stalls.
const SLOW_COMMITS: &str = "
    CREATE TABLE public.book (id bigint);
    CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(0.6);
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON public.book DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.stall()";

/// What became of events that lost an attempt to a worker that went away.
const LAPSED: &str = "SELECT (SELECT count(*) FROM tidegate.event_queue WHERE lapses > 0)
    + (SELECT count(*) FROM tidegate.event_log WHERE status = 'FAILED' OR errors @> '[{\"code\": \"lapsed\"}]')";

/// Events called `book` write in a transaction of theirs, those called `tell` emit into the group `shared`
/// besides, and the others fail once.
fn app() -> Arc<ProbeApp> {
    ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.name == "fails once" {
                return match call.attempt {
                    1 => Err(HandlerError::retry("down", "not yet").after(Duration::ZERO)),
                    _ => Ok(tidegate::Done::ok()),
                };
            }
            let transaction = ctx.transaction().await?;
            let book = "INSERT INTO public.book VALUES ($1)";
            transaction.execute(book, &[&call.id]).await?;
            if call.name == "tell" {
                ctx.emit(&act("fails once").group("shared"))?;
            }
            transaction.complete(tidegate::Done::ok()).await
        })
    })
}

async fn publish(client: &Client, event: NewEvent, count: usize) {
    for _ in 0..count {
        queue::publish(client, &event.clone().max_attempts(2))
            .await
            .unwrap();
    }
}

async fn drained(
    db: &test_support::TestDb,
    app: &Arc<ProbeApp>,
    options: &DrainOptions,
) -> DrainReport {
    let database = db.database();
    let run = tidegate::drain(&database, app.clone(), options);
    let report = ended("the drain", run).await.unwrap();
    assert_eq!((report.lease_lost, report.failed), (0, 0), "{report:?}");
    report
}

#[tokio::test]
async fn a_commit_that_takes_its_time_keeps_no_other_event_from_going_back() {
    let (db, client) = probe().await;
    execute(&client, SLOW_COMMITS).await;
    for _ in 0..10 {
        publish(&client, act("book"), 2).await;
        publish(&client, act("fails once"), 4).await;
    }
    let report = drained(&db, &app(), &DrainOptions::default()).await;
    assert_eq!((report.completed, report.retried), (60, 40), "{report:?}");
    assert_eq!(number(&client, LAPSED).await, 0);
}

#[tokio::test]
async fn a_follow_up_that_waits_for_a_publisher_keeps_no_other_event_from_going_back() {
    let (db, [client, publisher]) = probe_sessions().await;
    execute(&client, "CREATE TABLE public.book (id bigint)").await;
    execute(&publisher, "BEGIN").await;
    publish(&publisher, act("first").group("shared"), 1).await;
    publish(&client, act("tell"), 6).await;
    publish(&client, act("fails once"), 20).await;
    let app = app();
    // The budget ends while the group is still busy.
    let brief = DrainOptions {
        budget: Duration::from_secs(6),
        ..DrainOptions::default()
    };
    let report = drained(&db, &app, &brief).await;
    assert_eq!(report.completed, 20, "{report:?}");
    execute(&publisher, "ROLLBACK").await;
    let at_once = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";
    execute(&client, at_once).await;
    let report = drained(&db, &app, &DrainOptions::default()).await;
    assert_eq!(report.published, 6, "{report:?}");
    assert_eq!((live(&client).await, number(&client, LAPSED).await), (0, 0));
}

/// Events called `emit` emit into the group `shared`, and nothing else.
fn emitting() -> Arc<ProbeApp> {
    ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            if call.name == "emit" {
                ctx.emit(&act("follow-up").group("shared"))?;
            }
            Ok(tidegate::Done::ok())
        })
    })
}

#[tokio::test]
async fn a_follow_up_gets_in_line_behind_a_producer_that_commits_in_a_moment() {
    let (db, [client, producer]) = probe_sessions().await;
    let waits = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    // The moment is short, and a busy machine may miss it.
    for _ in 0..20 {
        execute(&producer, "BEGIN").await;
        publish(&producer, act("first").group("shared"), 1).await;
        publish(&client, act("emit"), 1).await;
        let (app, options) = (emitting(), DrainOptions::default());
        let running = async {
            let report = drained(&db, &app, &options).await;
            execute(&producer, "ROLLBACK").await;
            report
        };
        let committing = async {
            while number(&client, waits).await == 0 {
                tokio::task::yield_now().await;
            }
            execute(&producer, "COMMIT").await;
            std::future::pending::<()>().await;
        };
        let report = tokio::select! {
            report = running => report,
            () = committing => unreachable!(),
        };
        if report.retried == 0 {
            return;
        }
    }
    panic!("no follow-up has got in line");
}

#[tokio::test]
async fn an_end_whose_follow_up_cannot_be_published_goes_back_with_its_work_and_costs_nothing() {
    let (db, [client, producer]) = probe_sessions().await;
    execute(&producer, "BEGIN").await;
    publish(&producer, act("first").group("shared"), 1).await;
    for name in ["emit", "next"] {
        publish(&client, act(name).group("own"), 1).await;
    }
    publish(&client, act("other"), 1).await;
    let app = emitting();
    let report = drained(&db, &app, &DrainOptions::default()).await;
    assert!(report.retried >= 1 && report.completed == 1, "{report:?}");
    let charged = "SELECT sum(attempts + lapses)::bigint FROM tidegate.event_queue WHERE payload->>'name' = 'emit'";
    assert_eq!(number(&client, charged).await, 0);
    execute(&producer, "ROLLBACK").await;
    let at_once = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() WHERE delayed";
    execute(&client, at_once).await;
    let report = drained(&db, &app, &DrainOptions::default()).await;
    assert_eq!((report.completed, report.published), (3, 1), "{report:?}");
    let mut names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    names.sort();
    assert_eq!(names, ["emit", "follow-up", "next", "other"]);
    let told = "SELECT count(*) FROM tidegate.event_log
                 WHERE payload->>'name' = 'emit' AND attempts = 1 AND errors->0->>'code' = 'group_busy'";
    assert_eq!(number(&client, told).await, 1);
}
