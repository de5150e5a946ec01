//! What X-Ray's daemon is told of handled events: a socket of the test stands in for the daemon.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::trace::{TraceContext, current};
use tidegate::{Done, DrainOptions, HandlerError, NewEvent, queue};
use tokio_postgres::Client;

use crate::probe::{ProbeApp, act, drain, options, probe_database};
use crate::services::Services;
use crate::support;

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Listens as the daemon does.
struct Daemon(UdpSocket);

impl Daemon {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Every datagram so far. On the loopback one that was sent has arrived.
    fn datagrams(&self) -> Vec<String> {
        let mut buffer = vec![0; 65_536];
        let mut found = Vec::new();
        loop {
            match self.0.recv(&mut buffer) {
                Ok(length) => found.push(String::from_utf8(buffer[..length].to_vec()).unwrap()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return found,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Every segment so far, each behind the header of the protocol.
    fn segments(&self) -> Vec<Value> {
        let read = |datagram: String| {
            let (header, segment) = datagram.split_once('\n').unwrap();
            let header: Value = serde_json::from_str(header).unwrap();
            assert_eq!(header, json!({"format": "json", "version": 1}));
            serde_json::from_str(segment).unwrap()
        };
        self.datagrams().into_iter().map(read).collect()
    }
}

fn exporting(daemon: SocketAddr) -> DrainOptions {
    DrainOptions {
        xray: Some(daemon),
        ..options()
    }
}

async fn publish(client: &Client, event: NewEvent) -> i64 {
    queue::publish(client, &event).await.unwrap().id
}

fn seconds_now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs_f64()
}

#[tokio::test]
async fn a_handled_event_is_a_segment_of_its_publishers_trace() {
    let db = probe_database().await;
    let client = db.client().await;
    let id = publish(&client, act("one").traceparent(SAMPLED)).await;
    let daemon = Daemon::start();
    let before = seconds_now();
    drain(&db, &ProbeApp::succeeding(), &exporting(daemon.address())).await;
    let segments = daemon.segments();
    assert_eq!(segments.len(), 1, "{segments:?}");
    let segment = &segments[0];
    assert_eq!(segment["trace_id"], "1-4bf92f35-77b34da6a3ce929d0e0e4736");
    assert_eq!(segment["parent_id"], "00f067aa0ba902b7");
    assert_eq!(segment["name"], "act");
    let facts = json!({"kind": "act", "event_id": id, "attempt": 1});
    assert_eq!(segment["annotations"], facts);
    let own = segment["id"].as_str().unwrap();
    assert!(own.len() == 16 && own != "00f067aa0ba902b7", "{own}");
    let time = |field: &str| segment[field].as_f64().unwrap();
    assert!(before <= time("start_time"), "{before} {segment}");
    assert!(time("start_time") <= time("end_time"), "{segment}");
    assert!(time("end_time") <= seconds_now(), "{segment}");
    for mark in ["fault", "error", "cause", "in_progress"] {
        assert!(segment.get(mark).is_none(), "{segment}");
    }
}

#[tokio::test]
async fn what_a_handler_publishes_and_calls_stands_below_its_own_segment() {
    let db = probe_database().await;
    let client = db.client().await;
    publish(&client, act("first").traceparent(SAMPLED)).await;
    let seen: Arc<Mutex<Vec<TraceContext>>> = Arc::default();
    let notes = seen.clone();
    let app = ProbeApp::new(move |call, ctx| {
        let notes = notes.clone();
        Box::pin(async move {
            notes.lock().unwrap().extend(current());
            if call.name == "first" {
                ctx.emit_new(act("second"))?;
            }
            Ok(Done::ok())
        })
    });
    let daemon = Daemon::start();
    drain(&db, &app, &exporting(daemon.address())).await;
    let segments = daemon.segments();
    assert_eq!(segments.len(), 2, "{segments:?}");
    assert_eq!(segments[1]["parent_id"], segments[0]["id"]);
    assert_eq!(segments[1]["trace_id"], segments[0]["trace_id"]);
    let seen = seen.lock().unwrap();
    for (segment, position) in segments.iter().zip(&*seen) {
        assert_eq!(segment["id"], position.span_id());
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn a_failed_attempt_is_a_fault_and_a_rejected_event_an_error() {
    let db = probe_database().await;
    let client = db.client().await;
    let options = |daemon: &Daemon| DrainOptions {
        concurrency: 1,
        linger: std::time::Duration::from_millis(500),
        ..exporting(daemon.address())
    };
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            match (call.name.as_str(), call.attempt) {
                ("again", 1) => Err(HandlerError::retry("busy", "come back")),
                ("reject", _) => Err(HandlerError::reject("409", "conflict")),
                ("panic", _) => panic!("boo"),
                _ => Ok(Done::ok()),
            }
        })
    });
    for (name, expected) in [
        (
            "again",
            &[
                (Some("fault"), "busy", "failed, will be retried"),
                (None, "", ""),
            ][..],
        ),
        ("reject", &[(Some("error"), "409", "rejected by a handler")]),
        ("panic", &[(Some("fault"), "panic", "failed for good")]),
    ] {
        let limit = u16::try_from(expected.len()).unwrap();
        let event = act(name).traceparent(SAMPLED).max_attempts(limit);
        publish(&client, event).await;
        let daemon = Daemon::start();
        drain(&db, &app, &options(&daemon)).await;
        let segments = daemon.segments();
        assert_eq!(segments.len(), expected.len(), "{segments:?}");
        for (number, (segment, (mark, code, message))) in segments.iter().zip(expected).enumerate()
        {
            assert_eq!(segment["annotations"]["attempt"], number + 1);
            assert_eq!(segment["parent_id"], "00f067aa0ba902b7");
            for known in ["fault", "error"] {
                let wanted = (*mark == Some(known)).then_some(json!(true));
                assert_eq!(segment.get(known), wanted.as_ref(), "{segment}");
            }
            let Some(cause) = segment.get("cause") else {
                assert_eq!(*mark, None, "{segment}");
                continue;
            };
            assert_eq!(cause["exceptions"][0]["type"], *code);
            assert_eq!(cause["exceptions"][0]["message"], *message);
        }
    }
}

#[tokio::test]
async fn an_event_under_no_sampled_trace_is_not_told() {
    let db = probe_database().await;
    let client = db.client().await;
    publish(&client, act("none")).await;
    publish(&client, act("unsampled").traceparent(UNSAMPLED)).await;
    let traced = publish(&client, act("sampled").traceparent(SAMPLED)).await;
    let daemon = Daemon::start();
    let report = drain(&db, &ProbeApp::succeeding(), &exporting(daemon.address())).await;
    assert_eq!(report.completed, 3);
    let segments = daemon.segments();
    assert_eq!(segments.len(), 1, "{segments:?}");
    assert_eq!(segments[0]["annotations"]["event_id"], traced);
}

#[tokio::test]
async fn i9_no_payload_group_or_word_of_a_handler_leaves_by_a_segment() {
    let db = probe_database().await;
    let client = db.client().await;
    let event = act("canary").group("canary").correlation("canary");
    publish(&client, event.traceparent(SAMPLED).max_attempts(2)).await;
    let app = ProbeApp::new(|call, _| {
        Box::pin(async move {
            assert_eq!(call.attempt, 1, "canary");
            Err(HandlerError::retry("down", "canary"))
        })
    });
    let daemon = Daemon::start();
    let options = DrainOptions {
        linger: std::time::Duration::from_millis(500),
        ..exporting(daemon.address())
    };
    let report = drain(&db, &app, &options).await;
    assert_eq!((report.retried, report.failed), (1, 1), "{report:?}");
    let datagrams = daemon.datagrams();
    assert_eq!(datagrams.len(), 2, "{datagrams:?}");
    for datagram in datagrams {
        assert!(!datagram.contains("canary"), "{datagram}");
    }
}

#[tokio::test]
async fn a_daemon_that_is_not_there_fails_no_event() {
    let db = probe_database().await;
    let client = db.client().await;
    let gone = Daemon::start().address();
    // Nobody answers for the second, and the third is no address that can be sent to.
    for daemon in [
        gone,
        "192.0.2.1:2000".parse().unwrap(),
        "127.0.0.1:0".parse().unwrap(),
    ] {
        let events: Vec<NewEvent> = (0..20)
            .map(|n| act(&n.to_string()).traceparent(SAMPLED))
            .collect();
        queue::publish_batch(&client, &events).await.unwrap();
        let report = drain(&db, &ProbeApp::succeeding(), &exporting(daemon)).await;
        assert_eq!((report.leased, report.completed), (20, 20), "{daemon}");
    }
}

#[tokio::test]
async fn the_program_exports_when_it_is_told_to_and_not_by_default() {
    let db = support::database().await;
    let client = db.client().await;
    let services = Services::start().await;
    let daemon = Daemon::start();
    for (setting, expected) in [(None, 0), (Some("off"), 0), (Some("on"), 1)] {
        support::publish_letters(&client, 1).await;
        let set = "UPDATE tidegate.event_queue SET traceparent = $1";
        client.execute(set, &[&SAMPLED]).await.unwrap();
        let mut command = support::command("tidegate");
        command
            .args(["drain", "--json"])
            .env("DATABASE_URL", &db.url)
            .env("AWS_XRAY_DAEMON_ADDRESS", daemon.address().to_string())
            .envs(services.variables());
        if let Some(setting) = setting {
            command.env("TIDEGATE_XRAY", setting);
        }
        let ran = command.output().await.unwrap();
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(report["completed"].as_u64() >= Some(1), "{report}");
        let told = daemon.segments();
        let events = report["leased"].as_u64().unwrap() * expected;
        assert_eq!(told.len() as u64, events, "{setting:?}: {told:?}");
    }
}
