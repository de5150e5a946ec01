//! Owns what a handler may answer, and the helpers that put the verdict on the line that failed. What a verdict
//! means for the event is decided elsewhere ([`crate::outcome`]).

use std::any::Any;
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The longest that a handler may have kept of a result or a step, in bytes of JSON: as long as a payload may be.
const MOST_KEPT: usize = 1 << 20;

/// The longest message kept of one fault, in characters; a handler may say megabytes.
const MOST_MESSAGE: usize = 2000;

/// The longest details kept of one fault, in bytes of JSON.
const MOST_DETAILS: usize = 16 << 10;

/// So many faults of one handler are kept, and a word about the rest.
const MOST_FAULTS: usize = 100;

/// What a handler returns.
pub type HandlerResult = Result<Done, HandlerError>;

/// A handler's success.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "return it: it is the handler's verdict"]
pub struct Done {
    pub(crate) result: Option<Value>,
    pub(crate) committed: Committed,
}

/// What the handler's own transaction has already written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Committed {
    /// There was none.
    #[default]
    Nothing,
    /// That this handler is done; others are not.
    Handler,
    /// The end of the event.
    Event,
}

impl Done {
    /// Success, nothing to tell.
    pub fn ok() -> Self {
        Self {
            result: None,
            committed: Committed::Nothing,
        }
    }

    /// Success with a result, kept in `event_log.result` under the handler's name.
    ///
    /// # Errors
    /// A rejection, code `result`, when the value is no JSON, or of more than 1 MiB.
    pub fn with(result: &impl Serialize) -> HandlerResult {
        let result = kept("result", result)?;
        Ok(Self {
            result: Some(result),
            committed: Committed::Nothing,
        })
    }
}

/// A value as it is kept with an event.
pub(crate) fn kept(code: &'static str, value: &impl Serialize) -> Result<Value, HandlerError> {
    let value = serde_json::to_value(value).reject(code)?;
    match value.to_string().len() {
        0..=MOST_KEPT => Ok(value),
        got => Err(HandlerError::reject(
            code,
            format!("must have at most {MOST_KEPT} bytes of JSON, got {got}"),
        )),
    }
}

/// Why no handler is given an event.
#[derive(Debug)]
pub(crate) enum Unhandled {
    /// Another program may handle it, or this one later.
    Later(HandlerError),
    /// Nobody can.
    Never(Fault),
}

/// A handler's failure: to be retried, or final.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerError {
    pub(crate) verdict: Verdict,
    pub(crate) faults: Vec<Fault>,
    /// No fault of the event's: it keeps its attempt.
    pub(crate) blameless: bool,
    /// No error at all: not now.
    pub(crate) snoozed: bool,
    /// The service that the handler calls has not answered.
    unavailable: bool,
    /// The event waits for this service.
    pub(crate) deferred: Option<&'static str>,
    /// It is that of a call which several events shared.
    pub(crate) shared: Option<SharedFailure>,
}

/// A call's failure, as one of the events has it that shared the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedFailure {
    /// So many may share the next call; as many as ever, if it was its service's fault.
    pub together: Option<u16>,
    /// Of its events the one that tells the service's failure: there was one call.
    pub is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Retry { after: Option<Duration> },
    Reject,
}

