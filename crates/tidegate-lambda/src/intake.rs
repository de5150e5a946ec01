//! Owns what becomes of an envelope of messages: each is taken in by itself, one after the other, and its bearer is told
//! which ones to bring again. Whether a message is taken in is the program's to say, and the database's to have committed.
//!
//! The surprise is the order: a message that is refused holds up nobody, for it will never be taken in. One that may succeed
//! later does: those behind it on its line (a FIFO queue's group, a partition) come again with it, not before it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::Error;
use tidegate::intake::{Message, Receipt, Receiver, is_refusal};
use tidegate::program::{Failure, Service};

use crate::envelope::{Bearer, Delivery};

/// What became of all of them.
#[derive(Default)]
struct Tally {
    received: u64,
    repeated: u64,
    /// What their bearer calls those that it must bring again.
    again: Vec<String>,
    /// The first reason of each kind.
    refusal: Option<Error>,
    failure: Option<Error>,
}

/// Takes in the messages of an envelope within `time`, if there is a limit from outside. Once there is
/// no way to the database, those behind are left to come again.
///
/// # Errors
/// When the bearer must bring all of it again: the first reason, one that may pass before one that will not.
pub(crate) async fn take_in(
    service: &Service,
    bearer: Bearer,
    payload: Value,
    time: Option<Duration>,
) -> Result<Value, Failure> {
    let mut receiver = service.receiver()?;
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
        match one(&mut receiver, message, &item, ends).await {
            Ok(Receipt::Taken) => tally.received += 1,
            Ok(Receipt::Repeated) => tally.repeated += 1,
            Err(error) => {
                let refused = is_refusal(&error);
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
    tally.answer(bearer)
}

/// Whether there is no way to the database, for any message.
fn is_unreachable(error: &Error) -> bool {
    matches!(
        error,
        Error::Connect(_) | Error::Login(_) | Error::Secret(_)
    )
}

/// Takes in one, and says in the log why not. The text of an error does not quote the message (I9).
async fn one(
    receiver: &mut Receiver<'_>,
    message: Result<Message, Error>,
    item: &str,
    ends: Option<Instant>,
) -> Result<Receipt, Error> {
    let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
    let receipt = match message {
        Ok(message) => receiver.receive(&message, left).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &receipt {
        if is_refusal(error) {
            tracing::error!(message.id = item, error = %error, "message refused");
        } else {
            tracing::warn!(message.id = item, error = %error, "message not taken in for now");
        }
    }
    receipt
}

impl Tally {
    /// For who takes it, exactly what AWS asks for:
    /// <https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html>. When none of an envelope was taken in
    /// for a reason that may pass, the invocation fails: that is counted, and Lambda brings less for a while.
    fn answer(self, bearer: Bearer) -> Result<Value, Failure> {
        let Self {
            received,
            repeated,
            again,
            refusal,
            failure,
        } = self;
        tracing::info!(received, repeated, again = again.len(), "messages taken in");
        if bearer.takes_failures() && (received + repeated > 0 || failure.is_none()) {
            let named = |item: &String| json!({"itemIdentifier": item});
            let failures: Vec<Value> = again.iter().map(named).collect();
            return Ok(json!({"batchItemFailures": failures}));
        }
        match failure.or(refusal) {
            Some(error) => Err(error.into()),
            None => Ok(json!({"action": "receive", "received": received, "repeated": repeated})),
        }
    }
}
