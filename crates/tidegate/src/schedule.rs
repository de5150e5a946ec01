//! Owns when periodic events are due: cron expressions, time zones, intervals and missed slots. It knows no
//! SQL, and stores nothing.
//!
//! The time zone table is this crate's own, not the system's. Any program that drains may compute a slot, and
//! all programs must get the same result.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tidegate_core::error::{Error, Result};
use tidegate_core::event::{Event, NewEvent};
use tidegate_core::queue::{CatchUp, Declared, DueSchedule, Firing, Times};

/// With [`CatchUp::None`], a slot that a drain reaches up to this many seconds late does not count as missed.
const LATE: i64 = 15 * 60;

/// The most missed slots of one schedule that are caught up on at once.
const MOST_AT_ONCE: usize = 100;

/// A program's periodic event: what is published, and when. A program lists its schedules in
/// [`Dispatch::schedules`], and `migrate` stores them in the database.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{CatchUp, Context, Dispatch, Done, Handlers, Schedule};
///
/// tidegate::events! {
///     pub enum Shop {
///         NightFell(()) = "night_fell",
///         StockDue(u32) = "stock_due",
///     }
/// }
///
/// struct Handling;
///
/// impl Dispatch for Handling {
///     type Event = Shop;
///
///     fn handlers<'a>(&'a self, event: &'a Shop, ctx: &'a Context) -> Handlers<'a> {
///         match event {
///             Shop::NightFell(()) => Handlers::one("report", async { Ok(Done::ok()) }),
///             Shop::StockDue(_shelf) => Handlers::one("count", async {
///                 let _slot = ctx.slot(); // 2031-11-22T10:15:00Z, however late it is by now
///                 Ok(Done::ok())
///             }),
///         }
///     }
///
///     fn schedules(&self) -> Vec<Schedule<Shop>> {
///         vec![
///             Schedule::cron("nightly-report", "30 2 * * *", Shop::NightFell(())).time_zone("Europe/Kyiv"),
///             Schedule::every("stock", Duration::from_secs(900), Shop::StockDue(7)).catch_up(CatchUp::All),
///         ]
///     }
/// }
/// ```
///
/// [`Dispatch::schedules`]: crate::Dispatch::schedules
#[derive(Debug, Clone)]
#[must_use = "it is a schedule only where a program lists it"]
pub struct Schedule<E> {
    name: String,
    event: E,
    due: Due,
    time_zone: Option<String>,
    group: Option<String>,
    start_within: Option<Duration>,
    catch_up: CatchUp,
}

/// When a schedule is due, as a program writes it.
#[derive(Debug, Clone)]
enum Due {
    Cron(String),
    Every(Duration),
}

impl<E: Event> Schedule<E> {
    /// Creates a schedule from a cron expression: minute, hour, day of the month, month and day of the week,
    /// such as `30 2 * * MON-FRI`. It may also be `@hourly`, `@daily`, `@weekly`, `@monthly` or `@yearly`.
    /// Without a [`time_zone`](Self::time_zone) the times are in UTC.
    ///
    /// The name has 1 to 100 letters, digits, `.`, `_` and `-`, and must be unique in the queue.
    pub fn cron(name: impl Into<String>, expression: impl Into<String>, event: E) -> Self {
        Self::of(name.into(), event, Due::Cron(expression.into()))
    }

    /// Creates a schedule that is due at every multiple of `time` since 1970, in UTC. The time is in whole
    /// seconds, from 1 s to 366 days. A clock change moves no slot.
    pub fn every(name: impl Into<String>, time: Duration, event: E) -> Self {
        Self::of(name.into(), event, Due::Every(time))
    }

    fn of(name: String, event: E, due: Due) -> Self {
        Self {
            name,
            event,
            due,
            time_zone: None,
            group: None,
            start_within: None,
            catch_up: CatchUp::default(),
        }
    }

