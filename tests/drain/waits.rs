//! What a handler's transaction holds while it commits, or while it waits for another publisher, keeps no
//! other event of its drain from going back. A wait is nobody's fault: it costs no attempt.

use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{ProbeApp, act, live, number, probe, probe_sessions};
use test_support::{ended, execute};
use tidegate::connect::Client;
use tidegate::queue;
use tidegate::{DrainOptions, DrainReport, HandlerError, NewEvent};

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
