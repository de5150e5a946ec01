//! How the planner sees the statements of the hot path, whatever the statistics say: a drain that
//! reads or sorts its whole table once a batch is a thousand times slower, and only when it matters.
//!
//! 200,000 rows stand for every larger number: the planner's choice between an index and the table
//! turns at a few thousand, and a million would cost each of these tests half a minute more.

use std::future::poll_fn;

use serde_json::Value;
use tidegate::Event;
use tidegate::queue::sql::{Statement, live};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use uuid::Uuid;

use crate::probe::{Probe, probe_database};
use crate::support::TestDb;

const LARGE: i32 = 200_000;

#[tokio::test]
async fn a_large_table_is_walked_by_its_indexes() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    assert_plans(&db).await;
}

#[tokio::test]
async fn a_large_table_that_nobody_has_analyzed_is_walked_by_its_indexes() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    assert_plans(&db).await;
}

#[tokio::test]
async fn a_large_table_with_statistics_of_an_empty_one_is_walked_by_its_indexes() {
    let db = queue_nobody_vacuums().await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    fill(&db, LARGE).await;
    assert_plans(&db).await;
}

#[tokio::test]
async fn a_large_table_with_statistics_of_a_few_rows_is_walked_by_its_indexes() {
    let db = queue_nobody_vacuums().await;
    fill(&db, 100).await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    fill(&db, LARGE).await;
    assert_plans(&db).await;
}

#[tokio::test]
async fn what_is_left_of_a_large_table_with_its_statistics_is_walked_by_its_indexes() {
    let db = queue_nobody_vacuums().await;
    fill(&db, LARGE).await;
    run(&db, "ANALYZE tidegate.event_queue").await;
    run(&db, "DELETE FROM tidegate.event_queue WHERE id > 100").await;
    assert_plans(&db).await;
}