/// One thing that went wrong, as stored in the `errors` array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Short and stable, for programs: `timeout`, `409`, `not_found`.
    pub code: Cow<'static, str>,
    /// For people. Never put personal data or secrets here: it is stored.
    pub message: String,
    /// Whatever programs need beyond the code, such as the fields of a request that are invalid. Of more than 16 KiB of JSON
    /// only the length is stored, as `{"left_out_bytes": …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl HandlerError {
    /// Try again, with the usual backoff.
    pub fn retry(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        let verdict = Verdict::Retry { after: None };
        Self::of(verdict, vec![Fault::new(code, message)])
    }

    fn of(verdict: Verdict, faults: Vec<Fault>) -> Self {
        Self {
            verdict,
            faults,
            blameless: false,
            snoozed: false,
            unavailable: false,
            deferred: None,
            shared: None,
        }
    }

    /// The service that the handler calls ([`Handlers::calls`](crate::Handlers::calls)) has not answered: it could not be
    /// reached, ran out of time, or said that it is not well or has too much to do (5xx, 429), or it refuses our own
    /// credentials (the code `credentials`). Costs the event no attempt, unless the service has answered others since the
    /// event failed like this before. After five such failures in a row no drain calls the service: events that need it
    /// wait in their places, and now and then one is tried. [`HandlerError::after`] says when the service wants to be
    /// asked again. In a handler that calls no service this is a plain retry.
    pub fn unavailable(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self {
            unavailable: true,
            ..Self::retry(code, message)
        }
    }

    /// Not now, and no error: the handler runs again after `delay`. What it waits for is not ready, say. Costs no attempt and
    /// is not among the event's errors; `why` is kept with its progress, so put no personal data there. What waits behind the
    /// event in its group goes on waiting.
    ///
    /// An event ends when its deadline has passed, snoozed or not. It can be snoozed a thousand times; after that a snooze
    /// is a retry, code `snoozed_too_often`.
    pub fn snooze(delay: Duration, why: impl Display) -> Self {
        Self {
            snoozed: true,
            ..Self::retry("snoozed", why).after(delay)
        }
    }

    /// Final: the event ends `COMPLETED_WITH_ERRORS`.
    pub fn reject(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self::of(Verdict::Reject, vec![Fault::new(code, message)])
    }

    /// Final, with a list of errors, of which a hundred are kept (C8).
    #[must_use]
    pub fn reject_all(faults: Vec<Fault>) -> Self {
        Self::of(Verdict::Reject, faults)
    }

    /// Whether it is final: the event is not tried again.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.verdict == Verdict::Reject
    }

    /// The same failure, to be tried again with the usual backoff if it was final.
    #[must_use]
    pub fn into_retry(mut self) -> Self {
        if self.is_rejection() {
            self.verdict = Verdict::Retry { after: None };
        }
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// What went wrong, as it is stored.
    pub(crate) fn storable(&self) -> impl Iterator<Item = Fault> {
        let further = self.faults.len().saturating_sub(MOST_FAULTS);
        let further = (further > 0)
            .then(|| Fault::new("further", format!("{further} further errors are left out")));
        let first = self.faults.iter().take(MOST_FAULTS).map(Fault::storable);
        first.chain(further)
    }

    /// Something else is at fault: the event keeps its attempt.
    pub(crate) fn blameless(mut self) -> Self {
        self.blameless = true;
        self
    }

    /// The retry that a snooze is when the event has had all that it may have.
    pub(crate) fn snoozed_too_often(mut self) -> Self {
        if self.snoozed {
            self.snoozed = false;
            for fault in &mut self.faults {
                fault.code = "snoozed_too_often".into();
            }
        }
        self
    }

    /// Whether it says that the service has not answered.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.unavailable
    }

    /// The event waits for this service, and keeps its attempt. What it shared a call with had no part in it.
    pub(crate) fn deferred(mut self, service: &'static str) -> Self {
        self.deferred = Some(service);
        if let Some(shared) = &mut self.shared {
            shared.together = None;
        }
        self.blameless()
    }

    /// A handler, or what it called, that was stopped: by its own limit, or because the run ended.
    pub(crate) fn timed_out(limit: Duration, cut: bool) -> Self {
        if cut {
            return Self::retry(
                "cut",
                format!("the run ended after the handler had had {limit:.1?}"),
            );
        }
        Self::retry(
            "timeout",
            format!("the handler took longer than its limit of {limit:.1?}"),
        )
    }

    /// A handler, or what it called, that panicked.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::retry("panic", message.unwrap_or("the handler panicked"))
    }

    /// The failure of a call as one of `count` events has it that shared the call, the first of them or another. While there are
    /// several it is nobody's fault, and final for nobody: each is tried again at once, with a quarter as many.
    pub(crate) fn of_call(mut self, count: usize, is_first: bool) -> Self {
        if count == 1 || self.snoozed {
            return self;
        }
        for fault in &mut self.faults {
            fault.message = format!("of a call that {count} events shared: {}", fault.message);
        }
        let quarter = u16::try_from(count / 4).unwrap_or(u16::MAX).max(1);
        self.shared = Some(SharedFailure {
            together: Some(quarter),
            is_first,
        });
        let failed = self.into_retry().blameless();
        let delay = failed.delay().unwrap_or_default();
        failed.after(delay)
    }

    /// When to try again, if that was said.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Retry { after } => after,
            Verdict::Reject => None,
        }
    }

    /// The next attempt no sooner than this, instead of the backoff's own delay.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        if let Verdict::Retry { after } = &mut self.verdict {
            *after = Some(delay);
        }
        self
    }
}

