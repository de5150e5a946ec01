//! A drain over a network, and a server, that fail in the middle: it ends in time, loses nothing, and
//! the next one finishes what is left.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use test_support::probe::{
    ProbeApp, act, drain_that_ends, live, number, options, probe, probe_database, publish_acts,
};
use test_support::{self as support, Harm, Proxy, TestDb, wait_until};
use tidegate::connect::Client;
use tidegate::drain::OVERRUN;
use tidegate::{Database, Done, DrainOptions, Error, NewEvent, Verdicts};
use tidegate_core::queue;

const EVENTS: usize = 60;

/// Short enough that what a lost drain holds is free again soon.
fn brief() -> DrainOptions {
    DrainOptions {
        budget: Duration::from_secs(2),
        batch: 20,
        lease_timeout: Duration::from_secs(2),
        handler_timeout: Duration::from_secs(1),
        ..options()
    }
}

/// A queue of events, each of which writes one row in the transaction of its completion.
struct World {
    db: TestDb,
    client: Client,
    ids: HashSet<i64>,
    app: Arc<ProbeApp>,
}

async fn world() -> World {
    world_of(0).await
}

/// With events of at least so many bytes.
async fn world_of(bytes: usize) -> World {
    let (db, client) = probe().await;
    let table = "CREATE TABLE effect (id bigint)";
    client.batch_execute(table).await.unwrap();
    let events: Vec<NewEvent> = (0..EVENTS).map(|n| act(&format!("{n:0bytes$}"))).collect();
    let published = queue::publish_batch(&client, &events).await.unwrap();
    let ids = published.iter().map(|published| published.id).collect();
    let app = ProbeApp::writing();
    World {
        db,
        client,
        ids,
        app,
    }
}

impl World {
    /// Drains until nothing is left, through the server itself and soon; then everything has ended
    /// once, with one effect, and within its attempts.
    async fn ends_well(&self) {
        let database = self.db.database();
        wait_until("a later drain finishes", async || {
            let report = tidegate::drain(&database, self.app.clone(), &brief()).await;
            let report = report.unwrap();
            assert!(report.is_balanced(), "{report:?}");
            report.backlog == Some(0)
        })
        .await;
        let ended = "SELECT id FROM tidegate.event_log WHERE status = 'COMPLETED' AND attempts <= max_attempts";
        let rows = self.client.query(ended, &[]).await.unwrap();
        assert_eq!(rows.len(), EVENTS);
        let ended: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(ended, self.ids);
        let effects = "SELECT count(*) FROM effect";
        assert_eq!(number(&self.client, effects).await, 60, "effects");
        let distinct = "SELECT count(DISTINCT id) FROM effect";
        assert_eq!(number(&self.client, distinct).await, 60, "twice");
    }

    /// The database through this proxy.
    fn through(&self, proxy: &Proxy) -> Database {
        let name = self.db.name();
        let url = proxy.url(name);
        Database::new(&url, 8).unwrap()
    }

    /// Drains through a proxy that does this harm when a client says `word`.
    async fn harmed(&self, word: &'static str, harm: Harm) {
        let proxy = Proxy::before(&self.db.url).await;
        let database = self.through(&proxy);
        proxy.harm_when_said(word, harm);
        let drained = drain_that_ends(&database, &self.app, &brief()).await;
        assert!(proxy.has_harmed(), "{harm:?}: {word} was said");
        let report = drained.unwrap_or_else(|failed| *failed.report);
        assert!(report.leased > 0, "{harm:?}: {report:?}");
        self.ends_well().await;
    }
}

#[tokio::test]
async fn i1_i8_a_connection_cut_before_a_commit_reaches_the_server_loses_and_doubles_nothing() {
    world().await.harmed("COMMIT\0", Harm::Cut).await;
}

