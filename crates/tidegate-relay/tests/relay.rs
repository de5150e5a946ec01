//! The program whose kinds and handlers are stored in the database.

#![expect(clippy::unwrap_used, reason = "helpers are no different from tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use test_support::probe::{number, options, publish};
use test_support::{TestDb, column, contains, empty_database};
use tidegate::connect::Client;
use tidegate::migrate::MigrateReport;
use tidegate::{Dispatch as _, DrainOptions, DrainReport, Error, Hooks, NewEvent, ServiceState};
use tidegate_admin::doctor::{DoctorReport, State};
use tidegate_admin::program::Runtime;
use tidegate_admin::{MigrateRequest, RetireRequest};
use tidegate_core::queue;
use tidegate_relay::Relay;
use tokio::net::TcpListener;

/// A file in which nobody listens to the target.
const FILE: &str = r#"
[targets.ship]
https = "http://127.0.0.1:9/events"
batch = 10
within = "50ms"
limit = 50

[kinds]
order_placed = { target = "ship", attempts = 8, timeout = "20s" }
report_wanted = "pull"
"#;

/// The same with another kind and another target, without the limit.
const OTHER: &str = r#"
[targets.ship]
https = "http://127.0.0.1:9/events"

[targets.bill]
https = "http://127.0.0.1:9/bills"

[kinds]
order_paid = { targets = ["bill", "ship"] }
report_wanted = "pull"
"#;

fn service(db: &TestDb) -> Runtime {
    service_that_calls(db, None)
}

fn service_that_calls(db: &TestDb, hosts: Option<&str>) -> Runtime {
    let lookup = |name: &str| match name {
        "DATABASE_URL" => Some(db.url.clone()),
        "TIDEGATE_TARGET_HOSTS" => hosts.map(str::to_owned),
        "TIDEGATE_ACTOR" => Some("deploy".to_owned()),
        _ => None,
    };
    tidegate_relay::program().start(&lookup).unwrap()
}

fn request(file: &str) -> MigrateRequest {
    MigrateRequest {
        targets: Some(file.to_owned()),
        ..MigrateRequest::default()
    }
}

async fn declare(db: &TestDb, file: &str) -> MigrateReport {
    service(db).migrate(request(file)).await.unwrap()
}

async fn declared(file: &str) -> (TestDb, Client) {
    let db = empty_database().await;
    declare(&db, file).await;
    let client = db.client().await;
    (db, client)
}

fn paths(report: &MigrateReport) -> Vec<&str> {
    let difference = report.targets.as_ref().unwrap();
    difference.keys().map(String::as_str).collect()
}

fn orders(count: usize) -> impl Iterator<Item = NewEvent> {
    (0..count).map(|n| {
        let payload = serde_json::value::to_raw_value(&json!({"order_id": n}));
        NewEvent::raw("order_placed", Some(payload.unwrap()))
    })
}

async fn drained(db: &TestDb) -> DrainReport {
    let service = service(db);
    service.drain(&options(), Hooks::default()).await.unwrap()
}

async fn audits(client: &Client) -> Vec<Value> {
    let sql = "SELECT jsonb_build_object('actor', actor, 'count', count, 'filter', filter)::text
                 FROM tidegate.audit WHERE action = 'targets' ORDER BY id";
    let rows: Vec<String> = column(client, sql).await;
    rows.iter()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect()
}

