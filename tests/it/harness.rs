//! The tests' own ground: databases are separate, and no server outlives who started it.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tokio_postgres::NoTls;

use crate::support::{self, Cluster, TestDb, wait_until};

tidegate::events! {
    enum Sample { Told(()) = "harness_sample" }
}

#[tokio::test]
async fn each_test_has_a_migrated_database_of_its_own() {
    let (one, other) = (
        support::database_for::<Sample>().await,
        support::database().await,
    );
    assert_eq!(samples_in(&one).await, 1);
    assert_eq!(samples_in(&other).await, 0);
}

async fn samples_in(database: &TestDb) -> i64 {
    let count = "SELECT count(*) FROM tidegate.event_kind WHERE kind = 'harness_sample'";
    database
        .client()
        .await
        .query_one(count, &[])
        .await
        .unwrap()
        .get(0)
}

/// Elsewhere a port cannot be held for a server that is to listen on it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_that_is_away_is_found_at_its_port_and_no_stranger_before_it() {
    let cluster = Cluster::start(&[OsStr::new("--obey")]);
    let url = cluster.url("postgres");
    let config: tokio_postgres::Config = url.parse().unwrap();
    let address = ([127, 0, 0, 1], config.get_ports()[0]).into();
    cluster.crash();
    // Not even by its number; the system, asked for any port, does not give it away either.
    let stranger = tokio::net::TcpSocket::new_v4().unwrap();
    let taken = stranger.bind(address).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let nobody = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::ConnectionRefused);
    cluster.start_again();
    support::connect(&url).await;
}

#[tokio::test]
async fn an_empty_database_has_no_schema() {
    let db = support::empty_database().await;
    let client = db.client().await;
    let exists = client
        .query_one("SELECT to_regnamespace('tidegate') IS NOT NULL", &[])
        .await
        .unwrap();
    assert!(!exists.get::<_, bool>(0));
}

#[tokio::test]
async fn the_library_reaches_a_test_database() {
    support::database()
        .await
        .database()
        .connect()
        .await
        .unwrap()
        .simple_query("SELECT 1")
        .await
        .unwrap();
}

#[test]
fn the_binaries_are_built() {
    assert!(support::binary("tidegate").exists() && support::binary("tidegate-function").exists());
}

/// A parent that can be killed: it starts the server and sleeps.
const HOLD_A_SERVER: &str = "
import subprocess, sys, time
subprocess.Popen([sys.executable, sys.argv[1], 'serve', '--fast'], stdin=subprocess.PIPE)
time.sleep(600)
";

#[tokio::test]
async fn a_server_and_its_files_go_when_its_parent_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    // Open, for the server may run as another user and would go elsewhere.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    let mut parent = Command::new("python3")
        .args(["-c", HOLD_A_SERVER])
        .arg(support::project_file("scripts/postgres.py"))
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let url = line
        .trim_end()
        .trim_start_matches("DATABASE_URL=")
        .to_owned();
    assert!(tokio_postgres::connect(&url, NoTls).await.is_ok());
    assert!(!is_empty(folder.path()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the server is gone", async || {
        tokio_postgres::connect(&url, NoTls).await.is_err()
    })
    .await;
    wait_until("its folder is gone", async || is_empty(folder.path())).await;
}

fn is_empty(folder: &Path) -> bool {
    folder
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_none())
}
