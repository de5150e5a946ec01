//! The way to the database: what TLS accepts, what it refuses and that it never falls back; limits of
//! time; connections that are gone; servers that will not have us.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::cli::Cli;
use crate::support::function::Function;
use crate::support::probe::{ProbeApp, number, options, probe, publish_acts};
use crate::support::{self, Authority, Certified, Cluster, Proxy, TestDb};
use serde_json::json;
use tidegate::connect::Client;
use tidegate::{Database, Error};
use tidegate_core::queue;

/// A user whose name no encrypted conversation shows.
const USER: &str = "canary";

/// Prepares a server for [`USER`], who has no password that could be guessed.
async fn with_user(cluster: &Cluster) -> Client {
    let admin = support::connect(&cluster.url("postgres")).await;
    let create = format!("CREATE ROLE {USER} LOGIN PASSWORD 'canary-password'");
    admin.batch_execute(&create).await.unwrap();
    admin
}

/// Connects through the proxy as the user, trusting `ca`, to a server that should be `host`.
async fn connect(proxy: &Proxy, host: &str, ca: Option<&str>) -> Result<Client, Error> {
    let port = proxy.port();
    let url =
        format!("postgres://{USER}:canary-password@{host}:{port}/postgres?sslmode=verify-full");
    Database::from_settings(
        &|name| match name {
            "DATABASE_URL" => Some(url.clone()),
            "DATABASE_CA_PEM" => ca.map(str::to_owned),
            _ => None,
        },
        1,
    )?
    .connect()
    .await
}

/// Checks that nobody was connected to, and that nothing of us was said in the clear.
fn refused(what: &str, proxy: &Proxy, connected: Result<Client, Error>) {
    let error = connected
        .err()
        .unwrap_or_else(|| panic!("{what}: connected"));
    assert!(matches!(error, Error::Connect(_)), "{what}: {error:?}");
    assert!(!error.to_string().contains("canary"), "{what}: {error}");
    assert_eq!(proxy.accepted(), 1, "{what}: tried once");
    let said = proxy.said();
    assert!(said.starts_with(&SSL_REQUEST), "{what}");
    assert!(
        !String::from_utf8_lossy(&said).contains(USER),
        "{what}: said in the clear"
    );
}

/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>, under `SSLRequest`.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

#[tokio::test]
async fn f7_only_the_right_chain_of_the_right_host_connects_and_nothing_falls_back_to_plaintext() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let Some(right) = authority.certify("localhost", 2200).postgres() else {
        return;
    };
    let url = right.url("postgres");
    with_user(&right).await;

    let proxy = Proxy::before(&url).await;
    let client = connect(&proxy, "localhost", Some(&authority.pem()))
        .await
        .unwrap();
    let tls = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let version: String = client.query_one(tls, &[]).await.unwrap().get(0);
    assert_eq!(version, "TLSv1.3");
    assert!(!String::from_utf8_lossy(&proxy.said()).contains(USER));

    for (what, host, ca) in [
        ("no authority of ours", "localhost", None),
        ("another authority", "localhost", Some(other.pem())),
        ("another host", "127.0.0.1", Some(authority.pem())),
    ] {
        let proxy = Proxy::before(&url).await;
        let error = connect(&proxy, host, ca.as_deref()).await;
        let helps = error
            .as_ref()
            .is_err_and(|error| error.to_string().contains("DATABASE_CA_FILE"));
        assert_eq!(
            helps,
            what.ends_with("authority") || what.ends_with("ours"),
            "{what}: {error:?}"
        );
        refused(what, &proxy, error);
    }
}

#[tokio::test]
async fn f7_expired_and_self_signed_certificates_and_servers_without_tls_are_refused() {
    let authority = Authority::new("ours");
    let expired = authority.certify("localhost", 2021).postgres();
    let by_itself = Certified::by_itself("localhost").postgres();
    let (Some(expired), Some(by_itself)) = (expired, by_itself) else {
        return;
    };
    let plain = support::database().await;
    for (what, url) in [
        ("expired", expired.url("postgres")),
        ("signed by itself", by_itself.url("postgres")),
        ("without TLS", plain.url.clone()),
    ] {
        let proxy = Proxy::before(&url).await;
        let connected = connect(&proxy, "localhost", Some(&authority.pem())).await;
        refused(what, &proxy, connected);
    }
}

/// Answers the request for TLS with this byte, then hears what the client has to say to that.
fn answer_tls_request(answer: u8) -> (u16, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, hearing) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client: TcpStream = client.unwrap();
            let mut request = [0; 8];
            client.read_exact(&mut request).unwrap();
            assert_eq!(request, SSL_REQUEST);
            client.write_all(&[answer]).unwrap();
            let mut further = Vec::new();
            client.read_to_end(&mut further).unwrap();
            let _ = heard.send(further);
        }
    });
    (port, hearing)
}

#[tokio::test]
async fn f7_a_downgrading_proxy_hears_nothing_after_its_refusal_of_tls() {
    let (port, hearing) = answer_tls_request(b'N');
    // Not loopback by its name, so TLS is the default.
    let url = format!(
        "hostaddr=127.0.0.1 host=db.example port={port} user={USER} password=canary dbname=d"
    );
    let error = Database::new(&url, 1)
        .unwrap()
        .connect()
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("TLS"), "{error}");
    let further = hearing.recv_timeout(support::PATIENCE).unwrap();
    assert_eq!(further, b"", "said after the refusal");
    assert!(hearing.try_recv().is_err(), "tried again");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_at_every_stage() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let plain = silent.local_addr().unwrap().port();
    let (after_tls, _hearing) = answer_tls_request(b'S');
    for url in [
        format!("postgres://u@127.0.0.1:{plain}/d"),
        format!("postgres://u@127.0.0.1:{plain}/d?sslmode=verify-full"),
        format!("postgres://u@127.0.0.1:{after_tls}/d?sslmode=verify-full"),
    ] {
        let started = tokio::time::Instant::now();
        let connected = Database::new(&url, 1).unwrap().connect().await;
        let error = connected.err().unwrap().to_string();
        assert!(error.contains("no answer within 10s"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(11));
    }
}

