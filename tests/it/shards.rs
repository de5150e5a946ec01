//! Queues in several databases: each group has its database, and one that is down or full does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::shards::Shards;
use tidegate::{Database, DrainOptions, queue};

use crate::function::Function;
use crate::probe::{ProbeApp, act, disorder, live, probe_database};
use crate::services::Services;
use crate::support::{self, Secrets, TestDb, Version, publish_letters};

#[tokio::test]
async fn all_are_drained_and_one_that_is_down_keeps_no_other_waiting() {
    let databases = [
        probe_database().await,
        probe_database().await,
        probe_database().await,
    ];
    let down = Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
    let names = ["a", "b", "c"];
    let up = names
        .iter()
        .zip(&databases)
        .map(|(name, db)| (*name, db.database()));
    let shards = Shards::new(up.chain([("down", down)])).unwrap();
    let shards = shards.leaving("down").unwrap();
    let mut clients = BTreeMap::new();
    for (name, db) in names.iter().zip(&databases) {
        clients.insert(*name, db.client().await);
    }
    for n in 0..600 {
        let group = format!("group-{}", n % 60);
        let client = &clients[shards.of(&group).name()];
        queue::publish(client, &act(&group).group(&group))
            .await
            .unwrap();
    }
    let status = shards.status().await;
    let waiting = |name: &str| {
        let status = status.iter().find(|status| status.name == name).unwrap();
        status.backlog.as_ref().ok().map(|backlog| backlog.events)
    };
    let each: Vec<Option<u64>> = names.iter().map(|name| waiting(name)).collect();
    assert!(
        each.iter()
            .all(|events| events.is_some_and(|events| events > 60)),
        "{each:?}"
    );
    assert_eq!(waiting("down"), None);
    let app = ProbeApp::succeeding();
    let reports = shards.drain(&app, &DrainOptions::default()).await;
    assert_eq!(reports.len(), 4);
    let mut completed = 0;
    for report in &reports {
        match (&*report.name, report.drained.as_ref().unwrap()) {
            ("down", drained) => assert!(drained.is_err()),
            (_, drained) => completed += drained.as_ref().unwrap().completed,
        }
    }
    assert_eq!(completed, 600);
    for client in clients.values() {
        assert_eq!(live(client).await, 0);
        assert_eq!(disorder(client).await, [""; 0]);
    }
    // All events of a group are in one database.
    let mut of_groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, client) in &clients {
        let sql = "SELECT DISTINCT group_key FROM tidegate.event_log";
        for row in client.query(sql, &[]).await.unwrap() {
            of_groups.entry(row.get(0)).or_default().insert(name);
        }
    }
    assert_eq!(of_groups.len(), 60);
    assert!(of_groups.values().all(|places| places.len() == 1));
}

#[tokio::test]
async fn the_one_with_the_oldest_event_comes_first_and_a_full_one_has_its_part_of_the_time() {
    let (full, old) = (probe_database().await, probe_database().await);
    let (busy, other) = (full.client().await, old.client().await);
    crate::probe::publish_acts(&busy, 500).await;
    crate::probe::publish_acts(&other, 1).await;
    let age = "UPDATE tidegate.event_queue SET created_at = created_at - interval '1 hour'";
    other.batch_execute(age).await.unwrap();
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            if call.name != "0" {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(tidegate::Done::ok())
        })
    });
    let shards = Shards::new([("full", full.database()), ("old", old.database())]).unwrap();
    let options = DrainOptions {
        budget: Duration::from_secs(6),
        ..DrainOptions::default()
    };
    let reports = shards.at_once(1).drain(&app, &options).await;
    let order: Vec<&str> = reports.iter().map(|report| &*report.name).collect();
    assert_eq!(order, ["old", "full"]);
    let of = |at: usize| reports[at].drained.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(of(0).completed, 1);
    assert!(of(1).completed > 0 && of(1).backlog > 0, "{:?}", of(1));
}

