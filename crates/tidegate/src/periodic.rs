//! Owns the definition of a periodic event: what is published, when, and what happens to missed slots. When
//! exactly a slot is due is computed in [`crate::schedule`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The treatment of slots that passed while no drain ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// They are skipped. A slot that a drain handles at most 15 minutes late is not missed.
    None,
    /// Only the last of them is published.
    #[default]
    Last,
    /// All of them are published, the oldest first.
    All,
}

impl CatchUp {
    /// Returns the name in reports, on the command line and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}

/// The slots of a schedule, and the group of its events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Periodic {
    /// The cron expression: five fields, or a name such as `@daily`. Use this or `every`.
    pub cron: Option<String>,
    /// The time from one slot to the next. The slots are multiples of it since 1970, in UTC.
    pub every: Option<Duration>,
    /// The time zone of the expression, such as `Europe/Kyiv`; by default UTC.
    pub time_zone: Option<String>,
    /// The events' group.
    pub group: Option<String>,
    /// How long after its slot an event may start. Later, it no longer starts.
    pub start_within: Option<Duration>,
    /// What happens to slots that passed while no drain ran.
    pub catch_up: CatchUp,
}