/// A table of a few pages may be read whole, for that costs no more than its index does; the planner
/// knows its true size at every statement. But whatever it is asked must have an index to grow into.
#[tokio::test]
async fn a_small_table_has_an_index_for_every_question_and_every_order() {
    let db = queue_nobody_vacuums().await;
    let mut planner = Planner::of(&db).await;
    let rather_not = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";
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
    let unknown = indexes_kept(&mut Planner::of(&db).await).await;
    run(&db, "VACUUM ANALYZE tidegate.event_queue").await;
    let empty = indexes_kept(&mut Planner::of(&db).await).await;
    fill(&db, 10).await;
    run(&db, "VACUUM ANALYZE tidegate.event_queue").await;
    let few = indexes_kept(&mut Planner::of(&db).await).await;
    fill(&db, LARGE).await;
    run(&db, "VACUUM ANALYZE tidegate.event_queue").await;
    let large = indexes_kept(&mut Planner::of(&db).await).await;
    assert!(large.len() >= 4, "{large:#?}");
    assert_eq!(unknown, large);
    assert_eq!(empty, large);
    assert_eq!(few, large);
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
        Self { client, told }
    }

    /// The plans by which this and the statement ran, in a transaction that is rolled back.
    async fn plans(
        &mut self,
        before: &str,
        statement: &Statement,
        values: &[String],
    ) -> Vec<Value> {
        let mut call = statement.text.to_owned();
        for (at, value) in values.iter().enumerate().rev() {
            call = call.replace(&format!("${}", at + 1), value);
        }
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

/// Half of the rows in groups, a tenth delayed; in the middle of many, what others hold.
async fn fill(db: &TestDb, count: i32) {
    let sql = "INSERT INTO tidegate.event_queue
                      (kind, payload, group_key, available_at, lease_token, lease_expires_at, status, processing_started_at)
               SELECT 'act', jsonb_build_object('name', repeat('x', 180)), CASE WHEN n % 2 = 0 THEN 'group-' || n % 1000 END,
                      clock_timestamp() + CASE WHEN n % 10 = 0 THEN interval '1 day' ELSE interval '0' END,
                      CASE WHEN held THEN gen_random_uuid() END, CASE WHEN held THEN clock_timestamp() + interval '1 day' END,
                      CASE WHEN held THEN 'PROCESSING' ELSE 'PENDING' END, CASE WHEN held THEN clock_timestamp() END
                 FROM generate_series(1, $1) AS n, LATERAL (SELECT n BETWEEN 100001 AND 100200 AND n % 10 <> 0) AS h(held)";
    let client = db.client().await;
    client.execute(sql, &[&count]).await.unwrap();
}

async fn assert_plans(db: &TestDb) {
    assert_plans_of(&mut Planner::of(db).await).await;
}

async fn assert_plans_of(planner: &mut Planner) {
    for after in [0, 100_000] {
        for page in [8, 1000] {
            assert_plan(planner, &live::LEASE, &lease(after, page, false)).await;
            assert_plan(planner, &live::LEASE, &lease(after, page, true)).await;
        }
    }
    let promote = ["1000".to_owned(), "NULL::timestamptz".to_owned()];
    assert_plan(planner, &live::PROMOTE, &promote).await;
    for ends in [1, 500, 1000] {
        assert_plan(planner, &live::COMPLETE, &complete(ends)).await;
        assert_plan(planner, &live::FINALIZE, &finalize(ends)).await;
    }
}

/// Which index each scan of the queue walks in the plans that a session keeps.
async fn indexes_kept(planner: &mut Planner) -> Vec<String> {
    let grouped = "INSERT INTO tidegate.event_queue (kind, group_key) VALUES ('act', 'group')";
    let mut walked = Vec::new();
    for (function, values) in [
        (&live::LEASE, lease(0, 1000, true).to_vec()),
        (&live::COMPLETE, complete(500)),
        (&live::FINALIZE, finalize(500)),
    ] {
        for plan in planner.plans(grouped, function, &values).await {
            note_indexes(function.name, &plan["Plan"], &mut walked);
        }
    }
    walked
}

fn note_indexes(statement: &str, node: &Value, walked: &mut Vec<String>) {
    if is_index_of_queue(node) {
        let part = |name: &str| node[name].as_str().unwrap_or_default();
        let (index, condition) = (part("Index Name"), part("Index Cond"));
        walked.push(format!("{statement}: {index} {condition}"));
    }
    for child in children(node) {
        note_indexes(statement, child, walked);
    }
}

/// A lease's parameters as a drain sends them, holding rows of an earlier lease, and with what it knows of
/// them or without.
fn lease(after: u32, page: u32, known: bool) -> [String; 12] {
    let if_known = |value: String| if known { value } else { "NULL".to_owned() };
    [
        after.to_string(),
        page.to_string(),
        quoted(&Uuid::new_v4().to_string()),
        array(&[Uuid::new_v4().to_string()]),
        "60".to_owned(),
        array(Probe::KINDS),
        "NULL".to_owned(),
        page.to_string(),
        array(&["blocked".to_owned()]),
        if_known(after.saturating_sub(3 * page).to_string()),
        if_known("1000".to_owned()),
        if_known(array(&["doubtful".to_owned()])),
    ]
}

/// The parameters of a write of so many events that just complete, of two leases.
fn complete(ends: u32) -> Vec<String> {
    let ids: Vec<String> = (1..=ends).map(|id| id.to_string()).collect();
    let tokens = [Uuid::new_v4().to_string(), Uuid::new_v4().to_string()];
    let second = (ends / 2).to_string();
    vec![array(&ids), array(&tokens), array(&[second])]
}

/// The parameters of a write of so many ends of any kind, without follow-ups.
fn finalize(ends: u32) -> Vec<String> {
    let each = |text: &dyn Fn(u32) -> String| array(&(1..=ends).map(text).collect::<Vec<_>>());
    let token = Uuid::new_v4().to_string();
    let nothing = each(&|_| "NULL".to_owned());
    let mut values = vec![
        each(&|id| id.to_string()),
        each(&|_| token.clone()),
        each(&|_| "COMPLETED".to_owned()),
    ];
    values.extend(std::iter::repeat_n(nothing, 3));
    // The rest are the columns of follow-ups.
    values.resize(live::FINALIZE.params.len(), "'{}'".to_owned());
    values
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn array(elements: &[impl AsRef<str>]) -> String {
    let elements: Vec<&str> = elements.iter().map(AsRef::as_ref).collect();
    quoted(&format!("{{{}}}", elements.join(",")))
}

/// The statement walks indexes: it neither reads the whole queue nor sorts what it reads of it.
async fn assert_plan(planner: &mut Planner, statement: &Statement, values: &[String]) {
    let plans = planner.plans("", statement, values).await;
    let mut faults = Vec::new();
    for plan in &plans {
        inspect(&plan["Plan"], &mut faults);
    }
    let name = statement.name;
    assert!(faults.is_empty(), "{name}: {faults:?} in {plans:#?}");
    assert!(
        plans.iter().any(|plan| touches_queue(&plan["Plan"])),
        "{name}: no scan of the queue to judge"
    );
}

fn inspect(node: &Value, faults: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    if kind == "Seq Scan" && node["Relation Name"] == "event_queue" {
        faults.push("reads the whole queue".to_owned());
    }
    // As it does when the time is compared with a volatile function, which is asked anew for each row.
    if node["Index Name"] == "event_queue_due" && node["Index Cond"].is_null() {
        faults.push("walks all delayed events".to_owned());
    }
    if kind.contains("Sort") && touches_queue(node) {
        faults.push(format!("sorts the queue by {}", node["Sort Key"]));
    }
    for child in children(node) {
        inspect(child, faults);
    }
}

/// Whether a node or one below it scans the queue.
fn touches_queue(node: &Value) -> bool {
    let scans = node["Node Type"]
        .as_str()
        .is_some_and(|kind| kind.contains("Scan"));
    scans && (node["Relation Name"] == "event_queue" || is_index_of_queue(node))
        || children(node).any(touches_queue)
}

/// A bitmap of an index names the index alone.
fn is_index_of_queue(node: &Value) -> bool {
    node["Index Name"]
        .as_str()
        .is_some_and(|index| index.starts_with("event_queue"))
}

fn children(node: &Value) -> impl Iterator<Item = &Value> {
    node["Plans"].as_array().into_iter().flatten()
}
