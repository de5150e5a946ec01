//! A list of queues: one program for several schemas and databases, by settings or by a query.

use std::sync::Mutex;

use serde_json::{Value, json};
use test_support::probe::{Nothing, number};
use test_support::{self as support, TestDb, begins, contains, execute, has, wait_until};
use tidegate::program::{Failure, Queues};
use tidegate::{Hooks, Program};

/// A program for the queues of these settings, in this database.
fn queues(db: &TestDb, settings: &[(&'static str, &str)]) -> Queues {
    let url = db.url.clone();
    let lookup = |name: &str| {
        let set = settings.iter().find(|(known, _)| *known == name);
        let set = set.map(|(_, value)| (*value).to_owned());
        set.or_else(|| (name == "DATABASE_URL").then(|| url.clone()))
    };
    Program::new(|_| Ok(Nothing)).queues(&lookup).unwrap()
}

async fn answered(queues: &Queues, payload: Value) -> Result<Value, Failure> {
    queues.answer(payload, None, |_| Hooks::default()).await
}

async fn answer(queues: &Queues, payload: Value) -> Value {
    answered(queues, payload).await.unwrap()
}

/// The names of the queues in an answer, in its order.
fn names(answer: &Value) -> Vec<&str> {
    let entries = answer["queues"].as_array().unwrap().iter();
    entries
        .map(|entry| entry["queue"].as_str().unwrap())
        .collect()
}

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";

const PUBLISH: &str = "publish('act', '{\"name\": \"a\"}')";

#[tokio::test]
async fn a_drain_of_all_passes_over_queues_without_work() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let list = "#acme, #globex, east=#initech, #hooli";
    let all = queues(&db, &[("TIDEGATE_QUEUES", list)]);
    let migrated = answer(&all, json!({"action": "migrate"})).await;
    has(&migrated, &json!({"failed": 0, "skipped": 0, "idle": 0}));
    assert_eq!(names(&migrated).len(), 4);
    execute(&client, &format!("SELECT acme.{PUBLISH}, globex.{PUBLISH}")).await;
    // Planned for later: there is nothing to do yet.
    let later = "SELECT hooli.publish('act', '{\"name\": \"a\"}', available_at => now() + interval '1 day')";
    execute(&client, later).await;
    let drained = answer(&all, json!({"action": "drain"})).await;
    let mut worked = names(&drained);
    worked.sort_unstable();
    assert_eq!(worked, ["acme", "globex"], "{drained}");
    has(&drained, &json!({"failed": 0, "skipped": 0, "idle": 2}));
    for entry in drained["queues"].as_array().unwrap() {
        assert_eq!(entry["report"]["completed"], 1, "{entry}");
    }
    let runs = "SELECT count(*) FROM initech.drain_run";
    assert_eq!(number(&client, runs).await, 0);
    // What lies behind a deadline, a lease or a schedule needs a drain.
    execute(
        &client,
        "UPDATE hooli.event_queue SET expires_at = now() - interval '1 s'",
    )
    .await;
    let schedule = "INSERT INTO initech.schedule (name, kind, every) VALUES ('s', 'act', '1 hour')";
    execute(&client, schedule).await;
    let drained = answer(&all, json!({"action": "drain"})).await;
    let mut worked = names(&drained);
    worked.sort_unstable();
    assert_eq!(worked, ["east", "hooli"], "{drained}");
    let one = answer(&all, json!({"action": "list", "queue": "east"})).await;
    assert_eq!(one["action"], "list");
    let refused = answered(&all, json!({"action": "list"})).await.unwrap_err();
    begins(
        &refused.to_string(),
        "queue: must be one of acme, globex, east, hooli",
    );
}

/// What ends a process ends it for all queues that are worked on in it.
#[tokio::test]
async fn a_queue_with_an_event_that_ended_its_worker_has_its_turn_last() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let all = queues(&db, &[("TIDEGATE_QUEUES", "#acme, #globex, #initech")]);
    answer(&all, json!({"action": "migrate"})).await;
    for queue in ["acme", "globex", "initech"] {
        execute(&client, &format!("SELECT {queue}.{PUBLISH}")).await;
    }
    let lapsed = "UPDATE acme.event_queue SET lapses = 1";
    execute(&client, lapsed).await;
    let drained = answer(&all, json!({"action": "drain"})).await;
    assert_eq!(names(&drained)[2], "acme", "{drained}");
    for entry in drained["queues"].as_array().unwrap() {
        assert_eq!(entry["report"]["completed"], 1, "{entry}");
    }
}

