//! Owns the requests of operators who look at the queue, and the answers to them: one event, and lists of
//! events, groups, leases and services. This module knows no SQL and changes nothing.

pub(crate) mod rows;

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::config::in_range;
use crate::error::Error;
use crate::queue::Lineage;
use crate::survey::Content;

/// The allowed lengths of a list.
pub const LIMIT: RangeInclusive<u32> = 1..=10_000;

/// The length of a list if the request does not set one.
pub const LISTED: u32 = 50;

/// The states of live and finished events.
pub(crate) const STATUSES: [&str; 5] = [
    "PENDING",
    "PROCESSING",
    "COMPLETED",
    "COMPLETED_WITH_ERRORS",
    "FAILED",
];

/// Returns the length of a list.
///
/// # Errors
/// [`Error::Invalid`] if the length is not in [`LIMIT`].
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Error> {
    let limit = asked.unwrap_or(LISTED);
    in_range("limit", limit, &LIMIT).map_err(Error::Invalid)?;
    Ok(limit)
}

/// A page of events from a search that looks at a limited number of events.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SearchReport {
    /// Newest first.
    pub events: Vec<Value>,
    /// The `before` of the next page. `None` if there is no next page.
    pub next: Option<i64>,
    /// Set if the search ended at its limit before the page was full. The next page continues there.
    pub searched: Option<Searched>,
}

/// Where a search ended at its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Searched {
    /// The most live and the most finished events that it has looked at.
    pub events: u32,
    /// The publish time of the event at which the next page begins, RFC 3339.
    pub back_to: Option<String>,
}

/// Everything about one event, with its content only if that was requested.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Dossier {
    /// Its columns. `in` is the name of its table.
    pub event: Value,
    /// Payload, results, progress and errors. `None` if they were not requested.
    pub content: Option<Content>,
    /// Its ancestors and descendants.
    pub lineage: Option<Lineage>,
    /// The progress that the running handler reports.
    pub work: Option<Value>,
}
