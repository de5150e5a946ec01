//! Owns the log lines about single events. Of each line, kind and code, a run writes the first ten, the
//! hundredth, the thousandth and so on: a service that refuses everything would otherwise make a line of each
//! event, and the lines would cost more than the run.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::config::millis;
use tidegate_core::lease::{Lease, LeasedEvent};
use tidegate_core::progress::Status;
use tidegate_core::trace;

use super::settle::AttemptResult;

/// The most lines, kinds and codes that a run counts apart. The codes of further ones are counted as others.
const MOST_COUNTED: usize = 100;

/// The lines of one run. Dropped with the run, it logs how many there would have been.
#[derive(Default)]
pub struct EventLines {
    /// How many events each line, kind and code has had.
    counts: BTreeMap<(&'static str, String, String), u64>,
}

impl EventLines {
    /// Logs the end of an event. Successes are logged at the debug level. A failure that will be retried, a
    /// handler's own rejection and a final failure differ in level and text (B29, B30).
    pub(super) fn ended(&mut self, event: &LeasedEvent, settled: &AttemptResult, took: Duration) {
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
            Some(Status::CompletedWithErrors) => {
                if let Some(events) = self.count("rejected", kind, code) {
                    log!(warn, code, events, "event rejected by a handler");
                }
            }
            Some(Status::Failed) => {
                if let Some(events) = self.count("failed", kind, code) {
                    log!(error, code, events, "event failed for good");
                }
            }
            None => {
                if let Some(events) = self.count("retried", kind, code) {
                    log!(warn, code, events, "event failed, will be retried");
                }
            }
        }
    }

    /// Logs the end of an event that no handler has run.
    pub fn failed(&mut self, id: i64, code: &str) {
        if let Some(events) = self.count("failed", "", code) {
            tracing::error!(event.id = id, code, events, "event failed for good");
        }
    }

    pub(super) fn lost(&mut self, lease: Lease) {
        if let Some(events) = self.count("lease lost", "", "") {
            tracing::warn!(
                event.id = lease.id,
                events,
                "lease lost; the result of this attempt is discarded"
            );
        }
    }

    /// Logs that an event goes back because its end cannot be stored.
    pub(super) fn unwritable(&mut self, lease: Lease, code: &str) {
        if let Some(events) = self.count("released", "", code) {
            tracing::warn!(
                event.id = lease.id,
                code,
                events,
                "the result cannot be stored; the event is released"
            );
        }
    }

    /// Counts an event. Returns its number if it has a line.
    fn count(&mut self, line: &'static str, kind: &str, code: &str) -> Option<u64> {
        let mut key = (line, kind.to_owned(), code.to_owned());
        if self.counts.len() >= MOST_COUNTED && !self.counts.contains_key(&key) {
            key = (line, String::new(), "other".to_owned());
        }
        let count = self.counts.entry(key).or_default();
        *count += 1;
        has_line(*count).then_some(*count)
    }
}

fn has_line(count: u64) -> bool {
    count <= 10 || count == 10_u64.pow(count.ilog10())
}

impl Drop for EventLines {
    fn drop(&mut self) {
        let told = self.counts.iter().filter(|(_, count)| !has_line(**count));
        let told = told.map(|((line, kind, code), count)| {
            let words = [line, kind.as_str(), code].into_iter();
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            format!("{}: {count}", words.join(" "))
        });
        let counts = told.collect::<Vec<_>>().join(", ");
        if !counts.is_empty() {
            tracing::warn!(counts, "lines about single events were left out");
        }
    }
}
