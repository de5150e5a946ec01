//! Publishing from Rust, inside the caller's own transaction.

use std::time::SystemTime;

use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::statement::statements;
use super::{Queryable, first, query};
use crate::error::{Error, Result};
use crate::event::{NewEvent, Publishable};
use crate::sealing;
use crate::trace::{self, Publishing};

/// The follow-ups of a statement whose ninth parameter is their parents: the text, or the types of all
/// parameters, behind those nine.
macro_rules! follow_ups {
    () => {
        "ROW($9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)::@tidegate.follow_ups"
    };
    ($($param:ident),*) => {{
        use tokio_postgres::types::Type;
        &[
            $(Type::$param,)*
            Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT_ARRAY,
            Type::FLOAT8_ARRAY, Type::TIMESTAMPTZ_ARRAY, Type::INT4_ARRAY, Type::FLOAT8_ARRAY, Type::TEXT_ARRAY,
        ]
    }};
}

pub(super) use follow_ups;

statements! {
    RECEIVE: "receive" [TEXT, TEXT] = "SELECT @tidegate.receive($1, $2)";

    PUBLISH_ONE: "publish_one" [
        TEXT, TEXT, TEXT, TEXT, TEXT,
        FLOAT8, TIMESTAMPTZ, INT4, FLOAT8, TEXT, TEXT
    ] = "\
SELECT ARRAY[CASE WHEN p.created THEN p.id ELSE -p.id END] AS ids, ARRAY[p.status] AS statuses,
       ARRAY[p.attempts] AS attempts, p.replaced
  FROM @tidegate.publish_one($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6),
                        coalesce($7, clock_timestamp() + make_interval(secs => $9)), $8, $10, $11) AS p";

    PUBLISH: "publish" [
        TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
        FLOAT8_ARRAY, TIMESTAMPTZ_ARRAY, INT4_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY
    ] = "\
SELECT p.ids, p.statuses, p.attempts, false AS replaced
  FROM @tidegate.publish_batch($1, $2, $3, $4, $5,
       ARRAY(SELECT clock_timestamp() + make_interval(secs => d.delay)
               FROM unnest($6) WITH ORDINALITY AS d(delay, position) ORDER BY d.position),
       ARRAY(SELECT coalesce(e.at, clock_timestamp() + make_interval(secs => e.within))
               FROM unnest($7, $9) WITH ORDINALITY AS e(at, within, position) ORDER BY e.position),
       $8, $10) AS p";
}

/// Events to publish, as arrays. An array ends early where the rest is null.
pub(super) struct EventColumns<'a> {
    kinds: Vec<&'a str>,
    payloads: Vec<Option<&'a str>>,
    group_keys: Vec<Option<&'a str>>,
    dedup_keys: Vec<Option<&'a str>>,
    correlation_ids: Vec<Option<&'a str>>,
    delays: Vec<Option<f64>>,
    expires_ats: Vec<Option<SystemTime>>,
    expires_ins: Vec<Option<f64>>,
    max_attempts: Vec<Option<i32>>,
    traceparents: Vec<Option<&'a str>>,
}

impl<'a> EventColumns<'a> {
    pub(super) fn of(events: &(impl Iterator<Item = &'a NewEvent> + Clone)) -> Self {
        Self {
            kinds: events.clone().map(|event| event.kind.as_str()).collect(),
            payloads: column(events, |event| event.payload.as_deref().map(RawValue::get)),
            group_keys: column(events, |event| event.group_key.as_deref()),
            dedup_keys: column(events, |event| event.dedup_key.as_deref()),
            correlation_ids: column(events, |event| event.correlation_id.as_deref()),
            delays: column(events, |event| event.delay.map(|delay| delay.as_secs_f64())),
            expires_ats: column(events, |event| event.expires_at),
            expires_ins: column(events, |event| {
                event.expires_in.map(|time| time.as_secs_f64())
            }),
            max_attempts: column(events, |event| event.max_attempts.map(i32::from)),
            traceparents: column(events, |event| event.traceparent.as_deref()),
        }
    }

    /// Returns the values of the parameters, as [`PUBLISH`] and [`follow_ups`] have them.
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.kinds,
            &self.payloads,
            &self.group_keys,
            &self.dedup_keys,
            &self.correlation_ids,
            &self.delays,
            &self.expires_ats,
            &self.max_attempts,
            &self.expires_ins,
            &self.traceparents,
        ]
    }
}

/// Returns a column of values, or an empty one if every value is null. The database fills a missing end with
/// nulls (publishing 1,000 events takes a tenth less time).
pub(super) fn column<S, T>(
    rows: &(impl Iterator<Item = S> + Clone),
    value: impl Fn(S) -> Option<T>,
) -> Vec<Option<T>> {
    if rows.clone().all(|row| value(row).is_none()) {
        return Vec::new();
    }
    rows.clone().map(value).collect()
}

/// A published event as it is stored (C5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The event's id; for a duplicate, that of the first event.
    pub id: i64,
    /// False when a live event of the same kind and deduplication key already existed.
    pub created: bool,
    /// `PENDING`. For a duplicate of an event that a worker has leased, `PROCESSING`.
    pub status: &'static str,
    /// How many attempts it has had: 0, except for a duplicate.
    pub attempts: u32,
    /// Whether it replaced the first event, as [`NewEvent::replace`] requests.
    pub replaced: bool,
}

