//! Replaces `otel` in builds without OpenTelemetry: the trace context still crosses the queue, and nothing is sent.

use crate::config::{Lookup, is_on};
use crate::error::Error;
use crate::trace::TraceContext;

/// # Errors
/// [`Error::Config`] when X-Ray is asked for.
pub(crate) fn from_settings(lookup: Lookup<'_>) -> Result<(), Error> {
    if is_on(lookup, "TIDEGATE_XRAY")? {
        let why = "must be off: this program was built without the feature otel";
        return Err(Error::Config(format!("TIDEGATE_XRAY: {why}")));
    }
    Ok(())
}

/// Never exists, because no spans are kept.
#[derive(Clone)]
pub(crate) enum Spool {}

pub(crate) fn follow_up(above: &TraceContext) -> String {
    above.to_string()
}

/// Never exists, because no publish is recorded.
pub(crate) enum Publishing {}

impl Publishing {
    pub(crate) fn begin(_: Option<&str>) -> Option<Self> {
        None
    }

    pub(crate) fn header(&self) -> String {
        match *self {}
    }

    pub(crate) fn done(self, _: &str, _: usize, _: Option<i64>) {
        match self {}
    }
}
