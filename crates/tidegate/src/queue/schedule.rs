//! Schedules: which are due, what is fired, and what programs declare.

use serde::Serialize;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

use super::publish::refused;
use super::{query, sql};
use crate::error::Error;
use crate::periodic::{CatchUp, parse_catch_up};

/// A schedule whose slot has come or has not been computed yet. Times are seconds since 1970, by the
/// database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSchedule {
    /// The id by which it is fired.
    pub id: i64,
    /// The name, for messages.
    pub name: String,
    /// The revision of its definition.
    pub revision: i64,
    /// When it is due.
    pub times: Times,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
    /// How many seconds after its slot an event may start.
    pub start_within: Option<i64>,
    /// Only slots after this time count.
    pub since: i64,
    /// The next slot, if it is computed.
    pub next: Option<i64>,
    /// The current time.
    pub now: i64,
}

/// When a schedule is due, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// A cron expression. A schedule has this or `every`.
    pub cron: Option<String>,
    /// Seconds from one slot to the next.
    pub every: Option<i64>,
    /// The time zone of the expression.
    pub time_zone: String,
}

/// What is to be fired of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Firing {
    /// The schedule.
    pub id: i64,
    /// The revision as it was read.
    pub revision: i64,
    /// The next slot as it was read.
    pub from: Option<i64>,
    /// The slots to publish an event for, in order.
    pub slots: Vec<i64>,
    /// The next slot from now on; `None` when there is none.
    pub next: Option<i64>,
    /// Why there is none, if that is an error.
    pub problem: Option<String>,
}

/// The result of a firing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The schedule.
    pub id: i64,
    /// How many events were published.
    pub published: u64,
    /// Why none were published.
    pub refused: Option<String>,
}

/// Returns schedules of these kinds that need an action, after this id: at most `most`, ordered by id. `now`
/// is for tests.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn due_schedules(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
    (after, most): (i64, i32),
    now: Option<f64>,
) -> Result<Vec<DueSchedule>, Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&kinds, &after, &most, &now];
    let rows = query(client, &sql::schedule::DUE_SCHEDULES, values).await?;
    Ok(rows.iter().map(due).collect())
}

fn due(row: &Row) -> DueSchedule {
    DueSchedule {
        id: row.get(0),
        name: row.get(1),
        revision: row.get(2),
        times: Times {
            cron: row.get(3),
            every: row.get(4),
            time_zone: row.get(5),
        },
        catch_up: parse_catch_up(row.get(6)).unwrap_or_default(),
        start_within: row.get(7),
        since: row.get(8),
        next: row.get(9),
        now: row.get(10),
    }
}

/// Publishes the events of slots and moves on to the next slots, each schedule by itself. Returns only
/// schedules that no other drain fired first.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn fire_schedules(
    client: &(impl GenericClient + Sync),
    firings: &[Firing],
) -> Result<Vec<Fired>, Error> {
    let text = serde_json::to_string(firings)
        .map_err(|error| Error::Invalid(format!("schedules: {error}")))?;
    let rows = query(client, &sql::schedule::FIRE_SCHEDULES, &[&text]).await?;
    let fired = rows.iter().map(|row| Fired {
        id: row.get(0),
        published: row.get::<_, i64>(1).unsigned_abs(),
        refused: row.get(2),
    });
    Ok(fired.collect())
}

/// A schedule that a program declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// The kind of its events.
    pub kind: String,
    /// The payload of its events.
    pub payload: Option<String>,
    /// When it is due.
    pub times: Times,
    /// The events' group.
    pub group: Option<String>,
    /// How many seconds after its slot an event may start.
    pub start_within: Option<i64>,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
}

/// Returns what a program has declared so far.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn declared_schedules(
    client: &(impl GenericClient + Sync),
    keeper: &str,
) -> Result<Vec<Declared>, Error> {
    let rows = query(client, &sql::schedule::DECLARED_SCHEDULES, &[&keeper]).await?;
    let declared = rows.iter().map(|row| Declared {
        name: row.get(0),
        kind: row.get(1),
        payload: row.get(2),
        times: Times {
            cron: row.get(3),
            every: row.get(4),
            time_zone: row.get(5),
        },
        group: row.get(6),
        start_within: row.get(7),
        catch_up: parse_catch_up(row.get(8)).unwrap_or_default(),
    });
    Ok(declared.collect())
}

/// Creates or changes a schedule that a program declares.
///
/// # Errors
/// [`Error::Invalid`] names the field and what it must be; otherwise the database's error.
pub async fn put_schedule(
    client: &(impl GenericClient + Sync),
    keeper: &str,
    declared: &Declared,
    reason: &str,
) -> Result<(), Error> {
    #[expect(clippy::cast_precision_loss, reason = "at most a year of seconds")]
    let seconds = |count: Option<i64>| count.map(|count| count as f64);
    let values: &[&(dyn ToSql + Sync)] = &[
        &keeper,
        &declared.name,
        &declared.kind,
        &declared.payload,
        &declared.times.cron,
        &seconds(declared.times.every),
        &declared.times.time_zone,
        &declared.group,
        &seconds(declared.start_within),
        &declared.catch_up.as_str(),
        &reason,
    ];
    let put = query(client, &sql::schedule::PUT_SCHEDULE, values).await;
    put.map(drop).map_err(refused)
}

/// Removes a schedule that a program no longer declares.
///
/// # Errors
/// As [`put_schedule`].
pub async fn drop_schedule(
    client: &(impl GenericClient + Sync),
    keeper: &str,
    name: &str,
    reason: &str,
) -> Result<(), Error> {
    let values: &[&(dyn ToSql + Sync)] = &[&keeper, &name, &reason];
    let dropped = query(client, &sql::schedule::DROP_SCHEDULE, values).await;
    dropped.map(drop).map_err(refused)
}