#[tokio::test]
async fn i1_i8_a_connection_cut_before_the_answer_to_a_commit_loses_and_doubles_nothing() {
    world()
        .await
        .harmed("COMMIT\0", Harm::CutBeforeAnswer)
        .await;
}

#[tokio::test]
async fn i1_i8_a_connection_that_falls_silent_at_a_commit_ends_no_drain_late() {
    world().await.harmed("COMMIT\0", Harm::Silence).await;
}

#[tokio::test]
async fn i1_i8_garbage_in_place_of_the_answer_to_a_commit_ends_no_drain_late() {
    world().await.harmed("COMMIT\0", Harm::Garbage).await;
}

#[tokio::test]
async fn i1_i8_an_answer_to_a_lease_that_is_cut_silent_or_garbage_ends_no_drain_late() {
    // Only the lease's statement says so.
    let of_a_lease = "FROM tidegate.lease(";
    for harm in [Harm::CutBeforeAnswer, Harm::Silence, Harm::Garbage] {
        let world = world().await;
        let proxy = Proxy::before(&world.db.url).await;
        let database = world.through(&proxy);
        proxy.harm_when_said(of_a_lease, harm);
        let drained = drain_that_ends(&database, &world.app, &brief()).await;
        assert!(proxy.has_harmed(), "{harm:?}");
        drop(drained);
        world.ends_well().await;
    }
}

/// What a drain waits for in vain. It has a thread and a clock of its own, so the waiting is real; that it
/// does not go on for ever is all that is asked of a busy machine.
async fn waits_in_vain(database: &Database, budget: Duration) -> String {
    let options = DrainOptions {
        budget,
        ..options()
    };
    let drained = tidegate::drain(database, ProbeApp::succeeding(), &options);
    let drained = tokio::time::timeout(support::PATIENCE, drained).await;
    let failed = drained
        .expect("the drain ends")
        .expect_err("there is no answer");
    failed.source.to_string()
}

fn unanswered(stage: &str, budget: Duration) -> String {
    let limit = budget + OVERRUN;
    format!("queue: {stage}: no answer from the database within {limit:?}")
}

#[tokio::test]
async fn f2_a_drain_on_a_port_where_nobody_answers_ends_at_its_limit_and_says_where() {
    // Somebody listens there: connections are opened, and nothing is said.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://u@127.0.0.1:{port}/d");
    let database = Database::new(&url, 1).unwrap();
    let budget = Duration::from_secs(1);
    let failure = waits_in_vain(&database, budget).await;
    assert_eq!(failure, unanswered("slot", budget));
}

#[tokio::test]
async fn f2_a_drain_whose_statement_is_never_answered_ends_at_its_limit_and_says_which() {
    // Only the statement of this stage says so.
    for (word, stage) in [
        ("tidegate.take_slot(", "slot"),
        ("FROM tidegate.lease(", "lease"),
        ("tidegate.complete(", "write outcomes"),
        ("tidegate.leave_slot(", "release"),
    ] {
        let db = probe_database().await;
        publish_acts(&db.client().await, 3).await;
        let proxy = Proxy::before(&db.url).await;
        let name = db.name();
        let url = proxy.url(name);
        let database = Database::new(&url, 8).unwrap();
        proxy.harm_when_said(word, Harm::Silence);
        let budget = Duration::from_secs(3);
        let failure = waits_in_vain(&database, budget).await;
        assert!(proxy.has_harmed(), "{word} was never said");
        assert_eq!(failure, unanswered(stage, budget));
    }
}

#[tokio::test]
async fn f2_a_look_that_is_never_answered_ends_no_run_as_failed() {
    let db = probe_database().await;
    publish_acts(&db.client().await, 3).await;
    let proxy = Proxy::before(&db.url).await;
    let url = proxy.url(db.name());
    let database = Database::new(&url, 8).unwrap();
    proxy.harm_when_said("'events', CASE WHEN counted.n", Harm::Silence);
    let options = DrainOptions {
        budget: Duration::from_secs(3),
        ..options()
    };
    let report = drain_that_ends(&database, &ProbeApp::succeeding(), &options).await;
    let report = report.unwrap();
    assert!(proxy.has_harmed());
    assert_eq!((report.completed, report.backlog), (3, None), "{report:?}");
}

