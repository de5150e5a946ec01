//! Drains that wake each other by the clock: a stub of `EventBridge` Scheduler holds the one schedule.
//! <https://docs.aws.amazon.com/scheduler/latest/APIReference/API_UpdateSchedule.html>

use std::sync::{Arc, Mutex};

use crate::support::function::Function;
use crate::support::probe::number;
use crate::support::{self, TestDb, aws_variables, contains};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};
use tokio::net::TcpListener;

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
    updates: Mutex<Vec<(Value, Timestamp)>>,
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

    /// The last update: the state, the time, and when it came.
    fn last(&self) -> (String, Timestamp, Timestamp) {
        let updates = self.updates.lock().unwrap();
        let (update, came) = updates.last().expect("the tick was moved");
        let at = update["ScheduleExpression"].as_str().unwrap();
        let at = at.strip_prefix("at(").and_then(|at| at.strip_suffix(')'));
        let state = update["State"].as_str().unwrap().to_owned();
        (state, format!("{}Z", at.unwrap()).parse().unwrap(), *came)
    }
}

async fn read(
    State(scheduler): State<Arc<Scheduler>>,
    Path(name): Path<String>,
    Query(query): Query<Value>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    let found = (name.as_str(), &query["groupName"]);
    assert_eq!(found, ("next", &json!("tidegate")));
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
    let mut updates = scheduler.updates.lock().unwrap();
    updates.push((wanted, Timestamp::now()));
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

/// When a drain is needed next, and the work that makes it needed.
const WORK: [(&str, &str); 3] = [
    (
        "available_at FROM tidegate.event_queue",
        "SELECT tidegate.publish('form_archived', NULL, available_at => now() + interval '1 hour')",
    ),
    (
        "max(expires_at) FROM tidegate.lease WHERE NOT ended",
        "SELECT tidegate.publish('form_archived', NULL); SELECT tidegate.poll(ARRAY['form_archived'], lease => '10 minutes')",
    ),
    (
        "max(until) FROM tidegate.drain_slot",
        "UPDATE tidegate.drain_slot SET worker = gen_random_uuid(), until = now() + interval '5 minutes' WHERE slot = 2",
    ),
];

#[tokio::test]
async fn each_drain_moves_the_tick_to_the_time_of_the_next_work() {
    let (db, client) = support::opened().await;
    let (scheduler, url) = Scheduler::start(false).await;
    let function = function(&db, &url).await;
    let began = Timestamp::now();
    let drain = async || {
        let answer = function.invoke(&json!({"action": "drain"})).await;
        assert!(!answer.is_error, "{answer:?}");
        scheduler.last()
    };
    // At its end nothing is due.
    assert_eq!(drain().await.0, "DISABLED");
    {
        // While it works: a lease.
        let mut updates = scheduler.updates.lock().unwrap();
        assert_eq!(updates.len(), 2);
        updates.pop();
    }
    let (state, at, came) = scheduler.last();
    assert_eq!(state, "ENABLED");
    assert!(
        at >= began + 59.seconds() && at <= came + 61.seconds(),
        "{at}"
    );

    // Planned, leased by another worker, and a drain that may take a lease: if they die, somebody must come.
    for (next, work) in WORK {
        client.batch_execute(work).await.unwrap();
        let next = format!("SELECT extract(epoch FROM (SELECT {next}))::bigint");
        let next = Timestamp::from_second(number(&client, &next).await).unwrap();
        let (state, at, _) = drain().await;
        assert_eq!(state, "ENABLED");
        assert!(
            at >= next - 1.second() && at <= next + 1.second(),
            "{work}: {at}, not {next}"
        );
    }

    assert_eq!(
        *scheduler.reads.lock().unwrap(),
        1,
        "it is read once a process"
    );
    let changed = [
        "Arn",
        "CreationDate",
        "LastModificationDate",
        "Name",
        "KmsKeyArn",
        "ScheduleExpression",
        "State",
    ];
    let without = |mut schedule: Value| {
        let fields = schedule.as_object_mut().unwrap();
        fields.retain(|name, _| !changed.contains(&name.as_str()));
        schedule
    };
    for (update, _) in scheduler.updates.lock().unwrap().iter() {
        assert_eq!(without(update.clone()), without(described()));
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
    assert_eq!(answer.body["starts_failed"], 1);
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
