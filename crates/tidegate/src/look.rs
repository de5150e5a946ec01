//! Owns what people may look at and what they are answered: one event, lists of events, groups, leases and services. It
//! knows no SQL and changes nothing.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::in_range;
use crate::error::Error;
use crate::operate::{Moment, ScheduleStatus, ServiceStatus, since, until};
use crate::queue::{Lineage, ListFilter, Wait};
use crate::survey::Content;

/// How much a list may hold.
pub const LIMIT: RangeInclusive<u32> = 1..=10_000;

/// How much it holds unless more or less is asked for.
pub const LISTED: u32 = 50;

/// The states of live events and of finished ones.
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

/// Which events to list, newest first; without a filter all of them, live and finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// PENDING, PROCESSING, COMPLETED, `COMPLETED_WITH_ERRORS` or FAILED.
    pub status: Option<String>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only this group.
    pub group: Option<String>,
    /// Only what belongs to this business object.
    pub correlation: Option<String>,
    /// Created then or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Created earlier.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// Only lower ids: the `next` of the page before.
    pub before: Option<i64>,
    /// At most this many: [`LIMIT`], by default [`LISTED`].
    pub limit: Option<u32>,
}

impl ListRequest {
    /// The status as the queue writes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such status.
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
        }
    }
}

/// How much to list of what has no filters, the oldest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstRequest {
    /// At most this many: [`LIMIT`], by default [`LISTED`].
    pub limit: Option<u32>,
}

/// How much a list shall hold.
///
/// # Errors
/// [`Error::Invalid`] when that is none of [`LIMIT`].
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Error> {
    let limit = asked.unwrap_or(LISTED);
    in_range("limit", limit, &LIMIT).map_err(Error::Invalid)?;
    Ok(limit)
}

/// Everything that is stored about an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "show")]
#[non_exhaustive]
pub struct ShowReport {
    /// All its columns; `in` tells its table.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schemars(with = "crate::rows::StoredEvent"))]
    pub event: Value,
    /// Where it comes from and what came of it. `None` if it has just ended and been cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// That it waits for others, or did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "list")]
#[non_exhaustive]
pub struct ListReport {
    /// Newest first.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::rows::ListedEvent>"))]
    pub events: Vec<Value>,
    /// The last one's id, the `before` of the next page; `None` when there is none.
    pub next: Option<i64>,
}

/// Groups whose first event holds back others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "blocked_groups")]
#[non_exhaustive]
pub struct BlockedGroupsReport {
    /// As the view `tidegate.blocked_groups` has them, the oldest first.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::rows::BlockedGroup>"))]
    pub groups: Vec<Value>,
}

/// Who holds what.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "leases")]
#[non_exhaustive]
pub struct LeasesReport {
    /// As the view `tidegate.leases` has them, the oldest first.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::rows::Lease>"))]
    pub leases: Vec<Value>,
}

/// Outside services of which anything was told.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "services")]
#[non_exhaustive]
pub struct ServicesReport {
    /// Those that are not called first.
    pub services: Vec<ServiceStatus>,
}

/// What is published again and again.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename = "schedules")]
#[non_exhaustive]
pub struct SchedulesReport {
    /// Those that stand still first, then by their next slot.
    pub schedules: Vec<ScheduleStatus>,
}

/// Everything about one event, with its content only if that was requested.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Dossier {
    /// Its columns; `in` tells its table.
    pub event: Value,
    /// Payload, results, progress and errors. `None` if they were not requested.
    pub content: Option<Content>,
    /// Its ancestors and descendants.
    pub lineage: Option<Lineage>,
    /// That it waits for others, or did.
    pub wait: Option<Wait>,
    /// The progress that the running handler reports.
    pub work: Option<Value>,
}
