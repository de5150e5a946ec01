//! Several queues in one database, each in a schema of its own.

use crate::support::as_user;
use crate::support::cli::Cli;
use crate::support::probe::{Probe, ProbeApp, act, number};
use crate::support::services::Services;
use crate::support::{self, TestDb, execute, publish_letters};
use serde_json::Value;
use tidegate::connect::{Client, Schema};
use tidegate::migrate::Migrate;
use tidegate::{Database, Event};
use tidegate_core::connect::Queryable;
use tidegate_job::app;
use tokio_postgres::error::SqlState;

/// Migrates a queue of the probe's in this schema, with its roles, and returns its handle.
async fn queue_in(db: &TestDb, schema: &str) -> Database {
    let schema = Schema::named(schema).unwrap();
    let queue = db.database().with_schema(schema).unwrap();
    Migrate::new(Probe::KINDS)
        .with_roles()
        .run(&queue)
        .await
        .unwrap();
    queue
}

/// Returns how many live events a schema has.
async fn live_in(client: &Client, schema: &str) -> i64 {
    number(
        client,
        &format!("SELECT count(*) FROM {schema}.event_queue"),
    )
    .await
}

#[tokio::test]
async fn two_queues_of_one_database_know_nothing_of_each_other() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let (acme, globex) = (queue_in(&db, "acme").await, queue_in(&db, "globex").await);
    let none = "SELECT count(*) FROM pg_namespace WHERE nspname = 'tidegate'";
    assert_eq!(number(&client, none).await, 0);
    for (queue, name) in [(&acme, "a"), (&globex, "b"), (&globex, "c")] {
        let mut client = queue.connect().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        tidegate::publish(&transaction, &act(name)).await.unwrap();
        transaction.commit().await.unwrap();
    }
    // A connection of one's own, and SQL.
    let schema = Schema::named("acme").unwrap();
    let published = tidegate::publish(&schema.on(&*client), &act("d")).await;
    assert!(published.unwrap().created);
    execute(&client, "SELECT globex.publish('act', '{\"name\": \"e\"}')").await;
    let app = ProbeApp::succeeding();
    let options = tidegate::DrainOptions::default();
    let report = tidegate::drain(&acme, app.clone(), &options).await.unwrap();
    assert_eq!(
        (report.completed, report.backlog),
        (2, Some(0)),
        "{report:?}"
    );
    let names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["a", "d"]);
    assert_eq!(live_in(&client, "globex").await, 3);
    let report = tidegate::drain(&globex, app, &options).await.unwrap();
    assert_eq!(
        (report.completed, report.backlog),
        (3, Some(0)),
        "{report:?}"
    );
    assert_eq!(
        number(&client, "SELECT count(*) FROM acme.event_log").await,
        2
    );
}

#[tokio::test]
async fn the_rights_of_one_queue_give_nothing_in_the_other() {
    let db = support::empty_database().await;
    let client = db.client().await;
    queue_in(&db, "acme").await;
    queue_in(&db, "globex").await;
    for role in ["publish", "drain", "pull", "operate", "read", "jobs"] {
        let names = format!(
            "SELECT count(*) FROM pg_class AS c
              WHERE c.relnamespace = 'globex'::regnamespace AND c.relkind IN ('r', 'p', 'v')
                AND has_table_privilege('acme_{role}', c.oid, 'SELECT, INSERT, UPDATE, DELETE')"
        );
        assert_eq!(number(&client, &names).await, 0, "{role}");
        let calls = format!(
            "SELECT count(*) FROM pg_proc AS p
              WHERE p.pronamespace = 'globex'::regnamespace AND has_function_privilege('acme_{role}', p.oid, 'EXECUTE')"
        );
        assert_eq!(number(&client, &calls).await, 0, "{role}");
        let own =
            format!("SELECT has_schema_privilege('acme_{role}', 'acme', 'USAGE')::int::bigint");
        assert_eq!(number(&client, &own).await, 1, "{role}");
    }
    execute(&client, "SET ROLE acme_publish").await;
    execute(&client, "SELECT acme.publish('act', '{\"name\": \"a\"}')").await;
    let theirs = "SELECT globex.publish('act', '{\"name\": \"a\"}')";
    let refused = client.conn().batch_execute(theirs).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
}

