//! Requests to cancel or to reschedule live events, and their reports.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::named;
use super::{Moment, Skipped, expires_in, parse_time, since, until};
use crate::config::parse_duration;
use crate::error::Error;

/// The most events of a request with a digest.
pub(crate) const DIGESTED: u32 = 10_000;

/// A request to cancel live events: `ids`, or a filter with at least one of `kind`, `correlation_id` and
/// `group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// The ids of the events, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only the event with this deduplication key; requires the kind.
    pub dedup_key: Option<String>,
    /// Only events with this correlation id.
    pub correlation_id: Option<String>,
    /// Only this group.
    pub group: Option<String>,
    /// Only PENDING, or only PROCESSING.
    pub status: Option<String>,
    /// Only events published at this time or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Only events published before this time.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// The most events to cancel, lowest ids first; 1 to 1,000,000, by default 10,000.
    pub limit: Option<u32>,
    /// The reason, for the audit and the events' logs; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The digest of a dry run with the same filter. Nothing is changed if the events have changed since;
    /// otherwise exactly those events are changed.
    pub digest: Option<String>,
}

/// A request to reschedule waiting events. It selects events like a [`CancelRequest`]. At most one of `now`,
/// `delay` and `available_at` and at most one of `expires_in`, `expires_at` and `no_deadline` may be set, and
/// at least one of the six must be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RescheduleRequest {
    /// The ids of the events, 1 to 10,000.
    pub ids: Option<Vec<i64>>,
    /// Only this kind.
    pub kind: Option<String>,
    /// Only the event with this deduplication key; requires the kind.
    pub dedup_key: Option<String>,
    /// Only events with this correlation id.
    pub correlation_id: Option<String>,
    /// Only this group.
    pub group: Option<String>,
    /// Only PENDING, or only PROCESSING. Events that are PROCESSING are not changed.
    pub status: Option<String>,
    /// Only events published at this time or later.
    #[serde(default, deserialize_with = "since")]
    pub since: Option<Moment>,
    /// Only events published before this time.
    #[serde(default, deserialize_with = "until")]
    pub until: Option<Moment>,
    /// The most events to reschedule, lowest ids first; 1 to 1,000,000, by default 10,000.
    pub limit: Option<u32>,
    /// Start at the next drain.
    #[serde(default)]
    pub now: bool,
    /// Start this long from now, by the database's clock.
    #[serde(default, deserialize_with = "delay")]
    pub delay: Option<Duration>,
    /// Start at this time.
    #[serde(default, deserialize_with = "available_at")]
    pub available_at: Option<SystemTime>,
    /// Set the deadline to this long from now.
    #[serde(default, deserialize_with = "expires_in")]
    pub expires_in: Option<Duration>,
    /// Set the deadline to this time.
    #[serde(default, deserialize_with = "expires_at")]
    pub expires_at: Option<SystemTime>,
    /// Remove the deadline.
    #[serde(default)]
    pub no_deadline: bool,
    /// The reason, for the audit; not blank, at most 1,000 characters.
    pub reason: String,
    /// The operator's name, for the audit; 1 to 200 characters. It is not verified.
    pub actor: Option<String>,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The digest of a dry run with the same filter. Nothing is changed if the events have changed since;
    /// otherwise exactly those events are changed.
    pub digest: Option<String>,
}

impl RescheduleRequest {
    /// Returns the new start of the events: a time, or seconds from now.
    pub(crate) fn start(&self) -> (Option<SystemTime>, Option<f64>) {
        let delay = self.delay.map(|delay| delay.as_secs_f64());
        (self.available_at, delay.or(self.now.then_some(0.0)))
    }

    fn check(&self) -> Result<(), Error> {
        let starts = [self.now, self.delay.is_some(), self.available_at.is_some()];
        let ends = [
            self.no_deadline,
            self.expires_in.is_some(),
            self.expires_at.is_some(),
        ];
        let given = |what: [bool; 3]| what.iter().filter(|given| **given).count();
        let refused = match (given(starts), given(ends)) {
            (0, 0) => {
                "now: must be true, or delay, available_at, expires_in, expires_at or no_deadline given"
            }
            (2.., _) => {
                "now: must be given without delay and available_at, and these without each other"
            }
            (_, 2..) => {
                "no_deadline: must be given without expires_in and expires_at, and these without each other"
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid(refused.to_owned()))
    }
}

/// A change of live events.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Cancel(&'a CancelRequest),
    Reschedule(&'a RescheduleRequest),
}

/// The events that a request selects, in the same form for both requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection<'a> {
    pub ids: Option<&'a [i64]>,
    pub kind: Option<&'a str>,
    pub dedup_key: Option<&'a str>,
    pub correlation_id: Option<&'a str>,
    pub group: Option<&'a str>,
    pub status: Option<&'a str>,
    pub since: Option<Moment>,
    pub until: Option<Moment>,
    pub reason: &'a str,
    pub actor: Option<&'a str>,
    pub dry_run: bool,
}

