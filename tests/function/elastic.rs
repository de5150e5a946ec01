//! Drains that start each other, as on AWS Lambda: a stub of its Invoke API runs the real function, a process
//! for each invocation. <https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html>

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::cli::Cli;
use crate::support::function::fixture;
use crate::support::function::{AMPLE, Function};
use crate::support::probe::number;
use crate::support::services::Services;
use crate::support::{self, TRACE, TestDb, aws_variables, contains, ended};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tidegate::{DrainReport, StopReason};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const LIVE: &str = "SELECT count(*) FROM tidegate.event_queue";

/// What Lambda does with a start.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Delivery {
    /// Each once.
    Once,
    /// Every third start is lost.
    Lossy,
    /// Some arrive twice.
    Often,
    /// It has no room for any.
    Throttled,
}

struct Lambda {
    delivery: Delivery,
    settings: Vec<(String, String)>,
    /// What was invoked.
    starts: Mutex<Vec<Value>>,
    running: Mutex<Vec<JoinHandle<DrainReport>>>,
    /// How many functions have invoked each other at most, and the starts that Lambda stopped for it.
    lineage: AtomicUsize,
    stopped: AtomicUsize,
    at_once: (AtomicUsize, AtomicUsize),
}

impl Lambda {
    async fn before(db: &TestDb, services: &Services, delivery: Delivery) -> Arc<Self> {
        Self::with(db, services, delivery, &[]).await
    }

    /// With other settings, too.
    async fn with(
        db: &TestDb,
        services: &Services,
        delivery: Delivery,
        other: &[(&str, &str)],
    ) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut settings = settings(db, services, address);
        for (name, value) in other {
            settings.retain(|(known, _)| known != name);
            settings.push(((*name).to_owned(), (*value).to_owned()));
        }
        let lambda = Arc::new(Self {
            delivery,
            settings,
            starts: Mutex::default(),
            running: Mutex::default(),
            lineage: AtomicUsize::default(),
            stopped: AtomicUsize::default(),
            at_once: Default::default(),
        });
        let routes = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .with_state(lambda.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        lambda
    }

    /// Runs the function in a process of its own, as this one in a row of functions that have invoked each
    /// other.
    fn run(self: &Arc<Self>, payload: Value, depth: usize) {
        self.lineage.fetch_max(depth, Ordering::SeqCst);
        let lambda = self.clone();
        let ran = tokio::spawn(async move {
            let settings: Vec<(&str, &str)> = lambda
                .settings
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            let function = Function::start(&settings).await;
            let now = lambda.at_once.0.fetch_add(1, Ordering::SeqCst) + 1;
            lambda.at_once.1.fetch_max(now, Ordering::SeqCst);
            let trace = traced(depth);
            let payload = payload.to_string();
            let answer = function.api.invoke_in(&trace, payload, AMPLE).await;
            lambda.at_once.0.fetch_sub(1, Ordering::SeqCst);
            assert!(!answer.is_error, "{answer:?}");
            serde_json::from_value(answer.body).unwrap()
        });
        self.running.lock().unwrap().push(ran);
    }

    /// Wakes the function once, and waits until none of those that it has started is at work.
    async fn wake(self: &Arc<Self>) -> Vec<DrainReport> {
        self.run(json!({"action": "drain"}), 0);
        self.all_ended().await
    }

    async fn all_ended(&self) -> Vec<DrainReport> {
        let mut reports = Vec::new();
        loop {
            let next = self.running.lock().unwrap().pop();
            let Some(next) = next else { return reports };
            reports.push(next.await.unwrap());
        }
    }
}

