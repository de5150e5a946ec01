//! Owns what a handler may return, and the helpers that put the verdict on the line that failed.
//! [`crate::outcome`] decides what a verdict means for the event.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::Serialize;
use tidegate_core::error::Error;
use tidegate_core::event;
use tidegate_core::fault::Fault;
use tidegate_core::json::Json;
use tidegate_core::sealing::Unopened;

/// The longest result or step that is stored for a handler, in bytes of JSON. It is the limit of a payload,
/// too.
const MOST_KEPT: usize = 1 << 20;

/// How deep a result or a step may be nested. Deeper progress could be stored, but no drain could read it,
/// and finished steps would run again.
const MOST_NESTED: usize = 100;

/// How many faults of one handler are stored. A last fault then says how many were left out.
const MOST_FAULTS: usize = 100;

/// The longest time for which a service is not called because it has asked for that.
const MOST_ASKED: Duration = Duration::from_hours(1);

/// The code of an event whose service does not answer, and was not called.
pub(crate) const NOT_CALLED: &str = "service_down";

/// The return type of a handler.
pub type HandlerResult = Result<Done, HandlerError>;

/// A handler's success.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "return it: it is the handler's verdict"]
pub struct Done {
    pub(crate) result: Option<Json>,
    pub(crate) committed: Committed,
    /// A follow-up does the work.
    pub(crate) put_off: bool,
}

/// What the handler's own transaction has already committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Committed {
    /// Nothing: the handler used no transaction.
    #[default]
    Nothing,
    /// The completion of this handler. Other handlers of the event are still to run.
    Handler,
    /// The end of the event.
    Event,
}

impl Done {
    /// Success without a result.
    pub fn ok() -> Self {
        Self {
            result: None,
            committed: Committed::Nothing,
            put_off: false,
        }
    }

    /// Success with a result, which is stored in `event_log.result` under the handler's name.
    ///
    /// # Errors
    /// A rejection, code `result`, when the value cannot be serialized as JSON or has more than 1 MiB.
    pub fn with(result: &impl Serialize) -> HandlerResult {
        let result = kept("result", result)?;
        Ok(Self {
            result: Some(result),
            ..Self::ok()
        })
    }

    /// The handler has done nothing but emit an event that does the work later. The event ends COMPLETED
    /// without a spent attempt. Figures count it as snoozed, so that rates and forecasts see only work that
    /// was done. Of an event with several handlers, all must have put it off.
    pub fn put_off(self) -> Self {
        Self {
            put_off: true,
            ..self
        }
    }
}

/// Serializes a value that is stored with an event, and checks its size.
pub(crate) fn kept(code: &'static str, value: &impl Serialize) -> Result<Json, HandlerError> {
    let value = Json::of(value).reject(code)?;
    if event::has_nul_escape(value.get()) {
        return Err(HandlerError::reject(code, "must have no character NUL"));
    }
    if depth(value.get()) > MOST_NESTED {
        let why = format!("must be nested at most {MOST_NESTED} deep");
        return Err(HandlerError::reject(code, why));
    }
    match value.get().len() {
        0..=MOST_KEPT => Ok(value),
        got => Err(HandlerError::reject(
            code,
            format!("must have at most {MOST_KEPT} bytes of JSON, got {got}"),
        )),
    }
}

/// How deep a text of JSON is nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'[' | b'{' if !is_quoted => depth += 1,
            b']' | b'}' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

/// Why no handler receives an event.
#[derive(Debug)]
pub(crate) enum Unhandled {
    /// Another program may handle it, or this one later.
    Later(HandlerError),
    /// No program can handle it.
    Never(Fault),
}

/// A handler's failure: a retry or a final rejection.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "return it: it is the handler's verdict"]
pub struct HandlerError {
    pub(crate) kind: FailureKind,
    pub(crate) faults: Vec<Fault>,
    /// The event did not cause the failure, so the attempt is not charged to it.
    pub(crate) blameless: bool,
    /// Not a failure: the handler wants to run later.
    pub(crate) snoozed: bool,
    /// Not a failure: the run ended before the handler.
    pub(crate) interrupted: bool,
    /// What the failure says about the service that the handler calls.
    pub(crate) call: ServiceCall,
    /// The event waits for this service.
    pub(crate) deferred: Option<&'static str>,
    /// The failure is that of a call that several events shared.
    pub(crate) shared: Option<SharedFailure>,
}

/// What a failure says about the service that the handler calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceCall {
    /// Nothing: perhaps it was not called.
    Unknown,
    /// Nothing: it is about a call of another service, which has been judged.
    Elsewhere,
    /// It has answered. The failure is the event's.
    Answered,
    /// It failed at this call, perhaps because of the event.
    Failed,
    /// It has not answered. The event did not cause this.
    Unanswered,
    /// It takes on nothing more for now, whatever the event.
    Busy,
}

