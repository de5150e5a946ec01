//! More callers than there is room for: who is refused is told so, what was acknowledged is there, and
//! nobody has to mend anything afterwards.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::probe::number;
use crate::support::{self, Cluster, TestDb, contains, wait_until};
use futures_util::future::join_all;
use reqwest::header::RETRY_AFTER;
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::migrate::Migrate;
use tidegate::{Database, Error, Event, NewEvent};
use tidegate_core::queue;
use tidegate_job::{app, http};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use uuid::Uuid;

/// Clients of the interface at once: beyond the requests that it takes at once.
const CLIENTS: usize = http::IN_FLIGHT + 32;

/// Connections that the server grants the interface: fewer than its pool would like to have.
pub const GRANTED: usize = 4;

/// A role that may do everything in this database, over at most [`GRANTED`] connections; its URL.
pub async fn narrow_role(db: &TestDb, client: &Client) -> String {
    let role = format!("narrow_{}", db.name());
    let make = format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT {GRANTED} IN ROLE postgres");
    client.batch_execute(&make).await.unwrap();
    db.url.replace("postgres@", &format!("{role}@"))
}

/// A client of the interface, which remembers what it was answered.
#[derive(Default)]
pub struct Answers {
    pub acknowledged: Vec<i64>,
    pub refused: usize,
}

/// Asks for a job that no other one equals.
async fn ask(http: &reqwest::Client, base: &str, answers: &mut Answers) {
    let id = || Uuid::new_v4().to_string();
    let job = json!({"request_id": "r1", "patient_id": id(), "user_id": id(), "client_id": id(),
        "service_request_id": id(), "used_by_employee": id(), "used_by_legal_entity": id()});
    let request = http
        .post(format!("{base}/jobs/service_request_use_job"))
        .json(&job);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let again_after = response.headers().get(RETRY_AFTER).cloned();
    let body: Value = response.json().await.unwrap();
    match status {
        202 => {
            let href = body["data"]["links"][0]["href"].as_str().unwrap();
            let (id, _) = href
                .strip_prefix("/jobs/")
                .unwrap()
                .split_once('-')
                .unwrap();
            answers.acknowledged.push(id.parse().unwrap());
        }
        503 => {
            assert_eq!(body["error"]["type"], "unavailable", "{body}");
            assert!(body["error"]["message"].is_string(), "{body}");
            assert_eq!(again_after.unwrap(), "1");
            answers.refused += 1;
        }
        other => panic!("{other}: {body}"),
    }
}

/// [`CLIENTS`] clients, each of which asks this often; all they were answered.
pub async fn burst(http: &reqwest::Client, base: &str, times: usize) -> Answers {
    let together = Barrier::new(CLIENTS);
    let clients = (0..CLIENTS).map(async |_| {
        let mut answers = Answers::default();
        together.wait().await;
        for _ in 0..times {
            ask(http, base, &mut answers).await;
        }
        answers
    });
    let mut all = Answers::default();
    for answers in join_all(clients).await {
        all.acknowledged.extend(answers.acknowledged);
        all.refused += answers.refused;
    }
    all
}

