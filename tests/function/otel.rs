//! Exports to an OpenTelemetry collector. The test's receiver decodes them with the published messages.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use crate::collector::{AMPLE_TIMEOUT, Collector, Manner, Received, attributes, hex, telemetry};
use crate::support::cli::Cli;
use crate::support::function::fixture;
use crate::support::function::{AMPLE, Function};
use crate::support::probe::{
    ProbeApp, act, drain, live, options, pair, probe, probe_database, publish_acts,
};
use crate::support::services::Services;
use crate::support::{
    self, TestDb, aws_variables, publish_views, terminate, use_job, wait_until, words,
};
use hmac::{Hmac, KeyInit, Mac};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;
use sha2::{Digest, Sha256};
use tidegate::chain::Chain;
use tidegate::trace::{TraceContext, current, within};
use tidegate::{Done, DrainOptions, HandlerError, Hooks, drain_with};
use tidegate_admin::{Audit, ReplayRequest, Verb};
use tidegate_core::queue;
use tidegate_job::http::{self, Access};
use tidegate_otel::Telemetry;
use tokio::net::TcpListener;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_ID: &str = "00f067aa0ba902b7";

fn one_by_one() -> DrainOptions {
    DrainOptions {
        concurrency: 1,
        ..options()
    }
}

/// Runs `work` and sends the spans that it records, as a shell does.
async fn recorded<T>(telemetry: Telemetry, work: impl Future<Output = T>) -> T {
    let _here = collecting(&telemetry);
    telemetry.recorded(work, || None).await
}

/// Collects the spans of this thread and of the drains that it starts.
fn collecting(telemetry: &Telemetry) -> DefaultGuard {
    // Spans that the only subscriber of a process wants also exist for threads without one.
    static OF_OTHERS: Once = Once::new();
    OF_OTHERS.call_once(|| {
        let nothing = tracing_subscriber::registry().with(LevelFilter::OFF);
        tracing::subscriber::set_global_default(nothing).unwrap();
    });
    let levels = Targets::new().with_default(LevelFilter::INFO);
    let logs = tracing_subscriber::registry().with(telemetry.layer("it", levels));
    tracing::subscriber::set_default(logs)
}

/// An application whose handlers act as the event's name says.
fn obedient() -> std::sync::Arc<ProbeApp> {
    ProbeApp::new(|call, ctx| {
        Box::pin(async move {
            match (call.name.as_str(), call.attempt) {
                ("first", _) => ctx.emit(&act("second"))?,
                ("again", 1) => return Err(HandlerError::retry("busy", "canary")),
                ("reject", _) => return Err(HandlerError::reject("409", "canary")),
                _ => {}
            }
            Ok(Done::ok())
        })
    })
}

fn ids(span: &Span) -> (String, String) {
    (hex(&span.trace_id), hex(&span.span_id))
}

fn links(span: &Span) -> Vec<(String, String)> {
    let links = span.links.iter();
    links
        .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
        .collect()
}

fn kind(span: &Span) -> SpanKind {
    SpanKind::try_from(span.kind).unwrap()
}

fn said(span: &Span) -> BTreeMap<String, String> {
    attributes(&span.attributes)
}

fn has_failed(span: &Span) -> bool {
    let status = span.status.as_ref();
    status.is_some_and(|status| status.code() == StatusCode::Error)
}

