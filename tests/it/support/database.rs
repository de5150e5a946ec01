//! Owns the databases of the tests. Each test has its own, a copy of a template that is migrated
//! once.
//!
//! Postgres copies a template only while no session is connected to it, and another copy counts as
//! one. Therefore only one copy is made at a time.

use std::sync::Mutex as Names;

use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, Event};
use tidegate_job::app;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::NoTls;

use super::cluster::cluster;
use super::pooler;

/// A database for one test. It is dropped from the server some time after this value.
pub struct TestDb {
    /// The URL for the programs under test. It leads through the pooler, if all tests use one.
    pub url: String,
    /// The URL for the test itself.
    direct: String,
    name: String,
}

/// Returns a migrated database with the kinds of the shipped events.
pub async fn database() -> TestDb {
    static TEMPLATE: OnceCell<()> = OnceCell::const_new();
    TEMPLATE.get_or_init(make_template).await;
    let database = create(Some("migrated")).await;
    let client = database.client().await;
    let moved = client.batch_execute("SELECT tidegate.move_in()").await;
    moved.expect("a copy of the template is a queue of its own");
    database
}

/// Returns a copy of a database to which nobody is connected.
pub async fn copy_of(original: &TestDb) -> TestDb {
    create(Some(original.name())).await
}

/// Returns a migrated database that also has the kinds of `E`, for a test with its own events.
pub async fn database_for<E: Event>() -> TestDb {
    let database = database().await;
    let client = database.client().await;
    tidegate::queue::register_kinds(&client, E::KINDS)
        .await
        .expect("kinds are registered");
    database
}

/// Returns [`database`], and a connection to it.
pub async fn opened() -> (TestDb, Client) {
    let database = database().await;
    let client = database.client().await;
    (database, client)
}

/// Returns [`database_for`] these events, and a connection to it.
pub async fn opened_for<E: Event>() -> (TestDb, Client) {
    let database = database_for::<E>().await;
    let client = database.client().await;
    (database, client)
}

/// Returns a database without a schema.
pub async fn empty_database() -> TestDb {
    create(None).await
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

/// Names of databases whose tests have ended. The next test drops them, because a destructor cannot
/// wait.
static OVER: Names<Vec<String>> = Names::new(Vec::new());

impl Drop for TestDb {
    fn drop(&mut self) {
        // The data of a failed test is kept until the process ends, together with the other evidence.
        if !self.name.is_empty()
            && !std::thread::panicking()
            && let Ok(mut over) = OVER.lock()
        {
            over.push(std::mem::take(&mut self.name));
        }
    }
}

async fn make_template() {
    let admin = connect(&cluster().url("postgres")).await;
    admin
        .batch_execute("CREATE DATABASE migrated")
        .await
        .expect("the template is created");
    migrate(&cluster().url("migrated")).await;
    let closed = "ALTER DATABASE migrated WITH is_template true allow_connections false";
    admin
        .batch_execute(closed)
        .await
        .expect("the template is closed");
}

async fn migrate(url: &str) {
    let database = Database::new(url, 1).expect("the template's URL is valid");
    Migrate::new(&database, app::Event::KINDS)
        .tables(&[app::TABLES])
        .run()
        .await
        .expect("the template is migrated");
}

async fn create(template: Option<&str>) -> TestDb {
    static COPYING: Mutex<u32> = Mutex::const_new(0);
    let mut number = COPYING.lock().await;
    *number += 1;
    let name = format!("test_{number}");
    let admin = connect(&cluster().url("postgres")).await;
    let over = OVER
        .lock()
        .map(|mut names| std::mem::take(&mut *names))
        .unwrap_or_default();
    for finished in over {
        let drop = format!("DROP DATABASE IF EXISTS {finished} WITH (FORCE)");
        admin
            .batch_execute(&drop)
            .await
            .expect("a finished test's database is dropped");
    }
    let create = format!(
        "CREATE DATABASE {name} TEMPLATE {}",
        template.unwrap_or("template0")
    );
    admin
        .batch_execute(&create)
        .await
        .expect("a test's database is created");
    let direct = cluster().url(&name);
    TestDb {
        url: pooler::of_all_tests().map_or_else(|| direct.clone(), |pooler| pooler.url(&name)),
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
