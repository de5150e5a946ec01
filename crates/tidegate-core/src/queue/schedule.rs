//! Schedules: which are due, what is fired, and what programs declare.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio_postgres::types::ToSql;

use super::publish::refused;
use super::statement::{literal, statements};
use super::{Queryable, documents, text};
use crate::connect::{Conn, Schema};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::sealing;

/// The treatment of slots that passed while no drain ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Returns the name in reports and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}

statements! {
    /// Schedules of kinds `$1` with ids above `$2` whose slot has come or is still to be computed, at most
    /// `$3`. The time is the database's clock or, in tests, the second `$4`. Schedules of a paused kind wait
    /// like its events.
    DUE_SCHEDULES: "due_schedules" [TEXT_ARRAY, INT8, INT4, FLOAT8] = "\
SELECT jsonb_build_object('id', s.id, 'name', s.name, 'revision', s.revision, 'cron', s.cron,
           'every', extract(epoch FROM s.every)::int8, 'time_zone', s.time_zone, 'catch_up', s.catch_up,
           'start_within', extract(epoch FROM s.start_within)::int8, 'since', floor(extract(epoch FROM s.since))::int8,
           'next', CASE WHEN isfinite(s.next_at) THEN floor(extract(epoch FROM s.next_at))::int8 END,
           'now', floor(extract(epoch FROM coalesce(to_timestamp($4), statement_timestamp())))::int8)::text
  FROM @tidegate.schedule AS s
  JOIN @tidegate.event_kind AS k ON k.kind = s.kind AND NOT k.paused
 WHERE NOT s.paused AND s.next_at <= coalesce(to_timestamp($4), statement_timestamp()) AND s.kind = ANY ($1)
   AND s.id + 0 > $2
 ORDER BY s.id + 0 LIMIT $3";

    FIRE_SCHEDULES: "fire_schedules" [TEXT] =
        "SELECT to_jsonb(f)::text FROM @tidegate.fire_schedules($1::jsonb) AS f";

    DECLARED_SCHEDULES: "declared_schedules" [TEXT] = "\
SELECT jsonb_build_object('name', s.name, 'kind', s.kind, 'payload', s.payload::text, 'cron', s.cron,
           'every', extract(epoch FROM s.every)::int8, 'time_zone', s.time_zone, 'group', s.group_key,
           'start_within', extract(epoch FROM s.start_within)::int8, 'catch_up', s.catch_up)::text
  FROM @tidegate.schedule AS s WHERE s.keeper = $1 ORDER BY s.name";
}

/// A schedule whose slot has come or has not been computed yet. Times are seconds since 1970, by the
/// database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DueSchedule {
    /// The id by which it is fired.
    pub id: i64,
    /// The name, for messages.
    pub name: String,
    /// Which definition this is. A firing that was computed from an earlier one does nothing.
    pub revision: i64,
    /// When it is due.
    #[serde(flatten)]
    pub times: Times,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
    /// How many seconds after its slot an event may start.
    pub start_within: Option<i64>,
    /// Only slots after this time count.
    pub since: i64,
    /// The next slot, if it is computed.
    pub next: Option<i64>,
    /// The database's time, or the given one of a test.
    pub now: i64,
}

/// When a schedule is due, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fired {
    /// The schedule.
    pub id: i64,
    /// How many events were published.
    pub published: u64,
    /// Why none were published.
    pub refused: Option<String>,
}

/// Returns schedules of these kinds whose slot has come or has to be computed: at most `most` behind the id
/// `after`, by id. `now` is for tests.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn due_schedules(
    client: &impl Queryable,
    kinds: &[&str],
    after: i64,
    most: i32,
    now: Option<f64>,
) -> Result<Vec<DueSchedule>> {
    let values: &[&(dyn ToSql + Sync)] = &[&kinds, &after, &most, &now];
    documents(client, &DUE_SCHEDULES, values).await
}

/// Publishes the events of slots and moves the schedules on to their next slots, each by itself. Leaves out
/// of the answer those that another drain has fired first.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn fire_schedules(client: &impl Queryable, firings: &[Firing]) -> Result<Vec<Fired>> {
    documents(client, &FIRE_SCHEDULES, &[&text("schedules", firings)?]).await
}

/// A schedule that a program declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// The kind of its events.
    pub kind: String,
    /// The payload of its events.
    pub payload: Option<String>,
    /// When it is due.
    #[serde(flatten)]
    pub times: Times,
    /// The events' group.
    pub group: Option<String>,
    /// How many seconds after its slot an event may start.
    pub start_within: Option<i64>,
    /// What happens to missed slots.
    pub catch_up: CatchUp,
}