#[tokio::test]
async fn a_migration_stores_the_file_and_audits_what_differs() {
    let (db, client) = declared(FILE).await;
    let stored = queue::targets(&client).await.unwrap();
    assert_eq!(stored.targets["ship"].limit, Some(50));
    let policy = json!(stored.kinds["order_placed"].policy);
    for (field, value) in [
        ("max_attempts", 8),
        ("handler_timeout_ms", 20_000),
        ("batch", 10),
        ("batch_within_ms", 50),
    ] {
        assert_eq!(policy[field], value, "{field}");
    }
    let sql = "SELECT max_running::bigint FROM tidegate.service WHERE service = 'ship' AND kinds = '{order_placed}'";
    assert_eq!(number(&client, sql).await, 50);
    assert_eq!(audits(&client).await.len(), 1);

    // The same file changes nothing, and leaves no row.
    assert!(paths(&declare(&db, FILE).await).is_empty());
    assert_eq!(audits(&client).await.len(), 1);

    // A look at what would change changes nothing.
    let dry_run = MigrateRequest {
        dry_run: true,
        ..request(OTHER)
    };
    let would = service(&db).migrate(dry_run).await.unwrap();
    assert_eq!(queue::targets(&client).await.unwrap(), stored);
    let all = [
        "kinds.order_paid",
        "kinds.order_placed",
        "targets.bill",
        "targets.ship",
    ];
    assert_eq!(paths(&would), all);

    let done = declare(&db, OTHER).await;
    assert_eq!(done.targets, would.targets);
    let audits = audits(&client).await;
    assert_eq!(
        (&audits[1]["actor"], &audits[1]["count"]),
        (&json!("deploy"), &json!(4))
    );
    assert_eq!(audits[1]["filter"]["targets.ship"]["before"]["limit"], 50);
    let sql = "SELECT count(*) FROM tidegate.service WHERE service = 'ship' AND max_running IS NULL AND kinds = '{order_paid}'";
    assert_eq!(number(&client, sql).await, 1);

    // Without a file, what is stored stays.
    service(&db)
        .migrate(MigrateRequest::default())
        .await
        .unwrap();
    assert_eq!(paths(&declare(&db, OTHER).await), [""; 0]);
}

#[tokio::test]
async fn an_operators_limit_lasts_until_the_file_has_another() {
    let (db, client) = declared(FILE).await;
    client
        .batch_execute("SELECT tidegate.limit_service('ship', 7, NULL, 'slow')")
        .await
        .unwrap();
    let limit = "SELECT max_running::bigint FROM tidegate.service WHERE service = 'ship'";
    declare(&db, &FILE.replace("events", "orders")).await;
    assert_eq!(number(&client, limit).await, 7);
    declare(&db, &FILE.replace("limit = 50", "limit = 60")).await;
    assert_eq!(number(&client, limit).await, 60);
}

#[tokio::test]
async fn a_file_with_a_fault_is_refused_before_anything_is_changed() {
    let db = empty_database().await;
    let error = service(&db)
        .migrate(request(&FILE.replace("limit = 50", "limit = 0")))
        .await
        .unwrap_err();
    assert_eq!(error.field(), Some("targets"));
    contains(
        &error.to_string(),
        "line 6: targets.ship.limit: must be a whole number of 1 to 10000, got 0",
    );
    let client = db.client().await;
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'tidegate'";
    assert_eq!(number(&client, schemas).await, 0);
    // Nothing can be compared with a schema that is not there.
    let dry_run = MigrateRequest {
        dry_run: true,
        ..request(FILE)
    };
    let error = service(&db).migrate(dry_run).await.unwrap_err();
    assert!(matches!(error, Error::Migrate(_)), "{error}");
}

#[tokio::test]
async fn a_drain_handles_the_kinds_that_are_declared_and_no_others() {
    let (db, client) = declared(FILE).await;
    publish(&client, orders(20)).await;
    publish(&client, [NewEvent::raw("report_wanted", None)]).await;
    let report = drained(&db).await;
    // Nobody listens: the events wait, and are not charged.
    assert_eq!(
        (report.backlog, report.completed),
        (Some(21), 0),
        "{report:?}"
    );
    assert!(
        report
            .services_down
            .iter()
            .any(|down| down.service == "ship"),
        "{report:?}"
    );
    assert!(
        report.unhandled.is_empty(),
        "what is pulled is not missed: {report:?}"
    );
    let charged = "SELECT count(*) FROM tidegate.event_queue WHERE attempts > 0 OR kind = 'report_wanted' AND last_error IS NOT NULL";
    assert_eq!(number(&client, charged).await, 0);
    let (state, finding) = doctor(&db).await;
    assert_eq!(state, State::Ok, "{finding}");
    let [ship] = &service(&db).targets().await.unwrap()[..] else {
        panic!("one target");
    };
    assert_eq!(
        (ship.way.as_deref(), ship.state),
        (Some("https"), ServiceState::Open)
    );
    assert_eq!(ship.kinds, ["order_placed"]);
    assert!(ship.last_error.is_some());
}

async fn examined(runtime: &Runtime) -> DoctorReport {
    let request = tidegate_admin::DoctorRequest::default();
    runtime.run(&request).await.unwrap()
}

async fn doctor(db: &TestDb) -> (State, String) {
    checked(db, "kinds").await
}