    /// Sets the time zone of the cron expression, such as `America/New_York`. A slot in the hour that is
    /// skipped in spring is due at the end of that hour. A slot in the hour that is repeated in autumn is due
    /// the first time.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = Some(name.into());
        self
    }

    /// Sets the group of the events, so two of them never run at the same time.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Sets how long after its slot an event may start. After that time the event is not started, and a slot
    /// that a drain reaches later is skipped.
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_within = Some(time);
        self
    }

    /// Sets what happens to slots that passed while no drain ran. By default only the last of them is
    /// published.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.catch_up = catch_up;
        self
    }

    /// Returns the schedule in the form in which it is compared with the stored one.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the schedule and what is wrong with it.
    pub fn declared(&self) -> Result<Declared> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::Invalid(format!("schedule {:?}: {why}", self.name))
        };
        let new = NewEvent::of(&self.event).map_err(|error| wrong(&error))?;
        let seconds = |field, time| seconds(field, time).map_err(|why| wrong(&why));
        let (cron, every) = match &self.due {
            Due::Cron(expression) => (Some(expression.clone()), None),
            Due::Every(time) => (None, Some(seconds("every", *time)?)),
        };
        let time_zone = self.time_zone.as_deref().unwrap_or("UTC").to_owned();
        let within = self.start_within.map(|time| seconds("start_within", time));
        let times = Times {
            cron,
            every,
            time_zone,
        };
        check(&times).map_err(|why| wrong(&why))?;
        Ok(Declared {
            name: self.name.clone(),
            kind: new.kind,
            payload: new.payload.map(|payload| payload.get().to_owned()),
            times,
            group: self.group.clone(),
            start_within: within.transpose()?,
            catch_up: self.catch_up,
        })
    }
}

