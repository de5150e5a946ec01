//! Messages from outside: each taken in once, whoever brings it and how often, and none lost.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use crate::support::function::fixture;
use crate::support::function::{AMPLE, Function};
use crate::support::probe::{live, number};
use crate::support::{self, Answer, Harm, Proxy, TestDb, database_for, opened_for};
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate::intake::{Message, Receipt, is_refusal};
use tidegate::{Context, Dispatch, Done, Error, Handlers, NewEvent, Transaction, publish};
use tidegate_admin::Program;
use tidegate_admin::program::Runtime;
use tokio::net::TcpListener;

tidegate::events! {
    enum Shop {
        Placed(Order) = "placed_by_message",
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

struct Handling;

impl Dispatch for Handling {
    type Event = Shop;

    fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
        match event {
            Shop::Placed(_) => Handlers::one("greet", async { Ok(Done::ok()) }),
        }
    }
}

/// What a message of these tests says.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Says {
    Orders(Vec<i64>),
    Refuse,
    ComeAgain,
    Panic,
    /// Publishes, and overlooks that another statement fails.
    Overlook,
}

async fn take_in(transaction: &Transaction<'_>, message: &Message) -> Result<(), Error> {
    let orders = match message.json()? {
        Says::Orders(orders) => orders,
        Says::Refuse => return Err(Error::Invalid("order: must be one of ours".to_owned())),
        Says::ComeAgain => return Err(Error::UnknownEvent(7)),
        Says::Panic => panic!("over a message"),
        Says::Overlook => vec![0],
    };
    for id in &orders {
        let event = NewEvent::of(&Shop::Placed(Order { id: *id })).unwrap();
        publish(transaction, &event).await?;
    }
    if orders == [0] {
        let _ = transaction.batch_execute("SELECT 1 / 0").await;
    }
    Ok(())
}

fn service(db: &TestDb) -> Runtime {
    let program = Program::new(|_| Ok(Handling))
        .receive(|transaction, message| Box::pin(take_in(transaction, message)));
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| db.url.clone());
    program.start(&lookup).unwrap()
}

fn message(id: &str, says: &Value) -> Message {
    Message {
        source: "here".to_owned(),
        id: id.to_owned(),
        body: says.to_string().into_bytes(),
    }
}

async fn remembered(client: &Client) -> i64 {
    number(client, "SELECT count(*) FROM tidegate.received").await
}

#[tokio::test]
async fn a_message_is_taken_in_once_whether_it_asks_for_no_event_or_for_several() {
    let (db, client) = opened_for::<Shop>().await;
    let service = service(&db);
    let mut receiver = service.receiver().unwrap();
    for (id, orders, events) in [("1", json!([]), 0), ("2", json!([1, 2, 3]), 3)] {
        let message = message(id, &json!({ "orders": orders }));
        for receipt in [Receipt::Taken, Receipt::Repeated, Receipt::Repeated] {
            assert_eq!(receiver.receive(&message, None).await.unwrap(), receipt);
            assert_eq!(live(&client).await, events);
        }
    }
    // The same id by another way is another message.
    let elsewhere = Message {
        source: "there".to_owned(),
        ..message("2", &json!({"orders": [4]}))
    };
    let receipt = receiver.receive(&elsewhere, None).await.unwrap();
    assert_eq!((receipt, live(&client).await), (Receipt::Taken, 4));
    assert_eq!(remembered(&client).await, 3);
}

#[tokio::test]
async fn a_message_that_several_bring_at_once_is_taken_in_once() {
    let db = database_for::<Shop>().await;
    let service = service(&db);
    let message = message("1", &json!({"orders": [1, 2]}));
    let bring = async || {
        let mut receiver = service.receiver().unwrap();
        receiver.receive(&message, None).await.unwrap()
    };
    let receipts = tokio::join!(bring(), bring(), bring(), bring());
    let receipts: [Receipt; 4] = receipts.into();
    let taken = receipts.iter().filter(|one| **one == Receipt::Taken);
    assert_eq!(taken.count(), 1, "{receipts:?}");
    assert_eq!(live(&db.client().await).await, 2);
}

