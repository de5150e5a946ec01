//! Owns the smaller parts of payloads and signed contents.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::entity::EntityKind;
use crate::app::schema::is_day;

/// A calendar day, `YYYY-MM-DD`. Days sort in the same order as their texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, format = Date)]
pub struct Date(String);

impl TryFrom<String> for Date {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if is_day(&text) {
            Ok(Self(text))
        } else {
            Err("must be a day that exists, YYYY-MM-DD")
        }
    }
}

impl Date {
    /// Whether no place on earth has reached this day yet.
    pub(super) fn is_future(&self) -> bool {
        let east = Timestamp::now() + SignedDuration::from_hours(14);
        self.0 > east.strftime("%F").to_string()
    }
}

/// A period of days, possibly without an end.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// First day.
    pub start: Date,
    /// Last day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Date>,
}

/// The end of a period that has already begun.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PeriodEnd {
    /// Last day.
    pub end: Date,
}

/// A visit of the patient, during which encounters took place.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Visit {
    /// The visit's id.
    pub id: Uuid,
    /// When it took place.
    pub period: Period,
}

/// An entity of the patient that a job names: what an approval grants access to, or the result of a service
/// request.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Its kind.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
}

/// What an approval allows.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessLevel {
    /// Read access.
    Read,
    /// Write access.
    Write,
}

/// The initial state of an episode.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeStatus {
    /// The patient is in care.
    Active,
}

/// Changes to an episode.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeChange {
    /// Its display name.
    #[schema(min_length = 1, max_length = 1000)]
    pub name: String,
    /// The employee who manages it.
    pub care_manager: Uuid,
}

/// The details of closing an episode.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeClosing {
    /// When it ended.
    pub period: PeriodEnd,
    /// Summary of the outcome.
    #[schema(min_length = 1, max_length = 10_000)]
    pub closing_summary: String,
    /// Code of the reason.
    #[schema(min_length = 1, max_length = 1000)]
    pub status_reason: String,
}

/// Why an episode was entered in error.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeCancellation {
    /// Explanation for people.
    #[schema(min_length = 1, max_length = 10_000)]
    pub explanatory_letter: String,
    /// Code of the reason.
    #[schema(min_length = 1, max_length = 1000)]
    pub status_reason: String,
}
