//! Taking events: lease, renew, promote.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::{query, sql};
use crate::error::Error;
use crate::event::{Fate, Lease, LeasedEvent};
use crate::outcome::Progress;

/// What to lease.
#[derive(Debug, Clone)]
pub struct LeaseRequest<'a> {
    /// Lease at most this many.
    pub limit: u32,
    /// Look at this many, at least `limit`; more get past a page of blocked groups sooner.
    pub page: u32,
    /// Only ids above this one; 0 scans from the start.
    pub after: i64,
    /// The new lease's token.
    pub token: Uuid,
    /// Tokens this worker holds: its own rows neither come again nor block their groups.
    pub held: &'a [Uuid],
    /// The lease's length.
    pub timeout: Duration,
    /// Kinds this program knows; others are left alone if they are registered.
    pub kinds: &'a [&'a str],
    /// Groups that are known to be blocked: their events are passed.
    pub blocked: &'a [String],
    /// What is known of the events ahead; without it each group's first one is looked for.
    pub known: Option<&'a Known>,
    /// The time to lease at, for tests (C6); the database's clock when `None`.
    pub now: Option<SystemTime>,
}

/// What spares a lease a look for the first event of each of its groups. It must be true that every event with a group
/// that was committed before `as_of` and has an id up to `clear_to` has ended or is of a doubtful group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Up to this id; not above the request's `after`.
    pub clear_to: i64,
    /// All transactions before this one had ended; `None` if the lease begins at the start, and sees all there is.
    pub as_of: Option<i64>,
    /// Groups that are looked for all the same.
    pub doubtful: Vec<String>,
}

/// What a lease brought.
#[derive(Debug, Default)]
pub struct LeasedBatch {
    /// The events, in id order.
    pub events: Vec<LeasedEvent>,
    /// Rows looked at; fewer than the page means that the end of the queue was reached.
    pub scanned: u32,
    /// The highest id looked at.
    pub last_id: Option<i64>,
    /// Groups of which events were looked at and none could be leased.
    pub blocked: Vec<String>,
    /// Groups, besides the doubtful ones, of events between what was known to be clear and `last_id` that are neither
    /// held nor were looked at; `None` when nobody has looked.
    pub met: Option<Vec<String>>,
    /// Before this transaction all had ended when a lease from the start of the queue began.
    pub began: Option<i64>,
    /// More than two pages of ids were passed behind `after`, and the first event there is in other hands. Never told by
    /// a lease from the start of the queue.
    pub crowded: bool,
}

/// Leases ready events, lowest id first, each group in order. Never waits for a lock (C2) and
/// returns at once when nothing is ready (C6).
///
/// # Errors
/// When the database fails or does not answer; the lease may then still have been made.
pub async fn lease(
    client: &(impl GenericClient + Sync),
    request: &LeaseRequest<'_>,
) -> Result<LeasedBatch, Error> {
    let rows = query(
        client,
        &sql::live::LEASE,
        &[
            &request.after,
            &i64::from(request.page.max(request.limit)),
            &request.token,
            &request.held,
            &request.timeout.as_secs_f64(),
            &request.kinds,
            &request.now,
            &i64::from(request.limit),
            &request.blocked,
            &request.known.map(|known| known.clear_to),
            &request.known.and_then(|known| known.as_of),
            &request.known.map(|known| &known.doubtful),
        ],
    )
    .await?;
    let mut batch = LeasedBatch::default();
    if let Some(row) = rows.first() {
        batch.scanned = row.get::<_, i64>(0).try_into().unwrap_or(u32::MAX);
        batch.last_id = row.get(1);
        batch.blocked = row.get::<_, Option<_>>(2).unwrap_or_default();
        batch.met = row.get(3);
        batch.began = row.get(4);
        batch.crowded = row.get::<_, Option<_>>(5).unwrap_or_default();
    }
    let leased = rows
        .iter()
        .filter_map(|row| Some((row, row.get::<_, Option<i64>>(6)?)));
    batch.events = leased
        .map(|(row, id)| leased_event(row, id, request.token))
        .collect();
    batch.events.sort_unstable_by_key(|event| event.lease.id);
    Ok(batch)
}

/// Gives back what `request` may have leased when its answer was lost. The lost statement can still
/// be under way, so this is a courtesy to the waiting events; what it misses lapses with its lease.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn reclaim(
    client: &(impl GenericClient + Sync),
    request: &LeaseRequest<'_>,
) -> Result<(), Error> {
    // Others may have leased rows between ours; they are few against this margin.
    let reach = i64::from(request.page) * 4 + 1000;
    query(
        client,
        &sql::live::RECLAIM,
        &[&request.after, &reach, &request.token],
    )
    .await
    .map(drop)
}

/// A stored JSON text, without parsing it.
struct JsonText(Vec<u8>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // jsonb's binary form is a version byte, always 1, and the text.
        match raw.split_first() {
            Some((1, text)) => Ok(Self(text.to_vec())),
            _ => Err("unknown version of jsonb's binary form".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }
}

/// A row of the lease, by position: names would be looked for in each row.
fn leased_event(row: &Row, id: i64, token: Uuid) -> LeasedEvent {
    LeasedEvent {
        lease: Lease { id, token },
        fate: match row.get::<_, i32>(7) {
            0 => Fate::Run,
            1 => Fate::Expired,
            _ => Fate::Abandoned,
        },
        kind: row.get(8),
        payload: row.get::<_, Option<JsonText>>(9).map(|text| text.0),
        group_key: row.get(10),
        correlation_id: row.get(11),
        attempts: row.get::<_, i32>(12).unsigned_abs(),
        max_attempts: row.get::<_, i32>(13).unsigned_abs(),
        created_at: row.get(14),
        expires_at: row.get(15),
        progress: row
            .get::<_, Option<JsonText>>(16)
            .and_then(|text| progress(&text.0)),
        traceparent: row.get(17),
    }
}

/// Progress that does not parse is none: its handlers run again, which at-least-once allows.
pub(crate) fn progress(text: &[u8]) -> Option<Progress> {
    serde_json::from_slice(text).ok()
}

/// Makes delayed events ready whose time has come. Returns how many and the lowest id among them.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn promote(
    client: &(impl GenericClient + Sync),
    limit: u32,
    now: Option<SystemTime>,
) -> Result<(u64, Option<i64>), Error> {
    let rows = query(client, &sql::live::PROMOTE, &[&i64::from(limit), &now]).await?;
    let (count, lowest) = rows
        .first()
        .map_or((0, None), |row| (row.get::<_, i64>(0), row.get(1)));
    Ok((count.unsigned_abs(), lowest))
}

/// Prolongs leases to `timeout` from now. Returns those that are still held.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn renew(
    client: &(impl GenericClient + Sync),
    leases: &[Lease],
    timeout: Duration,
) -> Result<Vec<Lease>, Error> {
    let (ids, tokens) = columns(leases);
    let rows = query(
        client,
        &sql::live::RENEW,
        &[&ids, &tokens, &timeout.as_secs_f64()],
    )
    .await?;
    Ok(as_leases(&rows))
}

/// Rows of id and token as leases.
pub(super) fn as_leases(rows: &[Row]) -> Vec<Lease> {
    rows.iter()
        .map(|row| Lease {
            id: row.get(0),
            token: row.get(1),
        })
        .collect()
}

/// Ids and tokens as two arrays of one length.
pub(super) fn columns(leases: &[Lease]) -> (Vec<i64>, Vec<Uuid>) {
    leases.iter().map(|lease| (lease.id, lease.token)).unzip()
}