#[tokio::test]
async fn what_cannot_be_taken_in_leaves_nothing_and_takes_no_other_along() {
    let (db, client) = opened_for::<Shop>().await;
    let service = service(&db);
    let mut receiver = service.receiver().unwrap();
    for (says, refused) in [
        (json!("refuse"), true),
        (json!("come_again"), false),
        (json!("panic"), true),
        (json!("overlook"), false),
        (json!({"orders": ["canary"]}), true),
        (json!("canary"), true),
        (json!("x".repeat(2_000_000)), true),
    ] {
        let error = receiver.receive(&message("1", &says), None).await;
        let error = error.unwrap_err();
        assert_eq!(is_refusal(&error), refused, "{error}");
        assert!(!error.to_string().contains("canary"), "{error}");
        assert_eq!((live(&client).await, remembered(&client).await), (0, 0));
    }
    let nameless = message("", &json!({"orders": [1]}));
    let error = receiver.receive(&nameless, None).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("message_id: must have 1 to 500 bytes")
    );
    let good = message("1", &json!({"orders": [1]}));
    let receipt = receiver.receive(&good, None).await.unwrap();
    assert_eq!((receipt, live(&client).await), (Receipt::Taken, 1));
}

#[tokio::test]
async fn a_program_without_an_intake_says_so() {
    let db = support::database().await;
    let lookup = |name: &str| (name == "DATABASE_URL").then(|| db.url.clone());
    let service = Program::new(|_| Ok(Handling)).start(&lookup).unwrap();
    let error = service.receiver().err().unwrap().to_string();
    assert!(error.contains("receive"), "{error}");
    let lookup = |name: &str| (name == "TIDEGATE_ACTIONS").then(|| "receive".to_owned());
    let error = Program::new(|_| Ok(Handling)).start(&lookup).err().unwrap();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test]
async fn messages_are_remembered_for_fifteen_days_and_forgotten_by_the_cleanup() {
    use tidegate_admin::retention::{CleanupHooks, CleanupOptions, cleanup};

    let (db, client) = support::opened().await;
    let note = "INSERT INTO tidegate.received (source, message_id, received_at)
                SELECT 'here', n::text, clock_timestamp() - make_interval(days => n) FROM generate_series(1, 20) AS n";
    client.batch_execute(note).await.unwrap();
    for (dry_run, left) in [(true, 20), (false, 14), (false, 14)] {
        let options = CleanupOptions {
            dry_run,
            batch: 4,
            ..CleanupOptions::default()
        };
        let before = remembered(&client).await;
        let report = cleanup(&db.database(), &options, CleanupHooks::default()).await;
        let forgotten = i64::try_from(report.unwrap().messages_forgotten).unwrap();
        assert_eq!(remembered(&client).await, left);
        let due = if dry_run { 6 } else { before - left };
        assert_eq!(forgotten, due);
    }
}

/// The function as it is deployed for messages, on this database or through what stands before it.
async fn function(url: &str) -> Function {
    Function::start(&[("DATABASE_URL", url), ("TIDEGATE_ACTIONS", "receive")]).await
}

fn check(number: u32) -> String {
    json!({"kind": "issuing", "stage": "ai-check", "triggerId": format!("T{number}"), "applicationId": "A1"})
        .to_string()
}

const CHECKS: &str = "SELECT count(*) FROM checks.issuing_check";

/// An envelope of SQS; each message with its id, its group and its body.
fn sqs(messages: &[(&str, Option<&str>, &str)]) -> Value {
    sqs_of("q.fifo", messages)
}

fn sqs_of(queue: &str, messages: &[(&str, Option<&str>, &str)]) -> Value {
    let queue = format!("arn:aws:sqs:eu-central-1:123456789012:{queue}");
    let record = |(id, group, body): &(&str, Option<&str>, &str)| {
        let attributes = group.map_or_else(|| json!({}), |group| json!({"MessageGroupId": group}));
        json!({"messageId": id, "receiptHandle": "r", "body": body, "attributes": attributes,
            "messageAttributes": {}, "md5OfBody": "m", "eventSource": "aws:sqs",
            "eventSourceARN": queue, "awsRegion": "eu-central-1"})
    };
    json!({"Records": messages.iter().map(record).collect::<Vec<_>>()})
}

/// What a bearer is told to bring again.
fn again(answer: &Answer) -> Vec<&str> {
    assert!(!answer.is_error, "{answer:?}");
    let failures = answer.body["batchItemFailures"].as_array().unwrap();
    let items = failures.iter().map(|one| one["itemIdentifier"].as_str());
    items.map(Option::unwrap).collect()
}