/// The failure of a shared call, as one of its events receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedFailure {
    /// How many events may share the next call. `None`, no new limit, if the service caused the failure.
    pub together: Option<u16>,
    /// Whether this is the first event of the call. Only the first reports the service's failure, because
    /// there was only one call.
    pub is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Retry { after: Option<Duration> },
    Reject,
}

impl From<Unopened> for Unhandled {
    fn from(why: Unopened) -> Self {
        match why {
            // Another program, or this one with corrected settings, can handle it.
            Unopened::NoKey(_) => Self::Later(HandlerError::retry("sealed", why).blameless()),
            Unopened::Broken => Self::Never(Fault::new("sealed", why)),
        }
    }
}

impl HandlerError {
    /// Asks for another attempt, after the usual backoff.
    pub fn retry(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        let kind = FailureKind::Retry { after: None };
        Self::of(kind, vec![Fault::new(code, message)])
    }

    fn of(kind: FailureKind, faults: Vec<Fault>) -> Self {
        Self {
            kind,
            faults,
            blameless: false,
            snoozed: false,
            interrupted: false,
            call: ServiceCall::Unknown,
            deferred: None,
            shared: None,
        }
    }

    /// Reports that the service that the handler calls ([`Handlers::calls`](crate::Handlers::calls)) has not
    /// answered. Use it when the service cannot be reached, times out, reports that it is unhealthy or
    /// overloaded (5xx), or refuses the program's own credentials (code `credentials`).
    ///
    /// The attempt does not count against the event's limit, unless the service has answered other events
    /// since this event last failed in this way. After five such failures in a row, no drain calls the
    /// service: events that need it wait in their places, and from time to time a drain tries one of them. If
    /// the service says when to call it again, pass that on with [`HandlerError::after_header`]. In a handler
    /// that calls no service, this is a plain retry.
    pub fn unavailable(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self::retry(code, message).of_service(ServiceCall::Unanswered)
    }

    /// Reports that the service that the handler calls takes on no more for now, whatever the event: it has
    /// too many calls (429), or has left out this item of a request. This is as
    /// [`HandlerError::unavailable`], but the attempt never counts against the event's limit, although the
    /// service answers others meanwhile.
    pub fn busy(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self::retry(code, message).of_service(ServiceCall::Busy)
    }

    /// Reports that the service that the handler calls failed at this call, perhaps because of this event: it
    /// crashed, or returned an error without saying whose fault it is (500). The attempt counts against the
    /// event's limit, and the failure counts for the service like [`HandlerError::unavailable`]. So an event
    /// that breaks the service ends after its attempts, and a broken service costs no more than a few events
    /// an attempt. A handler that runs into its time limit while it calls a service fails like this.
    pub fn call_failed(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self::retry(code, message).of_service(ServiceCall::Failed)
    }

    /// Notes that the service has answered, so its failures in a row are over. Without this, a retry says
    /// nothing about the service.
    pub fn answered(self) -> Self {
        self.of_service(ServiceCall::Answered)
    }

    /// Notes that the failure is about another service than the handler's own.
    pub(crate) fn elsewhere(self) -> Self {
        self.of_service(ServiceCall::Elsewhere)
    }

    fn of_service(self, call: ServiceCall) -> Self {
        Self { call, ..self }
    }

    /// Asks to run the handler again after `delay`, for example because what it needs is not ready yet. This
    /// is not an error: it costs no attempt and does not appear among the event's errors. `why` is stored
    /// with the event's progress, so put no personal data there. Later events of the group go on waiting.
    ///
    /// A snoozed event still ends when its deadline passes. An event can be snoozed 1,000 times; after that a
    /// snooze is a retry with the code `snoozed_too_often`.
    pub fn snooze(delay: Duration, why: impl Display) -> Self {
        Self {
            snoozed: true,
            ..Self::retry("snoozed", why).after(delay)
        }
    }

    /// Rejects the event for good: it ends as `COMPLETED_WITH_ERRORS`.
    pub fn reject(code: impl Into<Cow<'static, str>>, message: impl Display) -> Self {
        Self::of(FailureKind::Reject, vec![Fault::new(code, message)])
    }

    /// Rejects the event for good with a list of errors. The first hundred are stored (C8).
    pub fn reject_all(faults: Vec<Fault>) -> Self {
        Self::of(FailureKind::Reject, faults)
    }

    /// Whether the handler rejects the event, and does not want it tried again.
    pub fn is_rejection(&self) -> bool {
        self.kind == FailureKind::Reject
    }

    /// Returns the same failure as a retry. A rejection is retried after the usual backoff.
    pub fn into_retry(mut self) -> Self {
        if self.is_rejection() {
            self.kind = FailureKind::Retry { after: None };
        }
        self
    }