/// Returns the schedules that a program (`keeper`) has declared so far, with their payloads as stored.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn declared_schedules(client: &impl Queryable, keeper: &str) -> Result<Vec<Declared>> {
    documents(client, &DECLARED_SCHEDULES, &[&keeper]).await
}

/// Returns the SQL that creates or changes a schedule that a program declares.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn put_schedule(schema: &Schema, keeper: &str, declared: &Declared) -> Result<String> {
    let put = schema.written("SELECT @tidegate.put_schedule");
    let (keeper, declared) = (literal(keeper), literal(&text("schedule", declared)?));
    Ok(format!(
        "{put}({keeper}, d.name, d.kind, d.payload::json, d.cron, make_interval(secs => d.every), d.time_zone, d.\"group\",
               make_interval(secs => d.start_within), d.catch_up)
  FROM jsonb_to_record({declared}::jsonb) AS d(name text, kind text, payload text, cron text, every float8, time_zone text, \"group\" text,
                                               start_within float8, catch_up text);\n"
    ))
}

/// Stores a program's declared schedules in the database. New ones are added, changed ones are updated, and
/// those that the program no longer declares are removed. Schedules of other programs stay.
///
/// # Errors
/// [`Error::Invalid`] names the schedule and what is wrong with it; otherwise the database's error.
pub async fn sync_schedules(
    client: &impl Queryable,
    keeper: &str,
    declared: &[Declared],
) -> Result<()> {
    let stored = declared_schedules(client, keeper).await?;
    let Conn { client, schema, .. } = client.conn();
    for (name, sql) in changed_schedules(schema, keeper, &stored, declared).await? {
        let changed = client.batch_execute(&sql).await;
        changed.map_err(|error| match refused(Error::at("schedule")(error)) {
            Error::Invalid(why) => Error::Invalid(format!("schedule {name:?}: {why}")),
            error => error,
        })?;
    }
    Ok(())
}

/// Returns the names of the schedules that differ from the stored ones, with the SQL that changes them.
pub(crate) async fn changed_schedules(
    schema: &Schema,
    keeper: &str,
    stored: &[Declared],
    declared: &[Declared],
) -> Result<Vec<(String, String)>> {
    for (at, one) in declared.iter().enumerate() {
        if declared[..at].iter().any(|other| other.name == one.name) {
            let why = "must be declared once, got two of this name";
            return Err(Error::Invalid(format!("schedule {:?}: {why}", one.name)));
        }
    }
    let is_left = |one: &&Declared| !declared.iter().any(|other| other.name == one.name);
    let dropped = stored.iter().filter(is_left).map(|one| {
        let drop = schema.written("SELECT @tidegate.drop_schedule");
        let sql = format!("{drop}({}, {});\n", literal(keeper), literal(&one.name));
        (one.name.clone(), sql)
    });
    let mut changes: Vec<_> = dropped.collect();
    for one in declared {
        let payload = sealed(&one.kind, one.payload.clone()).await?;
        let before = stored.iter().find(|other| other.name == one.name);
        if before.is_some_and(|before| is_same(before, one, payload.as_deref())) {
            continue;
        }
        let now = Declared {
            payload,
            ..one.clone()
        };
        changes.push((now.name.clone(), put_schedule(schema, keeper, &now)?));
    }
    Ok(changes)
}

/// Whether the stored schedule equals the declared one, whose payload is stored as `sealed`. The stored
/// payload is opened first, because sealing gives a different text each time. A payload that another key has
/// sealed, or none, or that cannot be opened, counts as different and is stored again.
fn is_same(stored: &Declared, declared: &Declared, sealed: Option<&str>) -> bool {
    let key = |payload: &str| sealing::envelope(payload.as_bytes()).map(|seal| seal.key);
    let text = stored.payload.as_deref();
    let Ok(opened) = sealing::opened(&stored.kind, text.map(str::as_bytes)) else {
        return false;
    };
    let payload = opened.map(|opened| String::from_utf8_lossy(&opened).into_owned());
    text.map(key) == sealed.map(key)
        && Declared {
            payload,
            ..stored.clone()
        } == *declared
}

/// Returns a payload as it is stored: sealed, if this process has keys.
///
/// # Errors
/// [`Error::Invalid`] when the payload is not allowed in an event.
async fn sealed(kind: &str, payload: Option<String>) -> Result<Option<String>> {
    sealing::ready().await?;
    let payload = payload.map(RawValue::from_string).transpose();
    let payload = payload.map_err(|error| Error::Invalid(format!("payload: {error}")))?;
    let event = NewEvent::raw(kind, payload);
    event.check()?;
    let event = sealing::sealed(&event)?;
    Ok(event
        .payload
        .as_ref()
        .map(|payload| payload.get().to_owned()))
}
