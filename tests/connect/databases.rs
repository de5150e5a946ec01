//! Queues in several databases: one that is down or full does not delay the others.

use serde_json::{Value, json};
use test_support::cli::Cli;
use test_support::function::Function;
use test_support::services::{Mode, SERVICES, Services};
use test_support::{self as support, Secrets, TestDb, Version, contains, has, publish_letters};

/// Returns a secret that leads to this database.
fn secret_of(db: &TestDb) -> Version {
    let config: tokio_postgres::Config = db.url.parse().unwrap();
    let secret = json!({"username": config.get_user(), "password": "none is asked for", "host": "127.0.0.1",
                        "port": config.get_ports()[0], "dbname": db.name(), "sslmode": "disable"});
    Version::Text(secret.to_string())
}

/// Returns the report of one database from an answer for all of them.
fn report_of<'a>(answer: &'a Value, database: &str) -> &'a Value {
    let all = answer["queues"].as_array().unwrap();
    let found = all.iter().find(|entry| entry["queue"] == database);
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
    let list = "north=night/north, south=night/south, down=night/down";
    let function = deployed(list, &secrets, &services).await;
    for (db, letters) in [(&north, 30), (&south, 20)] {
        publish_letters(&db.client().await, letters).await;
    }
    let answer = function.invoke(&json!({"action": "drain"})).await;
    assert!(!answer.is_error, "{answer:?}");
    let answer = answer.body;
    has(&answer, &json!({"failed": 1, "skipped": 0}));
    for (database, letters) in [("north", 30), ("south", 20)] {
        let report = &report_of(&answer, database)["report"];
        assert!(report["completed"].as_u64() >= Some(letters), "{answer}");
        assert_eq!(report["backlog"], 0, "{answer}");
    }
    let why = report_of(&answer, "down")["error"].as_str().unwrap();
    assert!(why.contains("night/down"), "{why}");
    let log = function.log();
    let of = |database: &str| log.iter().find(|line| line["QueueName"] == database);
    for (database, failed) in [("north", &Value::Null), ("down", &json!(1))] {
        let line = of(database).unwrap_or_else(|| panic!("{database}: {log:?}"));
        assert_eq!(line["Queue"], "tidegate-function", "{line}");
        assert_eq!(&line["DrainsFailed"], failed, "{line}");
    }
    named_ones(&function).await;
    on_the_command_line(list, &secrets).await;
    let migrated = function.invoke(&json!({"action": "migrate"})).await.body;
    assert_eq!(migrated["failed"], 1, "{migrated}");
    assert!(report_of(&migrated, "south")["report"].is_object());
    assert!(report_of(&migrated, "down")["error"].is_string());
}

async fn on_the_command_line(list: &str, secrets: &Secrets) {
    let mut settings = secrets.variables();
    settings.retain(|(name, _)| *name != "DATABASE_SECRET_ID");
    let cli = Cli::without_database()
        .with_all(settings)
        .with("TIDEGATE_QUEUES", list);
    let status = cli.run(&["status"]).await;
    assert_eq!(status.code, Some(1), "{status:?}");
    for told in ["north\n  ", "south\n  ", "down\n  "] {
        contains(&status.stdout, told);
    }
    let drained = cli.run(&["drain", "--json"]).await;
    assert_eq!(drained.code, Some(1), "{drained:?}");
    has(&drained.document(), &json!({"failed": 1, "idle": 2}));
    cli.run(&["list"]).await.failed(
        2,
        &["--queue: must be one of north, south, down; this needs one"],
    );
    cli.run(&["list", "--queue", "east"]).await.failed(
        2,
        &["--queue: must be one of north, south, down; got \"east\""],
    );
    let listed = cli
        .json(&["list", "--queue", "north", "--limit", "2"])
        .await;
    assert_eq!(listed["events"].as_array().unwrap().len(), 2);
    let north = cli.with("TIDEGATE_QUEUE", "north");
    assert!(north.json(&["status"]).await["backlog"].is_number());
}

/// Starts a function for the databases of this list.
async fn deployed(list: &str, secrets: &Secrets, services: &Services) -> Function {
    let mut settings = secrets.variables();
    settings.retain(|(name, _)| *name != "DATABASE_SECRET_ID");
    settings.extend([
        ("TIDEGATE_QUEUES", list.to_owned()),
        ("TIDEGATE_METRICS", "emf".to_owned()),
    ]);
    settings.extend(services.variables());
    let settings = settings.iter().map(|(name, value)| (*name, &**value));
    Function::start(&settings.collect::<Vec<_>>()).await
}

#[tokio::test]
async fn the_one_with_the_longest_ready_event_comes_first_and_full_ones_take_no_time_from_it() {
    let (full, old) = (support::database().await, support::database().await);
    let services = Services::start().await;
    for (service, _) in SERVICES {
        services.set(service, Mode::Slow { delay_ms: 300 });
    }
    let secrets = Secrets::start(Version::Denied).await;
    secrets.set_other("full", secret_of(&full));
    secrets.set_other("old", secret_of(&old));
    // Four are drained at once, and this one is the fifth.
    let list = "a=full, b=full, c=full, d=full, old=old";
    let function = deployed(list, &secrets, &services).await;
    publish_letters(&full.client().await, 2000).await;
    let client = old.client().await;
    publish_letters(&client, 1).await;
    let age = "UPDATE tidegate.event_queue SET available_at = available_at - interval '1 hour'";
    client.batch_execute(age).await.unwrap();
    let drain = json!({"action": "drain", "budget": "6s"});
    let answer = function.invoke(&drain).await.body;
    let first = &answer["queues"][0];
    assert_eq!(first["queue"], "old", "{answer}");
    assert!(first["report"]["completed"].as_u64() >= Some(1), "{answer}");
    let busy = &report_of(&answer, "a")["report"];
    assert!(busy["backlog"].as_u64() > Some(0), "{answer}");
}

async fn named_ones(function: &Function) {
    let asked = json!({"action": "list", "queue": "north", "limit": 2});
    let answer = function.invoke(&asked).await.body;
    assert_eq!(answer["events"].as_array().unwrap().len(), 2, "{answer}");
    let stats = function.invoke(&json!({"action": "stats"})).await.body;
    let finished = &report_of(&stats, "south")["report"]["finished_last_hour"];
    assert!(finished.as_u64() >= Some(20), "{stats}");
    for (payload, told) in [
        (json!({"action": "list"}), "this action needs one"),
        (json!({"action": "list", "queue": "east"}), "got \"east\""),
        (json!({"action": "drain", "queue": 7}), "got no string"),
    ] {
        let refused = function.invoke(&payload).await;
        let text = refused.body["errorMessage"].as_str().unwrap().to_owned();
        assert!(
            refused.is_error && text.contains("queue: must be one of north, south, down"),
            "{text}"
        );
        assert!(text.contains(told), "{text}");
    }
}