async fn checked(db: &TestDb, name: &str) -> (State, String) {
    let report = examined(&service(db)).await;
    let mut checks = report.checks.into_iter();
    let check = checks.find(|check| check.name == name).unwrap();
    (check.state, check.finding)
}

#[tokio::test]
async fn a_kind_that_left_the_file_stays_registered_and_its_events_wait() {
    let (db, client) = declared(FILE).await;
    publish(&client, orders(2)).await;
    declare(&db, OTHER).await;
    publish(&client, orders(1)).await;
    let report = drained(&db).await;
    assert_eq!((report.leased, report.backlog), (0, Some(3)), "{report:?}");
    assert_eq!(report.unhandled["order_placed"], 3);
    let (state, finding) = doctor(&db).await;
    assert_eq!(state, State::Warning);
    contains(&finding, "order_placed (3)");
    let retire = |kind: &str| RetireRequest {
        kind: kind.to_owned(),
        audit: tidegate_admin::Audit::of("gone"),
    };
    let error = service(&db).run(&retire("order_paid")).await.unwrap_err();
    contains(
        &error.to_string(),
        "must be one that this program does not handle",
    );
    let error = service(&db).run(&retire("order_placed")).await.unwrap_err();
    contains(&error.to_string(), "order_placed");
    // It comes back, and so do its events; what the other file added goes.
    declare(&db, FILE).await;
    let stored = queue::targets(&client).await.unwrap();
    assert!(stored.targets.keys().eq(["ship"]), "{stored:?}");
    assert!(drained(&db).await.leased > 0);
}

#[tokio::test]
async fn a_target_without_events_for_a_day_is_a_finding() {
    let (db, client) = declared(FILE).await;
    let aged = "UPDATE tidegate.target SET since = since - interval '25 hours'";
    client.batch_execute(aged).await.unwrap();
    let (state, finding) = doctor(&db).await;
    assert_eq!(state, State::Warning);
    contains(
        &finding,
        "target ship has had no event since it was declared",
    );
    let ended = "INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
                 VALUES (date_trunc('minute', clock_timestamp()), 'order_placed', 'COMPLETED', 1, 1, 1, 1)";
    client.batch_execute(ended).await.unwrap();
    assert_eq!(doctor(&db).await.0, State::Ok);
}

#[tokio::test]
async fn a_kind_that_nobody_polls_for_an_hour_is_a_finding() {
    let (db, client) = declared(FILE).await;
    publish(&client, orders(1)).await;
    let age = async |minutes: u32| {
        let sql = format!(
            "UPDATE tidegate.event_queue SET available_at = clock_timestamp() - interval '{minutes} minutes'"
        );
        client.batch_execute(&sql).await.unwrap();
    };
    age(61).await;
    let ok = (State::Ok, "no event has been ready for 1h".to_owned());
    assert_eq!(checked(&db, "pulled kinds").await, ok, "drains handle it");
    publish(&client, [NewEvent::raw("report_wanted", None)]).await;
    age(59).await;
    assert_eq!(checked(&db, "pulled kinds").await, ok);
    age(61).await;
    let (state, finding) = checked(&db, "pulled kinds").await;
    assert_eq!(state, State::Warning);
    contains(&finding, "has been ready for 1h 1m");
    contains(&finding, "nobody polls its kind, or not often enough");
    let poll = "SELECT tidegate.poll('{report_wanted}')";
    client.batch_execute(poll).await.unwrap();
    assert_eq!(checked(&db, "pulled kinds").await, ok);
}