#[tokio::test]
async fn a_recorded_event_is_publish_process_and_handlers_below_each_other() {
    let (db, client) = probe().await;
    let collector = Collector::start(Manner::Takes).await;
    let telemetry = collector.telemetry("0");
    let event = pair("first").traceparent(SAMPLED);
    let published = recorded(telemetry.clone(), queue::publish(&client, &event)).await;
    let id = published.unwrap().id;
    let publish = collector.one("publish pair");
    assert_eq!(hex(&publish.trace_id), TRACE_ID);
    assert_eq!(hex(&publish.parent_span_id), PARENT_ID);
    assert_eq!(kind(&publish), SpanKind::Producer);
    assert_eq!(said(&publish)["messaging.operation.type"], "send");
    assert_eq!(said(&publish)["messaging.message.id"], id.to_string());

    recorded(telemetry, drain(&db, &obedient(), &one_by_one())).await;
    let process = collector.one("process pair");
    assert_eq!(process.trace_id, publish.trace_id);
    assert_eq!(process.parent_span_id, publish.span_id);
    assert_eq!(kind(&process), SpanKind::Consumer);
    let whole = collector.one("drain");
    assert_eq!(links(&process), [ids(&whole)]);
    let found = said(&process);
    for (key, value) in [
        ("messaging.system", "tidegate"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
        ("messaging.destination.name", "pair"),
        ("messaging.message.id", &id.to_string()),
        ("tidegate.attempt", "1"),
        ("tidegate.outcome", "completed"),
    ] {
        assert_eq!(found[key], value, "{key}");
    }
    assert!(found.contains_key("tidegate.waited_ms"));
    assert!(!has_failed(&process));
    for name in ["first", "second"] {
        let handler = collector.one(name);
        assert_eq!(handler.parent_span_id, process.span_id);
        assert_eq!(kind(&handler), SpanKind::Internal);
        assert_eq!(said(&handler)["tidegate.handler"], name);
        assert!(process.start_time_unix_nano <= handler.start_time_unix_nano);
        assert!(handler.start_time_unix_nano <= handler.end_time_unix_nano);
    }
}

#[tokio::test]
async fn what_a_handler_emits_and_publishes_itself_stands_below_it() {
    let (db, client) = probe().await;
    queue::publish(&client, &act("first").traceparent(SAMPLED))
        .await
        .unwrap();
    let collector = Collector::start(Manner::Takes).await;
    let database = db.database();
    let app = ProbeApp::new(move |call, ctx| {
        let database = database.clone();
        Box::pin(async move {
            if call.name == "first" {
                assert_ne!(
                    current().as_ref(),
                    ctx.trace(),
                    "a handler has its own place"
                );
                ctx.emit(&act("second"))?;
                let client = database.connect().await.unwrap();
                queue::publish(&client, &pair("third")).await.unwrap();
            }
            Ok(Done::ok())
        })
    });
    recorded(collector.telemetry("0"), drain(&db, &app, &one_by_one())).await;
    let processes = collector.named("process act");
    let (first, second) = (&processes[0], &processes[1]);
    let emitted = collector.one("publish act");
    assert_eq!(emitted.parent_span_id, first.span_id);
    assert_eq!(second.parent_span_id, emitted.span_id);
    let published = collector.one("publish pair");
    let acts = collector.named("act");
    let handler = acts
        .iter()
        .find(|span| span.parent_span_id == first.span_id);
    assert_eq!(published.parent_span_id, handler.unwrap().span_id);
    let seen = collector.one("process pair").parent_span_id;
    assert_eq!(seen, published.span_id);
    for span in collector.spans().iter().filter(|span| span.name != "drain") {
        assert_eq!(hex(&span.trace_id), TRACE_ID, "{span:?}");
    }
}

#[tokio::test]
async fn a_later_attempt_and_a_replay_begin_traces_that_link_to_the_publish() {
    let (db, client) = probe().await;
    let event = act("again").traceparent(SAMPLED);
    let id = queue::publish(&client, &event).await.unwrap().id;
    let collector = Collector::start(Manner::Takes).await;
    let lingering = DrainOptions {
        linger: Duration::from_millis(500),
        ..one_by_one()
    };
    let telemetry = collector.telemetry("0");
    recorded(telemetry.clone(), drain(&db, &obedient(), &lingering)).await;
    let request = ReplayRequest {
        ids: Some(vec![id]),
        audit: Audit::of("once more").by("ada"),
        ..ReplayRequest::default()
    };
    let replayed = request.on(&client).await.unwrap();
    assert_eq!(replayed.replayed, 1, "{replayed:?}");
    recorded(telemetry, drain(&db, &obedient(), &lingering)).await;
    let found = collector.named("process act");
    let outcomes: Vec<_> = found
        .iter()
        .map(|span| said(span)["tidegate.outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["retried", "completed", "retried", "completed"]);
    let publish = (TRACE_ID.to_owned(), PARENT_ID.to_owned());
    assert_eq!(hex(&found[0].parent_span_id), PARENT_ID);
    assert!(!links(&found[0]).contains(&publish));
    assert_eq!(said(&found[0])["error.type"], "busy");
    assert!(has_failed(&found[0]));
    for span in &found[1..] {
        assert!(span.parent_span_id.is_empty(), "{span:?}");
        assert_ne!(hex(&span.trace_id), TRACE_ID);
        assert!(links(span).contains(&publish), "{span:?}");
    }
    assert_ne!(said(&found[2])["messaging.message.id"], id.to_string());
}

#[tokio::test]
async fn a_share_of_drains_records_what_nobody_decides_on() {
    let (db, client) = probe().await;
    for (ratio, expected) in [("0", 0), ("1", 3)] {
        publish_acts(&client, 3).await;
        let collector = Collector::start(Manner::Takes).await;
        let report = recorded(
            collector.telemetry(ratio),
            drain(&db, &obedient(), &one_by_one()),
        )
        .await;
        assert_eq!(report.completed, 3);
        let found = collector.named("process act");
        assert_eq!(found.len(), expected, "{ratio}");
        if ratio == "0" {
            assert!(collector.exports().is_empty());
            continue;
        }
        let whole = collector.one("drain");
        assert_eq!(kind(&whole), SpanKind::Internal);
        assert!(whole.parent_span_id.is_empty());
        assert_eq!(said(&whole)["tidegate.completed"], "3");
        assert_eq!(said(&whole)["tidegate.stop_reason"], "queue_empty");
        for span in &found {
            let seen = (&span.trace_id, &span.parent_span_id);
            assert_eq!(seen, (&whole.trace_id, &whole.span_id));
        }
        for (name, operation) in [
            ("receive tidegate", "receive"),
            ("settle tidegate", "settle"),
        ] {
            let spans = collector.named(name);
            let counts = spans
                .iter()
                .map(|span| said(span)["messaging.batch.message_count"].clone());
            let count: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
            assert_eq!(count, 3, "{name}");
            for span in &spans {
                assert_eq!(kind(span), SpanKind::Client);
                assert_eq!(span.parent_span_id, whole.span_id);
                assert_eq!(said(span)["messaging.operation.type"], operation);
            }
        }
    }
}

#[tokio::test]
async fn outside_of_the_sample_what_goes_wrong_is_one_span_and_the_rest_none() {
    let (db, client) = probe().await;
    for name in ["fine", "first", "reject"] {
        let event = act(name).traceparent(UNSAMPLED);
        queue::publish(&client, &event).await.unwrap();
    }
    queue::publish(&client, &act("reject")).await.unwrap();
    let collector = Collector::start(Manner::Takes).await;
    let report = recorded(
        collector.telemetry("0"),
        drain(&db, &obedient(), &one_by_one()),
    )
    .await;
    assert_eq!((report.completed, report.completed_with_errors), (3, 2));
    let mut names: Vec<_> = collector
        .spans()
        .into_iter()
        .map(|span| span.name)
        .collect();
    names.sort();
    assert_eq!(names, ["drain", "process act", "process act"]);
    let found = collector.named("process act");
    assert_eq!(hex(&found[0].trace_id), TRACE_ID);
    assert_eq!(hex(&found[0].parent_span_id), PARENT_ID);
    assert!(found[1].parent_span_id.is_empty());
    for span in found {
        assert!(has_failed(&span));
        assert_eq!(said(&span)["error.type"], "409");
        assert_eq!(said(&span)["tidegate.outcome"], "completed_with_errors");
    }
}

#[tokio::test]
async fn an_event_that_no_handler_sees_is_recorded() {
    let (db, client) = probe().await;
    let late = act("late")
        .start_within(Duration::from_millis(1))
        .traceparent(SAMPLED);
    queue::publish(&client, &late).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let collector = Collector::start(Manner::Takes).await;
    let report = recorded(
        collector.telemetry("0"),
        drain(&db, &obedient(), &one_by_one()),
    )
    .await;
    assert_eq!(report.expired, 1);
    let span = collector.one("process act");
    assert_eq!(hex(&span.parent_span_id), PARENT_ID);
    assert_eq!(said(&span)["error.type"], "expired");
    assert!(has_failed(&span));
}

#[tokio::test]
async fn work_under_no_trace_begins_one_as_often_as_the_ratio_says() {
    let (_db, client) = probe().await;
    let collector = Collector::start(Manner::Takes).await;
    for (ratio, expected) in [("0", 0), ("1", 1)] {
        let event = act("one");
        let publishing = queue::publish(&client, &event);
        let telemetry = collector.telemetry(ratio);
        recorded(telemetry, publishing).await.unwrap();
        assert_eq!(collector.spans().len(), expected);
    }
    let publish = collector.one("publish act");
    assert!(publish.parent_span_id.is_empty());
    // An unsampled trace stays unsampled.
    let telemetry = collector.telemetry("1");
    within(TraceContext::parse(UNSAMPLED), async {
        let batch = [act("two"), pair("three")];
        let publishing = queue::publish_batch(&client, &batch);
        recorded(telemetry.clone(), publishing).await.unwrap();
    })
    .await;
    assert_eq!(collector.spans().len(), 1);
    let batch = [act("two"), pair("three")];
    let publishing = queue::publish_batch(&client, &batch);
    recorded(telemetry, publishing).await.unwrap();
    let span = collector.one("publish tidegate");
    assert_eq!(said(&span)["messaging.batch.message_count"], "2");
}

#[tokio::test]
async fn a_drain_that_another_has_started_links_to_it() {
    let db = probe_database().await;
    let collector = Collector::start(Manner::Takes).await;
    let (options, telemetry) = (one_by_one(), collector.telemetry("1"));
    let first = Chain::begin();
    for hop in [0, 1] {
        let hooks = Hooks {
            chain: Some(Chain { hop, ..first }),
            ..Hooks::default()
        };
        let database = db.database();
        let draining = drain_with(&database, obedient(), &options, hooks);
        recorded(telemetry.clone(), draining).await.unwrap();
    }
    let found = collector.named("drain");
    assert_eq!(links(&found[0]), []);
    assert_eq!(links(&found[1]), [ids(&found[0])]);
    assert_ne!(found[0].trace_id, found[1].trace_id);
}

#[tokio::test]
async fn i9_no_payload_group_or_word_of_a_handler_leaves() {
    let (db, client) = probe().await;
    let event = act("canary")
        .group("canary")
        .correlation("canary")
        .dedup("canary");
    queue::publish(&client, &event.traceparent(SAMPLED).max_attempts(2))
        .await
        .unwrap();
    let app = ProbeApp::doing(|call| async move {
        assert_eq!(call.attempt, 1, "canary");
        Err(HandlerError::retry("down", "canary"))
    });
    let collector = Collector::start(Manner::Takes).await;
    let lingering = DrainOptions {
        linger: Duration::from_millis(500),
        ..one_by_one()
    };
    let draining = drain(&db, &app, &lingering);
    let report = recorded(collector.telemetry("1"), draining).await;
    assert_eq!((report.retried, report.failed), (1, 1), "{report:?}");
    assert_eq!(collector.named("process act").len(), 2);
    for Received { path, body, .. } in collector.received() {
        let found = body.windows(6).any(|bytes| bytes == b"canary");
        assert!(!found, "{path}: {}", String::from_utf8_lossy(&body));
    }
}

#[tokio::test]
async fn correlation_ids_are_shown_when_they_are_enabled() {
    let (db, client) = probe().await;
    let event = act("one").correlation("order-7").traceparent(SAMPLED);
    queue::publish(&client, &event).await.unwrap();
    let collector = Collector::start(Manner::Takes).await;
    let telemetry = collector.telemetry_with(&[("TIDEGATE_TRACE_CORRELATION", "on")]);
    recorded(telemetry, drain(&db, &obedient(), &one_by_one())).await;
    let span = collector.one("process act");
    assert_eq!(said(&span)["messaging.message.conversation_id"], "order-7");
}

#[tokio::test]
async fn spans_are_of_who_is_named_in_the_standard_variables() {
    let db = support::database().await;
    let collector = Collector::start(Manner::Takes).await;
    let further = [
        ("OTEL_SERVICE_NAME", "grants"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test",
        ),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20canary"),
    ];
    let function = Function::on(&db, &patiently(&collector.url(), &further)).await;
    function.drain(AMPLE).await;
    let export = &collector.exports()[0].resource_spans[0];
    let named = attributes(&export.resource.as_ref().unwrap().attributes);
    assert_eq!(named["service.name"], "grants");
    assert_eq!(named["deployment.environment.name"], "test");
    let scope = &export.scope_spans[0];
    assert_eq!(scope.scope.as_ref().unwrap().name, "tidegate");
    assert!(scope.schema_url.ends_with("/1.44.0"));
    for request in collector.received() {
        assert_eq!(request.headers["authorization"], "Basic canary");
    }
}

#[tokio::test]
async fn a_collector_that_is_dead_slow_or_broken_costs_no_event() {
    let (db, client) = probe().await;
    let slow = Collector::start(Manner::Hangs).await;
    let broken = Collector::start(Manner::Fails).await;
    let gone = Collector::start(Manner::Takes).await.url();
    for url in [
        slow.url(),
        broken.url(),
        gone,
        "http://192.0.2.1:4318".to_owned(),
    ] {
        publish_acts(&client, 20).await;
        let telemetry = telemetry(&url, &[("TIDEGATE_TRACE_RATIO", "1")]);
        let report = recorded(telemetry, drain(&db, &obedient(), &one_by_one())).await;
        assert_eq!((report.leased, report.completed), (20, 20), "{url}");
        assert_eq!(live(&client).await, 0);
    }
}

fn variables<'a>(url: &'a str, further: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let own = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("TIDEGATE_TRACE_RATIO", "1"),
    ];
    [&own, further].concat()
}

/// The same for a test that waits for the export to arrive.
fn patiently<'a>(url: &'a str, further: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    variables(url, &[further, &[AMPLE_TIMEOUT]].concat())
}

