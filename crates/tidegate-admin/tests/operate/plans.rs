//! How the planner sees the statements of the hot path, whatever the statistics say: a drain that
//! reads or sorts its whole table once a batch is a thousand times slower, and only when it matters.
//!
//! 200,000 rows stand for every larger number: the planner's choice between an index and the table
//! turns at a few thousand, and a million would cost each of these tests half a minute more. One does it.

use std::future::poll_fn;
use std::ops::RangeInclusive;

use serde_json::Value;
use test_support::probe::{Probe, number, probe, probe_database};
use test_support::{TestDb, contains, execute, statement, usual};
use tidegate::Event;
use tidegate::connect::Client;
use tidegate_core::queue::{self, Statement};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, IsolationLevel, NoTls};

const LARGE: i32 = 200_000;

/// The dead letters of a day.
const FAILURES: [&str; 5] = [
    "NULL::timestamptz",
    "86400",
    "NULL::text",
    "NULL::text",
    "200",
];

const WHY: Statement = Statement {
    name: "why",
    params: &[Type::INT8],
    text: "SELECT tidegate.why($1)",
};

const CLOSE_LEASE: Statement = Statement {
    name: "close_lease",
    params: &[Type::UUID],
    text: "SELECT tidegate.close_lease($1)",
};

/// The lease that the statements below work under, and whose it is.
const TOKEN: &str = "00000000-0000-0000-0000-000000000001";
const WORKER: &str = "00000000-0000-0000-0000-000000000002";
const OTHER: &str = "00000000-0000-0000-0000-000000000003";

/// Of a large table; that nobody has analyzed; with statistics of an empty one; of a few rows; what is left.
#[tokio::test]
async fn a_large_table_is_walked_by_its_indexes_whatever_its_statistics_say() {
    const ANALYZE: &str = "ANALYZE tidegate.event_queue";
    for (before, first, then) in [
        (0, "", ANALYZE),
        (0, "", ""),
        (0, ANALYZE, ""),
        (100, ANALYZE, ""),
        (
            LARGE,
            ANALYZE,
            "DELETE FROM tidegate.event_queue WHERE id > 100",
        ),
    ] {
        let db = queue_nobody_vacuums().await;
        fill(&db, before).await;
        run(&db, first).await;
        if before < LARGE {
            fill(&db, LARGE).await;
        }
        run(&db, then).await;
        assert_plans(&db).await;
    }
}

/// Beside a long transaction, the rows of finished events stay in every index until it ends, and the
/// statistics count none of them.
#[tokio::test]
async fn dead_rows_that_cannot_be_removed_are_not_read_for_each_lease() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    let mut holder = db.client().await;
    let pinned = holder
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let pinned = pinned.start().await.unwrap();
    pinned
        .query_one("SELECT count(*) FROM tidegate.event_kind", &[])
        .await
        .unwrap();
    run(&db, "DELETE FROM tidegate.event_queue WHERE id > 100").await;
    run(&db, "VACUUM ANALYZE tidegate.event_queue").await;
    assert_plans(&db).await;
    let polled = "SELECT * FROM tidegate.poll(ARRAY['act'], 10)";
    let client = db.client().await;
    let token: uuid::Uuid = client.query(polled, &[]).await.unwrap()[0].get("token");
    let mut planner = Planner::of(&db).await;
    let values = [quoted(&token.to_string())];
    assert_plan(&mut planner, "", &CLOSE_LEASE, &values).await;
}

/// A table of a few pages may be read whole, for that costs no more than its index does; the planner
/// knows its true size at every statement. But whatever it is asked must have an index to grow into.
#[tokio::test]
async fn a_small_table_has_an_index_for_every_question_and_every_order() {
    let db = queue_nobody_vacuums().await;
    let mut planner = Planner::of(&db).await;
    let rather_not = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
        SET enable_mergejoin = off; SET enable_hashjoin = off";
    planner.client.batch_execute(rather_not).await.unwrap();
    assert_plans_of(&mut planner).await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    assert_plans_of(&mut planner).await;
    fill(&db, 10).await;
    assert_plans_of(&mut planner).await;
}

/// A pooler's sessions, and a drain that lingers, keep a plan from when the queue was empty.
#[tokio::test]
async fn a_plan_kept_from_a_small_queue_walks_the_indexes_that_a_large_one_needs() {
    let db = queue_nobody_vacuums().await;
    let mut kept = vec![indexes_kept(&mut Planner::of(&db).await).await];
    for more in [0, 10, LARGE] {
        fill(&db, more).await;
        run(&db, "VACUUM ANALYZE tidegate.event_queue").await;
        kept.push(indexes_kept(&mut Planner::of(&db).await).await);
    }
    assert!(kept[3].len() >= 4, "{kept:#?}");
    assert!(kept.iter().all(|one| *one == kept[3]), "{kept:#?}");
}

