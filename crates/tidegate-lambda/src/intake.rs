//! Owns the processing of an envelope of messages. It receives the messages one after the other, and tells
//! the service which ones to redeliver. The program decides whether a message is received, and the database
//! must have committed it.
//!
//! A refused message never delays others, because it can never be received. A message that may succeed later
//! does: the messages behind it in its group of a FIFO queue are redelivered with it, not received before it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::intake::{Message, Receipt, Receiver, is_refusal};
use tidegate::{Error, Json};
use tidegate_admin::program::{Failure, Runtime};
use tidegate_aws::DeadMessages;

use crate::envelope::{Bearer, Delivery};

/// The longest time that it may take to move a refused message.
const BURIAL: Duration = Duration::from_secs(2);

/// What became of the messages of an envelope.
#[derive(Default)]
struct Tally {
    received: u64,
    repeated: u64,
    /// Refused, and moved to the queue of dead messages.
    buried: u64,
    /// The service's ids of the messages to redeliver.
    again: Vec<String>,
    /// The first reason that is permanent.
    refusal: Option<Error>,
    /// The first reason that is temporary.
    failure: Option<Error>,
}

/// Receives the messages of an envelope, within `time` if there is a limit. Once the database cannot be
/// reached, the remaining messages are left for redelivery. `dead` is where refused messages of SQS go.
///
/// # Errors
/// If the service must redeliver the whole envelope. The error is the first temporary reason, or otherwise
/// the first permanent one.
pub(crate) async fn take_in(
    runtime: &Runtime,
    bearer: Bearer,
    payload: &Json,
    time: Option<Duration>,
    dead: Option<&DeadMessages>,
) -> Result<Json, Failure> {
    let dead = dead.filter(|_| bearer == Bearer::Sqs);
    let originals = dead.and_then(|_| payload.read::<Value>().ok());
    let originals = originals.map_or(Value::Null, |mut payload| payload["Records"].take());
    let mut receiver = runtime.receiver()?;
    let ends = time.map(|time| Instant::now() + time);
    let mut tally = Tally::default();
    let mut held = HashSet::new();
    let mut reachable = true;
    for delivery in bearer.open(payload)? {
        let Delivery {
            message,
            item,
            line,
        } = delivery;
        if !reachable || line.as_ref().is_some_and(|line| held.contains(line)) {
            tally.again.push(item);
            continue;
        }
        match one(&mut receiver, &message, &item, ends).await {
            Ok(Receipt::Taken) => tally.received += 1,
            Ok(Receipt::Repeated) => tally.repeated += 1,
            Err(error) => {
                let refused = is_refusal(&error);
                if refused && buried(dead, &originals, &item, &error).await {
                    tally.buried += 1;
                    continue;
                }
                reachable = !is_unreachable(&error);
                held.extend(line.filter(|_| !refused));
                tally.again.push(item);
                let reason = if refused {
                    &mut tally.refusal
                } else {
                    &mut tally.failure
                };
                reason.get_or_insert(error);
            }
        }
    }
    if tally.received > 0 {
        let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        // What was received is committed. A wake-up that takes too long costs the time until the next tick.
        let _ = tokio::time::timeout(left.unwrap_or(Duration::MAX), runtime.wake()).await;
    }
    tally.answer(bearer)
}

/// Sends a refused message to the queue of dead messages, if there is one, so that it is not delivered again.
/// Returns whether that queue has it.
async fn buried(dead: Option<&DeadMessages>, originals: &Value, item: &str, why: &Error) -> bool {
    let mut records = originals.as_array().into_iter().flatten();
    let original = records.find(|record| record["messageId"] == item);
    let body = original.and_then(|record| record["body"].as_str());
    let (Some(dead), Some(body)) = (dead, body) else {
        return false;
    };
    let failed = match tokio::time::timeout(BURIAL, dead.send(body, item, &why.to_string())).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {BURIAL:?}"),
    };
    tracing::warn!(
        message.id = item,
        error = failed,
        "the refused message could not be moved; it will be delivered again"
    );
    false
}

/// Whether the database cannot be reached, so that no other message can be received either.
fn is_unreachable(error: &Error) -> bool {
    matches!(
        error,
        Error::Connect(_) | Error::Login(_) | Error::Secret(_)
    )
}

/// Receives one message, and logs the reason if this fails. The text of an error does not quote the message
/// (I9).
async fn one(
    receiver: &mut Receiver<'_>,
    message: &Message,
    item: &str,
    ends: Option<Instant>,
) -> Result<Receipt, Error> {
    let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
    let receipt = receiver.receive(message, left).await;
    if let Err(error) = &receipt {
        if is_refusal(error) {
            tracing::error!(message.id = item, error = %error, "message refused");
        } else {
            tracing::warn!(message.id = item, error = %error, "the message could not be received; it will be delivered again");
        }
    }
    receipt
}

impl Tally {
    /// SQS is told which messages to redeliver, exactly in the format that AWS requires:
    /// <https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html>. But if no message was
    /// received, one of them for a temporary reason, the invocation fails: AWS counts the failure, and Lambda
    /// sends less for a while. An envelope of another service fails with any of its messages.
    fn answer(self, bearer: Bearer) -> Result<Json, Failure> {
        let Self {
            received,
            repeated,
            buried,
            again,
            refusal,
            failure,
        } = self;
        tracing::info!(
            received,
            repeated,
            buried,
            again = again.len(),
            "messages received"
        );
        let done = received + repeated + buried;
        if bearer == Bearer::Sqs && (done > 0 || failure.is_none()) {
            let named = |item: &String| json!({"itemIdentifier": item});
            let failures: Vec<Value> = again.iter().map(named).collect();
            return Ok(json!({"batchItemFailures": failures}).into());
        }
        match failure.or(refusal) {
            Some(error) => Err(error.into()),
            None => {
                Ok(json!({"action": "receive", "received": received, "repeated": repeated}).into())
            }
        }
    }
}