#[tokio::test]
async fn everything_has_arrived_when_the_function_answers() {
    let db = support::database().await;
    publish_views(&db.client().await, 3).await;
    let collector = Collector::start(Manner::Takes).await;
    let function = Function::on(&db, &patiently(&collector.url(), &[])).await;
    for round in 1..=2 {
        function.drain(AMPLE).await;
        let drains = collector.named("drain");
        assert_eq!(drains.len(), round);
        let said = said(&drains[round - 1]);
        assert_eq!(said["faas.coldstart"], (round == 1).to_string());
        assert_eq!(said["faas.trigger"], "other");
        assert!(!said["faas.invocation_id"].is_empty());
    }
    assert_eq!(collector.named("process grant_letter_viewed").len(), 3);
    let export = &collector.exports()[0].resource_spans[0];
    let named = attributes(&export.resource.as_ref().unwrap().attributes);
    assert_eq!(named["service.name"], "tidegate-function");
    assert_eq!(named["cloud.provider"], "aws");
    // The message of a schedule.
    let tick = json!({"source": "aws.scheduler", "detail-type": "Scheduled Event"});
    assert!(!function.invoke(&tick).await.is_error);
    assert_eq!(said(&collector.named("drain")[2])["faas.trigger"], "timer");
}

#[tokio::test]
async fn what_is_lost_is_counted_in_the_log() {
    let (db, client) = support::opened().await;
    let gone = Collector::start(Manner::Takes).await.url();
    let slow = Collector::start(Manner::Hangs).await;
    let broken = Collector::start(Manner::Fails).await;
    let ample = &[AMPLE_TIMEOUT][..];
    for (url, timeout, reason) in [
        (gone, ample, "Connection refused"),
        (slow.url(), &[], "no answer within 500ms"),
        (broken.url(), ample, "status code: 500"),
    ] {
        publish_views(&client, 3).await;
        let metrics = [("TIDEGATE_METRICS", "emf"), ("TIDEGATE_METRICS_QUEUE", "q")];
        let settings = [timeout, &metrics].concat();
        let function = Function::on(&db, &variables(&url, &settings)).await;
        let report = function.drain(AMPLE).await;
        assert!(report.completed >= 3, "{report:?}");
        let log = function.log();
        let lines: Vec<_> = log
            .iter()
            .filter(|line| line["message"] == "telemetry dropped")
            .collect();
        assert_eq!(lines.len(), 1, "{log:?}");
        let dropped = &lines[0]["spans_dropped"];
        assert!(dropped.as_u64() > Some(3), "{lines:?}");
        let counted: Vec<_> = log
            .iter()
            .filter_map(|line| line.get("SpansDropped"))
            .collect();
        assert_eq!(counted, [dropped], "{log:?}");
        let text = lines[0]["reason"].as_str().unwrap();
        assert!(text.contains(reason), "{text}");
        assert!(!text.contains("127.0.0.1"), "{text}");
    }
}