fn settings(db: &TestDb, services: &Services, address: SocketAddr) -> Vec<(String, String)> {
    let own = [
        ("DATABASE_URL", db.url.clone()),
        ("AWS_ENDPOINT_URL_LAMBDA", format!("http://{address}")),
        ("TIDEGATE_START_DRAINS", "on".to_owned()),
        ("TIDEGATE_MAX_DRAINS", "3".to_owned()),
        ("TIDEGATE_CONCURRENCY", "2".to_owned()),
        ("TIDEGATE_BUDGET", "5s".to_owned()),
    ];
    let services = services.variables();
    let all = own.into_iter().chain(services).chain(aws_variables());
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Lambda stops a function that is invoked by a row of this many.
/// <https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html>
const LONGEST_LINEAGE: usize = 16;

/// The trace header of a function, which ends with its place in the lineage.
fn traced(depth: usize) -> String {
    let lineage = TRACE.strip_suffix(":0");
    format!("{}:{depth}", lineage.expect("it begins a lineage"))
}

/// Returns the place of the function that sent this header.
fn depth(header: &str) -> usize {
    let depth = header
        .rsplit(':')
        .next()
        .and_then(|depth| depth.parse().ok());
    let depth = depth.expect("the header has a lineage");
    assert_eq!(header, traced(depth), "the header is passed on as it came");
    depth
}

async fn invoke(
    State(lambda): State<Arc<Lambda>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(name, support::FUNCTION_ARN);
    assert_eq!(header("x-amz-invocation-type"), Some("Event"));
    let trace = header("x-amzn-trace-id");
    let depth = trace.map_or(0, |trace| depth(trace) + 1);
    let signed = header("authorization").unwrap();
    contains(signed, "/eu-central-1/lambda/aws4_request");
    let payload: Value = serde_json::from_slice(&body).unwrap();
    let by_a_drain = payload["chain"]["hop"].as_u64() > Some(0);
    assert_eq!(trace.is_some(), by_a_drain, "a producer begins no lineage");
    let number = {
        let mut starts = lambda.starts.lock().unwrap();
        starts.push(payload.clone());
        starts.len()
    };
    match lambda.delivery {
        _ if depth > LONGEST_LINEAGE => {
            lambda.stopped.fetch_add(1, Ordering::SeqCst);
        }
        Delivery::Throttled => {
            return (StatusCode::TOO_MANY_REQUESTS, "Rate Exceeded.").into_response();
        }
        Delivery::Lossy if number % 3 == 0 => {}
        Delivery::Often if number % 2 == 1 => {
            lambda.run(payload.clone(), depth);
            lambda.run(payload, depth);
        }
        Delivery::Once | Delivery::Lossy | Delivery::Often => lambda.run(payload, depth),
    }
    StatusCode::ACCEPTED.into_response()
}

/// What matters of drains that start each other.
fn outlined(reports: &[DrainReport]) -> String {
    let outlined = reports.iter().map(|report| {
        let (stop, ended, tried) = (report.stop_reason, report.completed, report.retried);
        let (started, failed) = (report.started_drains, report.starts_failed);
        format!("{stop:?} slot {} ended {ended} retried {tried} left {:?} started {started} failed {failed}", report.slot, report.ready_left)
    });
    outlined.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn functions_that_start_each_other_end_everything_after_one_tick() {
    let (db, client, services) = support::slow_letters(400).await;
    let lambda = Lambda::before(&db, &services, Delivery::Often).await;
    let left = "SELECT count(*) FROM tidegate.event_queue WHERE attempts = 0";
    let mut reports = ended("all invocations", lambda.wake()).await;
    let failed = |reports: &[DrainReport]| -> u64 {
        reports.iter().map(|report| report.starts_failed).sum()
    };
    // On a slow machine a start gets no answer in time, or the longest chain is too short. A tick takes the
    // rest.
    let hops = usize::from(tidegate::chain::MOST_HOPS);
    while (failed(&reports) > 0 || lambda.lineage.load(Ordering::SeqCst) == hops)
        && number(&client, left).await > 0
    {
        reports.extend(ended("all invocations", lambda.wake()).await);
    }
    // On a slow machine a handler can be cut at the end of a budget. Its event waits for its next attempt,
    // and for a tick.
    let cut: u64 = reports.iter().map(|report| report.retried).sum();
    assert_eq!(number(&client, left).await, 0, "{}", outlined(&reports));
    assert!(
        number(&client, LIVE).await <= i64::try_from(cut).unwrap(),
        "{reports:#?}"
    );
    let calls = services.calls("archive");
    let keys: std::collections::BTreeSet<&str> = calls.iter().map(|call| &*call.key).collect();
    assert_eq!(keys.len(), 400);
    assert!(calls.len() as u64 <= 400 + cut);
    let starts = lambda.starts.lock().unwrap().clone();
    let hops = starts.iter().map(|start| start["chain"]["hop"].as_u64());
    assert!(hops.max().flatten() >= Some(2), "{starts:?}");
    assert!(reports.iter().all(|report| report.slot <= 3));
    assert!(reports.iter().any(|report| report.slot > 1), "{reports:#?}");
    let twice = reports
        .iter()
        .filter(|report| report.stop_reason == StopReason::AlreadyRun);
    assert_eq!(twice.count(), starts.len().div_ceil(2), "{reports:#?}");
    let started: u64 = reports.iter().map(|report| report.started_drains).sum();
    let most = started + failed(&reports);
    assert!(
        (started..=most).contains(&(starts.len() as u64)),
        "{}",
        outlined(&reports)
    );
}

#[tokio::test]
async fn a_chain_ends_before_lambda_stops_it_and_the_next_tick_begins_another() {
    let (db, client, services) = support::slow_letters(2000).await;
    let settings = [
        ("TIDEGATE_MAX_DRAINS", "1"),
        ("TIDEGATE_CONCURRENCY", "1"),
        ("TIDEGATE_BUDGET", "2s"),
    ];
    let lambda = Lambda::with(&db, &services, Delivery::Often, &settings).await;
    let hops = usize::from(tidegate::chain::MOST_HOPS);
    while lambda.lineage.load(Ordering::SeqCst) < hops {
        let reports = ended("all invocations", lambda.wake()).await;
        let whole = lambda.lineage.load(Ordering::SeqCst) == hops;
        // On a slow machine a start may get no answer in time, or a drain gets nothing done. Then the chain
        // ends there.
        let failed = reports.iter().any(|report| {
            report.starts_failed > 0
                || report.completed == 0 && report.stop_reason == StopReason::BudgetSpent
        });
        assert!(whole || failed, "{}", outlined(&reports));
    }
    assert_eq!(lambda.lineage.load(Ordering::SeqCst), hops);
    assert_eq!(lambda.stopped.load(Ordering::SeqCst), 0);
    assert!(number(&client, LIVE).await > 0, "one chain is too short");
    let rest = "DELETE FROM tidegate.events WHERE id NOT IN (SELECT id FROM tidegate.events ORDER BY attempts, id LIMIT 2)";
    client.execute(rest, &[]).await.unwrap();
    // On a slow machine a handler can be cut at the end of a budget, and its event waits for another tick.
    ended("the rest", async {
        while number(&client, LIVE).await > 0 {
            lambda.wake().await;
        }
    })
    .await;
}

#[tokio::test]
async fn where_nothing_can_be_started_a_drain_ends_as_it_would_have() {
    let (db, _, services) = support::slow_letters(400).await;
    let lambda = Lambda::before(&db, &services, Delivery::Throttled).await;
    let reports = ended("the invocation", lambda.wake()).await;
    let [report] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
    assert!(
        report.is_balanced() && report.ready_left > Some(0),
        "{report:?}"
    );
    assert_eq!(report.started_drains, 0);
    let asked = lambda.starts.lock().unwrap().len();
    assert!(asked >= 1, "it has tried");
    assert!(report.starts_failed >= asked as u64, "{report:?}");
}

/// The command line publishes, and wakes the function behind its commit. Returns whether it could: a slow
/// machine may not answer within the two seconds that a publisher waits for it.
async fn publish_and_wake(lambda: &Lambda) -> bool {
    let mut cli = Cli::without_database().with("TIDEGATE_WAKE", support::FUNCTION_ARN);
    for (name, value) in &lambda.settings {
        cli = cli.with(name, value);
    }
    let payload = json!({"letter_id": "canary", "grant": {"grant_number": "canary",
        "measure": {"case_number": "canary", "measure_id": "M1"}, "company_number": "000000001",
        "amount": 1, "valid_from": "2027-01-11", "valid_to": "2027-06-30"}});
    let payload = payload.to_string();
    let ran = cli
        .run(&["publish", "external_letter_received", "--payload", &payload])
        .await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let late = ran.stderr.contains("no drain could be started") && ran.stderr.contains("within");
    assert!(ran.stderr.is_empty() || late, "{ran:?}");
    !late
}

#[tokio::test]
async fn who_publishes_into_an_empty_queue_has_the_function_woken_and_no_tick_is_needed() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    let lambda = Lambda::before(&db, &services, Delivery::Once).await;
    let mut woken = 0;
    while woken < 20 {
        if !publish_and_wake(&lambda).await {
            lambda.wake().await;
            continue;
        }
        woken += 1;
        let reports = ended("the invocation", lambda.all_ended()).await;
        assert!(!reports.is_empty(), "nobody was at work");
        assert_eq!(number(&client, LIVE).await, 0);
    }
    let starts = lambda.starts.lock().unwrap().clone();
    // On a slow machine, a drain may start a further one.
    let by_producers = starts.iter().filter(|start| start["chain"]["hop"] == 0);
    assert!(by_producers.count() >= woken);
    let sql = "SELECT percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY
                      extract(epoch FROM processing_started_at - created_at)::float8 * 1000) FROM tidegate.event_log WHERE parent_id IS NULL";
    let row = client.query_one(sql, &[]).await.unwrap();
    let [p50, p95] = row.get::<_, Vec<f64>>(0)[..] else {
        panic!("two were asked for");
    };
    println!(
        "from publish to lease: p50 {p50:.0} ms, p95 {p95:.0} ms, the start of the process among it"
    );
}