fn seconds(field: &str, time: Duration) -> Result<i64, String> {
    if time.subsec_nanos() != 0 {
        let got = humantime::format_duration(time);
        return Err(format!("{field}: must be whole seconds, got {got}"));
    }
    Ok(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

/// Checks what the database cannot check: that the times can be read, and that a slot comes.
fn check(times: &Times) -> Result<(), String> {
    let first = Calendar::read(times)?.after(Timestamp::now().as_second());
    first.map(drop).ok_or_else(|| NEVER.to_owned())
}

const NEVER: &str = "cron: must be due at some time, got an expression that is never due";

/// When a schedule is due, parsed.
enum Calendar {
    Cron(Box<Cron>, TimeZone),
    Every(i64),
}

impl Calendar {
    fn read(times: &Times) -> Result<Self, String> {
        let Some(expression) = &times.cron else {
            return match times.every {
                Some(every) if every > 0 => Ok(Self::Every(every)),
                every => Err(format!("every: must be 1 second or longer, got {every:?}")),
            };
        };
        let refused = |error: &dyn Display| {
            format!(
                "cron: must be five fields such as 30 2 * * MON-FRI, or @daily, got {expression:?}: {error}"
            )
        };
        // Of a list without a minute the parser looks at each hour of three thousand years.
        let mut elements = expression.split([',', ' ', '\t']);
        if expression.contains(',') && elements.any(str::is_empty) {
            return Err(refused(&"an element of a list is empty"));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(&as_crontab(expression));
        let cron = cron.map_err(|error| refused(&error))?;
        Ok(Self::Cron(Box::new(cron), zone(&times.time_zone)?))
    }

    /// Returns the first slot after an instant.
    fn after(&self, instant: i64) -> Option<i64> {
        match self {
            Self::Every(every) => instant
                .div_euclid(*every)
                .checked_add(1)?
                .checked_mul(*every),
            Self::Cron(cron, zone) => {
                let from = Timestamp::from_second(instant).ok()?.to_zoned(zone.clone());
                let next = cron.find_next_occurrence(&from, false).ok()?;
                Some(next.timestamp().as_second()).filter(|next| *next > instant)
            }
        }
    }

    /// Returns the last slot up to `now`, starting from the slot `slot`. It bisects the time between them,
    /// because there may be millions of slots.
    fn last_until(&self, slot: i64, now: i64) -> i64 {
        let (mut last, mut end) = (slot, now);
        while last < end {
            let middle = last + (end - last) / 2;
            match self.after(middle).filter(|next| *next <= now) {
                Some(later) => last = later,
                None => end = middle,
            }
        }
        last
    }
}

/// Returns an expression in which a field of days begins with `*` as crontab(5) means it: such a field does
/// not choose days of its own, it thins out those of the other. The parser takes either.
fn as_crontab(expression: &str) -> Cow<'_, str> {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    match fields[..] {
        [minute, hour, day, month, weekday]
            if (day.starts_with("*/") || weekday.starts_with("*/"))
                && !weekday.starts_with('+') =>
        {
            format!("{minute} {hour} {day} {month} +{weekday}").into()
        }
        _ => expression.into(),
    }
}

fn zone(name: &str) -> Result<TimeZone, String> {
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let known = TimeZoneDatabase::bundled().get(name).ok();
    // `Etc/Unknown` is a name, too, of a zone that nobody knows.
    known.filter(|zone| !zone.is_unknown()).ok_or_else(|| {
        format!("time_zone: must be a name of the IANA database such as Europe/Kyiv, got {name:?}")
    })
}

/// Plans what to fire for a schedule now, at most `most` events.
pub fn plan(due: &DueSchedule, most: usize) -> Firing {
    let mut firing = Firing {
        id: due.id,
        revision: due.revision,
        from: due.next,
        slots: Vec::new(),
        next: None,
        problem: None,
    };
    let calendar = match Calendar::read(&due.times) {
        Ok(calendar) => calendar,
        Err(why) => {
            firing.problem = Some(why);
            return firing;
        }
    };
    let Some(first) = due.next.or_else(|| calendar.after(due.since)) else {
        firing.problem = Some(NEVER.to_owned());
        return firing;
    };
    if first > due.now {
        firing.next = Some(first);
        return firing;
    }
    let late = match due.catch_up {
        CatchUp::None => Some(due.start_within.unwrap_or(LATE).min(LATE)),
        CatchUp::Last | CatchUp::All => due.start_within,
    };
    // Skips all slots that are too late to start an event, without looking at each of them.
    let worth = late.map_or(i64::MIN, |late| due.now.saturating_sub(late));
    let first = if first > worth {
        Some(first)
    } else {
        calendar.after(worth)
    };
    match first.filter(|first| *first <= due.now) {
        None => firing.next = first,
        Some(first) if due.catch_up == CatchUp::All => {
            let slots = std::iter::successors(Some(first), |slot| calendar.after(*slot));
            let slots = slots.take_while(|slot| *slot <= due.now);
            firing.slots = slots.take(most.min(MOST_AT_ONCE)).collect();
            let last = firing.slots.last().map_or(first - 1, |last| *last);
            firing.next = calendar.after(last);
        }
        Some(first) => {
            let last = calendar.last_until(first, due.now);
            firing.slots.push(last);
            firing.next = calendar.after(last);
        }
    }
    firing
}

/// Whether more slots are due after those in this firing.
pub(crate) fn has_more(firing: &Firing, now: i64) -> bool {
    firing.next.is_some_and(|next| next <= now)
}

/// Returns the first slot after a time in seconds since 1970, RFC 3339; `None` when there is none.
pub fn first_after(times: &Times, since: i64) -> Option<String> {
    let calendar = Calendar::read(times).ok()?;
    calendar.after(since).and_then(rfc3339)
}

fn rfc3339(slot: i64) -> Option<String> {
    let slot = Timestamp::from_second(slot).ok()?;
    Some(slot.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn calendar(expression: &str, zone: &str) -> Calendar {
        Calendar::read(&Times {
            cron: Some(expression.to_owned()),
            every: None,
            time_zone: zone.to_owned(),
        })
        .unwrap()
    }

    fn slots(calendar: &Calendar, from: &str, until: &str) -> Vec<String> {
        let first = calendar.after(at(from));
        std::iter::successors(first, |slot| calendar.after(*slot))
            .take_while(|slot| *slot <= at(until))
            .map(|slot| Timestamp::from_second(slot).unwrap().to_string())
            .collect()
    }

    fn due(times: Times, catch_up: CatchUp, next: Option<&str>, now: &str) -> DueSchedule {
        DueSchedule {
            id: 1,
            name: "x".to_owned(),
            revision: 1,
            times,
            catch_up,
            start_within: None,
            since: at("2026-01-01T00:00:00Z"),
            next: next.map(at),
            now: at(now),
        }
    }

    fn every(seconds: i64) -> Times {
        Times {
            cron: None,
            every: Some(seconds),
            time_zone: "UTC".to_owned(),
        }
    }

    /// Checks that from just before the first of these slots, they are the next three.
    fn assert_slots(zone: &str, expression: &str, expected: [&str; 3]) {
        let calendar = calendar(expression, zone);
        let mut instant = at(expected[0]) - 1;
        for slot in expected {
            instant = calendar.after(instant).unwrap();
            assert_eq!(instant, at(slot), "{zone} {expression}");
        }
    }

    /// The time does not exist on the middle day. Its slot is the end of the gap.
    #[test]
    fn a_daily_slot_in_the_hour_that_spring_leaves_out_comes_once_at_its_end() {
        let expected = [
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:30:00Z",
        ];
        assert_slots("Europe/Kyiv", "30 3 * * *", expected);
        let expected = [
            "2026-03-07T07:30:00Z",
            "2026-03-08T07:00:00Z",
            "2026-03-09T06:30:00Z",
        ];
        assert_slots("America/New_York", "30 2 * * *", expected);
        // The gap is half an hour, from 02:00.
        let expected = [
            "2026-10-02T15:40:00Z",
            "2026-10-03T15:30:00Z",
            "2026-10-04T15:10:00Z",
        ];
        assert_slots("Australia/Lord_Howe", "10 2 * * *", expected);
    }

    /// The time comes twice on the middle day. Its slot is the first.
    #[test]
    fn a_daily_slot_in_the_hour_that_autumn_repeats_comes_once_the_first_time() {
        let expected = [
            "2026-10-24T00:30:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        ];
        assert_slots("Europe/Kyiv", "30 3 * * *", expected);
        let expected = [
            "2026-10-31T05:30:00Z",
            "2026-11-01T05:30:00Z",
            "2026-11-02T06:30:00Z",
        ];
        assert_slots("America/New_York", "30 1 * * *", expected);
        // Half an hour is repeated, from 01:30.
        let expected = [
            "2026-04-03T14:45:00Z",
            "2026-04-04T14:45:00Z",
            "2026-04-05T15:15:00Z",
        ];
        assert_slots("Australia/Lord_Howe", "45 1 * * *", expected);
    }

    #[test]
    fn a_slot_of_every_quarter_or_hour_comes_at_every_quarter_or_hour_that_passes() {
        let day =
            |expression, zone, from, until| slots(&calendar(expression, zone), from, until).len();
        // The days have 23 hours, 25 hours, and half an hour more or less.
        let spring = ("2026-03-07T05:00:00Z", "2026-03-09T04:00:00Z");
        assert_eq!(day("0 * * * *", "America/New_York", spring.0, spring.1), 47);
        let autumn = ("2026-10-31T04:00:00Z", "2026-11-02T05:00:00Z");
        assert_eq!(day("0 * * * *", "America/New_York", autumn.0, autumn.1), 49);
        assert_eq!(
            day(
                "*/15 * * * *",
                "Europe/Kyiv",
                "2026-10-24T21:00:00Z",
                "2026-10-25T22:00:00Z"
            ),
            100
        );
        assert_eq!(
            day(
                "* * * * *",
                "Australia/Lord_Howe",
                "2026-04-04T13:00:00Z",
                "2026-04-05T13:30:00Z"
            ),
            1470
        );
    }

    #[test]
    fn slots_only_ever_go_forward() {
        for zone in [
            "UTC",
            "Europe/Kyiv",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
        ] {
            for expression in [
                "*/7 * * * *",
                "30 2 * * *",
                "15,45 1-3 * * *",
                "0 0 L * *",
                "0 9 * * MON#2",
                "0 12 1 * +MON",
                "0 0 29 2 *",
            ] {
                let calendar = calendar(expression, zone);
                let mut instant = at("2026-03-01T00:00:00Z");
                for _ in 0..300 {
                    let Some(next) = calendar.after(instant) else {
                        break;
                    };
                    assert!(next > instant, "{zone} {expression}");
                    // From any instant before it, the next slot is the same.
                    assert_eq!(
                        calendar.after(instant + (next - instant) / 2),
                        Some(next),
                        "{zone} {expression} {instant}"
                    );
                    instant = next;
                }
            }
        }
    }

    #[test]
    fn a_day_field_with_a_star_thins_out_the_other_as_crontab_has_it() {
        for (expression, days) in [
            ("0 0 */10 11 1-5", vec!["11"]),
            ("0 0 1-10 11 */3", vec!["01", "04", "07", "08"]),
            ("0 0 */10 11 *", vec!["01", "11", "21"]),
            ("0 0 10 11 MON", vec!["02", "09", "10", "16", "23", "30"]),
        ] {
            let found = slots(
                &calendar(expression, "UTC"),
                "2026-10-31T12:00:00Z",
                "2026-12-01T00:00:00Z",
            );
            let days: Vec<String> = days
                .iter()
                .map(|day| format!("2026-11-{day}T00:00:00Z"))
                .collect();
            assert_eq!(found, days, "{expression}");
        }
    }

    #[test]
    fn an_interval_has_fixed_instants_whenever_it_was_begun() {
        let calendar = Calendar::Every(7_200);
        assert_eq!(
            calendar.after(at("2026-03-29T00:59:59Z")),
            Some(at("2026-03-29T02:00:00Z"))
        );
        assert_eq!(
            calendar.after(at("2026-03-29T02:00:00Z")),
            Some(at("2026-03-29T04:00:00Z"))
        );
    }

    #[test]
    fn what_cannot_be_read_or_is_never_due_is_refused_by_its_field() {
        for ((expression, zone), field) in [
            (("61 * * * *", "UTC"), "cron: must be five fields"),
            (("* * * * * *", "UTC"), "cron: must be five fields"),
            (("", "UTC"), "cron: must be five fields"),
            ((", * * * *", "UTC"), "an element of a list is empty"),
            (("* , * * *", "UTC"), "an element of a list is empty"),
            (("1,,2 * * * *", "UTC"), "an element of a list is empty"),
            (("0 0 1, * *", "UTC"), "an element of a list is empty"),
            (("0 0 * * *", "Etc/Unknown"), "time_zone: must be a name"),
            (("0 0 30 2 *", "UTC"), "cron: must be due at some time"),
            (("0 0 * * *", "Europe/Kiev2"), "time_zone: must be a name"),
            (("0 0 * * *", "+02:00"), "time_zone: must be a name"),
        ] {
            let times = Times {
                cron: Some(expression.to_owned()),
                every: None,
                time_zone: zone.to_owned(),
            };
            let message = check(&times).unwrap_err();
            assert!(message.contains(field), "{message}");
        }
        let broken = Times {
            cron: Some("never".to_owned()),
            ..every(1)
        };
        let firing = plan(
            &due(broken, CatchUp::All, None, "2026-01-08T00:00:30Z"),
            100,
        );
        assert_eq!((firing.slots.len(), firing.next), (0, None));
        assert!(firing.problem.is_some());
    }

    #[test]
    fn a_weeks_outage_of_a_minutes_schedule_is_made_up_for_as_it_says() {
        let (from, now) = (Some("2026-01-01T00:01:00Z"), "2026-01-08T00:00:30Z");
        let minutes = calendar("* * * * *", "UTC");
        let times = Times {
            cron: Some("* * * * *".to_owned()),
            ..every(60)
        };
        let (last, next) = (at("2026-01-08T00:00:00Z"), Some(at("2026-01-08T00:01:00Z")));
        for catch_up in [CatchUp::None, CatchUp::Last] {
            let firing = plan(&due(times.clone(), catch_up, from, now), 1000);
            assert_eq!((firing.slots, firing.next), (vec![last], next));
        }
        let (mut all, mut state) = (Vec::new(), due(times, CatchUp::All, from, now));
        while state.next.is_some_and(|next| next <= state.now) {
            let firing = plan(&state, 1000);
            assert!(firing.slots.len() <= MOST_AT_ONCE);
            assert_eq!(has_more(&firing, state.now), firing.next < next);
            all.extend(firing.slots);
            state.next = firing.next;
        }
        assert_eq!((all.len(), state.next), (10_080, next));
        assert!(
            all.is_sorted()
                && all
                    .iter()
                    .all(|slot| minutes.after(slot - 1) == Some(*slot))
        );
    }

    #[test]
    fn a_slot_that_nobody_was_there_for_is_passed_over_unless_it_is_to_be_made_up_for() {
        let daily = || Times {
            cron: Some("0 2 * * *".to_owned()),
            ..every(1)
        };
        let from = Some("2026-01-02T02:00:00Z");
        let planned = |catch_up, now| plan(&due(daily(), catch_up, from, now), 100);
        assert!(
            planned(CatchUp::None, "2026-01-08T12:00:00Z")
                .slots
                .is_empty()
        );
        assert_eq!(
            planned(CatchUp::None, "2026-01-08T12:00:00Z").next,
            Some(at("2026-01-09T02:00:00Z"))
        );
        assert_eq!(
            planned(CatchUp::None, "2026-01-08T02:14:59Z").slots,
            [at("2026-01-08T02:00:00Z")]
        );
        assert_eq!(
            planned(CatchUp::Last, "2026-01-08T12:00:00Z").slots,
            [at("2026-01-08T02:00:00Z")]
        );
        assert_eq!(planned(CatchUp::All, "2026-01-08T12:00:00Z").slots.len(), 7);
        // These are too late to start.
        let within = |hours: i64| DueSchedule {
            start_within: Some(hours * 3600),
            ..due(daily(), CatchUp::All, from, "2026-01-08T12:00:00Z")
        };
        assert_eq!(plan(&within(30), 100).slots.len(), 1);
        assert!(plan(&within(1), 100).slots.is_empty());
        assert_eq!(plan(&within(1), 100).next, Some(at("2026-01-09T02:00:00Z")));
    }

    #[test]
    fn one_that_is_not_due_yet_only_learns_its_next_slot() {
        let firing = plan(
            &due(every(3600), CatchUp::Last, None, "2026-01-01T00:00:01Z"),
            100,
        );
        assert_eq!(
            (firing.slots, firing.next),
            (vec![], Some(at("2026-01-01T01:00:00Z")))
        );
    }
}