#[tokio::test]
async fn many_events_are_no_more_spans_than_may_be_kept() {
    let (db, client) = probe().await;
    publish_acts(&client, 2500).await;
    queue::publish(&client, &act("reject")).await.unwrap();
    let collector = Collector::start(Manner::Takes).await;
    let report = recorded(
        collector.telemetry("1"),
        drain(&db, &obedient(), &one_by_one()),
    )
    .await;
    assert_eq!((report.completed, report.completed_with_errors), (2500, 1));
    assert!(collector.spans().len() <= 2048);
    assert_eq!(collector.exports().len(), 1, "one request");
    collector.one("drain");
    let failed = collector
        .named("process act")
        .into_iter()
        .filter(has_failed);
    assert_eq!(failed.count(), 1, "what went wrong is not crowded out");
}

#[tokio::test]
async fn a_function_without_settings_sends_nothing() {
    let db = support::database().await;
    publish_views(&db.client().await, 1).await;
    let collector = Collector::start(Manner::Takes).await;
    let url = collector.url();
    let off = variables(&url, &[("OTEL_SDK_DISABLED", "true")]);
    let function = Function::on(&db, &off).await;
    function.drain(AMPLE).await;
    assert!(collector.received().is_empty());
}

#[tokio::test]
async fn a_stopped_drain_sends_its_spans() {
    let (db, client) = support::opened().await;
    publish_views(&client, 3).await;
    let collector = Collector::start(Manner::Takes).await;
    let mut process = support::command("tidegate")
        .args(["drain", "--json", "--linger", "10m", "--budget", "10m"])
        .env("DATABASE_URL", &db.url)
        .envs(patiently(&collector.url(), &[]))
        .spawn()
        .unwrap();
    wait_until("the queue is empty", async || live(&client).await == 0).await;
    terminate(&process);
    let ended = support::ended("the drain", process.wait()).await.unwrap();
    assert!(ended.success());
    let whole = collector.one("drain");
    assert_eq!(said(&whole)["tidegate.stop_reason"], "budget_spent");
    assert_eq!(collector.named("process grant_letter_viewed").len(), 3);
}

