//! How many drains work at once, and what they say is left to do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use test_support::probe::{ProbeApp, act, number, options, probe, publish_acts, slot_of};
use test_support::{PATIENCE, ended, wait_until};
use tidegate::chain::{Chain, StartDrain};
use tidegate::connect::Client;
use tidegate::drain::StopReason;
use tidegate::{
    Database, Done, DrainOptions, DrainReport, Error, HandlerError, Hooks, NewEvent, drain,
    drain_with,
};
use tidegate_core::queue::{self, LeftToDo, Taken};
use tokio::task::JoinHandle;
use uuid::Uuid;

const KINDS: &[&str] = &["act", "note", "pair"];

const TAKEN: &str = "SELECT count(*) FROM tidegate.drain_slot WHERE until > clock_timestamp()";

async fn left(client: &Client) -> LeftToDo {
    queue::left_to_do(client, KINDS, 10_000).await.unwrap()
}

async fn due(client: &Client) -> Option<f64> {
    let due = left(client).await.next_due_at?;
    let seconds = "SELECT extract(epoch FROM $1::text::timestamptz - clock_timestamp())::float8";
    let row = client.query_one(seconds, &[&due]).await.unwrap();
    Some(row.get(0))
}

#[tokio::test]
async fn what_is_left_is_what_a_drain_could_take() {
    let (_db, client) = probe().await;
    assert_eq!(left(&client).await, LeftToDo::default());
    for event in [
        act("planned").delay(Duration::from_hours(2)),
        act("first of a group")
            .group("g")
            .delay(Duration::from_hours(1)),
        act("behind it").group("g"),
        act("free"),
        act("first of another").group("h"),
        act("behind that").group("h"),
    ] {
        queue::publish(&client, &event).await.unwrap();
    }
    assert_eq!(left(&client).await.ready, 3);
    let seconds = due(&client).await.unwrap();
    assert!((3500.0..=3600.0).contains(&seconds), "{seconds}");
    let pause = "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'act'";
    client.execute(pause, &[]).await.unwrap();
    assert_eq!(left(&client).await, LeftToDo::default());
    let resume = "UPDATE tidegate.event_kind SET paused = false";
    client.execute(resume, &[]).await.unwrap();
    let others = queue::left_to_do(&client, &["note"], 10_000).await.unwrap();
    assert_eq!(others, LeftToDo::default());
    let down = "INSERT INTO tidegate.service (service, state, kinds, retry_at)
                VALUES ('s', 'open', '{act}', clock_timestamp() + interval '1 minute')";
    client.execute(down, &[]).await.unwrap();
    assert_eq!(left(&client).await.ready, 0);
    let seconds = due(&client).await.unwrap();
    assert!((1.0..=60.0).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn the_oldest_ready_event_is_one_that_a_drain_could_take() {
    let (_db, client) = probe().await;
    let minutes = async |kinds: &[&str]| {
        let oldest = queue::oldest_ready(&client, kinds).await.unwrap();
        oldest.map_or(0, |(_, ms)| ms / 60_000)
    };
    assert_eq!(minutes(KINDS).await, 0);
    for event in [
        act("planned").delay(Duration::from_hours(2)),
        act("first of a group")
            .group("g")
            .delay(Duration::from_hours(1)),
        act("behind it").group("g"),
        act("free"),
    ] {
        queue::publish(&client, &event).await.unwrap();
    }
    let age = async |which: &str, minutes: u32| {
        let sql = format!(
            "UPDATE tidegate.event_queue SET available_at = clock_timestamp() - interval '{minutes} min' WHERE {which}"
        );
        client.batch_execute(&sql).await.unwrap();
    };
    age("payload->>'name' = 'behind it'", 200).await;
    age("payload->>'name' = 'free'", 100).await;
    assert_eq!(minutes(KINDS).await, 100);
    assert_eq!(minutes(&["note"]).await, 0);
    // Its time has come, and no drain brings it back.
    age("payload->>'name' = 'planned'", 150).await;
    assert_eq!(minutes(KINDS).await, 150);
    let held = "UPDATE tidegate.event_kind SET paused = true WHERE kind = 'act'";
    client.execute(held, &[]).await.unwrap();
    assert_eq!(minutes(KINDS).await, 0);
    // A paused kind hides no other, however many of it are ahead.
    let crowd = "UPDATE tidegate.event_queue SET kind = 'note' WHERE payload->>'name' = 'free';
                 INSERT INTO tidegate.event_queue (kind, payload) SELECT 'act', '{}' FROM generate_series(1, 11000);
                 INSERT INTO tidegate.event_queue (kind, payload, available_at)
                 SELECT 'note', '{}', clock_timestamp() - interval '50 min' FROM generate_series(1, 10);
                 DELETE FROM tidegate.event_queue WHERE payload->>'name' = 'free'";
    client.batch_execute(crowd).await.unwrap();
    assert_eq!(minutes(KINDS).await, 50);
}

#[tokio::test]
async fn a_drain_tells_what_it_has_left_and_when_there_is_more_to_do() {
    let (db, client) = probe().await;
    publish_acts(&client, 300).await;
    let app = ProbeApp::doing(|call| async move {
        match call.id % 2 {
            0 => Err(HandlerError::retry("x", "y").after(Duration::from_mins(5))),
            _ => Ok(Done::ok()),
        }
    });
    let limited = DrainOptions {
        max_events: Some(100),
        ..DrainOptions::default()
    };
    let report = drain(&db.database(), app.clone(), &limited).await.unwrap();
    assert_eq!(
        (report.leased, report.ready_left),
        (100, Some(200)),
        "{report:?}"
    );
    assert!(report.oldest_ready_ms > Some(0), "{report:?}");
    let report = drain(&db.database(), app, &DrainOptions::default())
        .await
        .unwrap();
    // Retries are no work that is left.
    assert_eq!(
        (report.backlog, report.ready_left),
        (Some(150), Some(0)),
        "{report:?}"
    );
    assert_eq!(report.oldest_ready_ms, Some(0), "{report:?}");
    let seconds = due(&client).await.unwrap();
    assert!((1.0..=300.0).contains(&seconds), "{seconds}");
    assert!(report.next_due_at.is_some());
    assert_eq!(number(&client, TAKEN).await, 0);
}

/// Drains that are invoked a hundred times at once.
async fn hundred(db: &test_support::TestDb, app: &Arc<ProbeApp>, most: u16) -> Vec<DrainReport> {
    let options = DrainOptions {
        max_drains: most,
        ..DrainOptions::default()
    };
    let database = db.database();
    let drains = (0..100).map(|_| drain(&database, app.clone(), &options));
    let ended = futures_util::future::join_all(drains).await;
    ended.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn however_often_one_is_invoked_so_many_drains_work_at_once() {
    let (db, client) = probe().await;
    publish_acts(&client, 400).await;
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let counted = running.clone();
    let app = ProbeApp::new(move |_, _| {
        let counted = counted.clone();
        Box::pin(async move {
            let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
            counted.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            counted.0.fetch_sub(1, Ordering::SeqCst);
            Ok(Done::ok())
        })
    });
    let reports = hundred(&db, &app, 3).await;
    let completed: u64 = reports.iter().map(|report| report.completed).sum();
    assert_eq!(completed, 400);
    assert_eq!(app.calls().len(), 400);
    let at_once = running.1.load(Ordering::SeqCst);
    assert!(at_once <= 3 * 8, "{at_once} handlers at once");
    for report in &reports {
        let has_none = report.stop_reason == StopReason::NoSlot;
        assert_eq!(has_none, report.slot == 0, "{report:?}");
        assert!(report.slot <= 3, "{report:?}");
        assert!(!has_none || (report.leased, report.backlog) == (0, None));
    }
    assert!(reports.iter().any(|report| report.slot == 0), "all had one");
    assert_eq!(number(&client, TAKEN).await, 0);
}

#[tokio::test]
async fn the_slot_of_a_drain_that_is_gone_is_free_when_its_leases_are() {
    let (_db, client) = probe().await;
    let (gone, next) = (Uuid::new_v4(), Uuid::new_v4());
    let short = Duration::from_millis(300);
    let take = async |worker, chain, timeout| {
        queue::take_slot(&client, worker, "here", 1, timeout, chain, None)
            .await
            .unwrap()
    };
    let first = Chain::begin();
    assert_eq!(slot_of(&take(gone, first, short).await), Some((1, false)));
    // The answer was lost and it asks again.
    assert_eq!(slot_of(&take(gone, first, short).await), Some((1, false)));
    assert_eq!(take(next, first, PATIENCE).await, Taken::None);
    wait_until("a free slot", async || {
        slot_of(&take(next, Chain::begin(), PATIENCE).await) == Some((1, false))
    })
    .await;
    let keep = async |worker| {
        queue::keep_slot(&client, worker, PATIENCE, 1, KINDS, 0)
            .await
            .unwrap()
            .ours
    };
    assert!(!keep(gone).await && keep(next).await);
    queue::leave_slot(&client, 1, gone).await.unwrap();
    assert_eq!(number(&client, TAKEN).await, 1, "it was not its own");
    queue::leave_slot(&client, 1, next).await.unwrap();
    assert_eq!(number(&client, TAKEN).await, 0);
}

#[tokio::test]
async fn a_drain_that_has_lost_its_slot_gives_back_what_it_has_not_started() {
    let (db, client) = probe().await;
    publish_acts(&client, 500).await;
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Done::ok())
        })
    });
    let options = DrainOptions {
        concurrency: 1,
        lease_timeout: Duration::from_secs(3),
        handler_timeout: Duration::from_secs(2),
        ..options()
    };
    let database = db.database();
    let running = tokio::spawn(async move { drain(&database, app, &options).await.unwrap() });
    wait_until("a slot", async || number(&client, TAKEN).await == 1).await;
    let steal = "UPDATE tidegate.drain_slot SET worker = gen_random_uuid() WHERE slot = 1";
    client.execute(steal, &[]).await.unwrap();
    let report = running.await.unwrap();
    assert_eq!(report.stop_reason, StopReason::NoSlot, "{report:?}");
    assert!(report.is_balanced() && report.released > 0, "{report:?}");
    assert_eq!(report.retried + report.failed, 0);
    let held = "SELECT count(*) FROM tidegate.lease WHERE NOT ended";
    assert_eq!(number(&client, held).await, 0);
    let found = number(&client, TAKEN).await;
    assert_eq!(found, 1, "the other's slot is its own");
}

