//! Owns the log lines about single events. A run writes only so many of them: a service that refuses
//! everything would otherwise make a line of each event, and the lines would cost more than the run. What it
//! leaves out, it counts. Rejections have one line for each code and minute: the first event, and then how many
//! there were.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tokio::time::Instant;

use super::settle::Settled;
use crate::budget::millis;
use crate::lease::{Lease, LeasedEvent};
use crate::outcome::Status;
use crate::trace;

/// The most lines about single events that a run writes at the levels `warn` and `error`.
const MOST_LINES: u32 = 1000;

/// The most codes that the summary names. The others are counted together.
const MOST_CODES: usize = 20;

/// How often the rejections with one code are logged.
const EVERY: Duration = Duration::from_mins(1);

/// The rejections with one code since they were last logged.
struct Rejected {
    since: Instant,
    events: u64,
}

/// The lines of one run. Dropped with the run, it logs what was left out.
#[derive(Default)]
pub struct EventLines {
    written: u32,
    /// How many lines were left out, by outcome and code.
    left_out: BTreeMap<(&'static str, String), u64>,
    /// By code.
    rejected: BTreeMap<String, Rejected>,
    /// Errors were left out, not only warnings.
    lacks_errors: bool,
}

/// Logs an error or a warning.
macro_rules! tell {
    ($is_error:expr, $($line:tt)*) => {
        if $is_error { tracing::error!($($line)*) } else { tracing::warn!($($line)*) }
    };
}

impl EventLines {
    /// Logs one line for an event's end. Successes are logged at the debug level. A failure that will be
    /// retried, a handler's own rejection and a final failure differ in level and text (B29, B30).
    pub(super) fn ended(&mut self, event: &LeasedEvent, settled: &Settled, took: Duration) {
        let (id, kind, attempt, elapsed_ms) = (
            event.lease.id,
            event.kind.as_str(),
            event.attempts,
            millis(took),
        );
        let trace_id = event.traceparent.as_deref().and_then(trace::id_of);
        let code = settled.code();
        macro_rules! log {
            ($log:ident, $($rest:tt)*) => {
                tracing::$log!(
                    event.id = id, event.kind = kind, event.attempt = attempt, trace_id, elapsed_ms, $($rest)*
                )
            };
        }
        match settled.status() {
            Some(Status::Completed) => log!(debug, "event completed"),
            None if settled.is_snoozed() => log!(debug, "event snoozed"),
            Some(Status::CompletedWithErrors) if self.is_first_rejected(code) => {
                log!(warn, code, "event rejected by a handler");
            }
            Some(Status::CompletedWithErrors) => log!(debug, code, "event rejected by a handler"),
            Some(Status::Failed) if self.has_room(true, "failed", code) => {
                log!(error, code, "event failed for good");
            }
            None if self.has_room(false, "retried", code) => {
                log!(warn, code, "event failed, will be retried");
            }
            _ => {}
        }
    }

    /// Logs the end of an event that no handler has run.
    pub fn failed(&mut self, id: i64, code: &str) {
        if self.has_room(true, "failed", code) {
            tracing::error!(event.id = id, code, "event failed for good");
        }
    }

    /// Logs that an event was taken from this run.
    pub(super) fn lost(&mut self, lease: Lease) {
        if self.has_room(false, "lease lost", "") {
            tracing::warn!(
                event.id = lease.id,
                "lease lost; the result of this attempt is discarded"
            );
        }
    }

    /// Logs that an event goes back because its end cannot be stored.
    pub(super) fn unwritable(&mut self, lease: Lease, code: &str) {
        if self.has_room(false, "released", code) {
            tracing::warn!(
                event.id = lease.id,
                code,
                "the result cannot be stored; the event is released"
            );
        }
    }

    /// Whether a rejection is the first with its code, and has a line. Counts the others, and logs their number
    /// once a minute.
    fn is_first_rejected(&mut self, code: &str) -> bool {
        let is_known = self.rejected.contains_key(code);
        let code = if is_known || self.rejected.len() < MOST_CODES {
            code
        } else {
            "other"
        };
        let Some(rejected) = self.rejected.get_mut(code) else {
            let (since, events) = (Instant::now(), 0);
            self.rejected
                .insert(code.to_owned(), Rejected { since, events });
            return self.has_room(false, "rejected", code);
        };
        rejected.events += 1;
        if rejected.since.elapsed() >= EVERY {
            rejected.tell(code);
        }
        false
    }

    /// Whether one more line may be written; counts it otherwise. A level that is not shown has no lines to
    /// count.
    fn has_room(&mut self, is_error: bool, outcome: &'static str, code: &str) -> bool {
        let is_shown = if is_error {
            tracing::enabled!(tracing::Level::ERROR)
        } else {
            tracing::enabled!(tracing::Level::WARN)
        };
        if !is_shown || self.written < MOST_LINES {
            self.written += u32::from(is_shown);
            return is_shown;
        }
        if self.left_out.is_empty() {
            tell!(
                is_error,
                "this run logs no further lines about single events; it ends with their number"
            );
        }
        self.lacks_errors |= is_error;
        let mut which = (outcome, code.to_owned());
        if self.left_out.len() >= MOST_CODES && !self.left_out.contains_key(&which) {
            "other".clone_into(&mut which.1);
        }
        *self.left_out.entry(which).or_default() += 1;
        false
    }
}

impl Rejected {
    /// Logs how many there were.
    fn tell(&mut self, code: &str) {
        if self.events > 0 {
            tracing::warn!(
                code,
                events = self.events,
                "further events rejected by handlers"
            );
        }
        (self.since, self.events) = (Instant::now(), 0);
    }
}

impl Drop for EventLines {
    fn drop(&mut self) {
        for (code, rejected) in &mut self.rejected {
            rejected.tell(code);
        }
        if self.left_out.is_empty() {
            return;
        }
        let lines: u64 = self.left_out.values().sum();
        let mut counts = String::new();
        for ((outcome, code), count) in &self.left_out {
            let (comma, space) = (
                if counts.is_empty() { "" } else { ", " },
                if code.is_empty() { "" } else { " " },
            );
            let _ = write!(counts, "{comma}{outcome}{space}{code}: {count}");
        }
        tell!(
            self.lacks_errors,
            lines,
            counts,
            "lines about single events were left out"
        );
    }
}