/// A page that renews itself asks every few seconds, of a queue of any size: what it reads is found by an
/// index, or ends by a LIMIT that the plan shows.
#[tokio::test]
async fn what_people_look_at_again_and_again_is_bounded_whatever_the_size_of_the_queue() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    let log = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT -n, 'act', CASE WHEN n % 1000 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 1, 5, '[]', now() - make_interval(secs => n),
               now() - make_interval(secs => n), now() + interval '10 days' FROM generate_series(1, 200000) AS n;
        INSERT INTO tidegate.audit (actor, action) SELECT 'a' || n % 50, 'pause' FROM generate_series(1, 50000) AS n;
        ANALYZE tidegate.audit";
    run(&db, log).await;
    run(
        &db,
        "VACUUM ANALYZE tidegate.event_queue, tidegate.event_log",
    )
    .await;
    let mut planner = Planner::of(&db).await;
    let values = |values: &[&str]| {
        values
            .iter()
            .map(|value| (*value).to_owned())
            .collect::<Vec<_>>()
    };
    for (statement, given) in [
        (statement("group_events"), values(&["'group-8'", "100"])),
        (
            &WHY,
            values(&["(SELECT max(id) FROM tidegate.event_queue WHERE group_key = 'group-8')"]),
        ),
        (&WHY, values(&["5"])),
        (&WHY, values(&["-5"])),
        (statement("failures"), values(&FAILURES)),
        (statement("overview"), Vec::new()),
        (statement("stats"), Vec::new()),
        (statement("event"), values(&["-5"])),
        (statement("event"), values(&["5"])),
        (statement("content"), values(&["-5"])),
        (
            statement("audit"),
            values(&["NULL::bigint", "NULL::text", "NULL::text", "50"]),
        ),
        (
            statement("audit"),
            values(&["40000", "'a7'", "NULL::text", "50"]),
        ),
    ] {
        for plan in planner.plans("", statement, &given).await {
            let told = plan.to_string();
            for table in ["event_queue", "event_log_default", "audit"] {
                let whole = format!(
                    "\"Node Type\":\"Seq Scan\",\"Parallel Aware\":false,\"Async Capable\":false,\"Relation Name\":\"{table}\""
                );
                assert!(!told.contains(&whole), "{}: {told}", statement.name);
            }
        }
    }
    // A count is a pass over as many events as it may count, and over no others.
    let client = db.client().await;
    let plan = looked(&client, "depths", 1000).await;
    assert_looked_at(&plan["Plan"], 1010, "depths");
    let plan = looked(&client, "blocked", 1000).await;
    assert_looked_at(&plan["Plan"], 3000, "blocked");
    assert_calls_read_few_pages(&db.client().await).await;
}

/// Functions, whose plans only their pages tell of. The queue has some 7,000, and so have queue and log.
async fn assert_calls_read_few_pages(client: &Client) {
    let held_up =
        "INSERT INTO tidegate.service (service, state, kinds) VALUES ('archive', 'open', '{act}');
        UPDATE tidegate.event_kind SET paused = true WHERE kind <> 'act'";
    client.batch_execute(held_up).await.unwrap();
    for call in [
        "tidegate.replay(ids => '{-5}', reason => 'x', dry_run => true)",
        "tidegate.replay(code => 'none', since => now() - interval '9 days', reason => 'x', dry_run => true)",
        "tidegate.cancel(correlation_id => 'c20', \"limit\" => 10, reason => 'x', dry_run => true)",
    ] {
        let pages = pages_of(client, call).await;
        assert!(pages < FEW_PAGES, "{call}: {pages} pages");
    }
    // Of all events, these look at 100,000, and of those that a service holds up at 10,000 once more.
    let all = pages_of(
        client,
        "(SELECT count(payload_bytes) FROM tidegate.event_queue)",
    )
    .await;
    for call in [
        "(SELECT count(*) FROM tidegate.services)",
        "tidegate.doctor(NULL, 'paused kinds')",
        "tidegate.doctor(NULL, 'services')",
    ] {
        let pages = pages_of(client, call).await;
        assert!(pages < all * 3 / 4, "{call}: {pages} pages of {all}");
    }
    let (mut state, mut steps) = (Some(Value::Object(serde_json::Map::default())), 0);
    while let Some(next) = state {
        let values: [&(dyn ToSql + Sync); 1] = [&next];
        let step = client.query_one("SELECT tidegate.cleanup_step($1)", &values);
        let did: Value = step.await.unwrap().get(0);
        state = Some(did["next"].clone()).filter(|next| !next.is_null());
        steps += 1;
    }
    assert!(steps <= 10, "{steps}");
}

/// How many pages a call reads, when the session knows the catalog.
async fn pages_of(client: &Client, call: &str) -> i64 {
    let call = format!("SELECT {call}");
    execute(client, &call).await;
    let plan = measured(client, &call).await;
    let count = |name: &str| plan["Plan"][name].as_i64().unwrap();
    count("Shared Hit Blocks") + count("Shared Read Blocks")
}

/// The plan of a function's body, which looks at this many events.
async fn looked(client: &Client, function: &str, most: i64) -> Value {
    let sql =
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'tidegate'::regnamespace AND proname = $1";
    let body: String = client.query_one(sql, &[&function]).await.unwrap().get(0);
    execute(client, "SET enable_seqscan = off; SET jit = off").await;
    measured(
        client,
        &body.replace("LIMIT most", &format!("LIMIT {most}")),
    )
    .await
}

