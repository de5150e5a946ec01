//! Everything through pgbouncer in transaction mode: a connection is a client of the pooler, each of
//! its transactions runs in whichever session of the server is free, and there are fewer of these than
//! clients. What passes, what a pooler refuses, and what becomes of a drain when the pooler, its
//! sessions or its server go away.
//!
//! With `TIDEGATE_TEST_POOLER=1` every other test goes through one as well.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::cli::Cli;
use crate::support::probe::{
    Call, ProbeApp, act, drain_that_ends, live, number, options, pair, probe_database,
};
use crate::support::{self, Cluster, Pooler, Proxy, TestDb, contains, wait_until};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::{Database, Done, DrainOptions, DrainReport, Error, NewEvent, Verdicts};
use tidegate_core::queue;
use tidegate_job::http;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Sessions of the server that all clients of a pooler share: fewer than a drain has connections.
const SESSIONS: usize = 3;

/// Consecutive transactions of a client are given to different sessions, so that whatever one leaves
/// behind in its session is missed by the next.
const SCATTERING: [&str; 3] = [
    "default_pool_size=3",
    "min_pool_size=3",
    "server_round_robin=1",
];

/// A queue behind a pooler, and a way past it.
struct Pooled {
    db: TestDb,
    pooler: Pooler,
    client: Client,
    database: Database,
}

impl Pooled {
    /// In front of this database; `None` where pgbouncer cannot be had.
    async fn before(db: TestDb, settings: &[&str]) -> Option<Self> {
        let pooler = Pooler::before(db.direct(), settings)?;
        let client = db.client().await;
        let database = Database::new(&pooler.url(db.name()), 8).unwrap();
        // Its first session may take longer than a test's pooler lets anyone wait.
        wait_until("the pooler lets somebody in", async || {
            database.connect().await.is_ok()
        })
        .await;
        Some(Self {
            db,
            pooler,
            client,
            database,
        })
    }

    /// With the probe's kinds, and all sessions open.
    async fn scattering() -> Option<Self> {
        let pooled = Self::before(probe_database().await, &SCATTERING).await?;
        let first = pooled.through().await;
        wait_until("the pooler has opened its sessions", async || {
            sessions_of(&first).await.len() == SESSIONS
        })
        .await;
        Some(pooled)
    }

    /// A connection as the library opens them, through the pooler.
    async fn through(&self) -> Client {
        self.database.connect().await.unwrap()
    }

    fn url(&self) -> String {
        self.pooler.url(self.db.name())
    }

    /// Waits until as many connections wait for a session of the server.
    async fn waiting(&self, expected: u32) {
        let console = support::connect(&self.pooler.url("pgbouncer")).await;
        let name = self.db.name();
        wait_until(&format!("{expected} wait for a session"), async || {
            let pools = console.simple_query("SHOW POOLS").await.unwrap();
            let of_ours = pools.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) if row.get("database") == Some(name) => Some(row),
                _ => None,
            });
            let waiting = of_ours.map(|row| row.get("cl_waiting").unwrap().parse::<u32>().unwrap());
            waiting.sum::<u32>() == expected
        })
        .await;
    }

    async fn drain(&self, app: &Arc<ProbeApp>, options: &DrainOptions) -> DrainReport {
        let report = tidegate::drain(&self.database, app.clone(), options).await;
        let report = report.unwrap();
        assert!(report.is_balanced(), "{report:?}");
        report
    }
}

/// The sessions that a few transactions of this client run in.
async fn sessions_of(client: &Client) -> HashSet<String> {
    let mut sessions = HashSet::new();
    for _ in 0..2 * SESSIONS {
        let answer = client.simple_query("SELECT pg_backend_pid()").await;
        for message in answer.unwrap() {
            if let SimpleQueryMessage::Row(row) = message {
                sessions.insert(row.get(0).unwrap().to_owned());
            }
        }
    }
    sessions
}

fn ids_of(published: &[queue::Published]) -> Vec<i64> {
    published.iter().map(|published| published.id).collect()
}

