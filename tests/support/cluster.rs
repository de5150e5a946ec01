//! Owns the Postgres cluster of a test process. `scripts/tests.py` starts one for all processes of a run and
//! names it in `TIDEGATE_TEST_SERVER`. Any other server can stand there, for those who want to know whether
//! the queue works on it; some tests start clusters of their own all the same. Without the variable, the
//! first test that needs a cluster starts it, and it stops when the process ends.

use std::ffi::OsStr;
use std::sync::OnceLock;

use crate::served::Served;
use crate::skip::skipped;

/// A running cluster.
pub struct Cluster(Server);

enum Server {
    Own(Served),
    /// The URL of a superuser's database there.
    Elsewhere(String),
}

/// Returns the cluster of this process. Blocks the first caller and all later ones until it is
/// running.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    // A failure is stored too, so that hundreds of tests do not try hundreds of times.
    CLUSTER
        .get_or_init(|| match std::env::var("TIDEGATE_TEST_SERVER") {
            Ok(url) => Ok(Cluster(Server::Elsewhere(url))),
            Err(_) => start(&[]),
        })
        .as_ref()
        .unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}"))
}

impl Cluster {
    /// Starts a cluster for one test. It stops when this value is dropped.
    ///
    /// # Panics
    /// If no Postgres can be started.
    pub fn start(options: &[&OsStr]) -> Self {
        start(options).unwrap_or_else(|reason| panic!("no Postgres to test on: {reason}"))
    }

    /// Like [`Cluster::start`], but returns `None` and prints the reason if this Postgres was built
    /// without TLS.
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

    /// Returns the URL of one of the cluster's databases.
    pub fn url(&self, database: &str) -> String {
        match &self.0 {
            Server::Own(served) => served.url(database),
            Server::Elsewhere(url) => at(url, database),
        }
    }

    fn obey(&self, order: &str) {
        match &self.0 {
            Server::Own(served) => served.obey(order),
            Server::Elsewhere(_) => panic!("a server elsewhere is not stopped"),
        }
    }

    /// For a cluster with `--obey`: stops the server immediately, as in a crash.
    pub fn crash(&self) {
        self.obey("crash");
    }

    /// For a cluster with `--obey`: starts the server again at the same address.
    pub fn start_again(&self) {
        self.obey("start");
    }
}

/// Returns the URL of another database at the same address.
pub fn at(url: &str, database: &str) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    let (server, _) = place
        .rsplit_once('/')
        .expect("a database URL ends in a database");
    let asks = if options.is_empty() { "" } else { "?" };
    format!("{server}/{database}{asks}{options}")
}

/// `scripts/postgres.py` prints this instead of a URL.
const WITHOUT_TLS: &str = "WITHOUT_TLS";

fn start(options: &[&OsStr]) -> Result<Cluster, String> {
    let arguments = [&[OsStr::new("--fast")], options].concat();
    Served::start("scripts/postgres.py", &arguments).map(|served| Cluster(Server::Own(served)))
}
