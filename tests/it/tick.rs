//! Drains that wake each other by the clock: a stub of `EventBridge` Scheduler holds the one schedule.
//! <https://docs.aws.amazon.com/scheduler/latest/APIReference/API_UpdateSchedule.html>

use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::function::Function;
use crate::support::{self, TestDb, aws_variables, contains};

const ARN: &str = "arn:aws:scheduler:eu-central-1:123456789012:schedule/tidegate/next";

/// What the template makes. An update resets what it leaves out.
fn described() -> Value {
    json!({"Arn": ARN, "CreationDate": 1.5, "LastModificationDate": 1.5, "Name": "next", "GroupName": "tidegate",
        "ActionAfterCompletion": "NONE", "Description": "The next drain", "KmsKeyArn": null,
        "FlexibleTimeWindow": {"Mode": "OFF"}, "ScheduleExpression": "at(2020-01-01T00:00:00)",
        "ScheduleExpressionTimezone": "UTC", "State": "DISABLED",
        "Target": {"Arn": support::FUNCTION_ARN, "RoleArn": "arn:aws:iam::123456789012:role/tick", "Input": "{}"}})
}

#[derive(Default)]
struct Scheduler {
    reads: Mutex<u32>,
    updates: Mutex<Vec<Value>>,
    fails: bool,
}

impl Scheduler {
    async fn start(fails: bool) -> (Arc<Self>, String) {
        let scheduler = Arc::new(Self {
            fails,
            ..Self::default()
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new()
            .route("/schedules/{name}", get(read).put(update))
            .with_state(scheduler.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (scheduler, url)
    }

    /// The states and times of the updates so far, as seconds from now.
    fn moves(&self) -> Vec<(String, f64)> {
        let updates = self.updates.lock().unwrap().clone();
        let moved = |update: &Value| {
            let at = update["ScheduleExpression"].as_str().unwrap();
            let at = at.strip_prefix("at(").and_then(|at| at.strip_suffix(')'));
            let at: Timestamp = format!("{}Z", at.unwrap()).parse().unwrap();
            let state = update["State"].as_str().unwrap().to_owned();
            (
                state,
                (at - Timestamp::now()).total(jiff::Unit::Second).unwrap(),
            )
        };
        updates.iter().map(moved).collect()
    }
}

async fn read(
    State(scheduler): State<Arc<Scheduler>>,
    Path(name): Path<String>,
    Query(query): Query<Value>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    assert_eq!(
        (name.as_str(), &query["groupName"]),
        ("next", &json!("tidegate"))
    );
    check_signature(&headers);
    *scheduler.reads.lock().unwrap() += 1;
    if scheduler.fails {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    Ok(Json(described()))
}

async fn update(
    State(scheduler): State<Arc<Scheduler>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Json(wanted): Json<Value>,
) -> Json<Value> {
    assert_eq!(name, "next");
    check_signature(&headers);
    scheduler.updates.lock().unwrap().push(wanted);
    Json(json!({"ScheduleArn": ARN}))
}

fn check_signature(headers: &HeaderMap) {
    let signed = headers["authorization"].to_str().unwrap();
    contains(signed, "/eu-central-1/scheduler/aws4_request");
}

async fn function(db: &TestDb, scheduler: &str) -> Function {
    let own = [
        ("DATABASE_URL", db.url.clone()),
        ("AWS_ENDPOINT_URL_SCHEDULER", scheduler.to_owned()),
        ("TIDEGATE_NEXT_TICK", ARN.to_owned()),
        ("TIDEGATE_BUDGET", "5s".to_owned()),
    ];
    let settings: Vec<(&str, String)> = own.into_iter().chain(aws_variables()).collect();
    let settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    Function::start(&settings).await
}

#[tokio::test]
async fn each_drain_moves_the_tick_to_the_time_of_the_next_work() {
    let (db, client) = support::opened().await;
    let (scheduler, url) = Scheduler::start(false).await;
    let function = function(&db, &url).await;
    let drain = async || {
        let answer = function.invoke(&json!({"action": "drain"})).await;
        assert!(!answer.is_error, "{answer:?}");
    };
    drain().await;
    let moves = scheduler.moves();
    // While it works: its budget of 5 s and a lease. At its end nothing is due.
    assert!(
        matches!(&moves[..], [(on, at), (off, _)] if on == "ENABLED" && off == "DISABLED" && (60.0..70.0).contains(at)),
        "{moves:?}"
    );

    let planned =
        "SELECT tidegate.publish('form_archived', NULL, available_at => now() + interval '1 hour')";
    client.batch_execute(planned).await.unwrap();
    drain().await;
    let moves = scheduler.moves();
    assert!(
        matches!(&moves[2..], [_, (on, at)] if on == "ENABLED" && (3500.0..=3601.0).contains(at)),
        "{moves:?}"
    );

    // Another worker holds an event. If it dies, somebody must come.
    client.batch_execute("SELECT tidegate.publish('form_archived', NULL); SELECT tidegate.poll(ARRAY['form_archived'], lease => '10 minutes')").await.unwrap();
    drain().await;
    let moves = scheduler.moves();
    assert!(
        matches!(&moves[4..], [_, (on, at)] if on == "ENABLED" && (500.0..=601.0).contains(at)),
        "{moves:?}"
    );

    assert_eq!(
        *scheduler.reads.lock().unwrap(),
        1,
        "it is read once a process"
    );
    let mut kept = described();
    let changed = [
        "Arn",
        "CreationDate",
        "LastModificationDate",
        "Name",
        "KmsKeyArn",
        "ScheduleExpression",
        "State",
    ];
    for mut update in scheduler.updates.lock().unwrap().iter().cloned() {
        for name in changed {
            kept.as_object_mut().unwrap().remove(name);
            update.as_object_mut().unwrap().remove(name);
        }
        assert_eq!(update, kept);
    }
}

#[tokio::test]
async fn a_tick_that_cannot_be_moved_fails_no_drain() {
    let (db, _client) = support::opened().await;
    let (scheduler, url) = Scheduler::start(true).await;
    let function = function(&db, &url).await;
    let answer = function.invoke(&json!({"action": "drain"})).await;
    assert!(!answer.is_error, "{answer:?}");
    assert_eq!(answer.body["stop_reason"], "queue_empty");
    assert!(*scheduler.reads.lock().unwrap() >= 1);
    assert!(scheduler.updates.lock().unwrap().is_empty());
}

/// A service that nobody can reach, as in a private network without an endpoint for it. Counts who tries.
async fn unreachable() -> (Arc<Mutex<u32>>, String) {
    let tries = Arc::new(Mutex::new(0));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counted = tries.clone();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            *counted.lock().unwrap() += 1;
            drop(connection);
        }
    });
    (tries, url)
}

#[tokio::test]
async fn a_service_of_aws_that_does_not_answer_is_not_tried_by_each_drain() {
    let (db, _client) = support::opened().await;
    let (tries, url) = unreachable().await;
    let function = function(&db, &url).await;
    for _ in 0..3 {
        let answer = function.invoke(&json!({"action": "drain"})).await;
        assert!(!answer.is_error, "{answer:?}");
    }
    assert_eq!(*tries.lock().unwrap(), 1);
    let silence = "has not answered within the last ten minutes and is not tried";
    let log = function.log();
    assert!(
        log.iter().any(|line| line.to_string().contains(silence)),
        "{log:?}"
    );
}