macro_rules! selection {
    ($request:expr) => {
        Selection {
            ids: $request.ids.as_deref(),
            kind: $request.kind.as_deref(),
            dedup_key: $request.dedup_key.as_deref(),
            correlation_id: $request.correlation_id.as_deref(),
            group: $request.group.as_deref(),
            status: $request.status.as_deref(),
            since: $request.since,
            until: $request.until,
            reason: &$request.reason,
            actor: $request.actor.as_deref(),
            dry_run: $request.dry_run,
        }
    };
}

impl<'a> Selection<'a> {
    /// Returns a selection of these ids with the same reason.
    pub(crate) fn of<'b>(&self, ids: &'b [i64]) -> Selection<'b>
    where
        'a: 'b,
    {
        Selection {
            ids: Some(ids),
            kind: None,
            dedup_key: None,
            correlation_id: None,
            group: None,
            status: None,
            since: None,
            until: None,
            ..*self
        }
    }
}

impl<'a> Change<'a> {
    pub(crate) fn selection(&self) -> Selection<'a> {
        match self {
            Self::Cancel(request) => selection!(request),
            Self::Reschedule(request) => selection!(request),
        }
    }

    /// Returns the digest of the dry run before, if the request has one.
    pub(crate) fn digest(&self) -> Option<&'a str> {
        match self {
            Self::Cancel(request) => request.digest.as_deref(),
            Self::Reschedule(request) => request.digest.as_deref(),
        }
    }

    /// Returns the largest number of events to change.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the request.
    pub(crate) fn limit(&self) -> Result<u32, Error> {
        let asked = match self {
            Self::Cancel(request) => request.limit,
            Self::Reschedule(request) => {
                request.check()?;
                request.limit
            }
        };
        let limit = asked.unwrap_or(10_000);
        let most = if self.digest().is_some() {
            DIGESTED
        } else {
            1_000_000
        };
        if (1..=most).contains(&limit) {
            return Ok(limit);
        }
        let with = if most == DIGESTED {
            " with a digest"
        } else {
            ""
        };
        let text = format!("limit: must be 1 to {most}{with}, got {limit}");
        Err(Error::Invalid(text))
    }
}

/// The report of a cancel. For a dry run, what it would cancel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "cancel")]
#[non_exhaustive]
pub struct CancelReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many events ended as FAILED with the code `cancelled`.
    pub cancelled: u64,
    /// How many of them a handler may have been working on. The handler is notified when its drain next
    /// renews its leases. What it does to other tables and services is not undone.
    pub begun: u64,
    /// The first 100 ids.
    pub ids: Vec<i64>,
    /// The selected events, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// How many events were skipped.
    pub skipped_count: u64,
    /// The first 100 of them.
    pub skipped: Vec<Skipped>,
    /// Whether the limit was reached. Send the request again for the rest.
    pub limit_reached: bool,
    /// The digest of the ids of a dry run's events. Missing if the limit is above 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why nothing was changed: the request's digest does not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The report of a reschedule. For a dry run, what it would reschedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename = "reschedule")]
#[non_exhaustive]
pub struct RescheduleReport {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// How many events have a new start time or a new deadline.
    pub rescheduled: u64,
    /// The first 100 ids.
    pub ids: Vec<i64>,
    /// The selected events, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// How many events were skipped because a worker has leased them. Requeue or cancel these.
    pub in_hand: u64,
    /// How many events were skipped because they would hold up their groups for longer than allowed.
    pub too_late: u64,
    /// How many events have a deadline before their start, so they will end as expired.
    pub past_deadline: u64,
    /// The first 100 of them.
    pub past_deadline_ids: Vec<i64>,
    /// How many events were skipped.
    pub skipped_count: u64,
    /// The first 100 of them.
    pub skipped: Vec<Skipped>,
    /// Whether the limit was reached. Send the request again for the rest.
    pub limit_reached: bool,
    /// The digest of the ids of a dry run's events. Missing if the limit is above 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why nothing was changed: the request's digest does not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

fn delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    named("delay", parse_duration, deserializer)
}

fn available_at<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SystemTime>, D::Error> {
    named("available_at", parse_time, deserializer)
}

fn expires_at<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    named("expires_at", parse_time, deserializer)
}