async fn queued(client: &Client) -> HashSet<i64> {
    let rows = client
        .query("SELECT id FROM tidegate.event_queue", &[])
        .await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_jobs_of_too_many_clients_at_once_are_accepted_or_refused_and_none_is_lost() {
    if support::cannot_be_pooled(
        "it is a pooler that grants connections, and it grants them to all",
    ) {
        return;
    }
    let (db, client) = support::opened().await;
    let narrow = narrow_role(&db, &client).await;
    let database = Database::new(&narrow, 2 * GRANTED).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let serving = http::serve(
        listener,
        http::router(database, http::Access::open()),
        std::future::pending(),
    );
    let server = tokio::spawn(serving);
    let http = reqwest::Client::builder()
        .no_proxy()
        // A connection that the server closes when it has been idle must not fail a request.
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();

    // Somebody else has all connections: everyone is refused.
    let mut held = Vec::new();
    for _ in 0..GRANTED {
        held.push(support::connect(&narrow).await);
    }
    let refused = support::ended("a burst", burst(&http, &base, 1)).await;
    assert_eq!((refused.acknowledged.len(), refused.refused), (0, CLIENTS));
    assert_eq!(queued(&client).await.len(), 0);

    // There are some again: whoever is acknowledged is in the queue, and nobody else.
    drop(held);
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'narrow%' AND datname = current_database()";
    wait_until("the connections are free", async || {
        number(&client, gone).await == 0
    })
    .await;
    let mixed = support::ended("a burst", burst(&http, &base, 4)).await;
    assert_eq!(mixed.acknowledged.len() + mixed.refused, 4 * CLIENTS);
    assert!(!mixed.acknowledged.is_empty());
    let acknowledged: HashSet<i64> = mixed.acknowledged.iter().copied().collect();
    assert_eq!(acknowledged.len(), mixed.acknowledged.len(), "ids");
    assert_eq!(queued(&client).await, acknowledged);

    // The burst is over, and so are the refusals.
    let mut after = Answers::default();
    for _ in 0..2 * GRANTED {
        ask(&http, &base, &mut after).await;
    }
    assert_eq!((after.acknowledged.len(), after.refused), (2 * GRANTED, 0));
    server.abort();
}

/// Connections of a server of the test's own.
const CONNECTIONS: usize = 20;

/// Publishers that want one each.
const PUBLISHERS: usize = 60;

/// Publishes one event over a connection of its own, as often as it takes; the id, and the refusals.
async fn publish_in_the_end(database: &Database, n: usize) -> (i64, usize) {
    let event = NewEvent::raw("grant_letter_viewed", Some(letter(n)));
    let mut refusals = 0;
    loop {
        match database.connect().await {
            Ok(client) => return (queue::publish(&client, &event).await.unwrap().id, refusals),
            Err(error) => is_a_clear_refusal(&error),
        }
        refusals += 1;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..50))).await;
    }
}

fn letter(n: usize) -> Box<serde_json::value::RawValue> {
    let payload = json!({"grant_number": format!("G-{n}")});
    serde_json::value::to_raw_value(&payload).unwrap()
}

/// Of the stage, with the server's own reason.
fn is_a_clear_refusal(error: &Error) {
    let text = error.to_string();
    assert!(matches!(error, Error::Connect(_)), "{text}");
    contains(&text, "53300");
    contains(&text, "too many clients");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_publishers_beyond_the_servers_connections_learn_why_and_lose_nothing() {
    let cap = format!("max_connections={CONNECTIONS}");
    let cluster = Cluster::start(&[OsStr::new("--set"), OsStr::new(&cap)]);
    let url = cluster.url("postgres");
    let database = Database::new(&url, 1).unwrap();
    let migrate = Migrate::new(app::Event::KINDS);
    migrate.run(&database).await.unwrap();
    let observer = support::connect(&url).await;

    // All at once, and nobody lets go before everyone has tried.
    let all_tried = Arc::new(Barrier::new(PUBLISHERS));
    let first = (0..PUBLISHERS).map(async |n| {
        let connected = database.connect().await;
        all_tried.wait().await;
        let event = NewEvent::raw("grant_letter_viewed", Some(letter(n)));
        match connected {
            Ok(client) => Some(queue::publish(&client, &event).await.unwrap().id),
            Err(error) => {
                is_a_clear_refusal(&error);
                None
            }
        }
    });
    let first = support::ended("a burst", join_all(first)).await;
    let first: Vec<i64> = first.into_iter().flatten().collect();
    assert!(first.len() < CONNECTIONS, "{} were let in", first.len());

    // Whoever comes again gets through.
    let again = (0..PUBLISHERS).map(|n| publish_in_the_end(&database, n));
    let again = support::ended("those who come again", join_all(again)).await;
    let mut acknowledged: Vec<i64> = again.iter().map(|(id, _)| *id).collect();
    acknowledged.extend(&first);
    let distinct: HashSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!(distinct.len(), PUBLISHERS + first.len());
    assert_eq!(queued(&observer).await, distinct);

    wait_until("the last ones are gone", async || {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidegate'";
        number(&observer, others).await == 0
    })
    .await;
    let (_, refusals) = publish_in_the_end(&database, 0).await;
    assert_eq!(refusals, 0, "the burst is over");
}