#[tokio::test]
async fn a_failed_drain_is_recorded_as_failed() {
    let db = support::database().await;
    publish_views(&db.client().await, 1).await;
    db.client()
        .await
        .batch_execute("DROP FUNCTION tidegate.lease")
        .await
        .unwrap();
    let collector = Collector::start(Manner::Takes).await;
    let function = Function::on(&db, &patiently(&collector.url(), &[])).await;
    let answer = function.invoke(&json!({"action": "drain"})).await;
    assert!(answer.is_error, "{answer:?}");
    assert!(has_failed(&collector.one("drain")));
}

/// Whether a request is signed with the key from [`aws_variables`].
/// <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>
fn verify(request: &Received, service: &str) {
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let authorization = header("authorization");
    let fields = authorization.strip_prefix("AWS4-HMAC-SHA256 ").unwrap();
    let fields: BTreeMap<&str, &str> = fields
        .split(", ")
        .map(|field| field.split_once('=').unwrap())
        .collect();
    let date = header("x-amz-date");
    let scope = format!("{}/eu-central-1/{service}/aws4_request", &date[..8]);
    assert_eq!(fields["Credential"], format!("AKIDEXAMPLE/{scope}"));
    let signed = fields["SignedHeaders"];
    assert!(signed.split(';').any(|name| name == "host"), "{signed}");
    let headers: Vec<_> = signed
        .split(';')
        .map(|name| format!("{name}:{}\n", header(name).trim()))
        .collect();
    let canonical = format!(
        "POST\n{}\n\n{}\n{signed}\n{}",
        request.path,
        headers.concat(),
        hex(&Sha256::digest(&request.body))
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hex(&Sha256::digest(canonical.as_bytes()))
    );
    let mac = |key: &[u8], text: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    };
    let key = mac(b"AWS4canary-of-aws", &date[..8]);
    let key = mac(&mac(&mac(&key, "eu-central-1"), service), "aws4_request");
    assert_eq!(fields["Signature"], hex(&mac(&key, &text)));
}