#[tokio::test]
async fn a_start_that_arrives_twice_runs_once_and_a_chain_goes_on() {
    let (db, client) = probe().await;
    let id = Uuid::new_v4();
    let take = async |hop| {
        let (worker, chain) = (Uuid::new_v4(), Chain { id, hop });
        let taken = queue::take_slot(&client, worker, "here", 8, PATIENCE, chain, None)
            .await
            .unwrap();
        matches!(taken, Taken::Slot(..))
    };
    assert!(take(1).await && !take(1).await);
    assert!(take(2).await && !take(1).await && !take(2).await);
    let reports = {
        let options = options();
        let chain = Chain { id, hop: 3 };
        let hooks = || Hooks {
            chain: Some(chain),
            ..Hooks::default()
        };
        let (database, app) = (db.database(), ProbeApp::succeeding());
        let drains = (0..20).map(|_| drain_with(&database, app.clone(), &options, hooks()));
        futures_util::future::join_all(drains).await
    };
    let reasons: Vec<StopReason> = reports
        .into_iter()
        .map(|report| report.unwrap().stop_reason)
        .collect();
    let ran = reasons
        .iter()
        .filter(|reason| **reason == StopReason::QueueEmpty);
    assert_eq!(ran.count(), 1, "{reasons:?}");
    assert!(reasons.contains(&StopReason::AlreadyRun));
    let old = "UPDATE tidegate.drain_chain SET at = at - interval '2 days'";
    client.execute(old, &[]).await.unwrap();
    let (worker, next) = (
        Uuid::new_v4(),
        Chain {
            hop: 1,
            ..Chain::begin()
        },
    );
    queue::take_slot(&client, worker, "here", 8, PATIENCE, next, None)
        .await
        .unwrap();
    let chains = "SELECT count(*) FROM tidegate.drain_chain";
    assert_eq!(number(&client, chains).await, 1);
}