/// While a service is down, the groups behind it are sought among as many ready events as may be looked at.
#[tokio::test]
async fn groups_behind_a_service_are_found_without_reading_the_queue() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    let client = db.client().await;
    let down =
        "INSERT INTO tidegate.service (service, state, kinds) VALUES ('archive', 'open', '{act}')";
    run(&db, down).await;
    // Of so many delayed events and so many ready ones, with two looks at the group of each.
    let plan = looked(&client, "blocked", 1000).await;
    assert!(
        plan["Plan"]["Actual Rows"].as_f64() > Some(100.0),
        "{plan:#?}"
    );
    assert_looked_at(&plan["Plan"], 6000, "blocked");
}

/// A search for what few or no events match: of a log and a queue of any size it looks at a given number of
/// rows.
#[tokio::test]
async fn a_search_looks_at_as_many_events_as_it_may_and_no_more() {
    const MOST: i64 = 5000;
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    let log = "SELECT tidegate.make_log_partition(current_date + n) FROM generate_series(1, 40) AS n;
        INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT -n, 'act', 'COMPLETED', 1, 5, '[]', now() - make_interval(secs => n), now() - make_interval(secs => n),
               now() + make_interval(days => (41 - n / 5000)::int) FROM generate_series(1, 200000) AS n";
    run(&db, log).await;
    let client = db.client().await;
    let null = || "NULL".to_owned();
    // As the program does for a search.
    execute(&client, "SET enable_seqscan = off; SET jit = off").await;
    for statistics in [
        "SELECT 1",
        "VACUUM ANALYZE tidegate.event_queue, tidegate.event_log",
    ] {
        run(&db, statistics).await;
        for before in [null(), "-100000".to_owned()] {
            let asked = |live: bool, logged: bool| {
                let (live, logged) = (live.to_string(), logged.to_string());
                let values = [before.clone(), live, logged, MOST.to_string()];
                filled_in(statement("search_floor"), &values)
            };
            let plan = measured(&client, &asked(true, true)).await;
            assert_looked_at(&plan["Plan"], 2 * MOST, "search_floor");
            let floor = async |live: bool, logged: bool| -> i64 {
                let floor = asked(live, logged);
                let floor: String = client.query_one(&floor, &[]).await.unwrap().get(0);
                let floor: Value = serde_json::from_str(&floor).unwrap();
                floor[0].as_i64().unwrap()
            };
            let (log_alone, of_both) = (floor(false, true).await, floor(true, true).await);
            let below = if before == "NULL" { 0 } else { -100_000 };
            assert_eq!(log_alone, below - MOST - 1);
            // A group of no event, a kind of none, a status of none, and times that none has.
            for (at, value, above) in [
                (3, "'nobody'", log_alone),
                (1, "'none'", of_both),
                (0, "'FAILED'", log_alone),
                (8, "'2000-01-01'", of_both),
            ] {
                let mut values = vec![null(); statement("list").params.len()];
                values[2] = "50".to_owned();
                values[5].clone_from(&before);
                value.clone_into(&mut values[at]);
                values[10] = above.to_string();
                let plan = measured(&client, &filled_in(statement("list"), &values)).await;
                assert_looked_at(&plan["Plan"], 2 * MOST, value);
            }
            let first = if before == "NULL" { -1 } else { -100_000 };
            assert_reads_only_these_payloads(&client, first + 1 - MOST..=first, MOST).await;
        }
    }
    assert_times_lead_to_their_events(&client).await;
}

/// What is asked of a time, of dead letters or of an object reads little beyond what it finds: here, the
/// blocks of a range, of which each has some seventy rows. A search begins where its time lies.
async fn assert_times_lead_to_their_events(client: &Client) {
    const RANGE: i64 = 16 * 100;
    // A vacuum leaves out the range at the end of each partition.
    let summarize = "SELECT brin_summarize_new_values(c.oid) FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
        WHERE a.amname = 'brin' AND c.relkind = 'i'";
    execute(client, summarize).await;
    for (name, given, most) in [
        (
            "few",
            &[(1, "600"), (4, "false"), (5, "5000")][..],
            600 + RANGE,
        ),
        (
            "few",
            &[(3, "600"), (4, "false"), (5, "5000")],
            5000 + RANGE,
        ),
        ("few", &[(4, "true"), (5, "5000")], 0),
        ("list", &[(13, "600"), (17, "true")], 600 + RANGE),
        (
            "list",
            &[(7, "600"), (10, "1000000"), (17, "true")],
            600 + RANGE,
        ),
        ("list", &[(0, "'FAILED'"), (17, "true")], 0),
        ("list", &[(4, "'nobody'"), (17, "true")], 0),
        // Each half looks at the first row of each partition.
        ("published", &[(1, "100000")], 1000),
    ] {
        let mut values = vec!["NULL".to_owned(); statement(name).params.len()];
        if name == "list" {
            "50".clone_into(&mut values[2]);
        }
        for (at, value) in given {
            (*value).clone_into(&mut values[*at]);
        }
        let asked = filled_in(statement(name), &values);
        let plan = measured(client, &asked).await;
        assert_looked_at(&plan["Plan"], most, &format!("{name} {given:?}"));
        if name == "published" {
            let first: String = client.query_one(&asked, &[]).await.unwrap().get(0);
            let first: i64 = first.parse().unwrap();
            // A minute after the event of that second; the test may have taken some seconds so far.
            assert!((-99_940..-99_000).contains(&first), "{first}");
        }
    }
}