#[tokio::test]
async fn no_event_is_lost_while_the_file_changes_beside_drains() {
    let (db, client) = declared(FILE).await;
    publish(&client, orders(300)).await;
    let short = DrainOptions {
        budget: Duration::from_secs(3),
        ..options()
    };
    let drains = async {
        let service = service(&db);
        for _ in 0..4 {
            service.drain(&short, Hooks::default()).await.unwrap();
        }
    };
    let migrations = async {
        for file in [OTHER, FILE, OTHER, FILE] {
            declare(&db, file).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::join!(drains, migrations);
    let live = "SELECT count(*) FROM tidegate.event_queue WHERE attempts = 0";
    assert_eq!(number(&client, live).await, 300);
    assert_eq!(
        number(&client, "SELECT count(*) FROM tidegate.event_log").await,
        0
    );
}

#[tokio::test]
async fn one_process_serves_databases_with_different_targets() {
    let (one, _) = declared(FILE).await;
    let (two, client) = declared(OTHER).await;
    let empty = empty_database().await;
    let relay = Arc::new(Relay::new(&|_| None));
    for (db, kinds) in [
        (&one, vec!["order_placed"]),
        (&two, vec!["order_paid"]),
        (&empty, vec![]),
    ] {
        let run = relay.clone().for_run(&db.database()).await.unwrap();
        assert_eq!(run.kinds(), kinds);
    }
    let only = |name: &str| (name == "TIDEGATE_TARGET_HOSTS").then(|| "a.example".to_owned());
    let bounded = Arc::new(Relay::new(&only));
    let run = bounded.for_run(&two.database()).await.unwrap();
    assert!(run.kinds().is_empty(), "this process may not call its host");
    let event = NewEvent::raw("order_paid", None);
    publish(&client, [event]).await;
    let report = tidegate::drain(&two.database(), relay, &options())
        .await
        .unwrap();
    assert_eq!(report.services_down.len(), 2, "{report:?}");
}

/// The bodies that a URL has received.
type Received = Arc<Mutex<Vec<Value>>>;

/// Serves a URL that takes every event, and returns the file with it.
async fn listening() -> (Received, String) {
    async fn take(Shared(received): Shared<Received>, Json(body): Json<Value>) {
        received.lock().unwrap().push(body);
    }
    let received = Received::default();
    let routes = Router::new()
        .route("/events", post(take))
        .layer(DefaultBodyLimit::disable())
        .with_state(received.clone());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let file = FILE.replace("127.0.0.1:9", &address);
    // However slow the machine, what is leased together shares a request.
    (received, file.replace("50ms", "2s"))
}

#[tokio::test]
async fn each_event_reaches_the_url_of_its_target_once_and_ends_completed() {
    let (received, file) = listening().await;
    let (db, client) = declared(&file).await;
    publish(&client, orders(60)).await;
    publish(&client, [NewEvent::raw("report_wanted", None)]).await;
    let report = drained(&db).await;
    assert_eq!(
        (report.completed, report.backlog),
        (60, Some(1)),
        "{report:?}"
    );
    assert_eq!(report.services["ship"].calls, 60, "{report:?}");
    let ended = "SELECT count(*) FROM tidegate.event_log
                  WHERE kind = 'order_placed' AND status = 'COMPLETED' AND attempts = 1";
    assert_eq!(number(&client, ended).await, 60);
    let bodies = std::mem::take(&mut *received.lock().unwrap());
    assert!(bodies.len() < 60, "up to ten share a request");
    // An array each time, also of one event.
    let events = bodies.iter().flat_map(|body| body.as_array().unwrap());
    let mut numbers: Vec<u64> = events
        .map(|event| {
            assert_eq!(event["type"], "order_placed");
            event["data"]["order_id"].as_u64().unwrap()
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..60).collect::<Vec<u64>>());
}

#[tokio::test]
async fn large_events_share_requests_as_far_as_there_is_room_for_them() {
    let (received, file) = listening().await;
    let (db, client) = declared(&file).await;
    let large = json!("x".repeat(400_000)).to_string();
    let large = (0..12).map(|_| {
        let payload = serde_json::value::RawValue::from_string(large.clone());
        NewEvent::raw("order_placed", Some(payload.unwrap()))
    });
    publish(&client, large).await;
    let report = drained(&db).await;
    assert_eq!(report.completed, 12, "{report:?}");
    let bodies = received.lock().unwrap();
    for body in &*bodies {
        assert!(body.to_string().len() <= 2_000_000);
    }
}

/// What the doctor says of the targets.
async fn faults(runtime: &Runtime) -> Vec<String> {
    let checks = examined(runtime).await.checks.into_iter();
    let of_targets = checks.filter(|check| check.name == "targets");
    of_targets.map(|check| check.finding).collect()
}

#[tokio::test]
async fn the_doctor_asks_each_target_and_sends_no_event() {
    let (received, file) = listening().await;
    let (db, _) = declared(&file).await;
    assert_eq!(faults(&service(&db)).await, [""; 0]);

    let bounded = service_that_calls(&db, Some("a.example"));
    let said = faults(&bounded).await.join("");
    contains(
        &said,
        "ship.https: must have a host that TIDEGATE_TARGET_HOSTS lists, got \"127.0.0.1\"",
    );

    let key = tempfile::NamedTempFile::new().unwrap();
    let path = key.path().to_str().unwrap();
    let signed = file.replace("batch", &format!("secret = \"file:{path}\"\nbatch"));
    declare(&db, &signed).await;
    for wrong in ["", "whsec_dG9vIHNob3J0"] {
        std::fs::write(key.path(), wrong).unwrap();
        let said = faults(&service(&db)).await.join("");
        contains(
            &said,
            "ship: credentials: the signing secret must be whsec_",
        );
    }
    std::fs::write(key.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    assert_eq!(faults(&service(&db)).await, [""; 0]);
    assert!(received.lock().unwrap().is_empty());

    // Both are asked, also the one that no kind of the other file had.
    declare(&db, OTHER).await;
    let said = faults(&service(&db)).await;
    assert_eq!(said.len(), 2, "{said:?}");
    contains(&said[0], "bill: unreachable: no connection: ");
}

/// What a parser of JSON would change: numbers that a double cannot hold, the order of keys, a key that
/// stands twice.
const ODD: &str =
    r#"{"z":12345678901234.567891,"big":18446744073709551616,"a":10.10,"e":1e400,"z":1}"#;

#[tokio::test]
async fn b2_what_a_target_answers_is_stored_letter_by_letter() {
    async fn answer(Json(events): Json<Value>) -> String {
        let event = &events[0];
        format!(
            r#"{{"results": [{{"itemIdentifier": {}, "result": {ODD},
                "followUps": [{{"kind": "report_wanted", "payload": {ODD}}}]}}]}}"#,
            event["id"]
        )
    }
    let routes = Router::new().route("/events", post(answer));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let file = FILE
        .replace("127.0.0.1:9", &address)
        .replace("limit = 50", "limit = 50\nfollow_ups = [\"report_wanted\"]");
    let (db, client) = declared(&file).await;
    publish(&client, orders(1)).await;
    assert_eq!(drained(&db).await.completed, 1);
    let payload: Vec<String> =
        column(&client, "SELECT payload::text FROM tidegate.event_queue").await;
    assert_eq!(payload, [ODD]);
    // The column is jsonb, which has its own order of keys, and every number in full.
    let same = format!(
        "SELECT (result->'ship' = '{ODD}'::jsonb AND result->'ship'->>'a' = '10.10')::int::bigint FROM tidegate.event_log"
    );
    assert_eq!(number(&client, &same).await, 1);
}