#[tokio::test]
async fn b32_every_bearer_is_answered_in_its_own_way_and_what_it_brings_is_stored_once() {
    let (db, client) = support::opened().await;
    let function = function(&db.url).await;
    for (file, events, stored) in [
        ("sqs.json", 2, "SELECT count(*) FROM checks.issuing_check"),
        (
            "sns.json",
            0,
            "SELECT count(*) FROM forms.message WHERE subject = 'cancellation'",
        ),
        ("eventbridge.json", 1, "SELECT 1::bigint"),
    ] {
        let before = live(&client).await;
        for receipt in ["received", "repeated"] {
            let answer = function.invoke(&fixture(file)).await;
            assert!(!answer.is_error, "{file}: {answer:?}");
            if file == "sqs.json" {
                assert_eq!(answer.body, json!({"batchItemFailures": []}), "{file}");
            } else {
                assert_eq!(answer.body["action"], "receive", "{file}");
                assert_eq!(answer.body[receipt], 1, "{file}: {answer:?}");
            }
            assert_eq!(live(&client).await - before, events, "{file}");
            assert_eq!(number(&client, stored).await, 1, "{file}");
        }
    }
}

#[tokio::test]
async fn a_hostile_message_of_a_batch_comes_again_and_no_other_does() {
    let (db, client) = support::opened().await;
    let function = function(&db.url).await;
    let (large, deep) = ("x".repeat(1_100_000), "[".repeat(100_000));
    let (first, last) = (check(1), check(2));
    let batch = sqs(&[
        ("good-1", Some("g"), &first),
        ("no-json", Some("g"), "canary"),
        ("large", None, &large),
        ("deep", None, &deep),
        ("nothing", None, ""),
        ("unknown", None, r#"{"type": "canary"}"#),
        ("field", None, r#"{"type": "form", "id": "canary"}"#),
        ("value", None, r#"{"type": "viewed", "grant_number": " "}"#),
        ("nobody's", None, r#"{"kind": "payment"}"#),
        ("good-2", Some("g"), &last),
    ]);
    let bad = [
        "no-json", "large", "deep", "nothing", "unknown", "field", "value",
    ];
    for _ in 0..2 {
        assert_eq!(again(&function.invoke(&batch).await), bad);
        assert_eq!(number(&client, CHECKS).await, 2);
        assert_eq!(live(&client).await, 2);
    }
    let log = function.output();
    assert_eq!(log.matches("message refused").count(), 2 * bad.len());
    for says in [
        "grant_number: must be text",
        "type: must be form",
        "1048576 bytes",
    ] {
        assert!(log.contains(says), "{says}: {log}");
    }
    assert!(!log.contains("canary"), "{log}");
}

#[tokio::test]
async fn a_refused_message_is_moved_with_its_reason_and_stays_if_it_cannot_be() {
    let (db, client) = support::opened().await;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let kept = sent.clone();
    let taking = move |headers: HeaderMap, body: String| {
        assert_eq!(headers["x-amz-target"], "AmazonSQS.SendMessage");
        let signed = headers["authorization"].to_str().unwrap();
        assert!(
            signed.contains("/eu-central-1/sqs/aws4_request"),
            "{signed}"
        );
        let body: Value = serde_json::from_str(&body).unwrap();
        let taken = body["MessageBody"] != "throttled";
        kept.lock().unwrap().push(body);
        std::future::ready(if taken {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        })
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, Router::new().route("/", post(taking))).into_future());
    let queue = "https://sqs.eu-central-1.amazonaws.com/123456789012/dead";
    let own = [
        ("DATABASE_URL", db.url.clone()),
        ("TIDEGATE_ACTIONS", "receive".to_owned()),
        ("TIDEGATE_DEAD_MESSAGES_URL", queue.to_owned()),
        ("AWS_ENDPOINT_URL_SQS", endpoint),
    ];
    let settings: Vec<_> = own.into_iter().chain(support::aws_variables()).collect();
    let settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let function = Function::start(&settings).await;
    let good = check(1);
    let batch = sqs_of(
        "q",
        &[
            ("bad", None, "no JSON"),
            ("late", None, "throttled"),
            ("good", None, &good),
        ],
    );
    assert_eq!(again(&function.invoke(&batch).await), ["late"]);
    assert_eq!(number(&client, CHECKS).await, 1);
    let sent = sent.lock().unwrap();
    assert_eq!((sent.len(), &sent[0]["QueueUrl"]), (2, &json!(queue)));
    assert_eq!(sent[0]["MessageBody"], "no JSON");
    let attributes = &sent[0]["MessageAttributes"];
    assert_eq!(attributes["message_id"]["StringValue"], "bad");
    let reason = attributes["reason"]["StringValue"].as_str().unwrap();
    assert!(reason.contains("message: must be JSON"), "{reason}");
}

#[tokio::test]
async fn a_hostile_message_of_who_brings_all_of_it_again_fails_the_invocation() {
    let (db, client) = support::opened().await;
    let function = function(&db.url).await;
    let mut sns = fixture("sns.json");
    sns["Records"][0]["Sns"]["Message"] = json!("canary");
    let mut bus = fixture("eventbridge.json");
    bus["detail"] = json!({"type": "viewed"});
    for (payload, says) in [
        (sns, "message: must be JSON"),
        (bus, "viewed.grant_number: is needed"),
    ] {
        let answer = function.invoke(&payload).await;
        assert!(answer.is_error, "{says}: {answer:?}");
        let message = answer.body["errorMessage"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }
    let stored = "SELECT count(*) FROM forms.message";
    assert_eq!(number(&client, stored).await, 0);
}

#[tokio::test]
async fn a_message_whose_commit_fails_is_not_acknowledged_and_its_group_waits_in_a_fifo_queue() {
    for (harm, queue) in [
        (Harm::Cut, "q.fifo"),
        (Harm::CutBeforeAnswer, "q.fifo"),
        (Harm::Cut, "q"),
    ] {
        let waits = queue == "q.fifo";
        let (db, client) = support::opened().await;
        let proxy = Proxy::before(db.direct()).await;
        let (port, name) = (proxy.port(), db.name());
        let url = format!("postgres://postgres@127.0.0.1:{port}/{name}");
        let function = function(&url).await;
        proxy.harm_when_said("COMMIT\0", harm);
        let bodies = [check(1), check(2), check(3)];
        let batch = sqs_of(
            queue,
            &[
                ("first", Some("g"), &bodies[0]),
                ("behind", Some("g"), &bodies[1]),
                ("other", Some("h"), &bodies[2]),
            ],
        );
        let answer = function.invoke(&batch).await;
        let expected: &[&str] = if waits {
            &["first", "behind"]
        } else {
            &["first"]
        };
        assert_eq!(again(&answer), expected, "{harm:?} {queue}");
        assert!(proxy.has_harmed());
        // Its answer was lost; or it never was.
        let kept = i64::from(harm != Harm::Cut) + if waits { 1 } else { 2 };
        assert_eq!(number(&client, CHECKS).await, kept, "{harm:?}");
        assert_eq!(again(&function.invoke(&batch).await).len(), 0);
        assert_eq!((number(&client, CHECKS).await, live(&client).await), (3, 3));
    }
}

#[tokio::test]
async fn a_function_that_dies_over_a_message_has_taken_nothing_in() {
    let (db, mut client) = support::opened().await;
    let mut dying = function(&db.url).await;
    let (api, process) = (&dying.api, &mut dying.process);
    let body = check(1);
    let batch = sqs(&[("m", None, &body)]);
    let other = client.transaction().await.unwrap();
    // Its own insert of the check waits for this one.
    let holds = "INSERT INTO checks.issuing_check (trigger_id, application_id, work_statusom)
                 VALUES ('T1', 'A1', 'PLANNED')";
    other.batch_execute(holds).await.unwrap();
    let watcher = db.client().await;
    let dies = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND datname = current_database()";
        support::wait_until("the function waits", async || {
            number(&watcher, waits).await == 1
        })
        .await;
        process.start_kill().unwrap();
        process.wait().await.unwrap();
    };
    // Whoever invoked it hears nothing more of it.
    tokio::select! {
        answer = api.invoke(batch.to_string(), AMPLE) => panic!("{answer:?}"),
        () = dies => {}
    }
    other.rollback().await.unwrap();
    assert_eq!(number(&client, CHECKS).await, 0);
    let function = function(&db.url).await;
    assert_eq!(again(&function.invoke(&batch).await).len(), 0);
    assert_eq!(number(&client, CHECKS).await, 1);
}

#[tokio::test]
async fn only_a_function_that_is_given_receive_takes_messages_in() {
    let db = support::database().await;
    let settings = [
        ("DATABASE_URL", db.url.as_str()),
        ("TIDEGATE_ACTIONS", "drain"),
    ];
    let function = Function::start(&settings).await;
    let answer = function.invoke(&fixture("sqs.json")).await;
    assert!(answer.is_error, "{answer:?}");
    assert_eq!(answer.body["errorType"], "InvalidInvocation");
    let message = answer.body["errorMessage"].as_str().unwrap();
    assert!(message.contains("receive") && message.contains("TIDEGATE_ACTIONS"));
    assert_eq!(live(&db.client().await).await, 0);
}

#[tokio::test]
async fn an_unreachable_database_fails_the_invocation_so_that_all_of_it_comes_again() {
    let function = function("postgres://postgres@127.0.0.1:1/nothing").await;
    let answer = function.invoke(&fixture("sqs.json")).await;
    assert!(answer.is_error, "{answer:?}");
    assert_eq!(answer.body["errorType"], "DatabaseUnreachable");
}