#[tokio::test]
async fn f7_a_bundle_that_cannot_be_read_is_refused_by_name() {
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), "-----BEGIN PRIVATE KEY-----\ncanary").unwrap();
    let broken = broken.path().to_str().unwrap();
    for (variable, value, says) in [
        ("DATABASE_CA_FILE", "/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("DATABASE_CA_FILE", broken, "PEM"),
        ("DATABASE_CA_PEM", "canary", "PEM"),
    ] {
        let cli = Cli::at("postgres://u:canary@db.example/d").with(variable, value);
        let ran = cli.run(&["status", "--json"]).await;
        ran.failed(2, &[variable, says]);
        assert!(!format!("{ran:?}").contains("canary"), "{ran:?}");
    }
}

fn signal(process: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

fn through(db: &TestDb, proxy: &Proxy) -> String {
    proxy.url(db.name())
}

#[tokio::test]
async fn a_function_that_was_frozen_while_its_connections_died_answers_at_once() {
    let db = support::database().await;
    let proxy = Proxy::before(&db.url).await;
    let url = through(&db, &proxy);
    let function = Function::start(&[("DATABASE_URL", &url)]).await;
    for round in 0..3 {
        for action in ["drain", "stats"] {
            let answer = function.invoke(&json!({"action": action})).await;
            assert!(!answer.is_error, "{answer:?}");
            // Nobody waited for an answer on a connection that is dead.
            assert!(
                answer.took < queue::STATEMENT_TIMEOUT,
                "{round}, {action}: {:?}",
                answer.took
            );
        }
        let process = function.process.id().unwrap();
        signal(process, "-STOP");
        proxy.lose_connections();
        signal(process, "-CONT");
    }
}

#[tokio::test]
async fn a_request_over_http_finds_its_connection_dead_and_takes_another() {
    let db = support::database().await;
    let proxy = Proxy::before(&db.url).await;
    let database = Database::new(&through(&db, &proxy), 1).unwrap();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let ready = format!("http://{}/readyz", listener.local_addr().unwrap());
    let router = tidegate_job::http::router(database, tidegate_job::http::Access::open());
    let server = tokio::spawn(tidegate_job::http::serve(
        listener,
        router,
        std::future::pending(),
    ));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for connections in 1..=3 {
        for _ in 0..2 {
            // Who waits for a dead connection for as long as a request may take says 503.
            assert_eq!(http.get(&ready).send().await.unwrap().status(), 200);
        }
        assert_eq!(proxy.accepted(), connections, "kept while it lives");
        proxy.lose_connections();
    }
    server.abort();
}

/// The queue is drained by a user that the server turns away; then by one that it does not.
async fn turned_away(make: &str, state: &str) {
    let (db, client) = probe().await;
    publish_acts(&client, 3).await;
    let user = format!("night_{}", db.name());
    let make = make.replace("$user", &user).replace("$db", db.name());
    client.batch_execute(&make).await.unwrap();
    let url = db.url.replace("postgres@", &format!("{user}@"));
    let database = Database::new(&url, 2).unwrap();
    let app = ProbeApp::succeeding();
    let failed = tidegate::drain(&database, app.clone(), &options())
        .await
        .unwrap_err();
    assert!(failed.to_string().contains(state), "{failed}");
    assert_eq!((failed.report.leased, app.calls().len()), (0, 0));
    let spent = "SELECT coalesce(sum(attempts), 0) FROM tidegate.event_queue";
    assert_eq!(number(&client, spent).await, 0, "attempts");
    let report = tidegate::drain(&db.database(), app, &options())
        .await
        .unwrap();
    assert_eq!(report.completed, 3);
}

#[tokio::test]
async fn a_connection_cap_that_is_reached_is_a_clean_error_and_burns_no_attempt() {
    if support::cannot_be_pooled("a pooler tells of a full server in a code of its own, 08P01") {
        return;
    }
    turned_away("CREATE ROLE $user LOGIN CONNECTION LIMIT 0", "53300").await;
}

#[tokio::test]
async fn a_read_only_server_is_a_clean_error_and_burns_no_attempt() {
    turned_away(
        "CREATE ROLE $user LOGIN SUPERUSER; ALTER ROLE $user SET default_transaction_read_only = on",
        "25006",
    )
    .await;
}

#[tokio::test]
async fn a_user_whom_nobody_knows_is_refused_once() {
    if support::cannot_be_pooled("a pooler refuses a login in a code of its own, 08P01") {
        return;
    }
    let db = support::database().await;
    let proxy = Proxy::before(&db.url).await;
    let url = through(&db, &proxy).replace("postgres@", "nobody_of_this_name@");
    let database = Database::new(&url, 1).unwrap();
    let app = ProbeApp::succeeding();
    let failed = tidegate::drain(&database, app, &options())
        .await
        .unwrap_err();
    assert!(matches!(failed.source, Error::Login(_)), "{failed:?}");
    let found = proxy.accepted();
    assert_eq!(found, 1, "a login that was refused is not repeated");
}