/// Remembers what it was to start.
#[derive(Default)]
struct Starts(Mutex<Vec<Chain>>);

impl StartDrain for Starts {
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<(), Error>> {
        self.0.lock().unwrap().push(chain);
        Box::pin(async { Ok(()) })
    }
}

impl Starts {
    fn seen(&self) -> Vec<Chain> {
        self.0.lock().unwrap().clone()
    }
}

/// An application whose handlers take so long.
fn slow(time: Duration) -> Arc<ProbeApp> {
    ProbeApp::doing(move |_| async move {
        tokio::time::sleep(time).await;
        Ok(Done::ok())
    })
}

/// Drains for a moment, with something left.
async fn brief(
    db: &test_support::TestDb,
    app: Arc<ProbeApp>,
    hop: u16,
) -> (DrainReport, Vec<Chain>) {
    let options = DrainOptions {
        budget: Duration::from_secs(1),
        ..DrainOptions::default()
    };
    let starts = Arc::new(Starts::default());
    let hooks = Hooks {
        chain: Some(Chain {
            hop,
            ..Chain::begin()
        }),
        starter: Some(starts.clone()),
        ..Hooks::default()
    };
    let report = drain_with(&db.database(), app, &options, hooks)
        .await
        .unwrap();
    (report, starts.seen())
}

