//! The Lambda function as Lambda meets it: the real binary between a stub of the Runtime API and a
//! real Postgres.

use std::process::Stdio;
use std::time::Duration;

use crate::support::cli::Cli;
use crate::support::function::{AMPLE, Function, report};
use crate::support::probe::{live, number};
use crate::support::seal;
use crate::support::services::{Mode, Services};
use crate::support::{
    self, Deadline, Harm, Proxy, RuntimeApi, contains, execute, has, publish_letters,
    publish_views, rows, wait_until, words,
};
use serde_json::{Value, json};
use tidegate::StopReason;

fn fixture(name: &str) -> String {
    std::fs::read_to_string(support::project_file("events").join(name)).unwrap()
}

#[tokio::test]
async fn a_function_whose_log_nobody_reads_still_answers() {
    let db = support::database().await;
    publish_views(&db.client().await, 20_000).await;
    let api = RuntimeApi::start().await;
    let function = support::command("tidegate-function")
        .envs(api.variables())
        .env("DATABASE_URL", &db.url)
        .env("TIDEGATE_LOG", "debug")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let first = report(api.invoke(r#"{"action": "drain"}"#, AMPLE).await);
    assert_eq!(
        (first.completed, first.backlog),
        (20_000, Some(0)),
        "{first:?}"
    );
    let second = report(api.invoke(r#"{"action": "drain"}"#, AMPLE).await);
    assert_eq!(second.leased, 0, "{second:?}");
    drop(function);
}

#[tokio::test]
async fn b9_c13_each_drain_writes_a_line_of_metrics_if_they_are_enabled() {
    let (db, client) = support::opened().await;
    publish_views(&client, 3).await;
    let waits = "SELECT tidegate.publish('grant_letter_viewed', '{}', delay => '1 day');
                 UPDATE tidegate.event_queue SET created_at = created_at - interval '1 hour' WHERE delayed";
    client.batch_execute(waits).await.unwrap();
    let metrics = [
        ("TIDEGATE_METRICS", "emf"),
        ("TIDEGATE_METRICS_QUEUE", "grants"),
    ];
    let function = Function::on(&db, &metrics).await;
    function.drain(AMPLE).await;
    let log = function.log();
    let lines: Vec<&Value> = log.iter().filter(|line| !line["_aws"].is_null()).collect();
    assert_eq!(lines.len(), 1, "{log:?}");
    assert_eq!(lines[0]["Queue"], "grants");
    for (metric, value) in [
        ("Leased", 3),
        ("Completed", 3),
        ("Backlog", 1),
        ("Drains", 1),
    ] {
        assert_eq!(lines[0][metric], value, "{metric}");
    }
    assert!(lines[0]["OldestAgeMs"].as_u64().unwrap() >= 3_600_000);
    assert_eq!(lines[0]["Kinds"]["grant_letter_viewed"]["completed"], 3);
    assert_eq!(lines[0]["HandlerLatencyMs"].as_array().unwrap().len(), 3);

    let function = Function::on(&db, &[]).await;
    function.drain(AMPLE).await;
    assert!(function.log().iter().all(|line| line["_aws"].is_null()));
}

#[tokio::test]
async fn b29_a_kind_without_a_handler_fails_at_once_with_a_line_in_the_log_and_a_figure() {
    let (db, client) = support::opened().await;
    let insert = "INSERT INTO tidegate.event_queue (kind, payload, kind_known) VALUES ('heard_by_nobody', '\"canary\"', true) RETURNING id";
    let id: i64 = client.query_one(insert, &[]).await.unwrap().get(0);
    publish_views(&client, 1).await;
    let function = Function::on(&db, &[("TIDEGATE_METRICS", "emf")]).await;
    let report = function.drain(AMPLE).await;
    assert_eq!((report.completed, report.failed, report.retried), (1, 1, 0));
    let end = "SELECT count(*) FROM tidegate.event_log WHERE id = $1 AND status = 'FAILED' AND attempts = 0
                  AND errors->0->>'code' = 'no_handler'";
    let row = client.query_one(end, &[&id]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);

    let log = function.log();
    let told: Vec<&Value> = log
        .iter()
        .filter(|line| line["fields"]["event.id"] == id || line["event.id"] == id)
        .collect();
    assert_eq!(told.len(), 1, "{log:?}");
    let line = told[0].to_string();
    for part in words("ERROR 'event failed for good' no_handler heard_by_nobody") {
        assert!(line.contains(part), "{part}: {line}");
    }
    let figures = log.iter().find(|line| !line["_aws"].is_null()).unwrap();
    has(figures, &json!({"Failed": 1, "Retried": 0}));
    assert!(!function.output().contains("canary"));
}

#[tokio::test]
async fn f1_a_scheduled_event_drains_the_queue_and_is_answered_with_a_report() {
    let (db, client) = support::opened().await;
    let function = Function::on(&db, &[]).await;
    publish_views(&client, 3).await;
    let report = report(function.api.invoke(fixture("scheduled.json"), AMPLE).await);
    assert_eq!(
        (report.leased, report.completed, report.backlog),
        (3, 3, Some(0))
    );
    assert_eq!(report.stop_reason, StopReason::QueueEmpty);
    assert_eq!(live(&client).await, 0);
}

#[tokio::test]
async fn f6_every_file_of_sample_invocations_is_answered() {
    let db = support::empty_database().await;
    let keys_file = seal::keys(&[("2031", seal::OLD)]);
    let keys = (
        "TIDEGATE_PAYLOAD_KEYS_FILE",
        keys_file.path().to_str().unwrap(),
    );
    let function = Function::on(&db, &[keys]).await;
    let mut files: Vec<String> = support::project_file("events")
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_by_key(|file| (file != "migrate.json", file.clone()));
    assert!(files.len() >= 4 && files[0] == "migrate.json", "{files:?}");
    for file in files {
        if file == "retire.json" {
            let another_programs =
                "INSERT INTO tidegate.event_kind (kind) VALUES ('order_placed'), ('order_shipped');
                 INSERT INTO tidegate.schedule (keeper, name, kind, cron) VALUES ('shop', 'standing-order', 'order_placed', '0 6 1 * *')";
            let client = db.client().await;
            client.batch_execute(another_programs).await.unwrap();
        }
        let answer = function.api.invoke(fixture(&file), AMPLE).await;
        assert!(!answer.is_error, "{file}: {answer:?}");
        let asked: Value = serde_json::from_str(&fixture(&file)).unwrap();
        match file.as_str() {
            "sqs.json" | "pipe_messages.json" => {
                assert_eq!(answer.body["batchItemFailures"], json!([]));
            }
            "sns.json" | "eventbridge.json" => {
                assert_eq!(answer.body["action"], "receive", "{file}");
            }
            "pause_service.json" | "resume_service.json" | "limit_service.json" => {
                let done = file.trim_end_matches(".json");
                assert_eq!(answer.body["action"], done, "{file}");
            }
            _ => {
                let action = asked["action"].as_str().unwrap_or("drain");
                assert_eq!(answer.body["action"], action, "{file}");
            }
        }
    }
}

/// Invocations that are refused, and a part of what is said of each.
const REFUSED: &str = r#"
    {"action": "explode"} => explode
    {"action": "drain", "budgt": "1s"} => budgt
    {"action": "drain", "budget": "soon"} => soon
    {"action": "drain", "batch": 0} => batch
    {"action": "cleanup", "batch": 0} => batch
    {"action": "drain", "concurrency": 1001} => concurrency
    {"action": "migrate", "force": true} => force
    {"budget": "1s"} => action
    [{"action": "drain", "budget": "1s"}] => an object
    "drain" => an object
    null => an object
    {"action": "list", "limit": 0} => limit: must be 1 to 10000, got 0
    {"action": "leases", "limit": 10001} => limit
    {"action": "list", "status": "DONE"} => status: must be one of PENDING
    {"action": "list", "kind": "form_archive"} => kind: "form_archive" is not registered
    {"action": "pause", "kind": "form_archive"} => form_archive
    {"action": "retire", "kind": "form_archived", "reason": "r"} => kind: must be one that this program does not handle
    {"action": "unblock", "group": "g", "retry": true, "reason": " "} => reason
    {"action": "service", "name": "", "pause": true, "reason": "r"} => service: must
    {"action": "retention", "kind": "form_archived", "failed": "1d"} => reason: must be given
    {"action": "cancel", "reason": "r"} => ids, kind, group_key, correlation_id: one of them must be given
    {"action": "cancel", "created_until": "2h", "reason": "r"} => ids, kind, group_key, correlation_id: one of them must be given
    {"action": "cancel", "ids": [1], "kind": "case_opened", "reason": "r"} => ids: must be given without kind
    {"action": "cancel", "ids": [], "reason": "r"} => ids: must be 1 to 10000 ids, got 0
    {"action": "cancel", "group": "g", "dedup_key": "k", "reason": "r"} => kind: must be given with dedup_key
    {"action": "cancel", "kind": "case_opened", "status": "FAILED", "reason": "r"} => status: must be PENDING or PROCESSING, got 'FAILED'
    {"action": "cancel", "kind": "nobodys", "reason": "r"} => kind: 'nobodys' is not registered
    {"action": "cancel", "kind": "case_opened", "limit": 0, "reason": "r"} => limit: must be 1 to 1000000, got 0
    {"action": "reschedule", "ids": [1], "reason": "r"} => now: must be true, or delay
    {"action": "reschedule", "ids": [1], "now": true, "delay": "1h", "reason": "r"} => now: must be given without delay
    {"action": "reschedule", "ids": [1], "at": "tomorrow", "reason": "r"} => at: must be an RFC 3339 time
    {"action": "forget", "reason": "r"} => group, correlation_id, ids, subject: one of them must be given
    {"action": "forget", "ids": [], "reason": "r"} => ids: must be 1 to 10000 ids, got 0
    {"action": "forget", "subject": "patient", "reason": "r"} => subject: must be NAME=ID, such as customer=42
    {"action": "forget", "group": "g", "reason": " "} => reason: must be a text that says why, got a blank text
    {"action": "forget", "groups": "g", "reason": "r"} => unknown field `groups`
"#;

#[tokio::test]
async fn an_invocation_that_makes_no_sense_is_refused_by_name_and_the_next_one_is_served() {
    let db = support::database().await;
    let function = Function::on(&db, &[]).await;
    for (payload, says) in rows(REFUSED) {
        let answer = function.api.invoke(payload, AMPLE).await;
        assert!(answer.is_error, "{payload}: {answer:?}");
        assert_eq!(answer.body["errorType"], "InvalidInvocation", "{payload}");
        contains(answer.body["errorMessage"].as_str().unwrap(), says);
    }
    let broken = function.api.invoke("{\"action\": ", AMPLE).await;
    assert!(broken.is_error, "{broken:?}");
    let stats = function.invoke(&json!({"action": "stats"})).await;
    assert!(!stats.is_error, "{stats:?}");
    assert_eq!(stats.body["backlog"], 0);
}

#[tokio::test]
async fn a_function_answers_only_the_actions_that_it_is_given() {
    let db = support::database().await;
    let function = Function::on(&db, &[("TIDEGATE_ACTIONS", "drain,stats")]).await;
    for action in ["migrate", "receive_issuing"] {
        let answer = function.invoke(&json!({"action": action})).await;
        assert!(answer.is_error, "{answer:?}");
        assert_eq!(answer.body["errorType"], "InvalidInvocation");
        let message = answer.body["errorMessage"].as_str().unwrap();
        for says in [action, "drain, stats", "TIDEGATE_ACTIONS"] {
            assert!(message.contains(says), "{message}");
        }
    }
    report(function.api.invoke(fixture("scheduled.json"), AMPLE).await);
    let stats = function.invoke(&json!({"action": "stats"})).await;
    assert!(!stats.is_error, "{stats:?}");
}

// what operators ask for

/// Invocations, and the commands that print the same.
const LOOKS: &str = r#"
    {"action": "show", "id": 1} => show 1
    {"action": "list"} => list
    {"action": "list", "status": "pending", "limit": 2, "before": 5, "since": "1h"} => list --status pending --limit 2 --before 5 --since 1h
    {"action": "failures", "since": "1h", "limit": 3} => failures --since 1h --limit 3
    {"action": "blocked_groups"} => blocked-groups
    {"action": "leases", "limit": 1} => leases --limit 1
    {"action": "services"} => services
    {"action": "schedules"} => schedules
    {"action": "retention"} => retention
    {"action": "retention", "kind": "case_opened"} => retention case_opened
"#;

#[tokio::test]
async fn f6_what_operators_look_at_is_answered_as_the_command_line_prints_it() {
    let (db, client) = support::opened().await;
    publish_views(&client, 3).await;
    let groups = "SELECT tidegate.publish('case_opened', '{}', group_key => 'g') FROM generate_series(1, 2);
         UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 h' WHERE id = 4;
         INSERT INTO tidegate.service (service, state, failures) VALUES ('cases', 'paused', 2);
         INSERT INTO tidegate.schedule (keeper, name, kind, cron) VALUES ('p', 'daily', 'case_opened', '@daily')";
    client.batch_execute(groups).await.unwrap();
    support::lease_away(&client, &[2, 3], 3600.0).await;
    let function = Function::on(&db, &[]).await;
    for (request, arguments) in rows(LOOKS) {
        let request: Value = serde_json::from_str(request).unwrap();
        let answer = function.invoke(&request).await;
        assert!(!answer.is_error, "{request}: {answer:?}");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let printed = Cli::on(&db).json(&arguments).await;
        assert_eq!(answer.body, printed, "{request}");
        assert_eq!(answer.body["action"], request["action"]);
    }
    let found = function.invoke(&json!({"action": "doctor"})).await.body;
    has(&found, &json!({"action": "doctor", "ok": false}));
    let mut checks = found["checks"].as_array().unwrap().iter();
    assert!(checks.any(|check| check["name"] == "services" && check["state"] == "warning"));
    let unknown = function.invoke(&json!({"action": "show", "id": 987})).await;
    let message = unknown.body["errorMessage"].as_str().unwrap();
    assert!(
        unknown.is_error && message.contains("event 987 is unknown"),
        "{message}"
    );
}

/// What operators may do, each with fields of the answer.
const DEEDS: &str = r#"
    {"action": "pause", "kind": "case_opened"} => {"paused": true}
    {"action": "resume", "kind": "case_opened"} => {"paused": false}
    {"action": "service", "name": "cases", "pause": true} => {"state": "paused"}
    {"action": "service", "name": "cases", "resume": true} => {"state": "closed"}
    {"action": "unblock", "group": "g", "cancel": true} => {"id": 1}
    {"action": "reschedule", "ids": [2], "delay": "1h"} => {"rescheduled": 1}
    {"action": "cancel", "kind": "case_opened"} => {"cancelled": 1}
    {"action": "forget", "ids": [1]} => {"forgotten": 1}
    {"action": "retire", "kind": "parcel_lost"} => {"kind": "parcel_lost"}
    {"action": "retention", "kind": "case_opened", "failed": "1d"} => {}
    {"action": "schedule", "name": "hourly", "pause": true} => {"paused": true}
"#;

#[tokio::test]
async fn f6_what_operators_do_is_done_and_leaves_who_said_to_ask_and_why_in_the_audit() {
    let (db, client) = support::opened().await;
    let events =
        "SELECT tidegate.publish('case_opened', '{}', group_key => 'g') FROM generate_series(1, 2);
                  INSERT INTO tidegate.event_kind (kind) VALUES ('parcel_lost');
                  INSERT INTO tidegate.schedule (keeper, name, kind, every) VALUES ('p', 'hourly', 'case_opened', '1 hour')";
    client.batch_execute(events).await.unwrap();
    let function = Function::on(&db, &[("TIDEGATE_ACTOR", "on call")]).await;
    for (request, fields) in rows(DEEDS) {
        let mut request: Value = serde_json::from_str(request).unwrap();
        request["reason"] = json!("because");
        let answer = function.invoke(&request).await;
        assert!(!answer.is_error, "{request}: {answer:?}");
        has(&answer.body, &serde_json::from_str(fields).unwrap());
    }
    let named =
        json!({"action": "pause", "kind": "case_opened", "actor": "ada", "reason": "because"});
    assert!(!function.invoke(&named).await.is_error);
    let audit = "SELECT string_agg(DISTINCT action, ' ' ORDER BY action) FROM tidegate.audit
                  WHERE reason = 'because' AND actor = $1";
    let actions = async |actor: &str| -> Option<String> {
        client.query_one(audit, &[&actor]).await.unwrap().get(0)
    };
    assert_eq!(
        actions("on call").await.unwrap(),
        "cancel forget pause pause_schedule pause_service reschedule resume resume_service retire set_retention unblock"
    );
    assert_eq!(actions("ada").await.unwrap(), "pause");
}

#[tokio::test]
async fn f6_what_is_too_long_for_an_answer_is_refused_and_says_how_to_ask_for_less() {
    let (db, client) = support::opened().await;
    let long = "INSERT INTO tidegate.event_queue (kind, payload) VALUES ('case_opened', to_json(repeat('x', 1000000)));
         UPDATE tidegate.event_queue SET errors = (SELECT jsonb_agg(jsonb_build_object('attempt', n, 'message', repeat('ä', 4000)))
                                                    FROM generate_series(1, 1000) AS n);
         INSERT INTO tidegate.event_queue (kind, correlation_id, group_key)
         SELECT 'case_opened', repeat('ä', 200), repeat('ö', 200) FROM generate_series(1, 10000)";
    client.batch_execute(long).await.unwrap();
    let function = Function::on(&db, &[]).await;
    for (asked, says) in [
        (
            json!({"action": "list", "limit": 10_000}),
            "`before` asks for the next page",
        ),
        (
            json!({"action": "show", "id": 1}),
            "the command line shows an event of any size",
        ),
    ] {
        let answer = function.invoke(&asked).await;
        assert_eq!(answer.body["errorType"], "InvalidInvocation", "{asked}");
        let message = answer.body["errorMessage"].as_str().unwrap();
        contains(message, "limit: must be lower");
        contains(message, says);
    }
    let (mut next, mut seen) = (Value::Null, 0);
    loop {
        let asked = json!({"action": "list", "limit": 4000, "before": next});
        let page = function.invoke(&asked).await;
        assert!(!page.is_error, "{page:?}");
        seen += page.body["events"].as_array().unwrap().len();
        if page.body["next"].is_null() {
            break;
        }
        next = page.body["next"].clone();
    }
    assert_eq!(seen, 10_001, "each event is on one page");
}

#[tokio::test]
async fn i9_what_operators_look_at_is_answered_and_not_logged() {
    let (db, client) = support::opened().await;
    let events = "SELECT tidegate.publish('case_opened', '\"canary\"', group_key => 'canary') FROM generate_series(1, 2);
                  UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 h' WHERE id = 1";
    client.batch_execute(events).await.unwrap();
    let function = Function::on(&db, &[]).await;
    for asked in [
        json!({"action": "show", "id": 1}),
        json!({"action": "list"}),
        json!({"action": "blocked_groups"}),
        json!({"action": "unblock", "group": "canary", "retry": true, "reason": "r"}),
    ] {
        let answer = function.invoke(&asked).await.body.to_string();
        assert!(answer.contains("canary"), "{answer}");
    }
    let log = function.output();
    assert_eq!(log.matches("invocation answered").count(), 4, "{log}");
    assert!(!log.contains("canary"), "{log}");
}

#[tokio::test]
async fn settings_that_do_not_hold_fail_every_invocation_and_not_the_process() {
    let db = support::database().await;
    let on = ("DATABASE_URL", db.url.as_str());
    let late = "TIDEGATE_BATCH=10\nTIDEGATE_LEASE_TIMEOUT=soon";
    let actions = ("TIDEGATE_SETTINGS", "TIDEGATE_ACTIONS=drain,replay");
    let twice = "TIDEGATE_SETTINGS: TIDEGATE_ACTIONS is set elsewhere too";
    for (settings, says) in [
        (&[][..], "DATABASE_URL"),
        (&[on, ("TIDEGATE_BATCH", "0")], "TIDEGATE_BATCH"),
        (&[on, ("TIDEGATE_LOG", "=,=")], "TIDEGATE_LOG"),
        (&[on, ("TIDEGATE_HANDLER_TIMEOUT", "5m")], "handler timeout"),
        (&[on, ("TIDEGATE_SETTINGS", late)], "TIDEGATE_LEASE_TIMEOUT"),
        (&[on, actions, ("TIDEGATE_ACTIONS", "drain")], twice),
    ] {
        let function = Function::start(settings).await;
        for _ in 0..2 {
            let answer = function.invoke(&json!({"action": "drain"})).await;
            assert!(answer.is_error, "{answer:?}");
            assert_eq!(answer.body["errorType"], "Configuration");
            let message = answer.body["errorMessage"].as_str().unwrap();
            assert!(message.contains(says), "{message}");
        }
    }
}

#[tokio::test]
async fn an_unreachable_database_is_reported_and_the_next_invocation_tries_again() {
    let url = "postgres://postgres:secret-canary@127.0.0.1:1/nothing";
    let function = Function::start(&[("DATABASE_URL", url)]).await;
    for action in ["stats", "drain", "migrate"] {
        let deadline = Deadline::In(Duration::from_secs(10));
        let payload = json!({"action": action}).to_string();
        let answer = function.api.invoke(payload, deadline).await;
        assert!(answer.is_error, "{answer:?}");
        assert_eq!(
            answer.body["errorType"], "DatabaseUnreachable",
            "{answer:?}"
        );
        assert!(!answer.body.to_string().contains("canary"), "{answer:?}");
    }
    assert!(!format!("{:?}", function.log()).contains("canary"));
}

#[tokio::test]
async fn f2_a_drain_is_answered_before_the_deadline_and_gives_back_what_it_has_not_started() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    services.set("archive", Mode::Slow { delay_ms: 200 });
    let events = 300;
    publish_letters(&client, events).await;
    let function = Function::with_services(&db, &services, &[("TIDEGATE_CONCURRENCY", "1")]).await;
    let report = function.drain(Deadline::In(Duration::from_secs(5))).await;
    // Less what is kept for the answer and what a drain may overrun.
    assert!(report.budget_ms <= 3800, "{report:?}");
    assert_eq!(report.stop_reason, StopReason::BudgetSpent, "{report:?}");
    assert!(report.completed >= 1 && report.released >= 1, "{report:?}");
    let touched =
        "SELECT count(*) FROM tidegate.events WHERE attempts > 0 OR lease_token IS NOT NULL";
    let cut = i64::try_from(report.retried).unwrap();
    assert!(number(&client, touched).await <= cut, "{report:?}");
    let letters =
        "SELECT count(*) FROM tidegate.event_queue WHERE kind = 'external_letter_received'";
    let done = i64::try_from(report.published).unwrap();
    assert_eq!(
        number(&client, letters).await,
        i64::from(events) - done,
        "each letter that was handled published one event: {report:?}"
    );
}

#[tokio::test]
async fn an_action_without_a_budget_of_its_own_is_answered_before_the_deadline_too() {
    let (db, mut client) = support::opened().await;
    let function = Function::on(&db, &[]).await;
    let other = client.transaction().await.unwrap();
    execute(
        &other,
        "SELECT pg_advisory_xact_lock(1414087749, hashtext('tidegate') & 2147483647)",
    )
    .await;
    let brief = Deadline::In(Duration::from_secs(3));
    let answer = function.api.invoke(fixture("migrate.json"), brief).await;
    assert!(answer.is_error, "{answer:?}");
    assert_eq!(answer.body["errorType"], "RequestFailed");
    // Its own time was over, not that of a statement.
    let message = answer.body["errorMessage"].as_str().unwrap();
    assert!(message.contains("invocation"), "{message}");
    other.rollback().await.unwrap();
    let answer = function.api.invoke(fixture("migrate.json"), AMPLE).await;
    assert!(!answer.is_error, "{answer:?}");
}

#[tokio::test]
async fn f2_a_cleanup_whose_database_falls_silent_is_answered_before_the_deadline() {
    let db = support::database().await;
    let proxy = Proxy::before(&db.url).await;
    let url = proxy.url(db.name());
    let function = Function::start(&[("DATABASE_URL", &url)]).await;
    proxy.harm_when_said("tidegate.cleanup_step", Harm::Silence);
    let brief = Deadline::In(Duration::from_secs(3));
    let answer = function.api.invoke(fixture("cleanup.json"), brief).await;
    assert!(proxy.has_harmed() && answer.is_error, "{answer:?}");
    // Its own time was over, not that of a statement.
    let message = answer.body["errorMessage"].as_str().unwrap();
    assert!(message.contains("invocation"), "{message}");
}

#[tokio::test]
async fn f6_a_deadline_in_1970_as_emulators_send_it_leaves_the_configured_budget() {
    let (db, client) = support::opened().await;
    let function = Function::on(&db, &[("TIDEGATE_BUDGET", "7s")]).await;
    publish_views(&client, 2).await;
    let report = function.drain(Deadline::At(600)).await;
    assert_eq!((report.budget_ms, report.completed), (7000, 2));
    let report = function.drain(Deadline::In(Duration::from_secs(5))).await;
    assert!(report.budget_ms < 4000, "{report:?}");
}

#[tokio::test]
async fn f2_the_deadline_is_the_budget_unless_a_setting_says_another_one() {
    let db = support::database().await;
    let function = Function::on(&db, &[]).await;
    let quarter = Deadline::In(Duration::from_secs(895));
    let report = function.drain(quarter).await;
    assert!(
        (800_000..=892_000).contains(&report.budget_ms),
        "{report:?}"
    );
    assert_eq!(function.drain(Deadline::At(600)).await.budget_ms, 50_000);
    let shorter = Function::on(&db, &[("TIDEGATE_BUDGET", "9s")]).await;
    assert_eq!(shorter.drain(quarter).await.budget_ms, 9000);
}

#[tokio::test]
async fn a_stop_signal_during_a_drain_ends_it_and_its_answer_is_posted_before_the_process_goes() {
    let (db, _, services) = support::slow_letters(500).await;
    let mut function =
        Function::with_services(&db, &services, &[("TIDEGATE_CONCURRENCY", "1")]).await;
    let (report, ()) = tokio::join!(function.drain(AMPLE), async {
        wait_until("the drain is at work", async || {
            services.calls("archive").len() >= 2
        })
        .await;
        support::terminate(&function.process);
    });
    assert_eq!(report.stop_reason, StopReason::BudgetSpent);
    assert!(report.completed >= 1 && report.released >= 1, "{report:?}");
    let status = function.end().await;
    assert_eq!(status.code(), Some(0), "{}", function.errors());
}

#[tokio::test]
async fn an_idle_function_ends_at_once_on_a_stop_signal() {
    let db = support::database().await;
    let mut function = Function::on(&db, &[]).await;
    let answer = function.invoke(&json!({"action": "stats"})).await;
    assert!(!answer.is_error, "{answer:?}");
    support::terminate(&function.process);
    assert_eq!(function.end().await.code(), Some(0));
}

#[tokio::test]
async fn i9_the_log_is_json_lines_with_the_request_and_without_payloads() {
    let (db, client) = support::opened().await;
    let services = Services::start().await;
    let settings = [
        ("TIDEGATE_LOG", "debug"),
        ("TIDEGATE_BACKOFF_BASE", "0s"),
        ("TIDEGATE_METRICS", "emf"),
        ("AWS_LAMBDA_LOG_LEVEL", "WARN"),
    ];
    let function = Function::with_services(&db, &services, &settings).await;
    // One that completes, one that is refused, one whose answer quotes it, one that does not decode, one of a
    // form that is not there.
    for mode in [Mode::Up, Mode::Refuse { status: 422 }, Mode::Echo] {
        services.set("archive", mode);
        publish_letters(&client, 1).await;
        function.drain(AMPLE).await;
    }
    // Of other kinds: that one waits for the archive now.
    let undecodable = "SELECT tidegate.publish('grant_letter_viewed', '\"canary\"')";
    client.batch_execute(undecodable).await.unwrap();
    let unknown = "SELECT tidegate.publish('form_archived', '{\"form_id\": \"f1\", \"document_id\": \"canary\", \"journal_id\": \"canary\"}')";
    client.batch_execute(unknown).await.unwrap();
    function.drain(AMPLE).await;
    function.invoke(&json!({"action": "explode"})).await;
    let ended = number(&client, "SELECT count(*) FROM tidegate.event_log").await;
    assert!(ended >= 4, "{ended}");
    let log = function.log();
    let (metrics, lines): (Vec<&Value>, _) = log.iter().partition(|line| line["_aws"].is_object());
    // Below the level that it names, Lambda drops what has no level of its own.
    assert!(metrics.iter().all(|line| line["level"] == "WARN") && metrics.len() >= 4);
    let ours = lines
        .into_iter()
        .filter(|line| line["target"].as_str().unwrap().starts_with("tidegate"));
    let ours: Vec<&Value> = ours.chain(metrics).collect();
    let is_failure =
        |line: &&Value| line["level"] == "ERROR" && line.to_string().contains("explode");
    let failed = log.iter().filter(is_failure);
    assert_eq!(failed.count(), 1, "a failure is one line");
    let reads = |line: &&&Value| line["report"]["leased"].is_u64();
    assert!(ours.iter().filter(reads).count() >= 4);
    for message in [
        "invocation answered",
        "invocation failed",
        "event completed",
        "event rejected by a handler",
        "event failed for good",
    ] {
        assert!(
            ours.iter().any(|line| line["message"] == message),
            "{message}: {log:?}"
        );
    }
    for line in ours {
        assert!(line["timestamp"].is_string() && line["level"].is_string());
        let request = line["requestId"].as_str();
        assert!(
            request.is_some_and(|id| id.starts_with("request-")),
            "{line}"
        );
    }
    assert!(!Value::from(log).to_string().contains("canary"));
    assert_eq!(function.errors(), "");
}