/// Makes an owner who is no superuser, as managed Postgres has them.
async fn owned() -> (TestDb, Database) {
    let db = support::empty_database().await;
    let (name, owner) = (db.name(), format!("owner_of_{}", db.name()));
    let sql = format!(
        "DROP ROLE IF EXISTS {owner}; CREATE ROLE {owner} LOGIN CREATEROLE; GRANT CREATE ON DATABASE {name} TO {owner}"
    );
    execute(&db.client().await, &sql).await;
    let queue = Database::new(&as_user(&db.url, &owner), 2).unwrap();
    (db, queue)
}

/// Migrates a queue of the probe's in this schema, with its roles.
async fn with_roles(queue: &Database, schema: &str) -> Result<(), String> {
    let schema = Schema::named(schema).unwrap();
    let queue = queue.clone().with_schema(schema).unwrap();
    let migrated = Migrate::new(Probe::KINDS).with_roles().run(&queue).await;
    migrated.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_role_that_no_migration_has_made_gets_no_rights() {
    let (db, queue) = owned().await;
    let (client, schema) = (db.client().await, db.name());
    let operator = format!("{schema}_operate");
    execute(&client, &format!("CREATE ROLE {operator} LOGIN")).await;
    let refused = with_roles(&queue, schema).await.unwrap_err();
    let says = format!(
        "role {operator}: must be a role that `tidegate migrate` has made; use another TIDEGATE_SCHEMA"
    );
    support::contains(&refused, &says);
    let may =
        format!("SELECT has_schema_privilege('{operator}', '{schema}', 'USAGE')::int::bigint");
    assert_eq!(number(&client, &may).await, 0);
    // An administrator may say that it is meant.
    let (_, mark) = refused.split_once("administrator says ").unwrap();
    execute(&client, mark.strip_suffix(" (55000)").unwrap()).await;
    with_roles(&queue, schema).await.unwrap();
    assert_eq!(number(&client, &may).await, 1);
}

#[tokio::test]
async fn two_databases_make_the_roles_of_their_queues_at_once() {
    let ((db, one), (_other, other)) = (owned().await, owned().await);
    let both = tokio::join!(with_roles(&one, db.name()), with_roles(&other, db.name()));
    assert_eq!(both, (Ok(()), Ok(())));
}

#[tokio::test]
async fn roles_that_another_database_of_the_server_uses_are_named() {
    let ((here, queue), (there, other)) = (owned().await, owned().await);
    let schema = here.name();
    let cli = Cli::on(&here).with("TIDEGATE_SCHEMA", schema);
    with_roles(&queue, schema).await.unwrap();
    let found = checked(&cli, "roles").await;
    assert_eq!(found["state"], "ok", "{found}");
    with_roles(&other, schema).await.unwrap();
    let found = checked(&cli, "roles").await;
    assert_eq!(found["state"], "warning", "{found}");
    for named in [there.name(), &format!("{schema}_operate")] {
        support::contains(found["finding"].as_str().unwrap(), named);
    }
    // Those of the other database can no longer come here.
    let remedy = found["remedy"].as_str().unwrap().lines().last();
    execute(&here.client().await, remedy.unwrap()).await;
    let found = checked(&cli, "roles").await;
    assert_eq!(found["state"], "ok", "{found}");
}

/// Returns what the doctor says of one thing.
async fn checked(cli: &Cli, name: &str) -> Value {
    let report = cli.run(&["doctor", "--json"]).await.document();
    let mut checks = report["checks"].as_array().unwrap().iter();
    let found = checks.find(|check| check["name"] == name);
    found.unwrap().clone()
}

async fn drift_of(cli: &Cli) -> Value {
    checked(cli, "schema drift").await
}

#[tokio::test]
async fn a_copy_is_found_and_what_workers_of_the_original_hold_is_void_in_it() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    publish_letters(&client, 2).await;
    let ids = support::column(&client, "SELECT id FROM tidegate.event_queue").await;
    support::lease_away(&client, &ids, 3600.0).await;
    execute(&client, "UPDATE tidegate.drain_slot SET worker = gen_random_uuid(), until = now() + interval '1 hour'").await;
    drop(client);
    let copy = support::copy_of(&db).await;
    let (original, copied) = (Cli::on(&db), Cli::on(&copy).with_services(&services));
    // Whatever they took now, `migrate` would take away from them.
    let moved = "this queue was copied here, with leases of workers elsewhere: run `tidegate migrate` first";
    let drained = copied.run(&["drain"]).await;
    assert_eq!(drained.code, Some(1));
    assert!(drained.stderr.contains(moved), "{}", drained.stderr);
    let polled = "SELECT tidegate.poll(ARRAY['form_submitted'])";
    let polled = copy.client().await.batch_execute(polled).await.unwrap_err();
    assert_eq!(polled.as_db_error().unwrap().message(), moved);
    for (cli, is_copy) in [(&original, false), (&copied, true)] {
        let place = checked(cli, "place").await;
        let (state, remedy) = if is_copy {
            ("problem", Value::from("tidegate migrate"))
        } else {
            ("ok", Value::Null)
        };
        assert_eq!(
            (&place["state"], &place["remedy"]),
            (&state.into(), &remedy),
            "{place}"
        );
        cli.json(&["migrate"]).await;
        assert_eq!(checked(cli, "place").await["state"], "ok");
    }
    let held = "SELECT (SELECT count(*) FROM tidegate.lease) + (SELECT count(*) FROM tidegate.drain_slot WHERE worker IS NOT NULL)";
    assert_eq!(number(&db.client().await, held).await, 1 + 1000);
    // Each letter leads to a notification.
    let report = copied.drain(&[]).await;
    assert_eq!(
        (report.completed, report.backlog),
        (4, Some(0)),
        "{report:?}"
    );
}

