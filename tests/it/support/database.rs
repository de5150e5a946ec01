//! Owns the databases of the tests: one for each, a copy of a template that was migrated once.
//!
//! One surprise: Postgres copies a template only while nobody is connected to it, copies included, so
//! copying is serialized.

use std::sync::Mutex as Names;

use tidegate::migrate::Migrate;
use tidegate::{Database, Event};
use tidegate_job::app;
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{Client, NoTls};

use super::cluster::cluster;
use super::pooler;

/// A database of the test's own; dropped from the server some time after the value is.
pub struct TestDb {
    /// Where the database is, for whatever is under test: through the pooler, if all tests have one.
    pub url: String,
    /// Where it is for the test itself.
    direct: String,
    name: String,
}

/// A migrated database with the kinds of the shipped events.
pub async fn database() -> TestDb {
    static TEMPLATE: OnceCell<()> = OnceCell::const_new();
    TEMPLATE.get_or_init(make_template).await;
    create(Some("migrated")).await
}

/// A migrated database that knows the kinds of `E` as well: for a test that declares its own events.
pub async fn database_for<E: Event>() -> TestDb {
    let database = database().await;
    let client = database.client().await;
    tidegate::queue::register_kinds(&client, E::KINDS)
        .await
        .expect("kinds are registered");
    database
}

/// A database without a schema.
pub async fn empty_database() -> TestDb {
    create(None).await
}

impl TestDb {
    /// A database that somebody else made and drops, or that is not there.
    pub fn elsewhere(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            direct: url.to_owned(),
            name: String::new(),
        }
    }

    /// A plain connection, outside everything that is under test. It closes when dropped.
    pub async fn client(&self) -> Client {
        connect(&self.direct).await
    }

    /// The URL of [`TestDb::client`]: past the pooler, if there is one.
    pub fn direct(&self) -> &str {
        &self.direct
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library's own handle.
    pub fn database(&self) -> Database {
        Database::new(&self.url, 8).expect("a test's URL is valid")
    }
}

/// Names of databases whose tests are over. The next test drops them: a destructor cannot wait.
static OVER: Names<Vec<String>> = Names::new(Vec::new());

impl Drop for TestDb {
    fn drop(&mut self) {
        // What a failed test wrote stays, together with the other evidence, until the process ends.
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

/// A plain connection to any of the cluster's databases, as whoever the URL names.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the test's Postgres answers");
    tokio::spawn(connection);
    client
}
