//! Deploys that overlap: who migrates when, and what a program makes of a database that is not at its
//! version.
//!
//! How the command line tells of it is tried in `cli`; here a queue in use lives through it.

use refinery_core::{Migration, Runner};
use test_support::probe::{Probe, ProbeApp, act, drain, live, number, options, probe};
use test_support::{self as support, TestDb, contains, execute};
use tidegate::migrate::{Migrate, MigrateReport, check};
use tidegate::{Error, Event};
use tidegate_core::queue;

/// Tables and publishing, nothing that leases.
fn the_first_two() -> Runner {
    let tables = include_str!("../../../tidegate-core/sql/V0001__tables.sql");
    let publish = include_str!("../../../tidegate-core/sql/V0002__publish.sql");
    // The grants, at the end of each file, are no part of the migration.
    let two = [("V0001__tables", tables), ("V0002__publish", publish)].map(|(name, sql)| {
        let (sql, _) = sql.split_once("\nGRANT ").unwrap();
        Migration::unapplied(name, &support::usual(&format!("{sql}\n"))).unwrap()
    });
    let mut runner = Runner::new(&two);
    runner.set_migration_table_name("tidegate.queue_migrations");
    runner
}

async fn migrate_now(db: &TestDb) -> Result<MigrateReport, Error> {
    let database = db.database();
    Migrate::new(Probe::KINDS).run(&database).await
}

#[tokio::test]
async fn two_migrations_at_once_apply_each_step_once_and_a_later_one_changes_nothing() {
    let db = support::empty_database().await;
    let (one, other) = tokio::join!(migrate_now(&db), migrate_now(&db));
    let applied = [one.unwrap().applied.len(), other.unwrap().applied.len()];
    assert!(applied.contains(&0), "{applied:?}");
    let client = db.client().await;
    let steps = number(&client, "SELECT count(*) FROM tidegate.queue_migrations").await;
    assert_eq!(i64::try_from(applied.iter().sum::<usize>()).unwrap(), steps);

    // Also while the queue is in use, which loses nothing.
    queue::publish(&client, &act("early")).await.unwrap();
    let app = ProbeApp::new(|_, _| {
        Box::pin(async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            Ok(tidegate::Done::ok())
        })
    });
    let options = options();
    let (again, report) = tokio::join!(migrate_now(&db), drain(&db, &app, &options));
    assert!(again.unwrap().applied.is_empty());
    assert_eq!((report.completed, report.lease_lost), (1, 0));
}

#[tokio::test]
async fn a_program_on_a_schema_that_is_not_whole_says_what_is_missing_and_events_wait_for_the_rest()
{
    let db = support::empty_database().await;
    let mut client = db.client().await;
    execute(&client, "CREATE SCHEMA tidegate").await;
    the_first_two().run_async(&mut *client).await.unwrap();
    let kinds = "INSERT INTO tidegate.event_kind (kind) SELECT unnest($1::text[])";
    client.execute(kinds, &[&Probe::KINDS]).await.unwrap();

    let mismatch = check(&client, Probe::KINDS, &[]).await.unwrap_err();
    let told = mismatch.to_string();
    assert!(
        matches!(mismatch, Error::Migrate(_)) && told.contains("this program knows"),
        "{told}"
    );
    queue::publish(&client, &act("early")).await.unwrap();
    let app = ProbeApp::succeeding();
    let refused = tidegate::drain(&db.database(), app.clone(), &options()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("tidegate migrate"), "{refused}");
    assert_eq!((app.calls().len(), live(&client).await), (0, 1));

    migrate_now(&db).await.unwrap();
    let report = drain(&db, &app, &options()).await;
    assert_eq!((report.completed, app.calls().len()), (1, 1));
}

#[tokio::test]
async fn a_program_older_than_the_database_leaves_it_as_it_is() {
    let (db, client) = probe().await;
    let newer = "INSERT INTO tidegate.queue_migrations
                 SELECT 999, 'newer', applied_on, checksum FROM tidegate.queue_migrations LIMIT 1";
    client.execute(newer, &[]).await.unwrap();
    let kinds = "SELECT count(*) FROM tidegate.event_kind";
    let before = number(&client, kinds).await;
    let unknown = &["kind_of_the_older_program"];
    let refused = Migrate::new(unknown).run(&db.database()).await;
    let told = refused.unwrap_err().to_string();
    contains(&told, "999");
    contains(&told, "use a newer program");
    assert_eq!(number(&client, kinds).await, before);
    assert!(check(&client, Probe::KINDS, &[]).await.is_ok());
}