#[tokio::test]
async fn a_drain_whose_budget_is_spent_starts_the_next_one_while_it_gets_on() {
    let (db, client) = probe().await;
    publish_acts(&client, 2000).await;
    let (report, started) = brief(&db, slow(Duration::from_millis(50)), 3).await;
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
    assert!(
        report.ready_left > Some(0) && report.completed > 0,
        "{report:?}"
    );
    assert_eq!((started.len(), started[0].hop), (1, 4));
    assert_eq!(report.started_drains, 1);
    // The chain is at its end.
    let (report, started) = brief(&db, slow(Duration::from_millis(50)), 12).await;
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
    assert_eq!((started.len(), report.started_drains), (0, 0));
    // Nothing ends.
    let (report, started) = brief(&db, slow(Duration::from_secs(20)), 0).await;
    assert_eq!((report.completed, started.len()), (0, 0), "{report:?}");
    // Others are enough for what is left.
    let busy = "UPDATE tidegate.drain_slot SET worker = gen_random_uuid(), until = 'infinity' WHERE slot <> 8";
    client.execute(busy, &[]).await.unwrap();
    let remove = "DELETE FROM tidegate.event_queue WHERE id NOT IN (SELECT id FROM tidegate.event_queue ORDER BY id LIMIT 300)";
    client.execute(remove, &[]).await.unwrap();
    let (report, started) = brief(&db, slow(Duration::from_millis(50)), 0).await;
    assert!(
        report.ready_left > Some(0) && report.completed > 0,
        "{report:?}"
    );
    assert_eq!((report.slot, started.len()), (8, 0), "{report:?}");
}

#[tokio::test]
async fn a_backlog_without_anything_ready_starts_nobody() {
    let (db, client) = probe().await;
    let planned: Vec<NewEvent> = (0..500)
        .map(|n| act(&n.to_string()).delay(Duration::from_hours(1)))
        .collect();
    queue::publish_batch(&client, &planned).await.unwrap();
    let (report, started) = brief(&db, ProbeApp::succeeding(), 0).await;
    assert_eq!(
        (report.backlog, report.ready_left),
        (Some(500), Some(0)),
        "{report:?}"
    );
    assert_eq!(started, []);
}

