//! What every test needs: its own Postgres, a migrated database, and a way to wait for a condition.
//!
//! No test passes by not running: without Python or Postgres each of them fails and names the remedy.

mod application;
mod cluster;
mod collector;
mod database;
mod events;
mod finalize;
mod pooler;
mod program;
mod runtime_api;
mod secrets;
mod tls;

pub use application::{World, drain, retrying_in_an_hour};
pub use cluster::Cluster;
pub use collector::{AMPLE_TIMEOUT, Collector, Manner, Received, attributes, hex, telemetry};
pub use database::{TestDb, connect, database, database_for, empty_database};
pub use events::{lease_away, publish_letters, publish_views};
pub use finalize::{Finalized, finalize, finalize_one};
pub use pooler::{Pooler, cannot_be_pooled};
pub use program::{command, terminate};
pub use runtime_api::{Answer, Deadline, FUNCTION_ARN, RuntimeApi, TRACE};
pub use secrets::{Secrets, Version, aws_variables};
pub use tls::{Authority, Certified};

pub use crate::proxy::{Harm, Proxy};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidegate::queue::Statement;
use tidegate::{admin, queue};

/// Longer than any operation takes on the slowest machine, so anything that takes longer hangs. A condition
/// that holds is noticed within milliseconds.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Returns the statement of this name; of two, the one of a verb or a view.
pub fn statement(name: &str) -> &'static Statement {
    let mut all = admin::statements().chain(queue::statements());
    let found = all.find(|statement| statement.name == name);
    found.unwrap_or_else(|| panic!("there is no statement {name}"))
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

/// Returns the path of one of the package's binaries, built together with the tests.
///
/// # Panics
/// If the package has no binary with this name.
pub fn binary(name: &str) -> PathBuf {
    match name {
        "tidegate" => env!("CARGO_BIN_EXE_tidegate").into(),
        "tidegate-function" => env!("CARGO_BIN_EXE_tidegate-function").into(),
        "tidegate-http" => env!("CARGO_BIN_EXE_tidegate-http").into(),
        "tidegate-console" => env!("CARGO_BIN_EXE_tidegate-console").into(),
        other => panic!("no binary {other:?} in this package"),
    }
}

/// Returns a path inside the project.
pub fn project_file(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}
