//! Keeps a bounded number of spans until they are sent.

use std::sync::{Mutex, PoisonError};

use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;

/// The number of spans that are kept.
const MOST_SPANS: usize = 2048;

/// The part of these places that is reserved for failures.
const FOR_FAILURES: usize = 256;

/// Spans that wait to be sent, and the number of those that found no room.
#[derive(Default)]
pub(crate) struct Spool(Mutex<(Vec<SpanData>, u64)>);

impl Spool {
    /// Keeps a span. If there is no room, only counts it.
    pub(crate) fn push(&self, span: SpanData) {
        let failed = matches!(span.status, Status::Error { .. });
        let room = if failed {
            MOST_SPANS - 1
        } else {
            MOST_SPANS - FOR_FAILURES
        };
        self.keep(span, room);
    }

    /// Keeps the span of a whole run, for which there is always room. Outside of the sample, it is only kept
    /// beside others, which link to it.
    pub(crate) fn push_last(&self, span: SpanData) {
        let failed = matches!(span.status, Status::Error { .. });
        if failed || span.span_context.is_sampled() || !self.is_empty() {
            self.keep(span, MOST_SPANS);
        }
    }

    fn keep(&self, span: SpanData, room: usize) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0.len() < room {
            kept.0.push(span);
        } else {
            kept.1 += 1;
        }
    }

    fn is_empty(&self) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.is_empty()
    }

    pub(crate) fn take(&self) -> (Vec<SpanData>, u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::tests::span;

    #[test]
    fn spans_are_bounded_and_what_went_wrong_has_room_when_the_rest_has_none() {
        let spool = Spool::default();
        for _ in 0..MOST_SPANS {
            spool.push(span(Status::Unset));
        }
        for _ in 0..MOST_SPANS {
            spool.push(span(Status::error("")));
        }
        spool.push_last(span(Status::Unset));
        let (spans, dropped) = spool.take();
        assert_eq!(spans.len(), MOST_SPANS);
        let failed = spans.iter().filter(|span| span.status != Status::Unset);
        assert_eq!(failed.count(), FOR_FAILURES - 1);
        assert_eq!(
            usize::try_from(dropped).unwrap(),
            FOR_FAILURES + MOST_SPANS - (FOR_FAILURES - 1)
        );
        assert_eq!(spool.take().1, 0, "counted once");
    }

    #[test]
    fn a_run_outside_of_the_sample_is_kept_beside_others_alone() {
        let spool = Spool::default();
        spool.push_last(span(Status::Unset));
        assert!(spool.take().0.is_empty());
        spool.push(span(Status::error("")));
        spool.push_last(span(Status::Unset));
        assert_eq!(spool.take().0.len(), 2);
    }
}
