//! Deploys that overlap: this program on the schema before this one, and callers of that schema on this
//! one.

use std::collections::HashSet;

use refinery::{Runner, Target};
use tidegate::migrate::{MigrateOptions, app_migrations, check, migrate};
use tidegate::{Error, Event, queue};
use tokio_postgres::Client;

use crate::probe::{Probe, ProbeApp, act, drain, number, options};
use crate::support::{self, TestDb};

mod embedded {
    refinery::embed_migrations!("migrations/queue");
}

/// The schema before the newest migration, and a connection to it.
async fn before_the_newest() -> (TestDb, Client) {
    let db = support::empty_database().await;
    let mut client = db.client().await;
    let runner: Runner = embedded::migrations::runner();
    let newest = runner
        .get_migrations()
        .iter()
        .map(refinery::Migration::version);
    let previous = Target::Version(newest.max().unwrap() - 1);
    client
        .batch_execute("CREATE SCHEMA tidegate")
        .await
        .unwrap();
    let mut runner = runner.set_target(previous);
    runner.set_migration_table_name("tidegate.queue_migrations");
    runner.run_async(&mut client).await.unwrap();
    queue::register_kinds(&client, Probe::KINDS).await.unwrap();
    (db, client)
}

async fn migrate_now(db: &TestDb) {
    let further = vec![app_migrations()];
    let options = MigrateOptions::default();
    let migrated = migrate(&db.database(), Probe::KINDS, options, further).await;
    assert_eq!(
        migrated.unwrap().applied.len(),
        5,
        "one, and the app's four"
    );
}

/// What may be called, with its arguments and its answer.
async fn callable(client: &Client) -> HashSet<String> {
    let functions = "SELECT p.oid::regprocedure || ' ' || pg_get_function_result(p.oid)
                       FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                      WHERE n.nspname = 'tidegate' AND p.prorettype <> 'trigger'::regtype";
    let rows = client.query(functions, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn i1_a_program_on_the_schema_before_it_works_or_refuses_and_its_events_survive_the_migration()
 {
    let (db, client) = before_the_newest().await;
    let early = queue::publish(&client, &act("early")).await.unwrap().id;
    let mismatch = check(&client, Probe::KINDS, vec![]).await.unwrap_err();
    let told = mismatch.to_string();
    assert!(
        matches!(mismatch, Error::Migrate(_)) && told.contains("this program knows"),
        "{told}"
    );
    let mut acknowledged = vec![early];
    match queue::publish_batch(&client, &[act("late"), act("later")]).await {
        Ok(published) => acknowledged.extend(published.iter().map(|one| one.id)),
        Err(error) => assert!(error.to_string().contains("tidegate migrate"), "{error}"),
    }
    let one = tidegate::DrainOptions {
        max_events: Some(1),
        ..options()
    };
    let app = ProbeApp::succeeding();
    if let Err(failed) = tidegate::drain(&db.database(), app.clone(), &one).await {
        assert!(failed.to_string().contains("tidegate migrate"), "{failed}");
    }
    migrate_now(&db).await;
    drain(&db, &app, &options()).await;
    let rows = client
        .query("SELECT id FROM tidegate.event_log WHERE attempts = 1", &[])
        .await
        .unwrap();
    let ended: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ended.len(), acknowledged.len());
    assert!(acknowledged.iter().all(|id| ended.contains(id)));
    assert_eq!(app.ids().len(), acknowledged.len(), "each once");
}

#[tokio::test]
async fn what_could_be_called_before_the_newest_migration_can_still_be_called() {
    let (db, client) = before_the_newest().await;
    let before = callable(&client).await;
    assert!(before.len() > 20, "{before:?}");
    migrate_now(&db).await;
    let after = callable(&client).await;
    let missing: Vec<&String> = before.difference(&after).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for call in [
        "SELECT count(*) FROM tidegate.publish('act', '{\"name\": \"1\"}')",
        "SELECT count(*) FROM tidegate.publish_many('[{\"kind\": \"act\", \"payload\": {\"name\": \"2\"}}]')",
        "SELECT count(*) FROM tidegate.publish_rows(ARRAY['act'], ARRAY['{\"name\": \"3\"}'::jsonb], ARRAY[NULL::text],
             ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::timestamptz], ARRAY[NULL::timestamptz],
             ARRAY[NULL::integer], ARRAY[NULL::bigint])",
        "SELECT count(*) FROM tidegate.publish_batch(ARRAY['act'], ARRAY['{\"name\": \"4\"}'::jsonb], ARRAY[NULL::text],
             ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::timestamptz], ARRAY[NULL::timestamptz],
             ARRAY[NULL::integer], ARRAY[NULL::bigint], ARRAY[NULL::text])",
    ] {
        assert_eq!(number(&client, call).await, 1, "{call}");
    }
    let app = ProbeApp::succeeding();
    let report = drain(&db, &app, &options()).await;
    assert_eq!(report.completed, 4);
    let mut names: Vec<String> = app.calls().into_iter().map(|call| call.name).collect();
    names.sort();
    assert_eq!(names, ["1", "2", "3", "4"]);
}