/// Returns a secret that leads to this database.
fn secret_of(db: &TestDb) -> Version {
    let config: tokio_postgres::Config = db.url.parse().unwrap();
    let secret = json!({"username": config.get_user(), "password": "none is asked for", "host": "127.0.0.1",
                        "port": config.get_ports()[0], "dbname": db.name(), "sslmode": "disable"});
    Version::Text(secret.to_string())
}

/// Returns the report of one database from an answer for all of them.
fn report_of<'a>(answer: &'a Value, database: &str) -> &'a Value {
    let all = answer["databases"].as_array().unwrap();
    let found = all.iter().find(|entry| entry["database"] == database);
    found.unwrap_or_else(|| panic!("{database}: {answer}"))
}

#[tokio::test]
async fn one_function_serves_several_databases_and_one_that_is_down_keeps_no_other_waiting() {
    let (north, south) = (support::database().await, support::database().await);
    let services = Services::start().await;
    let secrets = Secrets::start(Version::Denied).await;
    secrets.set_other("night/north", secret_of(&north));
    secrets.set_other("night/south", secret_of(&south));
    secrets.set_other("night/down", Version::Denied);
    let mut settings = secrets.variables();
    settings.retain(|(name, _)| *name != "DATABASE_SECRET_ID");
    let list = "north=night/north, south=night/south, down=night/down".to_owned();
    settings.extend([
        ("DATABASE_SECRET_IDS", list),
        ("TIDEGATE_METRICS", "emf".to_owned()),
    ]);
    settings.extend(services.variables());
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let function = Function::start(&settings).await;
    for (db, letters) in [(&north, 30), (&south, 20)] {
        publish_letters(&db.client().await, letters).await;
    }
    let answer = function.invoke(&json!({"action": "drain"})).await;
    assert!(!answer.is_error, "{answer:?}");
    let answer = answer.body;
    assert_eq!(
        (&answer["failed"], &answer["skipped"]),
        (&json!(1), &json!(0))
    );
    for (database, letters) in [("north", 30), ("south", 20)] {
        let report = &report_of(&answer, database)["report"];
        assert!(report["completed"].as_u64() >= Some(letters), "{answer}");
        assert_eq!(report["backlog"], 0, "{answer}");
    }
    let why = report_of(&answer, "down")["error"].as_str().unwrap();
    assert!(why.contains("night/down"), "{why}");
    let log = function.log();
    let of = |database: &str| log.iter().find(|line| line["Database"] == database);
    for (database, failed) in [("north", &Value::Null), ("down", &json!(1))] {
        let line = of(database).unwrap_or_else(|| panic!("{database}: {log:?}"));
        assert_eq!(line["Queue"], "tidegate-function", "{line}");
        assert_eq!(&line["DrainsFailed"], failed, "{line}");
    }
    named_ones(&function).await;
    let migrated = function.invoke(&json!({"action": "migrate"})).await.body;
    assert_eq!(migrated["failed"], 1, "{migrated}");
    assert!(report_of(&migrated, "south")["report"].is_object());
    assert!(report_of(&migrated, "down")["error"].is_string());
}

async fn named_ones(function: &Function) {
    let asked = json!({"action": "list", "database": "north", "limit": 2});
    let answer = function.invoke(&asked).await.body;
    assert_eq!(answer["events"].as_array().unwrap().len(), 2, "{answer}");
    let stats = function.invoke(&json!({"action": "stats"})).await.body;
    let finished = &report_of(&stats, "south")["report"]["finished_last_hour"];
    assert!(finished.as_u64() >= Some(20), "{stats}");
    for (payload, told) in [
        (json!({"action": "list"}), "this action needs one"),
        (
            json!({"action": "list", "database": "east"}),
            "got \"east\"",
        ),
        (json!({"action": "drain", "database": 7}), "got no string"),
    ] {
        let refused = function.invoke(&payload).await;
        let text = refused.body["errorMessage"].as_str().unwrap().to_owned();
        assert!(
            refused.is_error && text.contains("database: must be one of north, south, down"),
            "{text}"
        );
        assert!(text.contains(told), "{text}");
    }
}