/// Starts drains in this process.
struct Here {
    database: Database,
    app: Arc<ProbeApp>,
    options: DrainOptions,
    itself: Weak<Here>,
    begun: Mutex<Vec<JoinHandle<DrainReport>>>,
}

impl Here {
    fn begin(self: &Arc<Self>, chain: Option<Chain>) {
        let here = self.clone();
        let drained = tokio::spawn(async move {
            let hooks = Hooks {
                chain,
                starter: Some(here.clone()),
                ..Hooks::default()
            };
            drain_with(&here.database, here.app.clone(), &here.options, hooks)
                .await
                .unwrap()
        });
        self.begun.lock().unwrap().push(drained);
    }

    /// Everybody's reports, once all have ended.
    async fn reports(&self) -> Vec<DrainReport> {
        let mut reports = Vec::new();
        loop {
            let next = self.begun.lock().unwrap().pop();
            let Some(next) = next else { return reports };
            reports.push(next.await.unwrap());
        }
    }
}

impl StartDrain for Here {
    fn start(&self, chain: Chain) -> BoxFuture<'_, Result<(), Error>> {
        let here = self.itself.upgrade();
        Box::pin(async move {
            // Each arrives twice.
            if let Some(here) = here {
                here.begin(Some(chain));
                here.begin(Some(chain));
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_drain_that_cannot_finish_what_is_ready_starts_the_missing_ones_at_once() {
    let (db, client) = probe().await;
    publish_acts(&client, 3000).await;
    let options = DrainOptions {
        budget: Duration::from_secs(10),
        max_drains: 4,
        concurrency: 4,
        ..options()
    };
    let app = slow(Duration::from_millis(40));
    let here = Arc::new_cyclic(|itself| Here {
        database: db.database(),
        app: app.clone(),
        options,
        itself: itself.clone(),
        begun: Mutex::default(),
    });
    here.begin(None);
    let reports = ended("all drains", here.reports()).await;
    let completed: u64 = reports.iter().map(|report| report.completed).sum();
    assert_eq!((completed, app.calls().len()), (3000, 3000));
    let most = reports.iter().map(|report| report.slot).max();
    assert_eq!(most, Some(4));
    let repeated = reports
        .iter()
        .filter(|report| report.stop_reason == StopReason::AlreadyRun);
    let started: u64 = reports.iter().map(|report| report.started_drains).sum();
    assert!(started >= 3, "{reports:?}");
    assert_eq!(repeated.count() as u64, started, "{reports:?}");
    assert_eq!(number(&client, TAKEN).await, 0);
}

/// Drains so many events with handlers that take so long, and returns how many drains were started.
async fn started_by(events: usize, took: Duration, options: DrainOptions) -> usize {
    let (db, client) = probe().await;
    publish_acts(&client, events).await;
    let starts = Arc::new(Starts::default());
    let hooks = Hooks {
        starter: Some(starts.clone()),
        ..Hooks::default()
    };
    let report = drain_with(&db.database(), slow(took), &options, hooks).await;
    assert!(report.unwrap().is_balanced());
    starts.seen().len()
}

#[tokio::test]
async fn a_drain_starts_nobody_for_what_it_can_finish_and_no_more_than_have_something_to_do() {
    // Two seconds of work, with time for less than a drain counts and for far more than there is.
    let enough = DrainOptions {
        budget: Duration::from_mins(5),
        concurrency: 8,
        ..DrainOptions::default()
    };
    let while_it_looks_again = Duration::from_millis(40);
    assert_eq!(started_by(400, while_it_looks_again, enough).await, 0);
    let too_short = DrainOptions {
        budget: Duration::from_secs(5),
        concurrency: 1,
        batch: 1,
        max_drains: 100,
        ..DrainOptions::default()
    };
    let started = started_by(8, Duration::from_secs(20), too_short).await;
    assert!((1..8).contains(&started), "{started}");
}

/// Looks that give no answer.
const LOOKS: [&str; 3] = [
    "PERFORM pg_sleep(60)",
    "RAISE 'a view of theirs has gone'",
    "PERFORM pg_terminate_backend(pg_backend_pid())",
];

#[tokio::test]
async fn a_run_whose_last_look_gives_no_answer_has_done_its_work_and_says_what_it_does_not_know() {
    for look in LOOKS {
        let (db, client) = probe().await;
        publish_acts(&client, 3).await;
        let sql = format!(
            "CREATE OR REPLACE FUNCTION tidegate.left_to_do(kinds text[], most bigint, OUT ready bigint, OUT next_due_at timestamptz,
                                                            OUT at_work integer)
             LANGUAGE plpgsql AS $$ BEGIN {look}; END $$"
        );
        client.batch_execute(&sql).await.unwrap();
        let options = DrainOptions {
            budget: Duration::from_secs(3),
            ..options()
        };
        let app = ProbeApp::succeeding();
        let report = drain(&db.database(), app, &options).await.unwrap();
        let known = (report.completed, report.backlog, report.ready_left);
        assert_eq!(known, (3, None, None), "{look}: {report:?}");
        assert_eq!(report.stop_reason, StopReason::QueueEmpty);
        let noted = "SELECT count(*) FROM tidegate.drain_run
                      WHERE report->>'completed' = '3' AND NOT report::jsonb ? 'backlog'";
        assert_eq!(
            number(&client, noted).await,
            1,
            "{look}: the report is stored"
        );
        let still = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()";
        wait_until("the server has ended it", async || {
            number(&client, still).await == 0
        })
        .await;
        assert_eq!(number(&client, TAKEN).await, 0, "{look}: the slot is free");
    }
}

/// What a drain has to do, or has to see to. Without any of it, it takes no slot.
const TO_DO: [&str; 8] = [
    "SELECT tidegate.publish('act', '{\"name\": \"a\"}')",
    "SELECT tidegate.publish('note', NULL, available_at => now() + interval '1 hour');
     ALTER TABLE tidegate.event_queue DISABLE TRIGGER USER; UPDATE tidegate.event_queue SET available_at = now()",
    "SELECT tidegate.publish('note', NULL, available_at => now() + interval '2 h', expires_at => now() + interval '3 h');
     UPDATE tidegate.event_queue SET expires_at = now()",
    "SELECT tidegate.publish('note', NULL); SELECT tidegate.poll(ARRAY['note']); TRUNCATE tidegate.event_queue",
    "INSERT INTO tidegate.service (service, state) VALUES ('s', 'paused')",
    "SELECT tidegate.put_schedule('k', 'night', 'note', NULL, NULL, '1 day', 'UTC', NULL, NULL, 'last')",
    "SELECT tidegate.should_wake()",
    "INSERT INTO tidegate.event_kind (kind) VALUES ('other'); SELECT tidegate.publish('other', NULL)",
];

#[tokio::test]
async fn a_drain_that_has_nothing_to_do_takes_no_slot_and_every_other_does() {
    let planned =
        "SELECT tidegate.publish('note', NULL, available_at => now() + interval '1 hour')";
    for (to_do, is_work) in std::iter::once((planned, false)).chain(TO_DO.map(|one| (one, true))) {
        let (db, client) = probe().await;
        client.batch_execute(to_do).await.unwrap();
        let report = drain(
            &db.database(),
            ProbeApp::succeeding(),
            &DrainOptions::default(),
        )
        .await
        .unwrap();
        assert_eq!(report.slot > 0, is_work, "{to_do}: {report:?}");
        let planned_for = report.next_due_at.is_some();
        assert!(
            is_work || planned_for && report.backlog == Some(1) && report.ready_left == Some(0),
            "{report:?}"
        );
        let runs = "SELECT count(*) FROM tidegate.drain_run";
        assert_eq!(number(&client, runs).await, 1, "{to_do}");
    }
}
