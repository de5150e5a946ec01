//! What every test needs: its own Postgres, a migrated database, and a way to wait for a condition.
//!
//! No test passes by not running: without Python or Postgres each of them fails and names the remedy.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::return_self_not_must_use,
    reason = "a test reads the name, and every helper panics when what it checks is not so"
)]
#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

#[cfg(feature = "programs")]
pub mod cli;
pub mod clock;
#[cfg(feature = "programs")]
pub mod function;
pub mod golden;
pub mod probe;
pub mod proxy;
pub mod seal;
pub mod served;
#[cfg(feature = "programs")]
pub mod services;
pub mod skip;
#[cfg(feature = "drain")]
pub mod worker;

#[cfg(feature = "drain")]
mod app;
mod cluster;
mod database;
mod finalize;
mod pooler;
#[cfg(feature = "programs")]
mod program;
#[cfg(feature = "programs")]
mod runtime_api;
#[cfg(feature = "programs")]
mod secrets;
#[cfg(feature = "programs")]
mod tls;

pub use cluster::Cluster;
pub use database::{
    TestDb, as_user, connect, copy_of, database, database_for, empty_database, opened, opened_for,
    opened_like, register,
};
pub use finalize::{finalize, lease_away};
pub use pooler::{Pooler, cannot_be_pooled};
#[cfg(feature = "programs")]
pub use {
    program::{binary, command, terminate},
    runtime_api::{Answer, Deadline, FUNCTION_ARN, RuntimeApi, TRACE},
    secrets::{Secrets, Version, aws_variables},
    tls::{Authority, Certified},
};

pub use crate::proxy::{Harm, Proxy};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use tidegate_core::connect::{Client, Queryable};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSqlOwned;

use crate::probe::number;

/// Longer than any operation takes on the slowest machine, so anything that takes longer hangs. A condition
/// that holds is noticed within milliseconds.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Checks that a part is in a text.
#[track_caller]
pub fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text}");
}

/// Checks the beginning of a text.
#[track_caller]
pub fn begins(text: &str, part: &str) {
    assert!(text.starts_with(part), "{part:?} does not begin {text}");
}

/// Checks that a part is not in a text.
#[track_caller]
pub fn lacks(text: &str, part: &str) {
    assert!(!text.contains(part), "{part:?} is in {text}");
}

/// Checks fields of a report, such as `completed 2, retried 1`.
#[track_caller]
pub fn counted(report: &impl Serialize, fields: &str) {
    let report = json!(report);
    for field in fields.split(", ") {
        let (name, value) = field.split_once(' ').expect("a name and a value");
        assert_eq!(report[name].to_string(), value, "{name} of {report}");
    }
}

/// Returns the rows of a table in a text: what stands before and after the last arrow of each line.
pub fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| {
        line.rsplit_once(" => ")
            .unwrap_or_else(|| panic!("no arrow in {line}"))
    })
}

/// Splits a command line into its words, as a shell does: text between single quotes is one.
pub fn words(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let ends = |c: char| {
        quoted ^= c == '\'';
        c.is_whitespace() && !quoted
    };
    let words = line.split(ends).filter(|word| !word.is_empty());
    words.map(|word| word.trim_matches('\'')).collect()
}

/// Checks these fields of a JSON object, whatever else it has.
#[track_caller]
pub fn has(object: &Value, fields: &Value) {
    for (name, value) in fields.as_object().expect("an object") {
        assert_eq!(&object[name], value, "{name} of {object}");
    }
}

/// Runs statements without parameters.
pub async fn execute(client: &impl Queryable, sql: &str) {
    let done = client.conn().batch_execute(sql).await;
    done.unwrap_or_else(|error| panic!("{error}: {sql}"));
}

/// Returns the first column of a statement's rows.
pub async fn column<T: FromSqlOwned>(client: &Client, sql: &str) -> Vec<T> {
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Checks that a statement is refused for its arguments, with a message that begins like this.
pub async fn refused(client: &Client, sql: &str, begins: &str) {
    let Err(error) = client.batch_execute(sql).await else {
        panic!("not refused: {sql}")
    };
    let error = error
        .as_db_error()
        .unwrap_or_else(|| panic!("{error}: {sql}"));
    assert!(error.message().starts_with(begins), "{sql}: {error}");
    assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE, "{sql}");
}

/// Waits until one session of the test's database waits for a lock.
pub async fn wait_for_a_lock(client: &Client) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    wait_until("somebody waits for a lock", async || {
        number(client, waiting).await == 1
    })
    .await;
}

#[cfg(feature = "admin")]
/// Returns the statement of this name; of two, the one of a verb or a view.
pub fn statement(name: &str) -> &'static tidegate_core::queue::Statement {
    let mut all = tidegate_admin::statements().chain(tidegate_core::queue::statements());
    let found = all.find(|statement| statement.name == name);
    found.unwrap_or_else(|| panic!("there is no statement {name}"))
}

/// Returns SQL of the product as it is sent to the queue of the usual name.
pub fn usual(sql: &str) -> String {
    sql.replace("@tidegate", "tidegate")
}

/// Returns the result of `work`.
///
/// # Panics
/// With `description` if it has not ended within [`PATIENCE`].
pub async fn ended<T>(description: &str, work: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, work).await;
    ended.unwrap_or_else(|_| panic!("has not ended within {PATIENCE:?}: {description}"))
}

/// Polls `condition` until it holds.
///
/// # Panics
/// With `description` if it does not hold within [`PATIENCE`].
pub async fn wait_until(description: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(2);
    while !condition().await {
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain: {description}"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Returns a path inside the project.
pub fn project_file(relative: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    project.expect("this crate is in a folder").join(relative)
}