    /// Returns the errors as the handler gave them. They are cut only when they are stored.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns the errors in the form in which they are stored.
    pub(crate) fn storable(&self) -> impl Iterator<Item = Fault> {
        let further = self.faults.len().saturating_sub(MOST_FAULTS);
        let further = (further > 0)
            .then(|| Fault::new("further", format!("{further} further errors are left out")));
        let first = self.faults.iter().take(MOST_FAULTS).map(Fault::storable);
        first.chain(further)
    }

    /// Marks a failure that the event did not cause, so that the attempt is not charged to it.
    pub(crate) fn blameless(mut self) -> Self {
        self.blameless = true;
        self
    }

    /// Turns a snooze into a retry, for an event that has been snoozed as often as it may.
    pub(crate) fn snoozed_too_often(mut self) -> Self {
        if self.snoozed {
            self.snoozed = false;
            for fault in &mut self.faults {
                fault.code = "snoozed_too_often".into();
            }
        }
        self
    }

    /// Makes the event wait for this service, and does not charge the attempt to it. The events that it
    /// shared a call with did not cause the failure, so the size of their next call stays as it is.
    pub(crate) fn deferred(mut self, service: &'static str) -> Self {
        self.deferred = Some(service);
        if let Some(shared) = &mut self.shared {
            shared.together = None;
        }
        self.blameless()
    }

    /// The failure of a handler, or of a call, that was stopped by its own time limit or because the run
    /// ended.
    pub(crate) fn timed_out(limit: Duration, cut: bool) -> Self {
        if cut {
            let why = format!("the run ended after the handler had had {limit:.1?}");
            return Self {
                interrupted: true,
                ..Self::retry("cut", why).blameless()
            };
        }
        let why = format!("the handler took longer than its limit of {limit:.1?}");
        Self::call_failed("timeout", why)
    }

    /// The failure of a handler, or of a call, that panicked.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::retry("panic", message.unwrap_or("the handler panicked"))
    }

    /// Returns a call's failure as each of the `count` events that shared the call receives it. While several
    /// events share a call, its failure is charged to none of them and is final for none: each is retried at
    /// once, with a quarter as many in one call. `is_first` marks the first of the events.
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

    /// Whether the handler's service was not called, because it does not answer.
    pub(crate) fn is_uncalled(&self) -> bool {
        self.faults
            .first()
            .is_some_and(|fault| fault.code == NOT_CALLED)
    }

    /// Returns the delay before the next attempt, if the handler wants one.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.kind {
            FailureKind::Retry { after } => after,
            FailureKind::Reject => None,
        }
    }

    /// Starts the next attempt no sooner than after `delay`, in place of the usual backoff.
    pub fn after(mut self, delay: Duration) -> Self {
        if let FailureKind::Retry { after } = &mut self.kind {
            *after = Some(delay);
        }
        self
    }

    /// Starts the next attempt when the service wants it, as the header `Retry-After` of its answer says: in
    /// seconds, or as a time of the clock that its header `Date` shows, but after an hour at the latest. If
    /// the time has passed, or the text is neither, the usual backoff applies.
    pub fn after_header(self, retry_after: Option<&str>, date: Option<&str>) -> Self {
        let time = |text: &str| Some(rfc2822::parse(text.trim()).ok()?.timestamp());
        let wait = retry_after.and_then(|text| {
            let seconds = text.trim().parse().ok().map(Duration::from_secs);
            seconds.or_else(|| {
                let now = date.map_or_else(|| Some(Timestamp::now()), time)?;
                time(text)?.duration_since(now).try_into().ok()
            })
        });
        match wait.filter(|wait| !wait.is_zero()) {
            Some(wait) => self.after(wait.min(MOST_ASKED)),
            None => self,
        }
    }
}

impl Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.kind {
            FailureKind::Retry { .. } if self.snoozed => "snooze",
            FailureKind::Retry { .. } => "retry",
            FailureKind::Reject => "reject",
        };
        write!(f, "{verdict}")?;
        for fault in &self.faults {
            write!(f, ": {}: {}", fault.code, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for HandlerError {}

/// An error that `?` turns into a retry. For every other one the compiler says what to write instead.
#[diagnostic::on_unimplemented(
    message = "`?` does not know what `{Self}` means for the event",
    label = "say it first: `.unavailable()?` if a service has not answered, otherwise `.retryable()?` or `.reject(\"code\")?`"
)]
pub trait HasVerdict {
    /// Returns the retry that `?` makes of this error.
    fn verdict(self) -> HandlerError;
}

/// Lets `?` turn three errors into a retry: of a statement (code `database`), of the library (code `error`)
/// and of JSON (code `json`). What their text may quote of a row or a document is left out. Give every other
/// error its verdict with [`Verdicts`], or implement `From` for an error type of your own.
impl<E: HasVerdict> From<E> for HandlerError {
    fn from(error: E) -> Self {
        error.verdict()
    }
}

