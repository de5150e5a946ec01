//! Owns the smaller parts of payloads and signed contents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::entity::EntityKind;

/// A calendar day, `YYYY-MM-DD`. Days sort in the same order as their texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, format = Date)]
pub struct Date(String);

impl TryFrom<String> for Date {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if is_date(&text) {
            Ok(Self(text))
        } else {
            Err("must be a day that exists, YYYY-MM-DD")
        }
    }
}

/// Reports whether a text is an existing day, as `YYYY-MM-DD`.
pub(super) fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let part =
        |range: std::ops::Range<usize>| text.get(range).and_then(|part| part.parse::<u16>().ok());
    let (Some(year), Some(month), Some(day)) = (part(0..4), part(5..7), part(8..10)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => 0,
    };
    // The database does not support year 0.
    shaped && year > 0 && (1..=days).contains(&day)
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

/// A resource that an approval grants access to.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Its kind.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
}

/// The result of a service request.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletedWith {
    /// Its kind.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
}

/// What an approval allows.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_days_that_exist_are_dates() {
        for good in ["2024-02-29", "2000-02-29", "2027-12-31", "0001-01-01"] {
            assert!(is_date(good), "{good}");
        }
        for bad in [
            "2023-02-29",
            "1900-02-29",
            "2027-13-01",
            "2027-00-01",
            "2027-04-31",
            "2027-1-01",
            "+027-01-01",
            "20270101",
            "2027-01-01T00:00",
            "0000-01-01",
            "２027-01-01",
        ] {
            assert!(!is_date(bad), "{bad}");
        }
    }
}