#[tokio::test]
async fn i4_what_a_walk_knows_is_not_used_over_another_connection() {
    if support::cannot_be_pooled("a pooler's sessions serve one client after another") {
        return;
    }
    let db = probe_database().await;
    let client = Arc::new(db.client().await);
    let watch = "CREATE TABLE walked (n int GENERATED ALWAYS AS IDENTITY, session int, as_of xid8);
        DO $$ BEGIN EXECUTE replace(pg_get_functiondef('tidegate.lease'::regproc), 'taken := 0;',
            'taken := 0; INSERT INTO public.walked (session, as_of) VALUES (pg_backend_pid(), as_of);'); END $$";
    client.batch_execute(watch).await.unwrap();
    publish_acts(&client, 20).await;
    let killer = client.clone();
    let renewed = "SELECT (extract(epoch FROM max(renewed_at)) * 1e6)::bigint FROM tidegate.lease";
    let app = ProbeApp::new(move |call, _| {
        let killer = killer.clone();
        Box::pin(async move {
            if call.name == "1" {
                let pause = Duration::from_millis(5);
                // When enough is leased, the next connection renews before it leases.
                while number(&killer, "SELECT count(*) FROM walked").await < 2 {
                    tokio::time::sleep(pause).await;
                }
                let before = number(&killer, renewed).await;
                let kill =
                    "SELECT pg_terminate_backend(session) FROM walked ORDER BY n DESC LIMIT 1";
                killer.query(kill, &[]).await.retryable()?;
                while number(&killer, renewed).await == before {
                    tokio::time::sleep(pause).await;
                }
            }
            Ok(Done::ok())
        })
    });
    let stepwise = DrainOptions {
        concurrency: 1,
        batch: 1,
        budget: Duration::from_mins(1),
        handler_timeout: Duration::from_secs(5),
        // Renewed after a third of it.
        lease_timeout: Duration::from_secs(6),
        ..brief()
    };
    let report = drain_that_ends(&db.database(), &app, &stepwise).await;
    assert_eq!(report.unwrap().backlog, Some(0));
    let sessions = "SELECT count(DISTINCT session) FROM walked";
    assert!(number(&client, sessions).await > 1, "no session was lost");
    let kept = "SELECT count(*) FROM (SELECT DISTINCT ON (session) as_of FROM walked ORDER BY session, n) AS first
                 WHERE as_of IS NOT NULL";
    assert_eq!(number(&client, kept).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i8_sessions_terminated_at_random_during_drains_lose_and_double_nothing() {
    let world = world().await;
    let admin = world.db.client().await;
    let killing = tokio::spawn(async move {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'tidegate'
                     ORDER BY random() LIMIT 1) AS victim";
        let mut killed = 0;
        while killed < 10 {
            killed += number(&admin, kill).await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
        }
    });
    let slow = DrainOptions {
        concurrency: 2,
        batch: 5,
        ..brief()
    };
    let database = world.db.database();
    while !killing.is_finished() {
        // Whatever it says: what counts is the end. A queue that is empty keeps nobody busy.
        let _ = drain_that_ends(&database, &world.app, &slow).await;
    }
    killing.await.unwrap();
    world.ends_well().await;
}

#[tokio::test]
async fn i1_a_server_that_turns_read_only_in_the_middle_of_a_drain_loses_nothing() {
    if support::cannot_be_pooled("a pooler's sessions keep the settings that they began with") {
        return;
    }
    let mut world = world().await;
    let (admin, name) = (
        Arc::new(world.db.client().await),
        world.db.name().to_owned(),
    );
    let (switching, database_name) = (admin.clone(), name.clone());
    let writing = world.app.clone();
    let middle = ProbeApp::new(move |call, ctx| {
        let (admin, name, writing) = (switching.clone(), database_name.clone(), writing.clone());
        Box::pin(async move {
            if call.name == "30" && call.attempt == 1 {
                let turn = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
                admin.batch_execute(&turn).await.retryable()?;
                let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE datname = current_database() AND application_name = 'tidegate'";
                admin.query(end, &[]).await.retryable()?;
            }
            writing.behave(call, ctx).await
        })
    });
    let database = world.db.database();
    let failed = drain_that_ends(&database, &middle, &brief()).await;
    let failed = failed.expect_err("nothing can be written down");
    assert!(failed.report.leased > 0, "{failed}");
    let spent = "SELECT coalesce(sum(attempts), 0)::bigint FROM tidegate.event_queue";
    let before = number(&world.client, spent).await;
    let again = tidegate::drain(&database, middle, &brief()).await;
    let again = again.expect_err("it is read-only").to_string();
    assert!(again.contains("25006"), "{again}");
    assert_eq!(number(&world.client, spent).await, before, "attempts");
    let back = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    admin.batch_execute(&back).await.unwrap();
    world.client = world.db.client().await;
    world.ends_well().await;
}

// Slow lines

/// Bytes of an event: a lease of a few takes seconds on the lines below.
const HEAVY: usize = 4000;

#[tokio::test]
async fn i1_i8_a_drain_over_a_slow_line_ends_in_time_and_a_later_one_ends_what_is_left() {
    // From one that carries not even the answer to a lease to one that carries some of them.
    for speed in [2_000, 20_000, 100_000] {
        let world = world_of(HEAVY).await;
        let proxy = Proxy::before(&world.db.url).await;
        proxy.throttle(speed);
        let drained = drain_that_ends(&world.through(&proxy), &world.app, &brief()).await;
        if let Ok(report) = &drained {
            assert!(report.is_balanced(), "{speed}: {report:?}");
        }
        let started: HashSet<i64> = world.app.ids().into_iter().collect();
        assert!(started.is_subset(&world.ids), "{speed}");
        // What is on the line still may arrive late: it must not change anything.
        world.ends_well().await;
    }
}

#[tokio::test]
async fn i1_a_publish_over_a_slow_line_arrives_whole_or_is_given_up_in_time() {
    let (db, observer) = probe().await;
    let proxy = Proxy::before(&db.url).await;
    let url = proxy.url(db.name());
    let database = Database::new(&url, 1).unwrap();
    let client = database.connect().await.unwrap();
    proxy.throttle(20_000);
    let batch = |events: usize| -> Vec<NewEvent> {
        (0..events).map(|n| act(&format!("{n:0HEAVY$}"))).collect()
    };
    let published = queue::publish_batch(&client, &batch(5)).await.unwrap();
    assert_eq!((published.len(), live(&observer).await), (5, 5));

    // A megabyte takes longer than any statement may. The waiting is not real; the bytes are.
    tokio::time::pause();
    let started = tokio::time::Instant::now();
    let given_up = queue::publish_batch(&client, &batch(250)).await;
    let took = started.elapsed();
    tokio::time::resume();
    assert!(
        matches!(given_up, Err(Error::TimedOut { .. })),
        "{given_up:?}"
    );
    assert!(
        took <= queue::STATEMENT_TIMEOUT + Duration::from_secs(1),
        "{took:?}"
    );

    // What is on the line already may still arrive, whole or not at all.
    proxy.throttle(0);
    drop(client);
    wait_until("the connection is gone", async || {
        let others = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()
                         AND application_name = 'tidegate' AND state <> 'idle'";
        number(&observer, others).await == 0 && proxy.open() == 0
    })
    .await;
    let arrived = live(&observer).await;
    assert!([5, 255].contains(&arrived), "{arrived}");
}
