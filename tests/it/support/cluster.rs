//! Owns the one Postgres cluster of a test process: started by the first test that wants it, stopped
//! when the process ends. Nothing here stops it: the server lives as long as the pipe this process
//! holds open, so it goes even when the tests are killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use super::project_file;

/// A running cluster.
pub struct Cluster {
    url: String,
    /// Open while the cluster is wanted: its end is the server's sign to stop.
    _hold: ChildStdin,
}

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

    /// The URL of one of the cluster's databases.
    pub fn url(&self, database: &str) -> String {
        let (server, _) = self
            .url
            .rsplit_once('/')
            .expect("a database URL ends in a database");
        format!("{server}/{database}")
    }
}

fn start(options: &[&OsStr]) -> Result<Cluster, String> {
    let mut server = Command::new("python3")
        .arg(project_file("scripts/postgres.py"))
        .args(["serve", "--fast"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("install Python 3, which starts it: python3: {error}"))?;
    let hold = server.stdin.take().ok_or("its input is not a pipe")?;
    let url = first_line(&mut server)?;
    let url = url
        .trim_end()
        .strip_prefix("DATABASE_URL=")
        .ok_or("scripts/postgres.py said why above")?;
    Ok(Cluster {
        url: url.to_owned(),
        _hold: hold,
    })
}

fn first_line(server: &mut Child) -> Result<String, String> {
    let stdout = server.stdout.take().ok_or("its output is not a pipe")?;
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    Ok(line)
}
