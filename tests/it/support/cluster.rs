//! Owns the one Postgres cluster of a test process: started by the first test that wants it, stopped
//! when the process ends.

use std::ffi::OsStr;
use std::sync::OnceLock;

use super::served::Served;
use crate::skip::skipped;

/// A running cluster.
pub struct Cluster(Served);

/// The cluster of this process. Blocks the first caller, and those behind it, until it is up.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    // The failure is kept as well: hundreds of tests need not try hundreds of times.
    CLUSTER
        .get_or_init(|| start(&[]))
        .as_ref()
        .unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}"))
}

impl Cluster {
    /// One of the test's own, which goes when this value does.
    ///
    /// # Panics
    /// When there is no Postgres to start.
    pub fn start(options: &[&OsStr]) -> Self {
        start(options).unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}"))
    }

    /// As [`Cluster::start`]; none, and a word why, where the server at hand was built without TLS.
    pub fn start_with_tls(options: &[&OsStr]) -> Option<Self> {
        match start(options) {
            Err(reason) if reason == WITHOUT_TLS => {
                skipped("tls", "the Postgres at hand was built without TLS");
                None
            }
            started => {
                Some(started.unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}")))
            }
        }
    }

    /// The URL of one of the cluster's databases.
    pub fn url(&self, database: &str) -> String {
        self.0.url(database)
    }

    /// Of a cluster with `--obey`: the server is gone at once, as in a crash.
    pub fn crash(&self) {
        self.0.obey("crash");
    }

    /// Of a cluster with `--obey`: the server is there again, at the same address.
    pub fn start_again(&self) {
        self.0.obey("start");
    }
}

/// What `scripts/postgres.py` says in place of a URL.
const WITHOUT_TLS: &str = "WITHOUT_TLS";

fn start(options: &[&OsStr]) -> Result<Cluster, String> {
    let arguments = [&[OsStr::new("--fast")], options].concat();
    Served::start("scripts/postgres.py", &arguments).map(Cluster)
}