/// Searches the payloads of these events, which lie in one partition or two.
async fn assert_reads_only_these_payloads(client: &Client, ids: RangeInclusive<i64>, most: i64) {
    let (first, last) = (ids.start().to_string(), ids.end().to_string());
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    let ids = format!("'{{{}}}'", ids.join(","));
    let values = [ids, "'none'".to_owned(), first, last];
    let plan = measured(client, &filled_in(statement("holding"), &values)).await;
    assert_looked_at(&plan["Plan"], 2 * most, "holding");
}

/// A statement with values in the place of its parameters.
fn filled_in(statement: &Statement, values: &[String]) -> String {
    let values = values.iter().enumerate().rev();
    values.fold(usual(statement.text), |text, (at, value)| {
        text.replace(&format!("${}", at + 1), value)
    })
}

/// Rows that scans have looked at, also those that were not wanted. Each partition may add the row at which
/// its scan begins.
fn assert_looked_at(plan: &Value, most: i64, what: &str) {
    const PARTITIONS: f64 = 200.0;
    let rows = rows_scanned(plan);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let most = most as f64;
    assert!(
        rows <= most + PARTITIONS,
        "{what}: {rows} rows in {plan:#?}"
    );
}

fn rows_scanned(node: &Value) -> f64 {
    let count = |name: &str| node[name].as_f64().unwrap_or_default();
    let seen = count("Actual Rows")
        + count("Rows Removed by Filter")
        + count("Rows Removed by Index Recheck");
    let own = if node["Relation Name"].is_string() {
        seen * count("Actual Loops")
    } else {
        0.0
    };
    own + children(node).map(rows_scanned).sum::<f64>()
}

/// Every drain asks once a second.
#[tokio::test]
async fn schedules_that_are_not_due_are_not_read() {
    let db = probe_database().await;
    let many = "ALTER TABLE tidegate.schedule SET (autovacuum_enabled = false);
        INSERT INTO tidegate.schedule (keeper, name, kind, every, next_at)
        SELECT 'p', 's' || n, 'act', '1 day', clock_timestamp() + interval '1 h' FROM generate_series(1, 20000) AS n";
    run(&db, many).await;
    let mut planner = Planner::of(&db).await;
    for before in ["", "ANALYZE tidegate.schedule"] {
        let values = ["'{act}'::text[]", "0", "200", "NULL::float8"].map(str::to_owned);
        let statement = statement("due_schedules");
        let plans = planner.plans(before, statement, &values).await;
        let told = serde_json::to_string(&plans).unwrap();
        let walks = told.contains("schedule_due") && !told.contains("schedule_id_key");
        assert!(
            walks && !told.contains("Sort Method\":\"external"),
            "{before}: {told}"
        );
    }
}

/// A session that tells the plan of every statement that it runs, also of those within functions.
struct Planner {
    client: Client,
    told: UnboundedReceiver<String>,
}

impl Planner {
    async fn of(db: &TestDb) -> Self {
        let connected = tokio_postgres::connect(db.direct(), NoTls).await;
        let (client, mut connection) = connected.unwrap();
        let (tell, told) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    // The test may be over.
                    let _ = tell.send(notice.message().to_owned());
                }
            }
        });
        let explain = "LOAD 'auto_explain';
            SET auto_explain.log_level = notice; SET auto_explain.log_format = json;
            SET auto_explain.log_nested_statements = on; SET auto_explain.log_min_duration = 0";
        client.batch_execute(explain).await.unwrap();
        Self {
            client: client.into(),
            told,
        }
    }

    /// The plans by which this and the statement ran, in a transaction that is rolled back.
    async fn plans(
        &mut self,
        before: &str,
        statement: &Statement,
        values: &[String],
    ) -> Vec<Value> {
        let call = filled_in(statement, values);
        while self.told.try_recv().is_ok() {}
        let script = format!("BEGIN; {before}; {call}; ROLLBACK");
        self.client.batch_execute(&script).await.unwrap();
        let mut plans = Vec::new();
        while let Ok(told) = self.told.try_recv() {
            if let Some((_, plan)) = told.split_once("plan:\n") {
                plans.push(serde_json::from_str(plan).unwrap());
            }
        }
        plans
    }
}

/// Statistics change when a test says so, not when autovacuum comes by.
async fn queue_nobody_vacuums() -> TestDb {
    let db = probe_database().await;
    let by_hand = "ALTER TABLE tidegate.event_queue SET (autovacuum_enabled = false)";
    run(&db, by_hand).await;
    db
}

async fn run(db: &TestDb, sql: &str) {
    db.client().await.batch_execute(sql).await.unwrap();
}