impl Fault {
    /// A fault of this code.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self {
            code: code.into(),
            message: message.to_string(),
            details: None,
        }
    }

    /// As it is stored: without NUL characters, which Postgres has no place for, and no longer than what is kept.
    pub(crate) fn storable(&self) -> Self {
        let cut = |text: &str, most: usize| -> String {
            text.chars().filter(|c| *c != '\0').take(most).collect()
        };
        let details = self.details.clone().map(|details| {
            let bytes = details.to_string().len();
            if bytes > MOST_DETAILS {
                return json!({"left_out_bytes": bytes});
            }
            details
        });
        Self {
            code: cut(&self.code, 100).into(),
            message: cut(&self.message, MOST_MESSAGE),
            details,
        }
    }

    /// With details for programs.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }
}

impl Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Retry { .. } if self.snoozed => "snooze",
            Verdict::Retry { .. } => "retry",
            Verdict::Reject => "reject",
        };
        write!(f, "{verdict}")?;
        for fault in &self.faults {
            write!(f, ": {}: {}", fault.code, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for HandlerError {}

/// A failed statement of the handler's own, so that `?` suffices: a retry, code `database`. The
/// message is the database's; its detail, which may quote a row, is dropped.
impl From<tokio_postgres::Error> for HandlerError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::retry("database", crate::error::describe(&error))
    }
}

/// Puts the verdict on the line that failed.
///
/// ```
/// # use tidegate::{HandlerError, Verdicts};
/// fn charge(answer: Result<u16, std::io::Error>, account: Option<&str>) -> Result<(), HandlerError> {
///     answer.retryable()?;
///     account.reject("no_account")?;
///     Ok(())
/// }
/// ```
pub trait Verdicts<T> {
    /// A failure that passes: try the event again.
    ///
    /// # Errors
    /// A retry, code `error`.
    fn retryable(self) -> Result<T, HandlerError>;

    /// The service has not answered: wait for it, at no cost to the event. See [`HandlerError::unavailable`].
    ///
    /// # Errors
    /// A retry, code `unavailable`.
    fn unavailable(self) -> Result<T, HandlerError>;

    /// A failure that stays: end the event with this code.
    ///
    /// # Errors
    /// A rejection with `code`.
    fn reject(self, code: impl Into<Cow<'static, str>>) -> Result<T, HandlerError>;
}

impl<T, E: Display> Verdicts<T> for Result<T, E> {
    fn retryable(self) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::retry("error", error))
    }

    fn unavailable(self) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::unavailable("unavailable", error))
    }

    fn reject(self, code: impl Into<Cow<'static, str>>) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::reject(code, error))
    }
}

impl<T> Verdicts<T> for Option<T> {
    fn retryable(self) -> Result<T, HandlerError> {
        self.ok_or_else(|| HandlerError::retry("missing", "nothing there"))
    }

    fn unavailable(self) -> Result<T, HandlerError> {
        self.ok_or_else(|| HandlerError::unavailable("unavailable", "nothing there"))
    }

    fn reject(self, code: impl Into<Cow<'static, str>>) -> Result<T, HandlerError> {
        self.ok_or_else(|| HandlerError::reject(code, "nothing there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_as_long_as_a_payload_may_be_and_no_longer() {
        let quotes = 2;
        assert!(Done::with(&"x".repeat(MOST_KEPT - quotes)).is_ok());
        let error = Done::with(&"x".repeat(MOST_KEPT - quotes + 1)).unwrap_err();
        assert!(error.is_rejection());
        let text = error.to_string();
        assert!(
            text.contains("result: must have at most 1048576 bytes of JSON, got 1048577"),
            "{text}"
        );
    }

    #[test]
    fn of_what_went_wrong_is_stored_what_there_is_room_for() {
        let long = Fault::new("c".repeat(101), "m\0".repeat(2001))
            .with_details(json!("d".repeat(MOST_DETAILS)));
        let error = HandlerError::reject_all(vec![long; 150]);
        let stored: Vec<Fault> = error.storable().collect();
        assert_eq!(stored.len(), 101);
        assert_eq!(stored[0].code, "c".repeat(100));
        assert_eq!(stored[0].message, "m".repeat(2000));
        let left_out = json!({"left_out_bytes": MOST_DETAILS + 2});
        assert_eq!(stored[0].details, Some(left_out));
        assert_eq!(stored[100].message, "50 further errors are left out");
        let short = Fault::new("422", "field a").with_details(json!({"field": "a"}));
        let error = HandlerError::reject_all(vec![short.clone()]);
        assert_eq!(error.storable().collect::<Vec<_>>(), [short]);
    }
}