/// Reads the answer: arrays, of which the last two are null if no event is a duplicate. The id of a duplicate
/// is negative. Avoids `Row::get`, which panics: a pooler has been seen to send a publisher the answer to the
/// lease of a drain that had disappeared.
fn answered(rows: &[Row]) -> Result<Vec<Published>> {
    let read = |row: &Row| -> Result<Vec<Published>, tokio_postgres::Error> {
        let (ids, replaced): (Vec<i64>, bool) = (row.try_get("ids")?, row.try_get("replaced")?);
        let statuses: Option<Vec<&str>> = row.try_get("statuses")?;
        let attempts: Option<Vec<i32>> = row.try_get("attempts")?;
        let (statuses, attempts) = (statuses.unwrap_or_default(), attempts.unwrap_or_default());
        let published = ids.iter().enumerate().map(|(at, id)| Published {
            id: id.abs(),
            created: *id > 0,
            status: match statuses.get(at) {
                Some(&"PROCESSING") => "PROCESSING",
                _ => "PENDING",
            },
            attempts: attempts.get(at).map_or(0, |had| had.unsigned_abs()),
            replaced,
        });
        Ok(published.collect())
    };
    let published = rows.first().map(read).transpose();
    published.map(Option::unwrap_or_default).map_err(|error| {
        Error::Unreadable(format!("publish: the answer to another statement: {error}"))
    })
}

/// Publishes one event on the given client or transaction: a value of the program's enum, or a [`NewEvent`]
/// with options. If the transaction rolls back, the event does not exist (B1).
///
/// Without a trace of its own, the event continues the trace of the caller's work ([`trace::within`]).
///
/// With a group, the transaction holds the group's publish lock until it ends. Publish to several groups with
/// one [`publish_batch`], or in the same order everywhere. Otherwise two transactions may wait for each
/// other.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub async fn publish(client: &impl Queryable, event: &impl Publishable) -> Result<Published> {
    let event = event.as_new()?;
    sealing::ready().await?;
    let event = sealing::sealed(&event)?;
    let delay = event.delay.map(|delay| delay.as_secs_f64());
    let expires_in = event.expires_in.map(|time| time.as_secs_f64());
    let recorded = Publishing::begin(event.traceparent.as_deref());
    let here = recorded.as_ref().map(Publishing::header);
    let here = here.or_else(|| event.traceparent.clone()).or_else(position);
    let rows = query(
        client,
        &PUBLISH_ONE,
        &[
            &event.kind,
            &event.payload.as_deref().map(RawValue::get),
            &event.group_key,
            &event.dedup_key,
            &event.correlation_id,
            &delay,
            &event.expires_at,
            &event.max_attempts.map(i32::from),
            &expires_in,
            &here,
            &(if event.replaces { "replace" } else { "keep" }),
        ],
    )
    .await
    .map_err(refused)?;
    let published = answered(&rows)?.pop();
    let published = published.ok_or_else(|| Error::Unreadable("publish: no row".to_owned()))?;
    if let Some(recorded) = recorded {
        recorded.done(&event.kind, None, Some(published.id));
    }
    Ok(published)
}

/// The error for an event that is to replace another one and is not published alone.
pub const ALONE: &str =
    "on_duplicate: must be keep of a batch's events and of follow-ups, got replace";

/// Publishes events in order, all or none. Returns one row for each, in the same order.
///
/// # Errors
/// [`Error::Invalid`] names the event, the field and what is allowed; otherwise the database's error.
pub async fn publish_batch(
    client: &impl Queryable,
    events: &[impl Publishable],
) -> Result<Vec<Published>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let events: Vec<_> = events
        .iter()
        .map(Publishable::as_new)
        .collect::<Result<_>>()?;
    if events.iter().any(|event| event.replaces) {
        return Err(Error::Invalid(ALONE.to_owned()));
    }
    let recorded = Publishing::begin(None);
    let here = recorded.as_ref().map(Publishing::header);
    let here = here.or_else(position);
    sealing::ready().await?;
    let events: Vec<_> = events
        .iter()
        .map(|event| sealing::sealed(event))
        .collect::<Result<_, _>>()?;
    let mut columns = EventColumns::of(&events.iter().map(AsRef::as_ref));
    if here.is_some() {
        columns.traceparents.resize(events.len(), None);
    }
    for traceparent in &mut columns.traceparents {
        *traceparent = traceparent.or(here.as_deref());
    }
    let rows = query(client, &PUBLISH, &columns.values())
        .await
        .map_err(refused)?;
    if let Some(recorded) = recorded {
        let first = events.first().map_or("", |event| event.kind.as_str());
        let alike = events.iter().all(|event| event.kind == first);
        let kind = if alike { first } else { "tidegate" };
        recorded.done(kind, Some(events.len()), None);
    }
    answered(&rows)
}

/// Records a message from outside, in the transaction that does what it requests. Returns false if it was
/// taken in before. Waits for another transaction that takes in the same message.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; otherwise the database's error.
pub async fn receive(client: &impl Queryable, source: &str, message_id: &str) -> Result<bool> {
    let taken = first(client, &RECEIVE, &[&source, &message_id]).await;
    Ok(taken.map_err(refused)?.unwrap_or_default())
}

/// Returns the trace of the caller's work, as a header.
fn position() -> Option<String> {
    trace::current().map(|position| position.to_string())
}

/// Turns the database's refusal of an argument into an error of the caller, with the database's message.
pub fn refused(error: Error) -> Error {
    // An earlier event of the group comes first.
    let is_early = |code: &SqlState| code.code() == "TG004";
    match &error {
        Error::Database { source, .. }
            if error.is_bad_data() || source.code().is_some_and(is_early) =>
        {
            let message = source
                .as_db_error()
                .map_or_else(|| source.to_string(), |db| db.message().to_owned());
            Error::Invalid(message)
        }
        _ => error,
    }
}