#[tokio::test]
async fn messages_wake_the_function_once_and_those_that_came_before_do_not() {
    let db = support::database().await;
    let client = db.client().await;
    let services = Services::start().await;
    let lambda = Lambda::before(&db, &services, Delivery::Once).await;
    let own = [
        ("TIDEGATE_ACTIONS", "receive"),
        ("TIDEGATE_WAKE", support::FUNCTION_ARN),
    ];
    let settings = lambda
        .settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let function = Function::start(&settings.chain(own).collect::<Vec<_>>()).await;
    for _ in 0..2 {
        let answer = function.invoke(&fixture("sqs.json")).await;
        assert!(!answer.is_error, "{answer:?}");
        ended("the invocation", lambda.all_ended()).await;
        let late = |line: &Value| line.to_string().contains("no drain could be started");
        if function.log().iter().any(late) {
            // As in `publish_and_wake`.
            return;
        }
        let starts = lambda.starts.lock().unwrap().clone();
        let by_messages = starts.iter().filter(|start| start["chain"]["hop"] == 0);
        assert_eq!(by_messages.count(), 1);
    }
    assert_eq!(number(&client, LIVE).await, 0);
}

#[tokio::test]
async fn a_wake_up_that_is_lost_costs_a_tick_and_no_event() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    let lambda = Lambda::before(&db, &services, Delivery::Lossy).await;
    let forget = "UPDATE tidegate.wake SET sent_at = '-infinity'";
    let (mut published, mut woken) = (0, 0);
    while woken < 7 {
        client.batch_execute(forget).await.unwrap();
        published += 1;
        woken += usize::from(publish_and_wake(&lambda).await);
        lambda.all_ended().await;
    }
    let starts = lambda.starts.lock().unwrap().len();
    assert!(starts >= woken, "each found nobody at work");
    lambda.wake().await;
    assert_eq!(number(&client, LIVE).await, 0);
    let ended = "SELECT count(*) FROM tidegate.event_log WHERE parent_id IS NULL";
    assert_eq!(number(&client, ended).await, published);
}