/// Half of the rows in groups, a quarter with an object of its own, a tenth delayed; in the middle of many,
/// what others hold.
async fn fill(db: &TestDb, count: i32) {
    let events = "INSERT INTO tidegate.event_queue (kind, payload, group_key, correlation_id, available_at)
                  SELECT 'act', json_build_object('name', repeat('x', 180)), CASE WHEN n % 2 = 0 THEN 'group-' || n % 1000 END,
                         CASE WHEN n % 4 = 0 THEN 'c' || n END,
                         clock_timestamp() + CASE WHEN n % 10 = 0 THEN interval '1 day' ELSE interval '0' END
                    FROM generate_series(1, $1) AS n";
    let lease = "INSERT INTO tidegate.lease (token, worker, ids, started_to, groups, taken_at, renewed_at, expires_at,
                                             clear_to, as_of)
                 SELECT gen_random_uuid(), gen_random_uuid(), tidegate.ranges(array_agg(id)), 0, array_agg(DISTINCT hashtext(group_key)),
                        now(), now(), now() + interval '1 day', 0, pg_current_xact_id()
                   FROM tidegate.event_queue WHERE id BETWEEN 100001 AND 100200 AND NOT delayed HAVING count(*) > 0";
    let client = db.client().await;
    client.execute(events, &[&count]).await.unwrap();
    client.execute(lease, &[]).await.unwrap();
}

async fn assert_plans(db: &TestDb) {
    assert_plans_of(&mut Planner::of(db).await).await;
}

async fn assert_plans_of(planner: &mut Planner) {
    for after in [0, 100_000] {
        for page in [8, 1000] {
            assert_plan(planner, "", statement("lease"), &lease(after, page, false)).await;
            assert_plan(planner, "", statement("lease"), &lease(after, page, true)).await;
        }
    }
    assert_plan(planner, "", statement("promote"), &["1000".to_owned()]).await;
    for (statement, values) in under_the_lease() {
        assert_plan(planner, &leased(), statement, &values).await;
    }
    let expired = leased() + "; UPDATE tidegate.lease SET expires_at = now() - interval '1 second'";
    let sweep = [quoted(OTHER), "'{}'".to_owned()];
    assert_plan(planner, &expired, statement("sweep"), &sweep).await;
    let given_back = [quoted(WORKER), "'{}'".to_owned()];
    assert_plan(planner, &leased(), statement("sweep"), &given_back).await;
}

/// Which index each scan of the queue walks in the plans that a session keeps.
async fn indexes_kept(planner: &mut Planner) -> Vec<String> {
    let mut walked = Vec::new();
    for (statement, values) in under_the_lease() {
        for plan in planner.plans(&leased(), statement, &values).await {
            note_indexes(statement.name, &plan["Plan"], &mut walked);
        }
    }
    // A lease asks so at the end of the queue alone, which is far in a large one.
    walked.retain(|index| !index.ends_with("event_queue_ready (id > $)"));
    walked
}

/// What makes [`TOKEN`] a lease; at least one event is there, in a group, and behind it in the group one
/// more.
fn leased() -> String {
    let values = lease(0, 1000, false).join(", ");
    format!(
        "INSERT INTO tidegate.event_queue (kind, group_key) VALUES ('act', 'group'), ('act', 'group');
         SELECT FROM tidegate.lease({values})"
    )
}

/// What a drain does under a lease.
fn under_the_lease() -> Vec<(&'static Statement, Vec<String>)> {
    let one = || {
        "(SELECT lower(ids) FROM tidegate.lease WHERE token = '00000000-0000-0000-0000-000000000001')".to_owned()
    };
    let token = || quoted(TOKEN);
    vec![
        (
            statement("read_leased"),
            vec![token(), "0".to_owned(), "1000".to_owned()],
        ),
        (
            statement("read_leased"),
            vec![token(), "0".to_owned(), "1".to_owned()],
        ),
        (statement("in_hand"), vec![array(&[TOKEN, OTHER])]),
        (statement("complete"), complete(1)),
        (statement("complete"), complete(500)),
        (statement("finalize"), finalize(1)),
        (statement("finalize"), finalize(500)),
        (
            statement("hand_back"),
            vec![
                quoted(WORKER),
                each(500, &|id| id.to_string()),
                each(500, &|_| TOKEN.to_owned()),
            ],
        ),
        (statement("retry"), retry(1)),
        (statement("retry"), retry(500)),
        (
            statement("save_progress"),
            vec![one(), token(), "'{}'".to_owned()],
        ),
        (
            statement("end_unreadable"),
            vec![token(), one(), "'why'".to_owned()],
        ),
    ]
}

fn note_indexes(statement: &str, node: &Value, walked: &mut Vec<String>) {
    if is_index_of_queue(node) {
        let part = |name: &str| node[name].as_str().unwrap_or_default();
        let (index, condition) = (part("Index Name"), part("Index Cond"));
        // Which id it was does not matter.
        let condition = condition.replace(|c: char| c.is_ascii_digit(), "");
        walked.push(format!("{statement}: {index} {condition}"));
    }
    for child in children(node) {
        note_indexes(statement, child, walked);
    }
}

/// A lease's parameters as a drain sends them, with what it knows from earlier leases of the walk or without.
fn lease(after: u32, page: u32, known: bool) -> [String; 15] {
    let if_known = |value: String| if known { value } else { "NULL".to_owned() };
    [
        quoted(TOKEN),
        quoted(WORKER),
        array(&[OTHER]),
        array(&[OTHER]),
        "60".to_owned(),
        array(Probe::KINDS),
        page.to_string(),
        "8000000".to_owned(),
        "10".to_owned(),
        array(&["blocked"]),
        "NULL".to_owned(),
        after.to_string(),
        if_known(after.to_string()),
        if_known("'1000'".to_owned()),
        if_known("'1000'".to_owned()),
    ]
}

