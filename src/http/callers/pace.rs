//! Owns the rate limit of callers: a number of requests per second, of which one second's worth may come at once.
//!
//! Requests are counted for each client of a credential, within this process. Two processes, or two instances of a
//! function, therefore allow twice as many. If callers are not known, all of them count as one caller. A crate for this
//! would bring a dozen other crates for one formula: the time until which a caller has used up its share (the generic cell
//! rate algorithm).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use tidegate::{Error, Lookup};

const PER_SECOND: &str = "TIDEGATE_HTTP_PER_SECOND";

/// The default limit. Far more than people need, and far less than the database can handle.
const USUAL: u32 = 50;

/// The highest limit that the resolution of the time measurement allows.
const MOST: u32 = 1_000_000;

/// Number of callers that are counted individually, at some 50 bytes each. All others share one limit.
const CALLERS: usize = 10_000;

/// Unused requests accumulate for this long.
const SAVED: Duration = Duration::from_secs(1);

/// How much of its share each caller has used.
pub(super) struct Pace {
    /// The time that one request uses up. `None` if there is no limit.
    each: Option<Duration>,
    spent_until: Mutex<HashMap<Option<Uuid>, Instant>>,
}

impl Pace {
    pub(super) fn unlimited() -> Self {
        Self {
            each: None,
            spent_until: Mutex::default(),
        }
    }

    fn limited(per_second: u32) -> Self {
        let each = SAVED.checked_div(per_second);
        Self {
            each,
            ..Self::unlimited()
        }
    }

    /// Reads `TIDEGATE_HTTP_PER_SECOND`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let Some(text) = lookup(PER_SECOND) else {
            return Ok(Self::limited(USUAL));
        };
        let number = text.parse().ok().filter(|number| *number <= MOST);
        let number = number.ok_or_else(|| {
            Error::Config(format!(
                "{PER_SECOND}: must be 0 to {MOST} requests a second, where 0 means no limit, got {text:?}"
            ))
        })?;
        Ok(Self::limited(number))
    }

    /// Counts a request of this client.
    ///
    /// # Errors
    /// Returns the time to wait if the request exceeds the limit. The request is then not counted.
    pub(super) fn admit(&self, client: Option<Uuid>, now: Instant) -> Result<(), Duration> {
        let Some(each) = self.each else {
            return Ok(());
        };
        let mut spent_until = self
            .spent_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut caller = client;
        if !spent_until.contains_key(&caller) && spent_until.len() >= CALLERS {
            spent_until.retain(|_, until| *until > now);
            if spent_until.len() >= CALLERS {
                caller = None;
            }
        }
        let until = spent_until.get(&caller).copied().unwrap_or(now).max(now) + each;
        let early = until.saturating_duration_since(now + SAVED);
        if !early.is_zero() {
            return Err(early);
        }
        spent_until.insert(caller, until);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn admitted(pace: &Pace, client: impl Into<Option<Uuid>>, now: Instant) -> usize {
        let client = client.into();
        (0..100).filter(|_| pace.admit(client, now).is_ok()).count()
    }

    #[test]
    fn a_caller_has_a_seconds_worth_at_once_and_then_its_rate_and_others_have_theirs() {
        let pace = Pace::limited(10);
        let start = Instant::now();
        assert_eq!(admitted(&pace, client(1), start), 10);
        let wait = pace.admit(Some(client(1)), start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert!(
            pace.admit(Some(client(1)), start + wait - Duration::from_millis(1))
                .is_err()
        );
        assert!(pace.admit(Some(client(1)), start + wait).is_ok());
        assert_eq!(admitted(&pace, client(2), start), 10);
        assert_eq!(admitted(&pace, None, start), 10);
        let later = start + Duration::from_millis(600);
        assert_eq!(admitted(&pace, client(1), later), 5);
        let much_later = start + Duration::from_hours(1);
        assert_eq!(
            admitted(&pace, client(1), much_later),
            10,
            "no more is saved"
        );
    }

    #[test]
    fn callers_beyond_those_that_are_counted_share_one_share_and_the_memory_is_bounded() {
        let pace = Pace::limited(1);
        let start = Instant::now();
        for number in 0..CALLERS {
            pace.admit(Some(client(number as u128)), start).unwrap();
        }
        let beyond = |number| client((CALLERS + number) as u128);
        assert!(pace.admit(Some(beyond(1)), start).is_ok());
        assert!(pace.admit(Some(beyond(2)), start).is_err());
        assert!(pace.spent_until.lock().unwrap().len() <= CALLERS + 1);
        // Callers without recent requests are removed.
        let later = start + Duration::from_secs(2);
        assert!(pace.admit(Some(beyond(2)), later).is_ok());
        assert_eq!(pace.spent_until.lock().unwrap().len(), 1);
    }

    #[test]
    fn the_limit_is_a_setting_and_zero_is_none() {
        let pace = |text: &'static str| {
            Pace::from_settings(&|name| (name == PER_SECOND).then(|| text.to_owned()))
        };
        let now = Instant::now();
        assert_eq!(admitted(&pace("0").unwrap(), None, now), 100);
        assert_eq!(admitted(&pace("7").unwrap(), None, now), 7);
        assert_eq!(
            admitted(&Pace::from_settings(&|_| None).unwrap(), None, now),
            50
        );
        assert!(pace("1000000").unwrap().admit(None, now).is_ok());
        for odd in ["-1", "1000001", "ten", "1.5"] {
            let error = pace(odd).err().unwrap().to_string();
            assert!(
                error.contains("TIDEGATE_HTTP_PER_SECOND: must be 0 to"),
                "{error}"
            );
        }
    }
}
