//! What each answer of each kind of target means for its events, row by row, and what requests hold.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tidegate::HandlerError;
use tidegate::connect::requests::Answer;

use crate::outcome::Answers;
use crate::sent::Sent;
use crate::{Address, EventBridge, Https, Lambda, Receiver, Sqs, eventbridge, https, lambda, sqs};

const ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:ship:live";

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    Answer {
        status,
        headers: headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect(),
        body: body.as_bytes().to_vec(),
        is_cut: false,
    }
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("id-{at}")).collect()
}

fn sent<'a>(payload: &'a str, group: Option<&'a str>) -> Sent<'a> {
    Sent {
        kind: "order_placed",
        payload,
        event_id: 7,
        attempt: 2,
        published: 1_700_000_000_123_456,
        group,
        correlation_id: Some("case 9"),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    }
}

/// An error in short: how it counts, its code, and how long the target wants to be left alone.
fn short(error: &HandlerError) -> String {
    let shown = format!("{error:?}");
    let call = shown
        .split("call: ")
        .nth(1)
        .and_then(|rest| rest.split([',', ' ']).next())
        .unwrap();
    let class = match (error.is_rejection(), call) {
        (true, _) => "reject",
        (false, "Unanswered") => "unavailable",
        (false, "Failed") => "failed",
        (false, "Answered") => "retry",
        (false, other) => other,
    };
    let after = shown
        .split("after: Some(")
        .nth(1)
        .and_then(|rest| rest.split(')').next());
    let after = after
        .map(|after| format!(" after {after}"))
        .unwrap_or_default();
    format!("{class} {}{after}", error.faults()[0].code)
}

