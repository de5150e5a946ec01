//! Taking events: lease, read, renew, give back, promote, sweep.

use std::time::Duration;

use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::service::{Watched, watched};
use super::sql::live::leased as col;
use super::{query, sql};
use crate::error::Error;
use crate::lease::{Fate, Lease, LeasedEvent};
use crate::outcome::Progress;
use crate::policy::Policy;

/// How far a walk along the queue has come, as the last lease of it answered. The default is its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// Ids up to here have been looked at.
    pub after: i64,
    /// Up to here nothing with a group was left behind unmarked; nothing is known when `None`.
    pub clear_to: Option<i64>,
    /// All transactions before this one had ended when the walk began.
    pub as_of: Option<i64>,
    /// No lease that was taken before this transaction is alive.
    pub low: Option<i64>,
}

/// What to lease.
#[derive(Debug, Clone)]
pub struct LeaseRequest<'a> {
    /// The new lease's token, drawn by the caller: if the answer is lost, [`sweep`] gives back what it has taken.
    pub token: Uuid,
    /// Whose it is. All leases of a worker lapse together.
    pub worker: Uuid,
    /// The worker's tokens with something in hand, but for those of suspects.
    pub held: &'a [Uuid],
    /// Its leases that are marked as ended, to be removed.
    pub over: &'a [Uuid],
    /// The lease's length.
    pub timeout: Duration,
    /// Kinds this program knows; others are left alone if they are registered.
    pub kinds: &'a [&'a str],
    /// Lease at most this many.
    pub limit: u32,
    /// And no more bytes of payload than this, but for a single event.
    pub bytes: u64,
    /// Handlers of so many of them may start at once. What lapses is charged to them.
    pub first_window: u32,
    /// Go on where another worker's lease has ended. `None`: few of the kinds are asked for, and nobody is to go on where this
    /// lease ends, either.
    pub join: Option<bool>,
    /// Groups that this walk has found blocked: their events are passed.
    pub passed_by: &'a [String],
    /// A service that is open and due: one event of its kinds is leased instead, if no other worker is trying one.
    pub probe: Option<&'a str>,
    /// Where to go on.
    pub walk: Walk,
}

/// What a lease brought.
#[derive(Debug, Default)]
pub struct LeasedBatch {
    /// The events, in id order.
    pub events: Vec<LeasedEvent>,
    /// Ids of events that are held, and whose payload the database cannot read.
    pub unreadable: Vec<i64>,
    /// Handlers of events up to this id may start.
    pub started_to: i64,
    /// One event whose worker has gone away before; it has not been started, and is to run alone.
    pub suspect: bool,
    /// Rows looked at; fewer than the limit means that the end of the queue was reached.
    pub scanned: u32,
    /// Groups of which events were looked at and none could be leased.
    pub blocked: Vec<String>,
    /// How far the walk has come.
    pub walk: Walk,
    /// Services that have not answered of late, whose kinds are left alone if they are not to be called, or are limited.
    pub watched: Vec<Watched>,
    /// Kinds that have a policy of their own.
    pub(crate) policies: Vec<(String, Policy)>,
}

/// Leases ready events, lowest id first, each group in order. Never waits for a lock (C2) and
/// returns at once when nothing is ready (C6). Two statements in one round trip: the lease, and the events that it holds.
///
/// # Errors
/// When the database fails or does not answer; the lease may then still have been made.
pub async fn lease(
    client: &(impl GenericClient + Sync),
    request: &LeaseRequest<'_>,
) -> Result<LeasedBatch, Error> {
    let walk = &request.walk;
    let seconds = request.timeout.as_secs_f64();
    let (limit, bytes) = (i64::from(request.limit), bytes(request.bytes));
    let window = i32::try_from(request.first_window).unwrap_or(i32::MAX);
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 16] = [
        &request.token,
        &request.worker,
        &request.held,
        &request.over,
        &seconds,
        &request.kinds,
        &limit,
        &bytes,
        &window,
        &request.join,
        &request.passed_by,
        &request.probe,
        &walk.after,
        &walk.clear_to,
        &walk.as_of,
        &walk.low,
    ];
    let (leased, read) = futures_util::future::join(
        query(client, &sql::live::LEASE, &params),
        read(client, request.token, 0, i64::MAX),
    )
    .await;
    let mut batch = LeasedBatch::default();
    let mut taken = 0;
    if let Some(row) = leased?.first() {
        batch.walk = Walk {
            after: row.get(0),
            clear_to: row.get(1),
            as_of: row.get(2),
            low: row.get(3),
        };
        taken = row.get(4);
        batch.scanned = row
            .get::<_, Option<i64>>(5)
            .map_or(0, |scanned| scanned.try_into().unwrap_or(u32::MAX));
        batch.suspect = row.get::<_, Option<bool>>(6).unwrap_or_default();
        batch.blocked = row.get::<_, Option<_>>(7).unwrap_or_default();
        (batch.watched, batch.policies) = watched(row, 8)?;
    }
    match read {
        Ok(rows) => take_in(&mut batch, rows, request.token)?,
        Err(error) if error.is_refusal() => {
            read_around(client, request.token, taken, &mut batch).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(batch)
}

/// Removes leases that are marked as ended, when no lease follows that would.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn remove_ended(
    client: &(impl GenericClient + Sync),
    tokens: &[Uuid],
) -> Result<(), Error> {
    if tokens.is_empty() {
        return Ok(());
    }
    query(client, &sql::live::REMOVE_ENDED, &[&tokens])
        .await
        .map(drop)
}

