//! Owns how the program's intake takes in a message from outside: once, and in a transaction of its own. It
//! does not know who brings the message, and of its content it knows only the size.
//!
//! A message is remembered by the id that its sender gave it, in the transaction that does what the message
//! requests. So the sender may deliver it as often as it likes, even in parallel, until it learns that the
//! transaction was committed.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde::de::DeserializeOwned;
use tidegate_core::connect::{Client, Database, Transaction};
use tidegate_core::error::{Error, Result};
use tidegate_core::event::NewEvent;
use tidegate_core::queue;

/// A message from outside, as its sender delivered it.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it came from, such as a queue's ARN; at most 1000 bytes.
    pub source: String,
    /// What distinguishes it from all other messages of that source; at most 500 bytes. Two messages with the
    /// same id are the same message.
    pub id: String,
    /// Its content, as it was sent; at most [`NewEvent::PAYLOAD_LIMIT`].
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Message {
    /// Leaves out the body, which may contain personal data (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, id, body } = self;
        write!(f, "Message({source:?}, {id:?}, {} bytes)", body.len())
    }
}

impl Message {
    /// Parses the body as JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the place and does not quote the body.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let form = if error.is_data() {
                "must have the required fields"
            } else {
                "must be JSON"
            };
            let (line, column) = (error.line(), error.column());
            let place = format!("got something else at line {line}, column {column}");
            Error::Invalid(format!("message: {form}, {place}"))
        })
    }

    fn check(&self) -> Result<()> {
        if self.body.len() > NewEvent::PAYLOAD_LIMIT {
            let (limit, size) = (NewEvent::PAYLOAD_LIMIT, self.body.len());
            let text = format!("message: must have at most {limit} bytes, got {size}");
            return Err(Error::Invalid(text));
        }
        Ok(())
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// What it requests is committed.
    Taken,
    /// It was taken in before, so nothing was done.
    Repeated,
}

/// The future of an intake: see `Program::receive` of `tidegate_admin`.
pub type Intake<'a> = BoxFuture<'a, Result<()>>;

/// What a program does with a message, in the transaction that records that it was taken in.
pub type TakeIn = dyn for<'a> Fn(&'a Transaction<'a>, &'a Message) -> Intake<'a> + Send + Sync;

/// Whether a failure like this means that the message itself is wrong, so that it fails again on every
/// delivery.
pub fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Invalid(_)) || error.is_bad_data()
}

/// Takes in messages one by one, on one connection as long as it works.
pub struct Receiver<'a> {
    database: &'a Database,
    take_in: &'a TakeIn,
    client: Option<Client>,
}

impl<'a> Receiver<'a> {
    /// Creates a receiver that does with each message what `take_in` does.
    pub fn new(database: &'a Database, take_in: &'a TakeIn) -> Self {
        Self {
            database,
            take_in,
            client: None,
        }
    }

    /// Takes in a message, within `time` if there is a limit. When this returns without an error, the message
    /// is committed.
    ///
    /// # Errors
    /// When [`is_refusal`] is true for the error, the message itself is wrong. Otherwise it may succeed on
    /// another delivery.
    pub async fn receive(&mut self, message: &Message, time: Option<Duration>) -> Result<Receipt> {
        message.check()?;
        let received = self.receive_once(message);
        match time {
            Some(limit) => Error::within("receive", limit, received).await,
            None => received.await,
        }
    }

    /// Takes the connection out of the receiver while it works. If this future is dropped halfway, the
    /// connection goes with it.
    async fn receive_once(&mut self, message: &Message) -> Result<Receipt> {
        let mut client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => self.database.connect().await?,
        };
        let received = take_in(&mut client, message, self.take_in).await;
        if !received.as_ref().is_err_and(Error::is_connection_lost) {
            self.client = Some(client);
        }
        received
    }
}

async fn take_in(client: &mut Client, message: &Message, intake: &TakeIn) -> Result<Receipt> {
    let transaction = client.transaction().await.map_err(Error::at("begin"))?;
    if !queue::receive(&transaction, &message.source, &message.id).await? {
        return Ok(Receipt::Repeated);
    }
    // A panic over one message must not affect the others. The transaction rolls back.
    let taken = AssertUnwindSafe(async { intake(&transaction, message).await }).catch_unwind();
    let panicked =
        |_| Error::Invalid("message: the intake panicked while it read the message".to_owned());
    taken.await.map_err(panicked)??;
    // An intake may overlook that one of its own statements failed. Then the commit would roll back without
    // an error.
    let alive = transaction.batch_execute("SELECT 1").await;
    alive.map_err(Error::at("receive"))?;
    transaction.commit().await.map_err(Error::at("commit"))?;
    Ok(Receipt::Taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &str) -> Message {
        Message {
            source: "here".to_owned(),
            id: "1".to_owned(),
            body: body.into(),
        }
    }

    #[test]
    fn i9_a_body_that_does_not_fit_is_refused_by_its_place_and_shown_nowhere() {
        for (body, says) in [
            ("canary", "must be JSON"),
            ("[1, ", "must be JSON"),
            ("\"canary\"", "fields"),
        ] {
            let message = message(body);
            let error = message.json::<Vec<u64>>().unwrap_err();
            assert!(is_refusal(&error));
            let text = format!("{error} {message:?}");
            assert!(text.contains(says) && !text.contains("canary"), "{text}");
        }
        assert_eq!(message("[1]").json::<Vec<u64>>().unwrap(), [1]);
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_size() {
        let fits = message(&"x".repeat(NewEvent::PAYLOAD_LIMIT));
        fits.check().unwrap();
        let error = message(&"x".repeat(NewEvent::PAYLOAD_LIMIT + 1))
            .check()
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("1048576") && text.contains("1048577"),
            "{text}"
        );
    }
}