#[tokio::test]
async fn x_ray_takes_signed_requests_and_the_secret_stays_here() {
    let db = support::database().await;
    publish_views(&db.client().await, 1).await;
    let collector = Collector::start(Manner::Takes).await;
    let cli = signing(&db)
        .with("TIDEGATE_XRAY", "on")
        .with("AWS_ENDPOINT_URL_XRAY", &collector.url());
    let report = cli.drain(&[]).await;
    assert!(report.completed >= 1, "{report:?}");
    let received = collector.received();
    assert_eq!(received.len(), 1);
    verify(&received[0], "xray");
    assert!(!format!("{:?}", received[0].headers).contains("canary"));
    collector.one("process grant_letter_viewed");
}

#[tokio::test]
async fn every_host_of_aws_takes_signed_requests() {
    let db = support::database().await;
    let collector = Collector::start(Manner::Takes).await;
    let traces = "http://monitoring.eu-central-1.amazonaws.com/v1/traces";
    // Here such a host is reached through a proxy, which sees the whole request.
    let cli = signing(&db)
        .with("HTTP_PROXY", &collector.url())
        .with("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces);
    cli.drain(&[]).await;
    let received = collector.received();
    assert_eq!(received.len(), 1);
    let expected = "monitoring.eu-central-1.amazonaws.com";
    assert_eq!(received[0].headers["host"], expected);
    verify(&received[0], "monitoring");
}

/// The program with AWS's credentials, and every drain recorded.
fn signing(db: &TestDb) -> Cli {
    let cli = Cli::on(db).with_all(aws_variables());
    cli.with("TIDEGATE_TRACE_RATIO", "1")
        .with(AMPLE_TIMEOUT.0, AMPLE_TIMEOUT.1)
}

#[tokio::test]
async fn the_command_line_records_its_publish_under_the_trace_of_its_environment() {
    let db = support::database().await;
    let collector = Collector::start(Manner::Takes).await;
    let cli = patiently(&collector.url(), &[])
        .into_iter()
        .fold(Cli::on(&db), |cli, (name, value)| cli.with(name, value))
        .with("TRACEPARENT", SAMPLED);
    let publish = "publish grant_letter_viewed --payload '{\"grant_number\": \"G-1\"}'";
    cli.json(&words(publish)).await;
    let publish = collector.one("publish grant_letter_viewed");
    assert_eq!(hex(&publish.parent_span_id), PARENT_ID);
    let services = Services::start().await;
    cli.with_services(&services).drain(&[]).await;
    let process = collector.one("process grant_letter_viewed");
    assert_eq!(process.parent_span_id, publish.span_id);
}

#[tokio::test]
async fn what_a_bearer_brings_is_recorded_before_it_is_answered() {
    let db = support::database().await;
    let collector = Collector::start(Manner::Takes).await;
    let receiving = [("TIDEGATE_ACTIONS", "receive")];
    let function = Function::on(&db, &patiently(&collector.url(), &receiving)).await;
    let answer = function.invoke(&fixture("eventbridge.json")).await;
    assert_eq!(answer.body["received"], 1, "{answer:?}");
    let publish = collector.one("publish grant_letter_viewed");
    let stored = stored(&db).await;
    assert_eq!(stored.trace_id(), hex(&publish.trace_id));
    assert_eq!(stored.span_id(), hex(&publish.span_id));
}

#[tokio::test]
async fn a_request_over_http_is_recorded_under_the_trace_of_its_header() {
    let db = support::database().await;
    let collector = Collector::start(Manner::Takes).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = http::router(db.database(), Access::open());
    let telemetry = collector.telemetry("0");
    let _here = collecting(&telemetry);
    let router = http::recording(router, Some(telemetry));
    let serving = http::serve(listener, router, std::future::pending());
    let server = tokio::spawn(serving);
    let request = reqwest::Client::new()
        .post(format!("{url}/jobs/service_request_use_job"))
        .header("content-type", "application/json")
        .header("traceparent", SAMPLED)
        .body(use_job().to_string());
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 202);
    server.abort();
    let publish = collector.one("publish service_request_use_job");
    assert_eq!(hex(&publish.trace_id), TRACE_ID);
    assert_eq!(hex(&publish.parent_span_id), PARENT_ID);
    assert_eq!(stored(&db).await.span_id(), hex(&publish.span_id));
}

/// Returns the trace context of the only live event.
async fn stored(db: &TestDb) -> TraceContext {
    let sql = "SELECT traceparent FROM tidegate.event_queue";
    let row = db.client().await.query_one(sql, &[]).await.unwrap();
    TraceContext::parse(row.get(0)).unwrap()
}