impl HasVerdict for tokio_postgres::Error {
    fn verdict(self) -> HandlerError {
        HandlerError::retry("database", tidegate_core::error::describe(&self))
    }
}

impl HasVerdict for Error {
    fn verdict(self) -> HandlerError {
        HandlerError::retry("error", self)
    }
}

impl HasVerdict for serde_json::Error {
    fn verdict(self) -> HandlerError {
        HandlerError::retry("json", event::describe(&self))
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
    /// Marks a temporary failure: the event is tried again.
    ///
    /// # Errors
    /// A retry, code `error`.
    fn retryable(self) -> Result<T, HandlerError>;

    /// Marks that the service has not answered: the event waits for it, and the attempt is not counted. See
    /// [`HandlerError::unavailable`].
    ///
    /// # Errors
    /// A retry, code `unavailable`.
    fn unavailable(self) -> Result<T, HandlerError>;

    /// Marks a permanent failure: the event ends with this code.
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
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    /// As long as details may be.
    const MOST_DETAILS: usize = 16 << 10;

    #[test]
    fn a_service_says_when_it_wants_to_be_asked_again_within_reason() {
        let date = Some("Mon, 23 Nov 2026 07:00:00 GMT");
        for (asked, now, expected) in [
            (Some("120"), None, Some(120)),
            (Some(" 30 "), date, Some(30)),
            (Some("0"), None, None),
            (Some("99999999"), None, Some(3600)),
            (Some("Mon, 23 Nov 2026 07:01:30 GMT"), date, Some(90)),
            (Some("Mon, 23 Nov 2026 06:00:00 GMT"), date, None),
            (Some("Mon, 23 Nov 2026 07:01:30 GMT"), Some("now"), None),
            (Some("Thu, 01 Jan 2037 00:00:00 GMT"), None, Some(3600)),
            (Some("soon"), date, None),
            (Some("-1"), None, None),
            (None, date, None),
        ] {
            let error = HandlerError::unavailable("503", "").after_header(asked, now);
            let expected = expected.map(Duration::from_secs);
            assert_eq!(error.delay(), expected, "{asked:?}");
        }
        let final_one = HandlerError::reject("400", "").after_header(Some("120"), None);
        assert!(final_one.is_rejection());
    }

    #[test]
    fn a_question_mark_makes_a_retry_of_an_error_of_json_and_quotes_nothing() {
        let read = |text: &str| -> Result<u8, HandlerError> { Ok(serde_json::from_str(text)?) };
        let write = |map: &HashMap<(u8, u8), u8>| -> Result<String, HandlerError> {
            Ok(serde_json::to_string(map)?)
        };
        let errors = [
            (
                read("\"canary\""),
                "invalid type: string, expected u8 at line 1 column 8",
            ),
            (read("7 canary"), "trailing characters at line 1 column 3"),
        ];
        for (error, text) in errors {
            let error = error.unwrap_err();
            assert_eq!(error.to_string(), format!("retry: json: {text}"));
        }
        let error = write(&HashMap::from([((1, 2), 3)])).unwrap_err();
        assert_eq!(error.to_string(), "retry: json: key must be a string");
    }

    #[test]
    fn a_result_is_nested_no_deeper_than_a_drain_can_read_it_with_the_event() {
        let nested = |depth: usize| {
            let wrap = |value, _| json!({ "in": [value] });
            (0..depth / 2).fold(json!(depth), wrap)
        };
        let result = Done::with(&nested(MOST_NESTED)).unwrap().result.unwrap();
        let steps = [("send/step".to_owned(), result)];
        let progress = tidegate_core::progress::Progress {
            steps: steps.into_iter().collect(),
            ..Default::default()
        };
        let stored = serde_json::to_string(&progress).unwrap();
        assert!(serde_json::from_str::<tidegate_core::progress::Progress>(&stored).is_ok());
        let error = Done::with(&nested(MOST_NESTED + 2)).unwrap_err();
        let says = "reject: result: must be nested at most 100 deep";
        assert_eq!(error.to_string(), says);
    }

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
        assert_eq!(stored[0].details, Some(left_out.into()));
        assert_eq!(stored[100].message, "50 further errors are left out");
        let nul = Fault::new("odd", "").with_details(json!("\0"));
        let left_out = json!({"left_out_bytes": 8});
        assert_eq!(nul.storable().details, Some(left_out.into()));
        assert!(Done::with(&json!({"a": "\0"})).unwrap_err().is_rejection());
        let short = Fault::new("422", "field a").with_details(json!({"field": "a"}));
        let error = HandlerError::reject_all(vec![short.clone()]);
        assert_eq!(error.storable().collect::<Vec<_>>(), [short]);
    }
}
