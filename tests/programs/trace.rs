//! A trace crosses the queue: from whoever publishes, over the row, to the handlers, what they publish
//! and whom they call.

use std::sync::{Arc, Mutex};

use crate::support::cli::Cli;
use crate::support::probe::{ProbeApp, act, drain, options, probe};
use crate::support::services::Services;
use crate::support::{self, TestDb, column, contains, publish_letters, words};
use serde_json::json;
use tidegate::connect::Client;
use tidegate::trace::{TraceContext, current, within};
use tidegate::{Done, NewEvent};
use tidegate_core::queue;
use tokio_postgres::error::SqlState;

const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn trace_of(header: &str) -> String {
    TraceContext::parse(header).unwrap().trace_id().to_owned()
}

/// The positions that handlers saw.
type Seen = Arc<Mutex<Vec<Option<TraceContext>>>>;

/// An application whose handler of "first" publishes "second"; and the positions it saw.
fn relaying() -> (Arc<ProbeApp>, Seen) {
    let seen = Seen::default();
    let notes = seen.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let notes = notes.clone();
        Box::pin(async move {
            assert_eq!(current().as_ref(), ctx.trace());
            notes.lock().unwrap().push(ctx.trace().cloned());
            if call.name == "first" {
                ctx.emit(&act("second"))?;
            }
            Ok(Done::ok())
        })
    });
    (app, seen)
}

async fn stored(client: &Client, table: &str) -> Vec<Option<String>> {
    let sql = format!("SELECT traceparent FROM tidegate.{table} ORDER BY id");
    column(client, &sql).await
}

#[tokio::test]
async fn a_handler_and_what_it_publishes_continue_the_publishers_trace() {
    let (db, client) = probe().await;
    queue::publish(&client, &act("first").traceparent(HEADER))
        .await
        .unwrap();
    let (app, seen) = relaying();
    drain(&db, &app, &options()).await;
    let seen: Vec<TraceContext> = seen
        .lock()
        .unwrap()
        .iter()
        .cloned()
        .map(Option::unwrap)
        .collect();
    assert_eq!(seen.len(), 2);
    for position in &seen {
        assert_eq!(position.trace_id(), trace_of(HEADER));
    }
    assert_eq!(seen[0].parent_span_id(), Some("00f067aa0ba902b7"));
    assert_eq!(seen[1].parent_span_id(), Some(seen[0].span_id()));
    let logged = stored(&client, "event_log").await;
    assert_eq!(logged, [Some(HEADER.to_owned()), Some(seen[0].to_string())]);
}

#[tokio::test]
async fn every_attempt_has_a_place_of_its_own_in_the_trace() {
    let (db, client) = probe().await;
    queue::publish(&client, &act("first").traceparent(HEADER))
        .await
        .unwrap();
    let spans: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = spans.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let span = ctx.trace().unwrap().span_id().to_owned();
        notes.lock().unwrap().push(span);
        Box::pin(async move {
            if call.attempt == 1 {
                return Err(tidegate::HandlerError::retry("again", "once more"));
            }
            Ok(Done::ok())
        })
    });
    let mut options = options();
    options.linger = std::time::Duration::from_millis(500);
    drain(&db, &app, &options).await;
    let spans = spans.lock().unwrap();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert_ne!(spans[0], spans[1]);
}

#[tokio::test]
async fn what_is_published_within_a_trace_belongs_to_it_and_the_rest_to_none() {
    let (_db, client) = probe().await;
    let here = TraceContext::parse(HEADER);
    within(here, async {
        queue::publish(&client, &act("one")).await.unwrap();
        queue::publish_batch(&client, &[act("two"), act("three")])
            .await
            .unwrap();
    })
    .await;
    queue::publish(&client, &act("four")).await.unwrap();
    let header = Some(HEADER.to_owned());
    let expected = [header.clone(), header.clone(), header, None];
    assert_eq!(stored(&client, "event_queue").await, expected);
}

#[tokio::test]
async fn sql_takes_a_trace_and_refuses_a_malformed_one_by_name() {
    let (_db, client) = probe().await;
    let publish = "SELECT tidegate.publish('act', NULL, traceparent => $1)";
    client.query_one(publish, &[&HEADER]).await.unwrap();
    let many = json!([{"kind": "act", "traceparent": HEADER}, {"kind": "act"}]).to_string();
    let publish_many = "SELECT tidegate.publish_many($1::text::jsonb)";
    client.query(publish_many, &[&many]).await.unwrap();
    let found = stored(&client, "event_queue")
        .await
        .iter()
        .flatten()
        .count();
    assert_eq!(found, 2);
    let refused = client.query_one(publish, &[&"00-short"]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::INVALID_PARAMETER_VALUE));
    let many = json!([{"kind": "act"}, {"kind": "act", "traceparent": "00-short"}]).to_string();
    let refused = client.query(publish_many, &[&many]).await.unwrap_err();
    let message = refused.as_db_error().unwrap().message();
    contains(message, "event 2: traceparent: ");
    contains(message, "00-short");
}

#[tokio::test]
async fn rust_refuses_a_malformed_trace_by_name() {
    let bad = NewEvent::raw("act", None).traceparent("00-short");
    let error = bad.check().unwrap_err().to_string();
    assert!(error.starts_with("traceparent: "), "{error}");
}

#[tokio::test]
async fn whoever_knows_nothing_of_traces_publishes_without_one() {
    let (_db, client) = probe().await;
    let one = "SELECT created FROM tidegate.publish($1, NULL, NULL, NULL, NULL, NULL, NULL, NULL)";
    assert!(
        client
            .query_one(one, &[&"act"])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

#[tokio::test]
async fn a_shipped_handler_tells_the_service_it_calls_which_trace_it_is() {
    let (db, client) = support::opened().await;
    publish_letters(&client, 1).await;
    let set = "UPDATE tidegate.event_queue SET traceparent = $1";
    client.execute(set, &[&HEADER]).await.unwrap();
    let services = Services::start().await;
    drained_by_the_program(&db, &services).await;
    let calls = services.calls("archive");
    let told = calls[0].traceparent.as_deref().unwrap();
    assert_eq!(trace_of(told), trace_of(HEADER));
    assert_ne!(told, HEADER, "the handler has a place of its own");
}

#[tokio::test]
async fn the_command_line_publishes_under_the_trace_of_its_environment_and_the_log_names_it() {
    let db = support::database().await;
    let publish = "publish grant_letter_viewed --payload '{\"grant_number\": \"G-1\"}'";
    let cli = Cli::on(&db).with("TRACEPARENT", HEADER);
    cli.json(&words(publish)).await;
    let services = Services::start().await;
    let log = drained_by_the_program(&db, &services).await;
    assert!(log.contains(&trace_of(HEADER)), "{log}");
}

/// Drains with the real program; its log.
async fn drained_by_the_program(db: &TestDb, services: &Services) -> String {
    let cli = Cli::on(db).with("TIDEGATE_LOG", "tidegate=debug");
    let ran = cli.with_services(services).run(&["drain", "--json"]).await;
    let report = ran.document();
    assert!(report["completed"].as_u64() >= Some(1), "{report}");
    ran.stderr
}
