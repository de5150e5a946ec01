//! Drains that start each other, as on AWS Lambda: a stub of its Invoke API runs the real function, a process for each
//! invocation. <https://docs.aws.amazon.com/lambda/latest/api/API_Invoke.html>

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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

use crate::function::{AMPLE, Function};
use crate::probe::number;
use crate::services::{Mode, Services};
use crate::support::{self, TRACE, TestDb, aws_variables, ended, publish_letters};

/// What Lambda does with a start.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Delivery {
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
    at_once: (AtomicUsize, AtomicUsize),
}

impl Lambda {
    async fn before(db: &TestDb, services: &Services, delivery: Delivery) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let lambda = Arc::new(Self {
            delivery,
            settings: settings(db, services, address),
            starts: Mutex::default(),
            running: Mutex::default(),
            at_once: Default::default(),
        });
        let routes = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .with_state(lambda.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        lambda
    }

    /// Runs the function in a process of its own.
    fn run(self: &Arc<Self>, payload: Value) {
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
            let answer = function.api.invoke(payload.to_string(), AMPLE).await;
            lambda.at_once.0.fetch_sub(1, Ordering::SeqCst);
            assert!(!answer.is_error, "{answer:?}");
            serde_json::from_value(answer.body).unwrap()
        });
        self.running.lock().unwrap().push(ran);
    }

    /// Wakes the function once, and waits until none of those that it has started is at work.
    async fn wake(self: &Arc<Self>) -> Vec<DrainReport> {
        self.run(json!({"action": "drain"}));
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
        ("TIDEGATE_EMPTY_WITHIN", "2s".to_owned()),
        ("TIDEGATE_CONCURRENCY", "2".to_owned()),
        ("TIDEGATE_BUDGET", "5s".to_owned()),
    ];
    let services = services.variables();
    let all = own.into_iter().chain(services).chain(aws_variables());
    all.map(|(name, value)| (name.to_owned(), value)).collect()
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
    assert_eq!(header("x-amzn-trace-id"), Some(TRACE));
    let signed = header("authorization").unwrap();
    assert!(
        signed.contains("/eu-central-1/lambda/aws4_request"),
        "{signed}"
    );
    let payload: Value = serde_json::from_slice(&body).unwrap();
    let number = {
        let mut starts = lambda.starts.lock().unwrap();
        starts.push(payload.clone());
        starts.len()
    };
    if lambda.delivery == Delivery::Throttled {
        return (StatusCode::TOO_MANY_REQUESTS, "Rate Exceeded.").into_response();
    }
    lambda.run(payload.clone());
    if number % 2 == 1 {
        lambda.run(payload);
    }
    StatusCode::ACCEPTED.into_response()
}

#[tokio::test]
async fn functions_that_start_each_other_end_everything_after_one_tick() {
    let db = support::database().await;
    let client = db.client().await;
    let services = Services::start().await;
    services.set("archive", Mode::Slow { delay_ms: 100 });
    publish_letters(&client, 400).await;
    let lambda = Lambda::before(&db, &services, Delivery::Often).await;
    let reports = ended("all invocations", lambda.wake()).await;
    let left = "SELECT count(*) FROM tidegate.event_queue";
    assert_eq!(number(&client, left).await, 0, "{reports:#?}");
    let calls = services.calls("archive");
    let keys: std::collections::BTreeSet<&str> = calls.iter().map(|call| &*call.key).collect();
    assert_eq!((calls.len(), keys.len()), (400, 400));
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
    assert_eq!(started, starts.len() as u64);
}

#[tokio::test]
async fn where_nothing_can_be_started_a_drain_ends_as_it_would_have() {
    let db = support::database().await;
    let client = db.client().await;
    let services = Services::start().await;
    services.set("archive", Mode::Slow { delay_ms: 100 });
    publish_letters(&client, 400).await;
    let lambda = Lambda::before(&db, &services, Delivery::Throttled).await;
    let reports = ended("the invocation", lambda.wake()).await;
    let [report] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
    assert!(report.is_balanced() && report.ready_left > 0, "{report:?}");
    assert_eq!(report.started_drains, 0);
    let asked = lambda.starts.lock().unwrap().len();
    assert!(asked >= 1, "it has tried");
}
