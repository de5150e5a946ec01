//! Owns the settings that a migration stores in the database, as functions that return a constant.

use std::time::Duration;

use crate::config::{settings, words};
use crate::event::NewEvent;

use super::script::Declaration;

settings! {
    /// Settings that [`Migrate`](super::Migrate) stores in the database, for all producers and drains. What
    /// is `None` stays as it is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StoredSettings {
        /// The attempt limit of events that are published from now on, 1 to 1,000 (B6); 5 in a new database.
        /// At `publish`: this event's.
        max_attempts: Option<u16> = None, "TIDEGATE_MAX_ATTEMPTS",
            within Some(*NewEvent::MAX_ATTEMPTS.start())..=Some(*NewEvent::MAX_ATTEMPTS.end());
        /// How far ahead an event of a group may be planned, and how long one that nobody can read holds back
        /// its group; `30days` in a new database. Until the planned time, the event holds up later events of
        /// its group.
        max_group_delay: Option<Duration> = None, "TIDEGATE_MAX_GROUP_DELAY";
        /// How long an event waits for an outside service that does not answer, before it ends `FAILED` with
        /// the code `service_down`; `7days` in a new database. A kind may have its own time in its policy.
        give_up_after: Option<Duration> = None, "TIDEGATE_GIVE_UP_AFTER";
        /// Which payloads may be published: `any`, as in a new database, or only `sealed` ones.
        payloads: Option<Payloads> = None, "TIDEGATE_PAYLOADS";
    }
    parts {}
    rest {}
}

/// Which payloads may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Payloads {
    /// Any payload.
    Any,
    /// Only a sealed one. Every publish of another one is refused.
    Sealed,
}

words!(Payloads: "any" = Self::Any, "sealed" = Self::Sealed);

impl StoredSettings {
    /// Returns what stores the settings that are given.
    pub(super) fn steps(&self) -> impl Iterator<Item = Declaration> {
        let time = |most: Duration| format!("interval '{} s'", most.as_secs_f64());
        let most = self.max_attempts.map(|most| most.to_string());
        let plaintext = self.payloads.map(|payloads| payloads == Payloads::Any);
        let values = [
            ("default_max_attempts", "integer", most),
            (
                "max_group_delay",
                "interval",
                self.max_group_delay.map(time),
            ),
            ("give_up_after", "interval", self.give_up_after.map(time)),
            (
                "takes_plaintext",
                "boolean",
                plaintext.map(|is| is.to_string()),
            ),
        ];
        values.into_iter().filter_map(|(name, sort, value)| {
            let (name, value) = (format!("@tidegate.{name}()"), value?);
            let sql = format!(
                "CREATE OR REPLACE FUNCTION {name} RETURNS {sort} LANGUAGE sql STABLE PARALLEL SAFE RETURN {value}"
            );
            Some(Declaration(sql, format!("{name} = {value}")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_is_refused_by_name_with_what_is_allowed() {
        for (variable, value, allowed) in [
            ("TIDEGATE_MAX_ATTEMPTS", "-1", "1 to 1000"),
            ("TIDEGATE_MAX_GROUP_DELAY", "soon", "500ms, 30s, 5m or 1h"),
            ("TIDEGATE_GIVE_UP_AFTER", "never", "500ms, 30s, 5m or 1h"),
            ("TIDEGATE_PAYLOADS", "none", "any or sealed"),
        ] {
            let lookup = |name: &str| (name == variable).then(|| value.to_owned());
            let error = StoredSettings::from_settings(&lookup)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(variable) && error.contains(allowed),
                "{error}"
            );
        }
    }
}
