//! Owns the smaller parts that payloads and signed contents are made of.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::entity::EntityKind;

/// A calendar day, `YYYY-MM-DD`; days compare as their texts do.
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

/// Whether a text is a day that exists, as `YYYY-MM-DD`.
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
    // Year 0 is a year of the calendar that the database does not know.
    shaped && year > 0 && (1..=days).contains(&day)
}

/// From one day to another, or open.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// First day.
    pub start: Date,
    /// Last day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Date>,
}

/// The end of something that has begun.
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
    /// When it was.
    pub period: Period,
}

/// What an approval gives access to.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// What it is.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
}

/// What came of a service request.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletedWith {
    /// What it is.
    pub entity: EntityKind,
    /// Its id.
    pub id: Uuid,
}

/// What an approval is good for.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessLevel {
    /// To see.
    Read,
    /// To change.
    Write,
}

/// How an episode begins.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeStatus {
    /// Care is given.
    Active,
}

/// What is to change of an episode.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeChange {
    /// What people call it.
    #[schema(min_length = 1, max_length = 1000)]
    pub name: String,
    /// The employee who is in charge of it.
    pub care_manager: Uuid,
}

/// How an episode ends.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeClosing {
    /// When it ended.
    pub period: PeriodEnd,
    /// What came of it.
    #[schema(min_length = 1, max_length = 10_000)]
    pub closing_summary: String,
    /// Why it ended, a code.
    #[schema(min_length = 1, max_length = 1000)]
    pub status_reason: String,
}

/// Why an episode should not have been.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EpisodeCancellation {
    /// For people.
    #[schema(min_length = 1, max_length = 10_000)]
    pub explanatory_letter: String,
    /// A code.
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