/// Ids that have ended so.
async fn ended(client: &Client, status: &str) -> HashSet<i64> {
    let sql = "SELECT id FROM tidegate.event_log WHERE status = $1 AND attempts <= max_attempts";
    let rows = client.query(sql, &[&status]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_one_transaction_leaves_in_its_session_the_next_one_does_not_find() {
    let Some(pooled) = Pooled::scattering().await else {
        return;
    };
    // Whoever needs a session notices: the tests of this file would fail.
    let client = pooled.through().await;
    let mut lost = 0;
    for _ in 0..2 * SESSIONS {
        let found = client.query("SELECT $1::integer", &[&1]).await;
        lost += usize::from(found.is_err_and(|error| is_lost_statement(&error)));
    }
    assert!(lost > 0, "prepared statements were always found");
}

fn is_lost_statement(error: &tokio_postgres::Error) -> bool {
    [
        Some(&SqlState::INVALID_SQL_STATEMENT_NAME),
        Some(&SqlState::DUPLICATE_PSTATEMENT),
    ]
    .contains(&error.code())
}

#[tokio::test]
async fn b1_events_are_published_alone_in_batches_and_in_a_producers_transaction() {
    let Some(pooled) = Pooled::scattering().await else {
        return;
    };
    let mut client = pooled.through().await;
    let mut ids = HashSet::new();
    for n in 0..2 * SESSIONS {
        let event = act(&n.to_string()).group("g").dedup(format!("d-{n}"));
        ids.insert(queue::publish(&client, &event).await.unwrap().id);
        let again = queue::publish(&client, &event).await.unwrap();
        assert!(!again.created && ids.contains(&again.id));
        let batch = [act("a"), act("b").group("g"), pair("c").group("h")];
        ids.extend(ids_of(
            &queue::publish_batch(&client, &batch).await.unwrap(),
        ));

        let transaction = client.transaction().await.unwrap();
        let kept = queue::publish(&transaction, &act("kept")).await.unwrap();
        let more = queue::publish_batch(&transaction, &batch).await.unwrap();
        transaction.commit().await.unwrap();
        ids.insert(kept.id);
        ids.extend(ids_of(&more));

        let transaction = client.transaction().await.unwrap();
        queue::publish(&transaction, &act("gone")).await.unwrap();
        queue::publish_batch(&transaction, &batch).await.unwrap();
        transaction.rollback().await.unwrap();
    }
    let rows = pooled
        .client
        .query("SELECT id FROM tidegate.event_queue", &[]);
    let queued: HashSet<i64> = rows.await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(queued, ids);
}

/// Handlers that use all they are offered: a step that is remembered, a read, a transaction whose
/// commit is the completion, and a first attempt that fails.
fn demanding() -> Arc<ProbeApp> {
    ProbeApp::new(|call: Call, ctx| {
        Box::pin(async move {
            let first = call.attempt;
            let seen: u32 = ctx.once("first_attempt", async { Ok(first) }).await?;
            let read = ctx.connection().await?;
            let sql = "SELECT $1::bigint";
            let row = read.query_typed_one(sql, &[(&call.id, Type::INT8)]).await;
            assert_eq!(row.retryable()?.get::<_, i64>(0), call.id);
            drop(read);
            if call.attempt == 1 && call.handler != "second" {
                return Err("the first attempt").retryable();
            }
            let expected = if call.handler == "second" {
                call.attempt
            } else {
                1
            };
            assert_eq!(seen, expected);
            let transaction = ctx.transaction().await?;
            let insert = "INSERT INTO effect VALUES ($1, $2)";
            let inserted = transaction
                .execute(insert, &[&call.id, &call.handler])
                .await;
            inserted.retryable()?;
            // Longer than a third of the lease, so that leases are renewed meanwhile.
            tokio::time::sleep(Duration::from_millis(50)).await;
            transaction.complete(Done::ok()).await
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i4_retries_groups_renewals_steps_and_transactions_through_few_sessions_end_all_once() {
    let Some(pooled) = Pooled::scattering().await else {
        return;
    };
    let client = &pooled.client;
    let table = "CREATE TABLE effect (id bigint, handler text)";
    client.batch_execute(table).await.unwrap();
    let mut events = Vec::new();
    for n in 0..40 {
        let event = if n % 4 == 0 { pair("p") } else { act("a") };
        let grouped = n % 2 == 0;
        events.push(if grouped {
            event.group(format!("g{}", n % 3))
        } else {
            event
        });
    }
    let published = queue::publish_batch(&pooled.through().await, &events).await;
    let ids = ids_of(&published.unwrap());
    let app = demanding();
    let options = DrainOptions {
        lease_timeout: Duration::from_secs(3),
        handler_timeout: Duration::from_secs(2),
        batch: 10,
        ..options()
    };
    wait_until("the queue is empty", async || {
        pooled.drain(&app, &options).await.backlog == Some(0)
    })
    .await;
    let found = ended(client, "COMPLETED").await;
    assert_eq!(found, ids.iter().copied().collect());
    assert_eq!(number(client, "SELECT count(*) FROM effect").await, 50);
    let distinct = "SELECT count(*) FROM (SELECT DISTINCT id, handler FROM effect) AS once";
    assert_eq!(number(client, distinct).await, 50, "twice");
    for group in 0..3 {
        let of_group = |id: &i64| {
            let n = ids.iter().position(|other| other == id).unwrap();
            n % 2 == 0 && n % 3 == group
        };
        let mut starts: Vec<i64> = app.ids().into_iter().filter(of_group).collect();
        starts.dedup();
        assert!(starts.is_sorted(), "group {group}: {starts:?}");
    }
}

#[tokio::test]
async fn c7_leases_are_renewed_through_the_pooler_while_handlers_take_long() {
    let Some(pooled) = Pooled::scattering().await else {
        return;
    };
    let published = queue::publish(&pooled.through().await, &act("slow")).await;
    let id = published.unwrap().id;
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            Ok(Done::ok())
        })
    });
    let options = DrainOptions {
        lease_timeout: Duration::from_secs(2),
        handler_timeout: Duration::from_millis(1800),
        ..options()
    };
    let database = pooled.database.clone();
    let draining = tokio::spawn(async move { tidegate::drain(&database, app, &options).await });
    let lease = "SELECT lease_expires_at::text FROM tidegate.events
                  WHERE id = $1 AND status = 'PROCESSING'";
    let mut seen = HashSet::new();
    while !draining.is_finished() {
        let row = pooled.client.query_opt(lease, &[&id]).await.unwrap();
        seen.extend(row.map(|row| row.get::<_, String>(0)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = draining.await.unwrap().unwrap();
    assert_eq!((report.completed, report.lease_lost), (1, 0), "{report:?}");
    assert!(seen.len() > 1, "the lease was never renewed: {seen:?}");
}

#[tokio::test]
async fn migrations_pass_a_pooler_also_two_at_once() {
    let db = support::empty_database().await;
    let Some(pooled) = Pooled::before(db, &SCATTERING).await else {
        return;
    };
    let cli = Cli::at(&pooled.url());
    let (one, other) = tokio::join!(cli.json(&["migrate"]), cli.json(&["migrate"]));
    let applied = |report: &Value| report["applied"].as_array().unwrap().len();
    assert_eq!(applied(&one).min(applied(&other)), 0, "{one} {other}");
    assert!(applied(&one).max(applied(&other)) >= 4, "{one} {other}");
    let again = cli.json(&["migrate", "--roles"]).await;
    assert_eq!((applied(&again), &again["roles"]), (0, &json!(true)));
}

#[tokio::test]
async fn e2_jobs_are_requested_and_read_over_http_through_the_pooler() {
    let settings = SCATTERING;
    let Some(pooled) = Pooled::before(support::database().await, &settings).await else {
        return;
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let router = http::router(pooled.database.clone(), http::Access::open());
    let server = tokio::spawn(http::serve(listener, router, std::future::pending()));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ready = client.get(format!("{base}/readyz")).send().await.unwrap();
    assert_eq!(ready.status(), 200);
    let asked = join_all((0..20).map(async |_| {
        let id = || Uuid::new_v4().to_string();
        let job = json!({"request_id": "r1", "patient_id": id(), "user_id": id(), "client_id": id(),
            "service_request_id": id(), "used_by_employee": id(), "used_by_legal_entity": id()});
        let path = format!("{base}/jobs/service_request_use_job");
        let answer = client.post(path).json(&job).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let answer: Value = answer.json().await.unwrap();
        let href = answer["data"]["links"][0]["href"]
            .as_str()
            .unwrap()
            .to_owned();
        let read = client.get(format!("{base}{href}")).send().await.unwrap();
        assert_eq!(read.status(), 200);
        href
    }));
    let distinct: HashSet<String> = asked.await.into_iter().collect();
    assert_eq!(distinct.len(), 20);
    assert_eq!(live(&pooled.client).await, 20);
    server.abort();
}

// What goes away in the middle

const EVENTS: usize = 60;

/// Events that each write a row in the transaction of their completion, through a pooler.
struct World {
    pooled: Pooled,
    ids: HashSet<i64>,
    app: Arc<ProbeApp>,
}

/// Short enough that what a lost drain holds is free again soon.
fn brief() -> DrainOptions {
    DrainOptions {
        budget: Duration::from_secs(3),
        batch: 10,
        concurrency: 2,
        lease_timeout: Duration::from_secs(2),
        handler_timeout: Duration::from_secs(1),
        ..options()
    }
}

impl World {
    async fn new() -> Option<Self> {
        let pooled = Pooled::scattering().await?;
        let table = "CREATE TABLE effect (id bigint)";
        pooled.client.batch_execute(table).await.unwrap();
        let ids = crate::support::probe::publish_acts(&pooled.client, EVENTS).await;
        let app = ProbeApp::writing();
        Some(Self {
            ids: ids.into_iter().collect(),
            pooled,
            app,
        })
    }

    /// Drains in the background, again and again, while `harm` is done; every drain ends.
    async fn drained_while(&self, harm: impl Future<Output = ()>) {
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let (database, app) = (self.pooled.database.clone(), self.app.clone());
        // In a task of its own: harm keeps its task to itself while a script is told of it.
        let draining = tokio::spawn(async move {
            while !*stopped.borrow_and_update() {
                // Whatever it says: what counts is the end.
                let _ = drain_that_ends(&database, &app, &brief()).await;
            }
        });
        wait_until("some handlers have started", async || {
            !self.app.calls().is_empty()
        })
        .await;
        harm.await;
        stop.send_replace(true);
        draining.await.unwrap();
    }

    /// Later drains end everything, through the pooler: once, with one effect, within its attempts.
    async fn ends_well(&self) {
        let client = &self.pooled.client;
        wait_until("a later drain finishes", async || {
            let drained = tidegate::drain(&self.pooled.database, self.app.clone(), &brief()).await;
            drained.is_ok_and(|report| report.backlog == Some(0))
        })
        .await;
        assert_eq!(ended(client, "COMPLETED").await, self.ids);
        let sql = "SELECT count(*) FROM effect";
        assert_eq!(number(client, sql).await, 60, "effects");
        let distinct = "SELECT count(DISTINCT id) FROM effect";
        assert_eq!(number(client, distinct).await, 60, "twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i8_a_pooler_that_dies_and_comes_back_in_the_middle_of_drains_loses_and_doubles_nothing()
{
    let Some(world) = World::new().await else {
        return;
    };
    world
        .drained_while(async {
            for _ in 0..2 {
                world.pooled.pooler.crash();
                tokio::time::sleep(Duration::from_millis(100)).await;
                world.pooled.pooler.start_again();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i8_sessions_terminated_behind_the_pooler_lose_and_double_nothing() {
    let Some(world) = World::new().await else {
        return;
    };
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                 ORDER BY random() LIMIT 1) AS victim";
    world
        .drained_while(async {
            let mut killed = 0;
            while killed < 8 {
                killed += number(&world.pooled.client, kill).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    world.ends_well().await;
}

#[tokio::test]
async fn i1_an_unreachable_server_behind_the_pooler_is_a_clear_error_and_costs_no_attempt() {
    // What the others trade for speed: what was acknowledged survives the crash.
    let durable = ["--obey", "--set", "synchronous_commit=on"].map(OsStr::new);
    let cluster = Cluster::start(&durable);
    let settings = ["query_wait_timeout=2"];
    let Some(pooler) = Pooler::before(&cluster.url("postgres"), &settings) else {
        return;
    };
    let url = pooler.url("postgres");
    Cli::at(&url).json(&["migrate"]).await;
    let database = Database::new(&url, 4).unwrap();
    let client = support::connect(&cluster.url("postgres")).await;
    support::register::<crate::support::probe::Probe>(&client).await;
    crate::support::probe::publish_acts(&client, 3).await;
    // One has been there before the server goes, one comes while it is away.
    let before = database.connect().await.unwrap();
    cluster.crash();
    let app = ProbeApp::succeeding();
    let failed = drain_that_ends(&database, &app, &options()).await;
    let failed = failed.expect_err("there is no server");
    assert!(failed.to_string().contains("08P01"), "{failed}");
    assert_eq!((failed.report.leased, app.calls().len()), (0, 0));
    let refused = queue::publish(&before, &act("late")).await.unwrap_err();
    assert!(refused.is_connection_lost(), "{refused}");
    assert!(
        !matches!(refused, Error::TimedOut { .. }),
        "it was told: {refused}"
    );

    cluster.start_again();
    let client = support::connect(&cluster.url("postgres")).await;
    let spent = "SELECT coalesce(sum(attempts), 0)::bigint FROM tidegate.event_queue";
    assert_eq!((live(&client).await, number(&client, spent).await), (3, 0));
    let mut completed = 0;
    wait_until("the pooler has found the server again", async || {
        let drained = tidegate::drain(&database, app.clone(), &options()).await;
        completed += drained.as_ref().map_or(0, |report| report.completed);
        drained.is_ok()
    })
    .await;
    assert_eq!(completed, 3);
}

#[tokio::test]
async fn i1_a_client_of_a_full_pooler_waits_then_learns_why_and_nothing_is_lost() {
    let settings = ["default_pool_size=1", "query_wait_timeout=2"];
    let Some(pooled) = Pooled::before(probe_database().await, &settings).await else {
        return;
    };
    let (client, mut holder) = (pooled.through().await, pooled.through().await);
    // Newer ones ask the server about every login, which then waits as well.
    let waiting = pooled.through().await;
    let ahead = queue::publish(&client, &act("ahead")).await.unwrap();

    // The only session is taken for longer than the pooler lets anyone wait.
    let transaction = holder.transaction().await.unwrap();
    transaction.batch_execute("SELECT 1").await.unwrap();
    let refused = queue::publish(&client, &act("late")).await.unwrap_err();
    contains(&refused.to_string(), "query_wait_timeout");
    assert!(refused.is_connection_lost(), "{refused}");
    let app = ProbeApp::succeeding();
    let failed = drain_that_ends(&pooled.database, &app, &brief()).await;
    let failed = failed.expect_err("there is no session");
    assert_eq!((failed.report.leased, app.calls().len()), (0, 0));

    // Whoever is still waiting when the session is free goes on as if nothing had been. Nothing of the drain
    // waits any more: pgbouncer was seen to let the lease of one that had gone away run, and to give the
    // answer to the next one.
    pooled.waiting(0).await;
    let late = tokio::spawn(async move { queue::publish(&waiting, &act("patient")).await });
    pooled.waiting(1).await;
    transaction.commit().await.unwrap();
    let patient = late.await.unwrap().unwrap();
    let report = pooled.drain(&app, &options()).await;
    assert_eq!(
        (report.completed, report.backlog),
        (2, Some(0)),
        "{report:?}"
    );
    let both = HashSet::from([ahead.id, patient.id]);
    assert_eq!(ended(&pooled.client, "COMPLETED").await, both);
}

// What a pooler does not take

#[tokio::test]
async fn startup_options_that_the_pooler_does_not_take_are_refused_by_name() {
    let plain = Pooled::before(support::database().await, &[]).await;
    let Some(pooled) = plain else {
        return;
    };
    let url = format!("{}?options=-c%20statement_timeout%3D5000", pooled.url());
    let refused = Database::new(&url, 1).unwrap().connect().await;
    let refused = refused.expect_err("pgbouncer refuses what it cannot pass on");
    assert!(matches!(refused, Error::Connect(_)), "{refused}");
    assert!(refused.to_string().contains("options"), "{refused}");

    let ignoring = Pooler::before(pooled.db.direct(), &["ignore_startup_parameters=options"]);
    let ignoring = ignoring.unwrap();
    let url = ignoring.url(pooled.db.name());
    let url = format!("{url}?options=-c%20statement_timeout%3D5000");
    let client = Database::new(&url, 1).unwrap().connect().await.unwrap();
    queue::publish(&client, &NewEvent::raw("grant_letter_viewed", None))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_migration_minds_no_statements_that_somebody_else_has_prepared() {
    let settings = SCATTERING;
    let Some(pooled) = Pooled::before(support::empty_database().await, &settings).await else {
        return;
    };
    // Somebody leaves statements of the names that the driver gives in every session.
    let first = pooled.through().await;
    wait_until("the pooler has opened its sessions", async || {
        sessions_of(&first).await.len() == SESSIONS
    })
    .await;
    let prepare: Vec<String> = (0..50)
        .map(|n| format!("PREPARE s{n} AS SELECT 1"))
        .collect();
    let prepare = prepare.join(";");
    for _ in 0..SESSIONS {
        first.simple_query(&prepare).await.unwrap();
    }
    let ran = Cli::at(&pooled.url()).json(&["migrate"]).await;
    assert_eq!(ran["action"], "migrate");
}

#[tokio::test]
async fn whatever_the_default_isolation_is_the_program_begins_its_own() {
    let db = support::empty_database().await;
    let pooled = Pooled::before(db, &SCATTERING).await;
    let (db, urls) = match &pooled {
        Some(pooled) => (
            &pooled.db,
            vec![pooled.db.direct().to_owned(), pooled.url()],
        ),
        None => return,
    };
    let client = &pooled.as_ref().unwrap().client;
    for (level, url) in ["serializable", "repeatable read"]
        .iter()
        .flat_map(|level| urls.iter().map(move |url| (level, url)))
    {
        let set = format!(
            "ALTER DATABASE {} SET default_transaction_isolation = '{level}'",
            db.name()
        );
        client.batch_execute(&set).await.unwrap();
        // The pooler's sessions are those that began before.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        client.batch_execute(end).await.unwrap();
        let cli = Cli::at(url);
        let ok = async |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let ran = cli.run(&words).await;
            assert_eq!(ran.code, Some(0), "{level} {line}: {ran:?}");
            ran
        };
        ok("migrate").await;
        ok(r#"publish grant_letter_viewed --payload {"grant_number":"G-1"}"#).await;
        ok("drain").await;
        ok("cleanup").await;
        ok("replay --reason r --since 1h --kind grant_letter_viewed").await;
        ok("cancel --reason r --kind grant_letter_viewed").await;
        ok("retention grant_letter_viewed --completed 3d --reason r").await;
        ok("status").await;
        ok("schedules").await;
    }
    let other = support::connect(db.direct()).await;
    for sql in [
        "SELECT tidegate.poll('{grant_letter_viewed}')",
        "SELECT tidegate.one_at_a_time()",
    ] {
        let refused = other.simple_query(sql).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "25000");
        contains(
            refused.hint().unwrap(),
            "SET default_transaction_isolation = 'read committed'",
        );
    }
}

#[tokio::test]
async fn i1_a_request_over_http_whose_database_is_on_a_slow_line_is_answered_in_time() {
    let (db, observer) = support::opened().await;
    let proxy = Proxy::before(&db.url).await;
    let url = proxy.url(db.name());
    let router = http::router(Database::new(&url, 2).unwrap(), http::Access::open());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let path = format!(
        "http://{}/jobs/service_request_use_job",
        listener.local_addr().unwrap()
    );
    let server = tokio::spawn(http::serve(listener, router, std::future::pending()));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut acknowledged = 0;
    for speed in [1_000, 5_000, 0] {
        proxy.throttle(speed);
        let asked = client.post(&path).json(&support::use_job()).send();
        let answer = support::ended("a request", asked).await.unwrap();
        match answer.status().as_u16() {
            202 => acknowledged += 1,
            503 => assert_ne!(speed, 0, "the line is well again"),
            other => panic!("{speed}: {other}"),
        }
    }
    // Nothing that was acknowledged is missing; what was not may be there.
    let there = live(&observer).await;
    assert!(
        (acknowledged..=3).contains(&there),
        "{there} of {acknowledged}"
    );
    server.abort();
}