/// The parameters of a write of so many events that just complete, of two leases.
fn complete(ends: u32) -> Vec<String> {
    let done = format!("'{{\"{{[1,{ends}]}}\",\"{{[1,7],[9,12]}}\"}}'");
    vec![
        array(&[TOKEN, OTHER]),
        done,
        "'{NULL,7}'".to_owned(),
        "'{true,false}'".to_owned(),
    ]
}

/// The parameters of a write of so many ends of any kind, without follow-ups.
fn finalize(ends: u32) -> Vec<String> {
    let mut values = vec![
        quoted(TOKEN),
        each(ends, &|id| id.to_string()),
        each(ends, &|_| "COMPLETED".to_owned()),
        each(ends, &|_| "true".to_owned()),
    ];
    values.extend(std::iter::repeat_n(each(ends, &|_| "NULL".to_owned()), 3));
    values.push("false".to_owned());
    // The rest are the columns of follow-ups.
    values.resize(statement("finalize").params.len(), "'{}'".to_owned());
    values
}

/// The parameters of so many retries.
fn retry(count: u32) -> Vec<String> {
    let mut values = vec![
        quoted(WORKER),
        each(count, &|id| id.to_string()),
        each(count, &|_| TOKEN.to_owned()),
        each(count, &|_| "true".to_owned()),
        each(count, &|_| "1.5".to_owned()),
    ];
    values.extend(std::iter::repeat_n(each(count, &|_| "NULL".to_owned()), 3));
    values.push("'{}'".to_owned());
    values
}

/// An array with an element for each of so many ids.
fn each(count: u32, text: &dyn Fn(u32) -> String) -> String {
    array(&(1..=count).map(text).collect::<Vec<_>>())
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn array(elements: &[impl AsRef<str>]) -> String {
    let elements: Vec<&str> = elements.iter().map(AsRef::as_ref).collect();
    quoted(&format!("{{{}}}", elements.join(",")))
}

/// The statement walks indexes: it neither reads the whole queue nor sorts what it reads of it.
async fn assert_plan(
    planner: &mut Planner,
    before: &str,
    statement: &Statement,
    values: &[String],
) {
    let plans = planner.plans(before, statement, values).await;
    let mut faults = Vec::new();
    for plan in &plans {
        inspect(&plan["Plan"], &mut faults);
        if has(&plan["Plan"], &is_walk_of_all) {
            faults.push("walks all events".to_owned());
        }
    }
    let name = statement.name;
    if ["hand_back", "retry"].contains(&name) {
        // They sort what goes back, which they were told.
        faults.retain(|fault| !fault.starts_with("sorts"));
    }
    assert!(faults.is_empty(), "{name}: {faults:?} in {plans:#?}");
    assert!(
        plans.iter().any(|plan| touches_queue(&plan["Plan"])),
        "{name}: no scan of the queue to judge"
    );
}

/// What people and the doctor ask of a few events. They may sort these; figures of all read all.
#[tokio::test]
async fn who_asks_for_a_few_events_of_a_large_queue_does_not_read_it() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    run(&db, "ANALYZE").await;
    let mut planner = Planner::of(&db).await;
    let null = || "NULL".to_owned();
    let list = |at: usize, value: &str| {
        let mut values = vec![null(); statement("list").params.len()];
        values[2] = "20".to_owned();
        value.clone_into(&mut values[at]);
        values
    };
    let few: Vec<(&Statement, Vec<String>)> = vec![
        (statement("show"), vec!["100003".to_owned()]),
        (&WHY, vec!["100003".to_owned()]),
        (&WHY, vec!["199998".to_owned()]),
        (statement("job"), vec!["100003".to_owned(), "60".to_owned()]),
        (statement("leases"), vec!["20".to_owned()]),
        (statement("list"), list(0, "'PENDING'")),
        (statement("list"), list(0, "'PROCESSING'")),
        (statement("list"), list(3, "'group-2'")),
        (statement("list"), list(5, "100")),
        (statement("doctor"), vec![null(), "'leases'".to_owned()]),
        (statement("oldest_ready"), vec![array(Probe::KINDS)]),
    ];
    for (statement, values) in few {
        for plan in planner.plans("", statement, &values).await {
            let mut faults = Vec::new();
            inspect(&plan["Plan"], &mut faults);
            // Those of the log are judged with a full log.
            faults.retain(|fault| !fault.starts_with("sorts") && !fault.contains("event_log"));
            assert!(
                faults.is_empty(),
                "{}: {faults:?} in {plan:#?}",
                statement.name
            );
        }
    }
}

/// What finds the events of a worker that died, as its own view has it and as people write it (D13).
const STUCK: [&str; 3] = [
    "SELECT * FROM tidegate.stuck_events",
    "SELECT * FROM tidegate.events WHERE status = 'PROCESSING' AND processing_started_at < now() - interval '5 minutes'",
    "SELECT * FROM tidegate.events WHERE status = 'PROCESSING' AND updated_at < now() - interval '5 minutes'",
];

