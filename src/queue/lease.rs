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
    /// The time to lease at, for tests (C6); the database's clock when `None`.
    pub now: Option<SystemTime>,
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
        ],
    )
    .await?;
    let mut batch = LeasedBatch::default();
    for row in &rows {
        batch.scanned = row.get::<_, i64>("scanned").try_into().unwrap_or(u32::MAX);
        batch.last_id = row.get("last_id");
        if row.get::<_, Option<i64>>("id").is_some() {
            batch.events.push(leased_event(row, request.token));
        }
    }
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

fn leased_event(row: &Row, token: Uuid) -> LeasedEvent {
    LeasedEvent {
        lease: Lease {
            id: row.get("id"),
            token,
        },
        fate: match row.get::<_, i32>("fate") {
            0 => Fate::Run,
            1 => Fate::Expired,
            _ => Fate::Abandoned,
        },
        kind: row.get("kind"),
        payload: row.get::<_, Option<JsonText>>("payload").map(|text| text.0),
        group_key: row.get("group_key"),
        correlation_id: row.get("correlation_id"),
        attempts: row.get::<_, i32>("attempts").unsigned_abs(),
        max_attempts: row.get::<_, i32>("max_attempts").unsigned_abs(),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        progress: row
            .get::<_, Option<JsonText>>("progress")
            .and_then(|text| progress(&text.0)),
        traceparent: row.get("traceparent"),
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
