//! Handlers that tell how far they have come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use test_support::probe::{ProbeApp, act, drain, number, probe, probe_sessions};
use test_support::{TestDb, column};
use tidegate::connect::Client;
use tidegate::{Done, DrainOptions, DrainReport, StopReason};
use tidegate_core::queue;
use tokio::sync::Semaphore;

/// Only a hang is longer.
const LONG: Duration = Duration::from_mins(1);

/// What a handler and its test wait for of each other.
#[derive(Clone)]
struct Steps {
    begun: Arc<Semaphore>,
    may_tell: Arc<Semaphore>,
    told: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
}

impl Steps {
    fn new() -> Self {
        let none = || Arc::new(Semaphore::new(0));
        Self {
            begun: none(),
            may_tell: none(),
            told: none(),
            go_on: none(),
        }
    }

    async fn pass(gate: &Semaphore) {
        let passed = tokio::time::timeout(LONG, gate.acquire()).await;
        passed.expect("the other is heard of").unwrap().forget();
    }
}

/// Tells its progress, and again once the test has looked, until that is refused or `most` times.
fn telling(steps: &Steps, most: usize) -> Arc<ProbeApp> {
    let steps = steps.clone();
    ProbeApp::new(move |_, ctx| {
        let steps = steps.clone();
        Box::pin(async move {
            steps.begun.add_permits(1);
            Steps::pass(&steps.may_tell).await;
            ctx.progress(0.4, "row\0 400".repeat(100)).await?;
            steps.told.add_permits(1);
            Steps::pass(&steps.go_on).await;
            for _ in 0..most {
                ctx.progress(f64::NAN, "").await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(Done::ok())
        })
    })
}

async fn drained(db: &TestDb, app: &Arc<ProbeApp>) -> DrainReport {
    let options = DrainOptions {
        lease_timeout: Duration::from_mins(3),
        handler_timeout: Duration::from_mins(2),
        ..DrainOptions::default()
    };
    drain(db, app, &options).await
}

/// Returns the ids of the events about which a handler reports progress.
async fn reporting(client: &Client) -> Vec<i64> {
    let sql = "SELECT id FROM tidegate.at_work ORDER BY id";
    column(client, sql).await
}

#[tokio::test]
async fn how_far_a_handler_has_come_is_shown_while_it_works_and_written_once_a_second() {
    let (db, client) = probe().await;
    let id = queue::publish(&client, &act("a")).await.unwrap().id;
    let counts = "CREATE TABLE public.written (id bigint);
                  CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS
                  $$ BEGIN INSERT INTO public.written VALUES (NEW.id); RETURN NULL; END $$;
                  CREATE TRIGGER count_it AFTER UPDATE OF reported ON tidegate.event_queue FOR EACH ROW EXECUTE FUNCTION count_it()";
    client.batch_execute(counts).await.unwrap();
    let steps = Steps::new();
    steps.may_tell.add_permits(1);
    let app = telling(&steps, 200);
    let begun = Instant::now();
    let look = async {
        Steps::pass(&steps.told).await;
        let shown = "SELECT reported FROM tidegate.events WHERE id = $1";
        let reported = client.query_one(shown, &[&id]).await.unwrap();
        let reported: serde_json::Value = reported.get(0);
        assert_eq!(reported["part"], 0.4, "{reported}");
        assert_eq!(reported["handler"], "act", "{reported}");
        let note = reported["note"].as_str().unwrap();
        assert!(
            note.starts_with("row 400row 400") && note.len() == 200,
            "{note}"
        );
        assert_eq!(reporting(&client).await, [id]);
        steps.go_on.add_permits(1);
    };
    let (report, ()) = tokio::join!(drained(&db, &app), look);
    assert_eq!(report.completed, 1, "{report:?}");
    // The first at once, then one a second.
    let written = number(&client, "SELECT count(*) FROM written").await;
    let most = i64::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    assert!((1..=most).contains(&written), "{written} of {most}");
    assert_eq!(reporting(&client).await, [0; 0]);
}

#[tokio::test]
async fn a_handler_that_lost_its_event_learns_it_when_it_reports_progress() {
    let (db, client) = probe().await;
    let id = queue::publish(&client, &act("a")).await.unwrap().id;
    let steps = Steps::new();
    steps.may_tell.add_permits(1);
    let app = telling(&steps, usize::MAX);
    let take_away = async {
        Steps::pass(&steps.told).await;
        let later = "UPDATE tidegate.events SET status = 'PENDING', available_at = clock_timestamp() + interval '1 hour' WHERE id = $1";
        client.execute(later, &[&id]).await.unwrap();
        steps.go_on.add_permits(1);
    };
    // It would tell its progress for ever, and only the end of the run would stop it.
    let (report, ()) = tokio::join!(drained(&db, &app), take_away);
    assert_eq!((report.completed, report.lease_lost), (0, 1), "{report:?}");
    assert_eq!(report.stop_reason, StopReason::QueueEmpty);
    let stale = "SELECT count(*) FROM tidegate.events WHERE reported IS NOT NULL";
    assert_eq!(number(&client, stale).await, 0);
}

#[tokio::test]
async fn who_has_the_events_row_locked_keeps_no_handler_from_telling_its_progress() {
    let (db, [client, other]) = probe_sessions().await;
    queue::publish(&client, &act("a")).await.unwrap();
    let steps = Steps::new();
    steps.go_on.add_permits(1);
    let app = telling(&steps, 0);
    let let_go = async {
        Steps::pass(&steps.begun).await;
        let begins = "BEGIN; SELECT FROM tidegate.event_queue FOR UPDATE; SELECT FROM tidegate.lease FOR UPDATE";
        other.batch_execute(begins).await.unwrap();
        steps.may_tell.add_permits(1);
        Steps::pass(&steps.told).await;
        other.batch_execute("ROLLBACK").await.unwrap();
    };
    let (report, ()) = tokio::join!(drained(&db, &app), let_go);
    assert_eq!(report.completed, 1, "{report:?}");
}