#[tokio::test]
async fn the_receiver_of_a_webhook_publishes_what_its_target_names_and_nothing_else() {
    async fn answer(Json(events): Json<Value>) -> Json<Value> {
        let event = &events[0];
        let next = &event["data"]["next"];
        Json(json!({"results": [{"itemIdentifier": event["id"], "followUps": [next]}]}))
    }
    let routes = Router::new().route("/events", post(answer));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let file = FILE.replace("127.0.0.1:9", &address);
    let naming = file.replace("limit = 50", "limit = 50\nfollow_ups = [\"report_wanted\"]");
    for (file, kind, group, is_published) in [
        (&file, "report_wanted", Value::Null, false),
        (&naming, "report_wanted", Value::Null, true),
        (&naming, "report_wanted", json!("own"), true),
        (&naming, "report_wanted", json!("another"), false),
        (&naming, "order_placed", Value::Null, false),
    ] {
        let (db, client) = declared(file).await;
        let next = json!({"kind": kind, "group_key": group});
        let payload = serde_json::value::to_raw_value(&json!({ "next": next })).unwrap();
        let event = NewEvent::raw("order_placed", Some(payload)).group("own");
        publish(&client, vec![event]).await;
        let report = drained(&db).await;
        let told = (report.completed, report.published, report.retried > 0);
        let expected = (is_published.into(), is_published.into(), !is_published);
        assert_eq!(told, expected, "{kind} {group}");
    }
}

#[tokio::test]
async fn a_login_with_two_connections_drains() {
    let (_, file) = listening().await;
    let (db, client) = declared(&file).await;
    let role = format!("narrow_{}", db.name());
    let make = format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 2 IN ROLE postgres");
    client.batch_execute(&make).await.unwrap();
    publish(&client, orders(3)).await;
    let url = test_support::as_user(db.direct(), &role);
    let lookup = move |name: &str| (name == "DATABASE_URL").then(|| url.clone());
    let service = tidegate_relay::program().start(&lookup).unwrap();
    let report = service.drain(&options(), Hooks::default()).await.unwrap();
    assert_eq!(report.completed, 3, "{report:?}");
}