fn bytes(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

async fn read(
    client: &(impl GenericClient + Sync),
    token: Uuid,
    after: i64,
    most: i64,
) -> Result<Vec<Row>, Error> {
    query(client, &sql::live::READ_LEASED, &[&token, &after, &most]).await
}

fn take_in(batch: &mut LeasedBatch, rows: Vec<Row>, token: Uuid) -> Result<(), Error> {
    for row in rows {
        let event = leased_event(&row, token)?;
        if row.get(col::STARTED) {
            batch.started_to = batch.started_to.max(event.lease.id);
        }
        batch.events.push(event);
    }
    Ok(())
}

/// Reads the events of a lease of which one cannot be read: fewer and fewer, until that one is alone.
async fn read_around(
    client: &(impl GenericClient + Sync),
    token: Uuid,
    count: i64,
    batch: &mut LeasedBatch,
) -> Result<(), Error> {
    let (mut after, mut most) = (0, count.max(2) / 2);
    loop {
        match read(client, token, after, most).await {
            Ok(rows) => {
                let full = i64::try_from(rows.len()).is_ok_and(|count| count == most);
                after = rows.last().map_or(after, |row| row.get(col::ID));
                take_in(batch, rows, token)?;
                if !full {
                    return Ok(());
                }
                most = most.saturating_mul(2).min(count.max(1));
            }
            Err(error) if error.is_refusal() && most > 1 => most /= 2,
            Err(error) if error.is_refusal() => {
                let rest = in_hand(client, &[token]).await?;
                let next = rest.iter().map(|held| held.id).filter(|id| *id > after);
                let Some(id) = next.min() else { return Ok(()) };
                tracing::error!(event.id = id, error = %error, "payload cannot be read; event fails");
                batch.unreadable.push(id);
                after = id;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A stored JSON text, without parsing it.
struct JsonText(Vec<u8>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(
        ty: &Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // json travels as its text; in front of jsonb's stands a version byte, always 1.
        match raw.split_first() {
            _ if *ty == Type::JSON => Ok(Self(raw.to_vec())),
            Some((1, text)) => Ok(Self(text.to_vec())),
            _ => Err("unknown version of jsonb's binary form".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON || *ty == Type::JSONB
    }
}

/// A leased event, by position: names would be looked for in each row.
fn leased_event(row: &Row, token: Uuid) -> Result<LeasedEvent, Error> {
    let id = row.get(col::ID);
    let fate = fate(id, row.get(col::FATE))?;
    // An event that is only to be ended has no attempt to come.
    let to_come = u32::from(fate == Fate::Run);
    Ok(LeasedEvent {
        lease: Lease { id, token },
        fate,
        kind: row.get(col::KIND),
        payload: row
            .get::<_, Option<JsonText>>(col::PAYLOAD)
            .map(|text| text.0),
        group_key: row.get(col::GROUP_KEY),
        correlation_id: row.get(col::CORRELATION_ID),
        attempts: row.get::<_, i32>(col::ATTEMPT).unsigned_abs() - 1 + to_come,
        max_attempts: row.get::<_, i32>(col::MAX_ATTEMPTS).unsigned_abs(),
        created_at: row.get(col::CREATED_AT),
        expires_at: row.get(col::EXPIRES_AT),
        progress: row
            .get::<_, Option<JsonText>>(col::PROGRESS)
            .and_then(|text| progress(&text.0)),
        traceparent: row.get(col::TRACEPARENT),
        is_replay: row.get(col::REPLAYED),
    })
}

/// What is to become of an event. A fate of a later schema is an error: of those known here all but one end the event.
fn fate(id: i64, code: i32) -> Result<Fate, Error> {
    match code {
        0 => Ok(Fate::Run),
        1 => Ok(Fate::Expired),
        2 => Ok(Fate::Abandoned),
        _ => Err(Error::Unreadable(format!(
            "read_leased: event {id}: fate {code} is unknown"
        ))),
    }
}

/// Progress that does not parse is none: its handlers run again, which at-least-once allows.
#[must_use]
pub fn progress(text: &[u8]) -> Option<Progress> {
    serde_json::from_slice(text).ok()
}

/// An event that is still in hand under one of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InHand {
    /// Its lease's token.
    pub token: Uuid,
    /// How often something was taken from that lease.
    pub cuts: i32,
    /// Handlers of the lease's events up to this id may have started.
    pub started_to: i64,
    /// The event's id.
    pub id: i64,
}

/// What is in hand under these tokens, all of one moment.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn in_hand(
    client: &(impl GenericClient + Sync),
    tokens: &[Uuid],
) -> Result<Vec<InHand>, Error> {
    let rows = query(client, &sql::live::IN_HAND, &[&tokens]).await?;
    let held = rows.iter().map(|row| InHand {
        token: row.get(0),
        cuts: row.get(1),
        started_to: row.get(2),
        id: row.get(3),
    });
    Ok(held.collect())
}

/// Makes delayed events ready whose time has come. Returns how many and the lowest id among them.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn promote(
    client: &(impl GenericClient + Sync),
    limit: u32,
) -> Result<(u64, Option<i64>), Error> {
    let rows = query(client, &sql::live::PROMOTE, &[&i64::from(limit)]).await?;
    let (count, lowest) = rows
        .first()
        .map_or((0, None), |row| (row.get::<_, i64>(0), row.get(1)));
    Ok((count.unsigned_abs(), lowest))
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Leases that were broken or given back.
    pub broken: u64,
    /// The lowest id that came free.
    pub lowest: Option<i64>,
    /// From this transaction on leases may be alive.
    pub low: Option<i64>,
}

/// Breaks the leases of workers that have gone away, all of a worker's or none, and gives back what is under this
/// worker's name and not `held`: leases whose answer was lost. Goes before a walk from the start.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn sweep(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    held: &[Uuid],
) -> Result<Swept, Error> {
    let rows = query(client, &sql::live::SWEEP, &[&worker, &held]).await?;
    Ok(rows.first().map_or_else(Swept::default, |row| Swept {
        broken: row.get::<_, i64>(0).unsigned_abs(),
        lowest: row.get(1),
        low: row.get(2),
    }))
}

/// Prolongs leases to `timeout` from now. Returns those that are still there, each with how often something was taken
/// from it.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn renew(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    tokens: &[Uuid],
    timeout: Duration,
) -> Result<Vec<(Uuid, i32)>, Error> {
    let seconds = timeout.as_secs_f64();
    let rows = query(client, &sql::live::RENEW, &[&worker, &tokens, &seconds]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Gives events back unstarted, with their attempt, and with each what stands behind it in its group in this worker's
/// hands. Returns all that left.
///
/// # Errors
/// When the database fails or does not answer; it may then still have been applied.
pub async fn hand_back(
    client: &(impl GenericClient + Sync),
    worker: Uuid,
    leases: &[Lease],
) -> Result<Vec<i64>, Error> {
    let (ids, tokens) = columns(leases);
    let rows = query(client, &sql::live::HAND_BACK, &[&worker, &ids, &tokens]).await?;
    Ok(rows.first().map_or_else(Vec::new, |row| row.get(0)))
}

/// Ids and tokens as two arrays of one length.
pub(super) fn columns(leases: &[Lease]) -> (Vec<i64>, Vec<Uuid>) {
    leases.iter().map(|lease| (lease.id, lease.token)).unzip()
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