#[tokio::test]
async fn a_program_works_on_the_queue_that_its_setting_or_flag_names() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let cli = Cli::on(&db);
    cli.json(&["migrate", "--schema", "acme", "--roles"]).await;
    let usual = Schema::default();
    let usual = db.database().with_schema(usual).unwrap();
    let kinds = app::Event::KINDS;
    Migrate::new(kinds).run(&usual).await.unwrap();
    let acme = Cli::on(&db).with("TIDEGATE_SCHEMA", "acme");
    let payload = "{\"grant_number\": \"G-1\"}";
    let publish = ["publish", "grant_letter_viewed", "--payload", payload];
    acme.json(&publish).await;
    assert_eq!(live_in(&client, "acme").await, 1);
    assert_eq!(live_in(&client, "tidegate").await, 0);
    assert_eq!(cli.json(&["status"]).await["backlog"], 0);
    assert_eq!(
        cli.json(&["status", "--schema", "acme"]).await["backlog"],
        1
    );
    // Nothing of the schema differs from what the migrations make, and what repairs it names the schema.
    execute(&client, "DROP INDEX acme.event_queue_parent").await;
    let drift = drift_of(&acme).await;
    assert_eq!(
        drift["finding"], "missing: index event_queue_parent",
        "{drift}"
    );
    execute(&client, drift["remedy"].as_str().unwrap()).await;
    let drift = drift_of(&acme).await;
    assert_eq!(drift["state"], "ok", "{drift}");
    let wrong = cli.run(&["status", "--schema", "Acme"]).await;
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.stderr.contains("TIDEGATE_SCHEMA: must be 1 to 41"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn a_queue_may_have_the_name_of_an_alias_or_a_table_of_its_own_sql() {
    for name in ["new", "e", "event_queue", "toml"] {
        let db = support::empty_database().await;
        let cli = Cli::on(&db).with("TIDEGATE_SCHEMA", name);
        cli.json(&["migrate", "--roles"]).await;
        let drift = drift_of(&cli).await;
        assert_eq!(drift["state"], "ok", "{name}: {drift}");
    }
}

#[tokio::test]
async fn a_word_of_sql_is_no_name_of_a_queue() {
    let db = support::empty_database().await;
    for word in ["select", "user", "between"] {
        let says =
            format!("--schema: must be another name than \"{word}\", which is a word of SQL");
        let refused = Cli::on(&db).run(&["migrate", "--schema", word]).await;
        refused.failed(1, &[says.trim_start_matches("--schema: ")]);
    }
}