/// An old event that is planned for later, or of a paused kind, is nothing that is urgent.
#[tokio::test]
async fn the_queue_whose_event_has_been_ready_for_the_longest_time_is_the_most_urgent() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let all = queues(&db, &[("TIDEGATE_QUEUES", "#acme, #globex, #initech")]);
    answer(&all, json!({"action": "migrate"})).await;
    for sql in [
        "SELECT acme.publish('act', '{\"name\": \"a\"}', available_at => now() + interval '1 year')",
        &format!("SELECT initech.{PUBLISH}"),
        "UPDATE initech.event_kind SET paused = true WHERE kind = 'act'",
        &format!("SELECT globex.{PUBLISH}"),
        "SELECT pg_sleep(0.01)",
    ] {
        execute(&client, sql).await;
    }
    let looks = all.look().await.unwrap();
    let ready: Vec<(&str, bool)> = looks
        .iter()
        .map(|(name, look)| (name.as_str(), look.unwrap().ready_ms > 0))
        .collect();
    assert_eq!(
        ready,
        [("globex", true), ("acme", false), ("initech", false)]
    );
}

/// The lines of metrics of the test below.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[tokio::test]
async fn an_idle_queue_has_no_metrics_of_its_own_and_a_part_in_those_of_all() {
    let db = support::empty_database().await;
    let list = [
        ("TIDEGATE_QUEUES", "#acme, #globex, #initech"),
        ("TIDEGATE_METRICS", "emf-by-queue"),
    ];
    let all =
        queues(&db, &list).with_metrics_to(|line| LINES.lock().unwrap().push(line.to_owned()));
    answer(&all, json!({"action": "migrate"})).await;
    execute(&db.client().await, &format!("SELECT acme.{PUBLISH}")).await;
    answer(&all, json!({"action": "drain"})).await;
    let lines = LINES.lock().unwrap();
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of_queues: Vec<Option<&str>> = lines
        .iter()
        .map(|line| line["QueueName"].as_str())
        .collect();
    assert_eq!(of_queues, [Some("acme"), None], "{lines:#?}");
    has(&lines[1], &json!({"Completed": 0, "Backlog": 0}));
}

#[tokio::test]
async fn a_queue_that_is_locked_keeps_no_other_waiting() {
    let db = support::empty_database().await;
    let all = queues(&db, &[("TIDEGATE_QUEUES", "#acme, #globex, #initech")]);
    answer(&all, json!({"action": "migrate"})).await;
    let client = db.client().await;
    execute(
        &client,
        &format!("SELECT acme.{PUBLISH}, globex.{PUBLISH}, initech.{PUBLISH}"),
    )
    .await;
    let mut other = db.client().await;
    let holder = other.transaction().await.unwrap();
    execute(&holder, "LOCK TABLE globex.event_queue").await;
    let looks = all.look().await.unwrap();
    assert!(looks.contains(&("globex".to_owned(), None)), "{looks:?}");
    wait_until("the look has left the lock", async || {
        number(&client, WAITING).await == 0
    })
    .await;
    let drained = answer(&all, json!({"action": "drain", "budget": "6s"})).await;
    holder.rollback().await.unwrap();
    assert_eq!(names(&drained)[2], "globex", "{drained}");
    for entry in &drained["queues"].as_array().unwrap()[..2] {
        assert_eq!(entry["report"]["completed"], 1, "{entry}");
    }
}

