//! Owns the requests of operators who look at the queue, and the answers to them: one event, and lists of
//! events, groups, leases and services. This module knows no SQL and changes nothing.

pub(crate) mod rows;

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::in_range;
use crate::error::Error;
use crate::operate::{Moment, ScheduleStatus, since, until};
use crate::queue::{Lineage, ListFilter};
use crate::status::ServiceStatus;
use crate::survey::Content;

/// The allowed lengths of a list.
pub const LIMIT: RangeInclusive<u32> = 1..=10_000;

/// The length of a list if the request does not set one.
pub const LISTED: u32 = 50;

/// The states of live and finished events.
const STATUSES: [&str; 5] = [
    "PENDING",
    "PROCESSING",
    "COMPLETED",
    "COMPLETED_WITH_ERRORS",
    "FAILED",
];

/// Which event to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowRequest {
    /// Its id.
    pub id: i64,
}

/// Which events to list, newest first. Without a filter, all live and finished events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    pub status: Option<String>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this group.
    pub group: Option<String>,
    /// Only events of this business object.
    pub correlation: Option<String>,
    /// Only events that were created at this time or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Only events that were created earlier than this.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// Only lower ids. Set it to the `next` of the previous page.
    pub before: Option<i64>,
    /// The most events: [`LIMIT`], by default [`LISTED`].
    pub limit: Option<u32>,
}

impl ListRequest {
    /// Returns the status as the queue writes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such status.
    pub(crate) fn status(&self) -> Result<Option<&'static str>, Error> {
        let Some(asked) = &self.status else {
            return Ok(None);
        };
        let mut known = STATUSES.into_iter();
        let status = known.find(|status| status.eq_ignore_ascii_case(asked));
        status.map(Some).ok_or_else(|| {
            let list = STATUSES.join(", ");
            Error::Invalid(format!("status: must be one of {list}, got {asked:?}"))
        })
    }

    pub(crate) fn filter<'a>(&'a self, status: Option<&'a str>) -> ListFilter<'a> {
        ListFilter {
            status,
            kind: self.kind.as_deref(),
            group: self.group.as_deref(),
            correlation: self.correlation.as_deref(),
            since: self.since,
            until: self.until,
            before: self.before,
            above: None,
        }
    }
}

/// How many entries to list, oldest first, for lists without filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstRequest {
    /// The most entries: [`LIMIT`], by default [`LISTED`].
    pub limit: Option<u32>,
}

/// Returns the length of a list.
///
/// # Errors
/// [`Error::Invalid`] if the length is not in [`LIMIT`].
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Error> {
    let limit = asked.unwrap_or(LISTED);
    in_range("limit", limit, &LIMIT).map_err(Error::Invalid)?;
    Ok(limit)
}

/// Everything that is stored about an event.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "show")]
#[non_exhaustive]
pub struct ShowReport {
    /// All its columns. `in` is the name of its table.
    #[serde(flatten)]
    #[schemars(with = "rows::StoredEvent")]
    pub event: Value,
    /// Its ancestors and descendants. `None` if the event has just ended and was cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "list")]
#[non_exhaustive]
pub struct ListReport {
    /// Newest first.
    #[schemars(with = "Vec<rows::ListedEvent>")]
    pub events: Vec<Value>,
    /// The id of the last event, to be used as the `before` of the next page. `None` if there is no next
    /// page.
    pub next: Option<i64>,
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

/// Groups whose first event holds back other events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "blocked_groups")]
#[non_exhaustive]
pub struct BlockedGroupsReport {
    /// With the columns of the view `tidegate.blocked_groups`, oldest first.
    #[schemars(with = "Vec<rows::BlockedGroup>")]
    pub groups: Vec<Value>,
}

/// The leases and their workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "leases")]
#[non_exhaustive]
pub struct LeasesReport {
    /// With the columns of the view `tidegate.leases`, oldest first.
    #[schemars(with = "Vec<rows::Lease>")]
    pub leases: Vec<Value>,
}

/// Outside services about which anything was reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "services")]
#[non_exhaustive]
pub struct ServicesReport {
    /// Services that are not called come first.
    pub services: Vec<ServiceStatus>,
}

/// The schedules of periodic events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "action", rename = "schedules")]
#[non_exhaustive]
pub struct SchedulesReport {
    /// Schedules that have stopped come first, then the others by their next slot.
    pub schedules: Vec<ScheduleStatus>,
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