/// What an answer means: `done` for all, or for the whole call, or for each.
fn meant(answers: Answers) -> String {
    match answers {
        Err(error) => format!("call: {}", short(&error)),
        Ok(all) if all.iter().all(Result::is_ok) => "done".to_owned(),
        Ok(all) => {
            let each = all
                .iter()
                .map(|one| one.as_ref().map_or_else(short, |_| "done".to_owned()));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

fn function(no_error_text: bool) -> lambda::Function {
    let at = Lambda {
        lambda: ARN.to_owned(),
        no_error_text,
        ..Lambda::default()
    };
    lambda::Function::new("ship", at)
}

/// Status, headers and body of an answer, and what it means for two events.
const OF_A_FUNCTION: &str = r#"
200 [] => done
200 [] null => done
200 [] {"statusCode": 500} => done
200 [] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [] {"batchItemFailures": [{"itemIdentifier": "id-0"}, {"itemIdentifier": "id-1"}]} => retry failed, retry failed
200 [] {"batchItemFailures": [{"itemIdentifier": "other"}]} => call: failed bad_answer
200 [x-amz-function-error: Unhandled] {"errorType": "KeyError", "errorMessage": "'sku'"} => call: failed KeyError
200 [x-amz-function-error: Unhandled] Task timed out => call: failed function_error
429 [x-amzn-errortype: TooManyRequestsException] => call: unavailable throttled
429 [retry-after: 7] {"__type": "TooManyRequestsException"} => call: unavailable throttled after 7s
429 [retry-after: 99999999] => call: unavailable throttled after 3600s
403 [x-amzn-errortype: AccessDeniedException] => call: unavailable credentials
400 [x-amzn-errortype: UnrecognizedClientException:http://x] => call: unavailable credentials
404 [x-amzn-errortype: ResourceNotFoundException] => call: unavailable ResourceNotFoundException
400 [x-amzn-errortype: RecursiveInvocationException] => call: unavailable RecursiveInvocationException
413 [x-amzn-errortype: RequestTooLargeException] => call: failed too_large
500 [] {"__type": "com.amazonaws.x#ServiceException"} => call: unavailable ServiceException
502 [] <html> => call: unavailable 502
"#;

const OF_A_URL: &str = r#"
200 [] => done
202 [content-type: application/json] {"ok": true} => done
204 [] => done
200 [content-type: application/json; charset=utf-8] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done, retry failed
200 [content-type: text/plain] {"batchItemFailures": [{"itemIdentifier": "id-1"}]} => done
200 [content-type: application/json] { => call: failed bad_answer
400 [] => call: reject 400
413 [] => call: reject 413
415 [] => call: reject 415
422 [] => call: reject 422
401 [] => call: unavailable credentials
403 [] => call: unavailable credentials
407 [] => call: unavailable credentials
302 [location: http://169.254.169.254/] => call: unavailable 302
404 [] => call: unavailable 404
405 [] => call: unavailable 405
410 [] => call: unavailable 410
408 [] => call: unavailable 408
425 [] => call: unavailable 425
429 [retry-after: 30] => call: unavailable 429 after 30s
502 [] => call: unavailable 502
503 [retry-after: soon] => call: unavailable 503
504 [] => call: unavailable 504
409 [] => call: failed 409
500 [] secret => call: failed 500
501 [] => call: failed 501
"#;

/// Compares what each answer of a table means with what stands beside it.
fn each_means(table: &str, read: impl Fn(&Answer) -> Answers) {
    for line in table.trim().lines() {
        let (given, means) = line.rsplit_once(" => ").unwrap();
        let (status, rest) = given.split_once(" [").unwrap();
        let (headers, body) = rest.split_once(']').unwrap();
        let headers = headers.split_once(": ");
        let given = answer(status.parse().unwrap(), headers.as_slice(), body.trim());
        assert_eq!(meant(read(&given)), means, "{line}");
    }
}

#[test]
fn each_answer_of_a_function_has_its_verdict() {
    each_means(OF_A_FUNCTION, |given| function(false).read(given, &ids(2)));
    let cut = Answer {
        is_cut: true,
        ..answer(200, &[], "{")
    };
    assert_eq!(
        meant(function(false).read(&cut, &ids(2))),
        "call: failed bad_answer"
    );
}

#[test]
fn of_an_exception_its_message_is_stored_unless_it_may_hold_personal_data_and_never_its_stack() {
    let body = json!({"errorType": "E", "errorMessage": "m".repeat(900), "stackTrace": ["secret"]})
        .to_string();
    let given = answer(200, &[("x-amz-function-error", "Unhandled")], &body);
    let error = function(false).read(&given, &ids(1)).unwrap_err();
    assert_eq!(error.faults()[0].message, "m".repeat(500));
    let error = function(true).read(&given, &ids(1)).unwrap_err();
    assert_eq!(error.faults()[0].message, "the function failed");
}

fn endpoint(at: Https) -> https::Endpoint {
    let https = "https://billing.example.com/events".to_owned();
    https::Endpoint::new("billing", Https { https, ..at }).unwrap()
}

#[test]
fn each_answer_of_a_url_has_its_verdict() {
    let target = endpoint(Https::default());
    each_means(OF_A_URL, |given| target.read(given, &ids(2)));
    let at = httpdate::fmt_http_date(SystemTime::now() + Duration::from_mins(10));
    let dated = meant(target.read(&answer(503, &[("retry-after", &at)], ""), &ids(1)));
    assert!(
        dated.starts_with("call: unavailable 503 after 59") || dated.ends_with("600s"),
        "{dated}"
    );
    let own = endpoint(Https {
        reject: Some(vec![409]),
        ..Https::default()
    });
    assert_eq!(
        meant(own.read(&answer(409, &[], ""), &ids(1))),
        "call: reject 409"
    );
    assert_eq!(
        meant(own.read(&answer(400, &[], ""), &ids(1))),
        "call: failed 400"
    );
    let cut = Answer {
        is_cut: true,
        ..answer(200, &[("content-type", "application/json")], "{")
    };
    assert_eq!(meant(target.read(&cut, &ids(1))), "done");
    assert_eq!(meant(target.read(&cut, &ids(2))), "call: failed bad_answer");
}

#[test]
fn each_answer_of_a_queue_has_its_verdict_message_by_message() {
    let failed = |fault: bool, code: &str| json!({"Failed": [{"Id": "id-0", "SenderFault": fault, "Code": code}]});
    for (given, means) in [
        (
            json!({"Successful": [{"Id": "id-0", "MessageId": "m"}]}),
            "done",
        ),
        (
            json!({"Successful": [{"Id": "id-0", "MessageId": "m"}], "Failed": []}),
            "done",
        ),
        (json!({"Successful": []}), "unavailable not_sent"),
        (json!({}), "unavailable not_sent"),
        (
            failed(true, "InvalidMessageContents"),
            "reject InvalidMessageContents",
        ),
        (
            failed(true, "AWS.SimpleQueueService.InvalidParameterValue"),
            "reject InvalidParameterValue",
        ),
        (failed(true, "KmsAccessDenied"), "unavailable credentials"),
        (failed(true, "AccessDenied"), "unavailable credentials"),
        (failed(true, "SomethingElse"), "retry SomethingElse"),
        (failed(false, "InternalError"), "unavailable InternalError"),
    ] {
        assert_eq!(meant(Ok(sqs::read(&given, &ids(1)))), means, "{given}");
    }
    let half = json!({"Successful": [{"Id": "id-1"}], "Failed": [{"Id": "id-0", "SenderFault": false, "Code": "E"}]});
    assert_eq!(
        meant(Ok(sqs::read(&half, &ids(3)))),
        "unavailable E, done, unavailable not_sent"
    );
}

#[test]
fn each_answer_of_a_bus_has_its_verdict_entry_by_entry() {
    for (given, means) in [
        (json!({"EventId": "e"}), "done"),
        (json!(null), "unavailable not_sent"),
        (
            json!({"ErrorCode": "InternalFailure"}),
            "unavailable InternalFailure",
        ),
        (
            json!({"ErrorCode": "ThrottlingException"}),
            "unavailable ThrottlingException",
        ),
        (
            json!({"ErrorCode": "MalformedDetail"}),
            "reject MalformedDetail",
        ),
        (
            json!({"ErrorCode": "AccessDeniedException"}),
            "unavailable credentials",
        ),
    ] {
        assert_eq!(
            meant(Ok(vec![eventbridge::entry(&given)])),
            means,
            "{given}"
        );
    }
}

#[test]
fn a_record_has_every_field_that_a_record_of_sqs_has() {
    let item = function(false)
        .item(&sent("{\"sku\": \"ü\"}", Some("order 7")))
        .unwrap();
    let record: Value = serde_json::from_str(&item.text).unwrap();
    let text = |value: &str| json!({"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"});
    let expected = json!({
        "messageId": item.id,
        "receiptHandle": format!("{}-2", item.id),
        "body": "{\"sku\": \"ü\"}",
        "md5OfBody": "06d9000da3c6d8cffbbb124a43423f49",
        "attributes": {
            "ApproximateReceiveCount": "2", "SentTimestamp": "1700000000123",
            "ApproximateFirstReceiveTimestamp": record["attributes"]["ApproximateFirstReceiveTimestamp"],
            "SenderId": "tidegate", "AWSTraceHeader": "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1",
            "MessageGroupId": "order 7", "MessageDeduplicationId": item.id, "SequenceNumber": "00000000000000000007",
        },
        "messageAttributes": {
            "kind": text("order_placed"), "tidegate_id": text("7"), "idempotency_key": text("tidegate-7-1700000000123456"),
            "correlation_id": text("case 9"), "traceparent": text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:tidegate-order_placed",
        "awsRegion": "eu-central-1",
    });
    assert_eq!(record, expected);
}

#[test]
fn an_id_is_the_same_in_every_attempt_and_another_for_another_event() {
    let id = |event: &Sent<'_>| event.message_id();
    let first = sent("1", None);
    assert_eq!(
        id(&first),
        id(&Sent {
            attempt: 9,
            ..sent("2", None)
        })
    );
    assert_ne!(
        id(&first),
        id(&Sent {
            event_id: 8,
            ..sent("1", None)
        })
    );
    assert_ne!(
        id(&first),
        id(&Sent {
            published: 1,
            ..sent("1", None)
        })
    );
    assert_eq!(id(&first).len(), 36);
}

#[test]
fn a_group_is_a_group_of_sqs() {
    let long = "x".repeat(129);
    for (group, fits) in [
        ("order-7", true),
        ("Größe", false),
        ("two words", false),
        (&*long, false),
    ] {
        let given = sqs::group_id(group);
        assert_eq!(given == group, fits, "{group}");
        assert!(given.len() <= 128 && given.bytes().all(|byte| byte.is_ascii_graphic()));
    }
}

#[test]
fn a_message_has_what_sqs_takes_and_one_that_is_too_large_is_refused_with_its_size() {
    let queue = |url: &str| {
        sqs::Queue::new(Sqs {
            sqs: url.to_owned(),
        })
    };
    let fifo = queue("https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse.fifo");
    let item = fifo.item(&sent("\"a\u{fffe}b\"", Some("g"))).unwrap();
    let entry: Value = serde_json::from_str(&item.text).unwrap();
    assert_eq!(entry["MessageBody"], "\"a\\ufffeb\"");
    assert_eq!(
        (&entry["MessageGroupId"], &entry["MessageDeduplicationId"]),
        (&json!("g"), &json!(item.id))
    );
    let odd = Sent {
        correlation_id: Some("a\u{1}b"),
        ..sent("1", None)
    };
    let entry: Value = serde_json::from_str(&fifo.item(&odd).unwrap().text).unwrap();
    assert!(entry["MessageAttributes"].get("correlation_id").is_none());
    assert_eq!(entry["MessageGroupId"], entry["Id"]);
    let standard = queue("https://sqs.eu-central-1.amazonaws.com/123456789012/warehouse");
    let entry: Value = serde_json::from_str(&standard.item(&odd).unwrap().text).unwrap();
    assert!(entry.get("MessageGroupId").is_none());
    let large = "1".repeat(1 << 20);
    let error = standard.item(&sent(&large, None)).err().unwrap();
    assert_eq!(short(&error), "reject too_large");
    assert!(
        error
            .to_string()
            .contains("must have at most 1048576 bytes with its attributes, got 1048"),
        "{error}"
    );
}

#[test]
fn the_detail_of_an_entry_is_an_object() {
    let at = EventBridge {
        eventbridge: "arn:aws:events:eu-central-1:123456789012:event-bus/shop".to_owned(),
        source: None,
    };
    let bus = eventbridge::Bus::new(at);
    let detail = |payload: &str| -> Value {
        let item = bus.item(&sent(payload, None)).unwrap();
        let entry: Value = serde_json::from_str(&item.text).unwrap();
        assert_eq!(
            (&entry["Source"], &entry["DetailType"]),
            (&json!("tidegate"), &json!("order_placed"))
        );
        serde_json::from_str(entry["Detail"].as_str().unwrap()).unwrap()
    };
    assert_eq!(detail("{\"a\": 1}"), json!({"a": 1}));
    assert_eq!(detail("[1]"), json!({"data": [1]}));
    assert_eq!(detail("null"), json!({"data": null}));
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    assert_eq!(
        short(&bus.item(&sent(&large, None)).err().unwrap()),
        "reject too_large"
    );
}

/// The example of the specification of Standard Webhooks, and a CloudEvent with all that its standards name.
#[test]
fn a_request_is_signed_as_the_standard_says_and_its_body_is_a_cloud_event() {
    let (before, body) = (
        "msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.",
        "{\"test\": 2432232314}",
    );
    let signed = https::signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", before, body);
    assert_eq!(
        signed.unwrap(),
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    );
    for key in [
        "",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ",
        "whsec_!!",
    ] {
        let refused = https::signature(key, before, body).unwrap_err();
        assert!(
            refused.contains("whsec_") && (key.is_empty() || !refused.contains(key)),
            "{refused}"
        );
    }
    let target = endpoint(Https {
        source: Some("/shop".to_owned()),
        ..Https::default()
    });
    let item = target
        .item(&sent("{\"sku\":1.0}", Some("order 7")))
        .unwrap();
    let expected = format!(
        r#"{{"specversion":"1.0","id":"{}","source":"/shop","type":"order_placed","time":"2023-11-14T22:13:20.123456Z","datacontenttype":"application/json","data":{{"sku":1.0}},"timestamp":"2023-11-14T22:13:20.123456Z","sequence":"00000000000000000007","attempt":2,"partitionkey":"order 7","correlationid":"case 9","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}"#,
        item.id
    );
    assert_eq!(item.text, expected);
}

#[test]
fn what_is_no_token_is_not_sent_as_one() {
    for (text, is_token) in [
        ("eyJhbGciOiJI.eyJzdWIi_-~+/==", true),
        ("", false),
        (r#"{"username": "drain", "password": "x"}"#, false),
        ("root:x:0:0", false),
        ("two words", false),
        ("A=1\0B=2", false),
    ] {
        assert_eq!(https::is_token(text), is_token, "{text:?}");
    }
}

#[test]
fn an_address_is_read_from_its_fields_alone() {
    let read = |fields: Value| serde_json::from_value::<Address>(fields).unwrap();
    assert!(matches!(read(json!({"lambda": ARN})), Address::Lambda(_)));
    assert!(matches!(
        read(json!({"https": "https://a"})),
        Address::Https(_)
    ));
    assert!(matches!(read(json!({"sqs": "https://a"})), Address::Sqs(_)));
    assert!(matches!(
        read(json!({"eventbridge": "arn"})),
        Address::EventBridge(_)
    ));
    let wrong = Lambda {
        lambda: "ship".to_owned(),
        ..Lambda::default()
    };
    let error = crate::Target::new("ship", Address::Lambda(wrong))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("ship.lambda: must be an ARN such as") && error.ends_with("got \"ship\""),
        "{error}"
    );
}