#[tokio::test]
async fn a_query_names_the_queues_and_one_that_is_new_is_found_without_a_restart() {
    let db = support::empty_database().await;
    let client = db.client().await;
    execute(&client, "CREATE TABLE tenant (name text, place name, secret text); INSERT INTO tenant VALUES ('north', 'acme')").await;
    let query = "SELECT name, place AS schema, secret FROM tenant ORDER BY name";
    let all = queues(&db, &[("TIDEGATE_QUEUES_QUERY", query)]);
    let migrated = answer(&all, json!({"action": "migrate"})).await;
    // One queue answers as if it were the only one.
    assert_eq!(migrated["action"], "migrate", "{migrated}");
    execute(&client, "INSERT INTO tenant VALUES (NULL, 'globex')").await;
    let migrated = answer(&all, json!({"action": "migrate"})).await;
    assert_eq!(names(&migrated).len(), 2, "{migrated}");
    execute(&client, &format!("SELECT globex.{PUBLISH}")).await;
    let drained = answer(&all, json!({"action": "drain"})).await;
    assert_eq!(
        (names(&drained), &drained["idle"]),
        (vec!["globex"], &json!(1))
    );
    // The list that was read last is good while it cannot be read.
    execute(&client, "ALTER TABLE tenant RENAME TO gone").await;
    let drained = answer(&all, json!({"action": "drain"})).await;
    assert_eq!(drained["idle"], 2, "{drained}");
    // A row that is no queue, and one of a name that another has, stop no other.
    let some = "SELECT unnest(ARRAY['acme', 'A-b', 'globex', 'acme', NULL]) AS schema";
    let some = queues(&db, &[("TIDEGATE_QUEUES_QUERY", some)]);
    let drained = answer(&some, json!({"action": "drain"})).await;
    assert_eq!(drained["idle"], 2, "{drained}");
    for (sql, told) in [
        ("SELECT 1", "row 1: a secret or a schema is missing"),
        (
            "SELECT 'a' AS schema, 1 AS name",
            "row 1: column name: must be text",
        ),
        (
            "SELECT 'A' AS schema",
            "row 1: TIDEGATE_SCHEMA: must be 1 to 41",
        ),
        (
            "SELECT 'a' AS schema WHERE false",
            "must return a row for each queue",
        ),
        ("SELEC 1", "syntax error"),
    ] {
        let all = queues(&db, &[("TIDEGATE_QUEUES_QUERY", sql)]);
        let refused = answered(&all, json!({"action": "drain"}))
            .await
            .unwrap_err();
        let refused = refused.to_string();
        contains(&refused, "TIDEGATE_QUEUES_QUERY");
        contains(&refused, told);
    }
}

#[tokio::test]
async fn the_settings_or_the_request_choose_one_queue() {
    let db = support::empty_database().await;
    let list = ("TIDEGATE_QUEUES", "#acme, #globex");
    let one = queues(&db, &[list, ("TIDEGATE_QUEUE", "globex")]);
    assert_eq!(
        one.one(None).await.unwrap().database.schema().name(),
        "globex"
    );
    assert_eq!(
        one.one(Some("acme"))
            .await
            .unwrap()
            .database
            .schema()
            .name(),
        "acme"
    );
    let refused = |error: tidegate::Error| error.to_string();
    let error = one.one(Some("hooli")).await.map(drop).map_err(refused);
    assert_eq!(
        error,
        Err("queue: must be one of acme, globex; got \"hooli\"".to_owned())
    );
    let alone = queues(&db, &[]);
    let error = alone.one(Some("acme")).await.map(drop).map_err(refused);
    contains(
        &error.unwrap_err(),
        "queue: must not be given without TIDEGATE_QUEUES",
    );
}
