//! Owns the databases of the tests. Each test has its own, a copy of a template that one process of the run
//! migrates. Nobody may connect to the template, so that it can be copied at any time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tidegate_core::connect::{Client, Database};
use tidegate_core::event::Event;
use tidegate_core::migrate::{Migrate, Migrations};
use tokio_postgres::NoTls;

use crate::cluster::{at, cluster};
use crate::pooler;
use crate::probe::Probe;

/// A database for one test. It is dropped with this value.
pub struct TestDb {
    /// The URL for the programs under test. It leads through the pooler, if all tests use one.
    pub url: String,
    /// The URL for the test itself.
    direct: String,
    name: String,
}

/// Returns a migrated database with the kinds of the probe.
pub async fn database() -> TestDb {
    opened().await.0
}

/// Returns a copy of a database to which nobody is connected.
pub async fn copy_of(original: &TestDb) -> TestDb {
    create(&admin().await, original.name()).await
}

/// Returns a migrated database that also has the kinds of `E`, for a test with its own events.
pub async fn database_for<E: Event>() -> TestDb {
    opened_for::<E>().await.0
}

/// Returns [`database`], and a connection to it.
pub async fn opened() -> (TestDb, Client) {
    opened_like("probe", Probe::KINDS, &[]).await
}

/// Returns a copy of this template, which has these kinds and tables, and a connection to it.
pub async fn opened_like(
    template: &str,
    kinds: &[&str],
    tables: &[Migrations],
) -> (TestDb, Client) {
    let admin = admin().await;
    let template = made(&admin, template, kinds, tables).await;
    let database = create(&admin, &template).await;
    let client = database.client().await;
    let moved = client.batch_execute("SELECT tidegate.move_in()").await;
    moved.expect("a copy of the template is a queue of its own");
    (database, client)
}

/// Returns [`database_for`] these events, and a connection to it.
pub async fn opened_for<E: Event>() -> (TestDb, Client) {
    let (database, client) = opened().await;
    register::<E>(&client).await;
    (database, client)
}

/// Registers the kinds of these events.
pub async fn register<E: Event>(client: &Client) {
    let kinds = "SELECT tidegate.register_kind(k, NULL, false) FROM unnest($1::text[]) AS k";
    let known = client.query(kinds, &[&E::KINDS]).await;
    known.expect("kinds are registered");
}

/// Returns a database without a schema.
pub async fn empty_database() -> TestDb {
    create(&admin().await, "template0").await
}

async fn admin() -> Client {
    connect(&cluster().url("postgres")).await
}

impl TestDb {
    /// Refers to a database that is created and dropped elsewhere, or does not exist.
    pub fn elsewhere(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            direct: url.to_owned(),
            name: String::new(),
        }
    }

    /// Opens a plain connection, separate from everything under test. It closes when dropped.
    pub async fn client(&self) -> Client {
        connect(&self.direct).await
    }

    /// Returns the URL of [`TestDb::client`]: it bypasses the pooler, if there is one.
    pub fn direct(&self) -> &str {
        &self.direct
    }

    /// Returns its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the library's own handle.
    pub fn database(&self) -> Database {
        Database::new(&self.url, 8).expect("a test's URL is valid")
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        // The data of a failed test is kept until the server ends, together with the other evidence.
        if self.name.is_empty() || thread::panicking() {
            return;
        }
        let (server, name) = (cluster().url("postgres"), std::mem::take(&mut self.name));
        let drop = move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().map(|runtime| {
                runtime.block_on(async {
                    let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                    connect(&server).await.batch_execute(&sql).await
                })
            })
        };
        // On a thread of its own, because a runtime may be at work on this one. A server that the test has
        // stopped needs no tidying.
        let _ = thread::spawn(drop).join();
    }
}

/// Returns the name of the run's template, which the first process that asks migrates.
async fn made(admin: &Client, template: &str, kinds: &[&str], tables: &[Migrations]) -> String {
    let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
    let name = format!("{template}_{}", run.replace('-', "_"));
    let is_made = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)";
    let is_made = async || {
        let made = admin.query_one(is_made, &[&name]).await;
        made.expect("the server answers").get::<_, bool>(0)
    };
    if is_made().await {
        return name;
    }
    let lock = "SELECT pg_advisory_lock(hashtext($1))";
    let locked = admin.execute(lock, &[&name]).await;
    locked.expect("nobody keeps the lock");
    if !is_made().await {
        make(admin, &name, kinds, tables).await;
    }
    let unlock = "SELECT pg_advisory_unlock(hashtext($1))";
    let unlocked = admin.execute(unlock, &[&name]).await;
    unlocked.expect("the lock was ours");
    name
}

async fn make(admin: &Client, name: &str, kinds: &[&str], tables: &[Migrations]) {
    for step in ["DROP DATABASE IF EXISTS", "CREATE DATABASE"] {
        let made = admin.batch_execute(&format!("{step} {name}")).await;
        made.expect("the template is created");
    }
    let url = cluster().url(name);
    let database = Database::new(&url, 1).expect("the template's URL is valid");
    let migrated = Migrate::new(kinds).tables(tables).run(&database).await;
    migrated.expect("the template is migrated");
    drop(database);
    // Leaves a cache of the catalogs, which is copied too.
    connect(&url).await;
    let close = format!("ALTER DATABASE {name} WITH is_template true allow_connections false");
    let closed = admin.batch_execute(&close).await;
    closed.expect("the template is closed");
}

async fn create(admin: &Client, template: &str) -> TestDb {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("test_{}_{number}", std::process::id());
    // From version 15 on, the default is to copy row by row, through the log.
    let by_files = "SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 THEN 'STRATEGY file_copy' ELSE '' END";
    let strategy = admin.query_one(by_files, &[]).await;
    let strategy: String = strategy.expect("the server answers").get(0);
    let create = format!("CREATE DATABASE {name} TEMPLATE {template} {strategy}");
    let made = admin.batch_execute(&create).await;
    made.expect("a test's database is created");
    let direct = cluster().url(&name);
    TestDb {
        url: pooler::of_all_tests().map_or_else(|| direct.clone(), |pooler| at(&pooler, &name)),
        direct,
        name,
    }
}

/// Opens a plain connection to any database of the cluster, as the user in the URL.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the test's Postgres answers");
    tokio::spawn(connection);
    client.into()
}

/// The same database, for another user.
pub fn as_user(url: &str, user: &str) -> String {
    let (_, server) = url.split_once('@').expect("the test's URL has a user");
    format!("postgres://{user}@{server}")
}
