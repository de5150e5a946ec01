//! Owns the poolers of the tests: pgbouncer in transaction mode. One pooler may be placed between all
//! programs under test and the cluster. Tests of the behavior with a pooler have their own.

use std::ffi::OsStr;
use std::io::Write;
use std::process::Command;
use std::sync::OnceLock;

use crate::project_file;
use crate::served::Served;
use crate::skip::{skipped, this_test};

/// If this variable names a pooler, all programs under test reach their database through it.
const FOR_ALL: &str = "TIDEGATE_TEST_POOLER";

/// A running pooler.
pub struct Pooler(Served);

impl Pooler {
    /// Starts a pooler in front of the server at this URL, with these settings (`name=value`). Returns
    /// `None` and prints the reason if pgbouncer is not available.
    ///
    /// # Panics
    /// If pgbouncer does not start.
    pub fn before(url: &str, settings: &[&str]) -> Option<Self> {
        match available() {
            Ok(()) => Some(Self::start(url, settings)),
            Err(reason) => {
                skipped("pgbouncer", &reason);
                None
            }
        }
    }

    fn start(url: &str, settings: &[&str]) -> Self {
        let mut arguments = vec!["--obey", "--before", url];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let arguments: Vec<&OsStr> = arguments.into_iter().map(OsStr::new).collect();
        let served = Served::start("scripts/pgbouncer.py", &arguments);
        Self(served.unwrap_or_else(|reason| panic!("no pooler to test through: {reason}")))
    }

    /// Returns the URL of one of the server's databases, through the pooler.
    pub fn url(&self, database: &str) -> String {
        self.0.url(database)
    }

    /// Kills the pooler with all its connections.
    pub fn crash(&self) {
        self.0.obey("crash");
    }

    /// Starts it again, at the same address.
    pub fn start_again(&self) {
        self.0.obey("start");
    }
}

/// Returns the URL of the pooler for all tests, if they use one.
pub fn of_all_tests() -> Option<String> {
    std::env::var(FOR_ALL).ok()
}

/// Returns whether this test must be skipped, because all tests use a pooler and this one cannot. Prints
/// the given reason.
pub fn cannot_be_pooled(why: &str) -> bool {
    if of_all_tests().is_none() {
        return false;
    }
    let _ = writeln!(std::io::stderr(), "skipped: {}: {why}", this_test());
    true
}

/// Checks whether pgbouncer is available, or returns the reason.
fn available() -> Result<(), String> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let look = || {
        let script = project_file("scripts/pgbouncer.py");
        let looked = Command::new("python3").arg(script).arg("where").output();
        let looked = looked.map_err(|error| format!("python3: {error}"))?;
        if looked.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&looked.stderr).trim().to_owned())
    };
    FOUND.get_or_init(look).clone()
}