/// A million events lie on more than 30,000; what is in hand, on a few.
const FEW_PAGES: i64 = 1000;

#[tokio::test]
async fn d3_d13_of_a_million_events_the_stuck_and_the_next_are_found_by_indexes() {
    let db = queue_nobody_vacuums().await;
    fill(&db, 1_000_000).await;
    let client = db.client().await;
    let died = "UPDATE tidegate.lease SET taken_at = now() - interval '1 hour', renewed_at = now() - interval '1 hour',
                       expires_at = now() - interval '59 minutes'";
    client.batch_execute(died).await.unwrap();
    let in_hand = number(&client, "SELECT sum(events)::bigint FROM tidegate.leases").await;
    assert_eq!(in_hand, 180);
    for statistics in ["", "ANALYZE tidegate.event_queue, tidegate.lease"] {
        client.batch_execute(statistics).await.unwrap();
        for statement in STUCK {
            let plan = measured(&client, statement).await;
            let told = plan["Plan"]["Actual Rows"].as_f64();
            assert_eq!(told, Some(180.0), "{statement}");
            assert_few_are_read(&plan["Plan"], 180.0, statement);
        }
    }
    // The lease of a drain, and whoever looks at the oldest and the newest.
    assert_plans(&db).await;
    execute(&client, "SELECT tidegate.sweep(NULL, '{}')").await;
    for statement in ["", "ANALYZE tidegate.event_queue, tidegate.lease"] {
        client.batch_execute(statement).await.unwrap();
        let poll = "SELECT * FROM tidegate.poll(ARRAY['act'], 10)";
        let plan = measured(&client, poll).await;
        assert_eq!(plan["Plan"]["Actual Rows"].as_f64(), Some(10.0));
        // With the catalogs. The table has some 40,000 pages.
        let pages = &plan["Plan"]["Shared Hit Blocks"];
        assert!(pages.as_i64().unwrap() < 10 * FEW_PAGES, "{plan:#?}");
    }
    for order in ["id", "id DESC"] {
        let statement = format!("SELECT * FROM tidegate.events ORDER BY {order} LIMIT 50");
        let plan = measured(&client, &statement).await;
        assert_few_are_read(&plan["Plan"], 1000.0, &statement);
    }
    execute(&client, "VACUUM ANALYZE tidegate.event_queue").await;
    assert_views_are_not_compiled(&client).await;
}

/// The plan by which a statement ran, with what it read.
async fn measured(client: &Client, statement: &str) -> Value {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}");
    let row = client.query_one(&explain, &[]).await.unwrap();
    row.get::<_, Value>(0)[0].take()
}

fn assert_few_are_read(plan: &Value, most: f64, statement: &str) {
    let mut faults = Vec::new();
    inspect(plan, &mut faults);
    faults.retain(|fault| !fault.starts_with("sorts"));
    assert!(faults.is_empty(), "{statement}: {faults:?} in {plan:#?}");
    let count = |name: &str| plan[name].as_i64().unwrap();
    let pages = count("Shared Hit Blocks") + count("Shared Read Blocks");
    assert!(pages < FEW_PAGES, "{statement}: {pages} pages in {plan:#?}");
    let rows = rows_of_queue(plan);
    assert!(rows <= most, "{statement}: {rows} rows in {plan:#?}");
}

/// From this cost on, Postgres compiles a plan, which takes longer than most plans do.
const COMPILED: f64 = 100_000.0;

/// The views as people ask for them in psql, where nothing turns the compiler off.
async fn assert_views_are_not_compiled(client: &Client) {
    let views =
        "SELECT table_name::text FROM information_schema.views WHERE table_schema = 'tidegate'";
    for row in client.query(views, &[]).await.unwrap() {
        let view: &str = row.get(0);
        // The reports ask these for one event, and a union of unions is not read in order.
        let in_order = match view {
            "all_events" | "event_contents" => "WHERE id = 5",
            _ => "ORDER BY 1 DESC LIMIT 20",
        };
        for asked in ["", in_order] {
            let statement = format!("SELECT * FROM tidegate.{view} {asked}");
            let explain = format!("EXPLAIN (FORMAT JSON) {statement}");
            let plan: Value = client.query_one(&explain, &[]).await.unwrap().get(0);
            let cost = plan[0]["Plan"]["Total Cost"].as_f64().unwrap();
            assert!(cost < COMPILED, "{statement}: {plan:#}");
        }
    }
}

/// The penalty of a planner switch makes the cheapest plan look expensive.
#[tokio::test]
async fn a_function_that_steers_the_planner_compiles_nothing() {
    let (_db, client) = probe().await;
    let steering = "SELECT count(*), count(*) FILTER (WHERE NOT 'jit=off' = ANY (p.proconfig)) FROM pg_proc AS p
        WHERE p.pronamespace = 'tidegate'::regnamespace AND p.proconfig::text ~ 'enable_|plan_cache_mode'";
    let row = client.query_one(steering, &[]).await.unwrap();
    let (all, compiling): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > 20, "{all}");
    assert_eq!(compiling, 0);
}

/// The blocks of a range that has one row of the hour are read whole, in each partition.
#[tokio::test]
async fn those_who_ask_for_the_last_hour_of_a_long_log_read_little_else() {
    let db = queue_nobody_vacuums().await;
    let log = "INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        SELECT n, 'act', 'COMPLETED', 1, 5, '[]', f, f, now() + interval '10 days'
          FROM (SELECT n, now() - make_interval(secs => n) AS f FROM generate_series(100000, 1, -1) AS n) AS ended";
    run(&db, log).await;
    run(&db, "VACUUM ANALYZE tidegate.event_log").await;
    let client = db.client().await;
    let hour =
        "SELECT * FROM tidegate.ends WHERE finished_at > statement_timestamp() - interval '1 hour'";
    let plan = measured(&client, hour).await;
    // A page has some seventy rows.
    assert_looked_at(&plan["Plan"], 3600 + 16 * 100, hour);
}

/// Rows of the queue that were looked at, also those that were not wanted.
fn rows_of_queue(node: &Value) -> f64 {
    let count = |name: &str| node[name].as_f64().unwrap_or_default();
    let own = if scans_queue(node) {
        (count("Actual Rows") + count("Rows Removed by Filter")) * count("Actual Loops")
    } else {
        0.0
    };
    own + children(node).map(rows_of_queue).sum::<f64>()
}

#[tokio::test]
async fn b13_what_expires_soon_is_found_by_its_deadline_however_many_have_one() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    let deadlines = "UPDATE tidegate.event_queue SET expires_at = clock_timestamp() + make_interval(secs => id / 100.0)";
    run(&db, deadlines).await;
    for statistics in ["SELECT 1", "ANALYZE tidegate.event_queue"] {
        run(&db, statistics).await;
        let mut planner = Planner::of(&db).await;
        let plans = planner.plans("", statement("expiring"), &[]).await;
        let (mut faults, mut walked) = (Vec::new(), Vec::new());
        for plan in &plans {
            inspect(&plan["Plan"], &mut faults);
            note_indexes("expiring", &plan["Plan"], &mut walked);
        }
        assert!(faults.is_empty(), "{faults:?} in {plans:#?}");
        assert_eq!(walked.len(), 1, "{walked:?}");
        contains(&walked[0], "event_queue_deadline (expires_at >");
        // Compiling it would take longer than it does.
        assert!(plans[0]["JIT"].is_null(), "{plans:#?}");
    }
}

fn inspect(node: &Value, faults: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    let table = node["Relation Name"].as_str().unwrap_or_default();
    if kind == "Seq Scan" && (table == "event_queue" || table.starts_with("event_log")) {
        faults.push(format!("reads the whole {table}"));
    }
    let condition = node["Index Cond"].as_str().unwrap_or_default();
    if node["Index Name"] == "event_queue_group" && !condition.contains("group_key") {
        faults.push("walks all groups".to_owned());
    }
    // As it does when the time is compared with a volatile function, which is asked anew for each row.
    if node["Index Name"] == "event_queue_due" && node["Index Cond"].is_null() {
        faults.push("walks all delayed events".to_owned());
    }
    if kind.contains("Sort") && is_fed_by_queue(node) {
        faults.push(format!("sorts the queue by {}", node["Sort Key"]));
    }
    if node["Function Name"] == "log_row" {
        faults.push("calls log_row() for each row".to_owned());
    }
    for child in children(node) {
        inspect(child, faults);
    }
}

/// Whether a node or one below it is such.
fn has(node: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    is(node) || children(node).any(|child| has(child, is))
}

fn touches_queue(node: &Value) -> bool {
    has(node, &scans_queue)
}

fn is_walk_of_all(node: &Value) -> bool {
    node["Index Name"] == "event_queue_pkey" && node["Index Cond"].is_null()
}

fn scans_queue(node: &Value) -> bool {
    let scans = node["Node Type"]
        .as_str()
        .is_some_and(|kind| kind.contains("Scan"));
    scans && (node["Relation Name"] == "event_queue" || is_index_of_queue(node))
}

/// A bitmap of an index names the index alone.
fn is_index_of_queue(node: &Value) -> bool {
    node["Index Name"]
        .as_str()
        .is_some_and(|index| index.starts_with("event_queue"))
}

/// Whether rows of the queue come up to a node; what is asked for each of its rows does not.
fn is_fed_by_queue(node: &Value) -> bool {
    let asked = |child: &&Value| {
        let role = child["Parent Relationship"].as_str();
        role.is_some_and(|role| role == "SubPlan" || role == "InitPlan")
    };
    scans_queue(node)
        || children(node)
            .filter(|child| !asked(child))
            .any(is_fed_by_queue)
}

fn children(node: &Value) -> impl Iterator<Item = &Value> {
    node["Plans"].as_array().into_iter().flatten()
}

#[tokio::test]
async fn every_statement_prepares_against_the_migrated_schema() {
    let (_db, client) = probe().await;
    for statement in queue::statements().chain(tidegate_admin::statements()) {
        let text = usual(statement.text);
        let prepared = client.prepare_typed(&text, statement.params).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name));
        assert_eq!(prepared.params(), statement.params, "{}", statement.name);
    }
}
