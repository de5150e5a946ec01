//! Leasing events: lease, read, renew, give back, promote, sweep.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use super::service::{Watched, watched};
use super::statement::statements;
use super::{Queryable, document, documents, execute, first, query};
use crate::error::{Error, Result};
use crate::lease::{Lease, LeaseDecision, LeasedEvent};
use crate::policy::Policy;
use crate::progress::Progress;

statements! {
    /// Leases ready events; see the function for how. It always returns one row, which says how far the scan
    /// came.
    LEASE: "lease" [
        UUID, UUID, UUID_ARRAY, UUID_ARRAY, FLOAT8, TEXT_ARRAY, INT8,
        INT8, INT4, TEXT_ARRAY, TEXT, INT8, INT8, INT8, INT8
    ] = "\
SELECT l.after, l.clear_to, l.as_of::text::bigint, l.low::text::bigint, l.taken, l.scanned, l.suspect, l.blocked,
       l.services::text
  FROM @tidegate.lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::text::xid8, $15::text::xid8) AS l";

    REMOVE_ENDED: "remove_ended" [UUID_ARRAY] = "SELECT @tidegate.remove_ended($1)";

    /// The events of lease `$1` after id `$2`, at most `$3`.
    READ_LEASED: "read_leased" [UUID, INT8, INT8] = "\
SELECT id, fate, kind, payload, group_key, correlation_id, attempt, max_attempts, created_at, expires_at, progress, traceparent,
       started, replayed, expires_in, overdue
  FROM @tidegate.read_leased($1, $2, $3)";

    IN_HAND: "in_hand" [UUID_ARRAY] = "SELECT to_jsonb(h)::text FROM @tidegate.in_hand($1) AS h";

    PROMOTE: "promote" [INT8] =
        "SELECT jsonb_build_array(p.promoted, p.lowest)::text FROM @tidegate.promote($1) AS p";

    SWEEP: "sweep" [UUID, UUID_ARRAY] =
        "SELECT (to_jsonb(s) || jsonb_build_object('low', s.low::text::bigint))::text FROM @tidegate.sweep($1, $2) AS s";

    RENEW: "renew" [UUID, UUID_ARRAY, FLOAT8] =
        "SELECT jsonb_build_array(r.token, r.cuts)::text FROM @tidegate.renew($1, $2, $3) AS r";

    TAKE_BACK_STARTS: "take_back_starts" [UUID, UUID_ARRAY, INT8_ARRAY, INT8_ARRAY] =
        "SELECT @tidegate.take_back_starts($1, $2, $3, $4)";

    HAND_BACK: "hand_back" [UUID, INT8_ARRAY, UUID_ARRAY] =
        "SELECT to_jsonb(h)::text FROM @tidegate.hand_back($1, $2, $3) AS h";
}

/// The column positions of [`READ_LEASED`].
mod col {
    pub(super) const ID: usize = 0;
    pub(super) const FATE: usize = 1;
    pub(super) const KIND: usize = 2;
    pub(super) const PAYLOAD: usize = 3;
    pub(super) const GROUP_KEY: usize = 4;
    pub(super) const CORRELATION_ID: usize = 5;
    pub(super) const ATTEMPT: usize = 6;
    pub(super) const MAX_ATTEMPTS: usize = 7;
    pub(super) const CREATED_AT: usize = 8;
    pub(super) const EXPIRES_AT: usize = 9;
    pub(super) const PROGRESS: usize = 10;
    pub(super) const TRACEPARENT: usize = 11;
    pub(super) const STARTED: usize = 12;
    pub(super) const REPLAYED: usize = 13;
    pub(super) const EXPIRES_IN: usize = 14;
    pub(super) const OVERDUE: usize = 15;
}

/// How far a walk along the queue has come, according to its last lease. The default is the start of the
/// queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// Ids up to here have been examined.
    pub after: i64,
    /// Up to here, no event with a group was left behind unmarked; nothing is known when `None`.
    pub clear_to: Option<i64>,
    /// All transactions before this one had ended when the walk began.
    pub as_of: Option<i64>,
    /// No lease from before this transaction is alive.
    pub low: Option<i64>,
    /// The connection, by the caller's count, over which all this was learned. It holds over no other.
    pub connection: u32,
}

impl Walk {
    /// Returns how to continue over a connection. Over another one, only the place holds.
    #[must_use]
    pub fn over(self, connection: u32) -> Self {
        if self.connection == connection {
            return self;
        }
        Self {
            after: self.after,
            connection,
            ..Self::default()
        }
    }
}

/// What to lease.
#[derive(Debug, Clone)]
pub struct LeaseRequest<'a> {
    /// The new lease's token, chosen by the caller. If the answer is lost, [`sweep`] gives the events back.
    pub token: Uuid,
    /// The worker. All leases of a worker lapse together.
    pub worker: Uuid,
    /// The worker's tokens with events in hand, except those of suspects.
    pub held: &'a [Uuid],
    /// The worker's leases that are marked as ended, to be removed.
    pub over: &'a [Uuid],
    /// How long the lease lasts.
    pub timeout: Duration,
    /// Kinds that this program knows. Other kinds are left alone if they are registered.
    pub kinds: &'a [&'a str],
    /// The most events to lease.
    pub limit: u32,
    /// The most bytes of payload to lease. A single event may exceed this.
    pub bytes: u64,
    /// How many of the events may start at once. If the lease lapses, these are charged an attempt.
    pub first_window: u32,
    /// Groups that this walk has found blocked. Their events are skipped.
    pub passed_by: &'a [String],
    /// A service that is open and due. One event of its kinds is leased instead, if no other worker is trying
    /// one.
    pub probe: Option<&'a str>,
    /// Where to continue.
    pub walk: Walk,
}

/// The result of a lease.
#[derive(Debug, Default)]
pub struct LeasedBatch {
    /// The events, ordered by id.
    pub events: Vec<LeasedEvent>,
    /// Ids of leased events whose payload the database cannot read.
    pub unreadable: Vec<i64>,
    /// Handlers of events up to this id may start.
    pub started_to: i64,
    /// Whether it is one event whose worker has disappeared before. It has not been started, and must run
    /// alone.
    pub suspect: bool,
    /// How many rows were examined. Fewer than the limit means that the end of the queue was reached.
    pub scanned: u32,
    /// Groups whose examined events could not be leased.
    pub blocked: Vec<String>,
    /// How far the walk has come.
    pub walk: Walk,
    /// Services that have recently not answered, or are limited. Their kinds are not leased while they must
    /// not be called, or are limited.
    pub watched: Vec<Watched>,
    /// Kinds that have a policy of their own.
    pub policies: Vec<(String, Policy)>,
}

/// Leases ready events, lowest id first, each group in order. Never waits for a lock (C2) and returns at once
/// when nothing is ready (C6). Two statements travel in one round trip: the lease, and the reading of its
/// events.
///
/// # Errors
/// When the database fails or does not answer. The lease may still have been made.
pub async fn lease(client: &impl Queryable, request: &LeaseRequest<'_>) -> Result<LeasedBatch> {
    let walk = &request.walk;
    let seconds = request.timeout.as_secs_f64();
    let bytes = i64::try_from(request.bytes).unwrap_or(i64::MAX);
    let window = i32::try_from(request.first_window).unwrap_or(i32::MAX);
    let params: [&(dyn ToSql + Sync); 15] = [
        &request.token,
        &request.worker,
        &request.held,
        &request.over,
        &seconds,
        &request.kinds,
        &i64::from(request.limit),
        &bytes,
        &window,
        &request.passed_by,
        &request.probe,
        &walk.after,
        &walk.clear_to,
        &walk.as_of,
        &walk.low,
    ];
    let (leased, read) = futures_util::future::join(
        query(client, &LEASE, &params),
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
            connection: request.walk.connection,
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

/// Removes leases that are marked as ended. A worker that takes no further lease calls this; otherwise its
/// next lease removes them.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn remove_ended(client: &impl Queryable, tokens: &[Uuid]) -> Result<()> {
    if tokens.is_empty() {
        return Ok(());
    }
    execute(client, &REMOVE_ENDED, &[&tokens]).await
}

async fn read(client: &impl Queryable, token: Uuid, after: i64, most: i64) -> Result<Vec<Row>> {
    query(client, &READ_LEASED, &[&token, &after, &most]).await
}

fn take_in(batch: &mut LeasedBatch, rows: Vec<Row>, token: Uuid) -> Result<()> {
    for row in rows {
        let event = leased_event(&row, token)?;
        if row.get(col::STARTED) {
            batch.started_to = batch.started_to.max(event.lease.id);
        }
        batch.events.push(event);
    }
    Ok(())
}

/// Reads the events of a lease that contains an unreadable one. It reads fewer and fewer at once, until that
/// one is alone.
async fn read_around(
    client: &impl Queryable,
    token: Uuid,
    count: i64,
    batch: &mut LeasedBatch,
) -> Result<()> {
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
                tracing::error!(event.id = id, error = %error, "the event cannot be read, and fails");
                batch.unreadable.push(id);
                after = id;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A stored JSON text, unparsed.
pub(super) struct JsonText(pub(super) Vec<u8>);

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(
        ty: &Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        // json is sent as its text. jsonb has a version byte in front, which is always 1.
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

/// Builds a leased event from columns by position, because names would be looked up for each row.
fn leased_event(row: &Row, token: Uuid) -> Result<LeasedEvent> {
    let id = row.get(col::ID);
    let fate = fate(id, row.get(col::FATE))?;
    // An event that is only to be ended has no attempt ahead.
    let to_come = u32::from(fate == LeaseDecision::Run);
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
        expires_in: row
            .get::<_, Option<f64>>(col::EXPIRES_IN)
            .map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)),
        is_overdue: row.get(col::OVERDUE),
    })
}

/// An unknown fate of a later schema is an error, because all known fates but one end the event.
fn fate(id: i64, code: i32) -> Result<LeaseDecision> {
    match code {
        0 => Ok(LeaseDecision::Run),
        1 => Ok(LeaseDecision::Expired),
        2 => Ok(LeaseDecision::Abandoned),
        3 => Ok(LeaseDecision::Exhausted),
        _ => Err(Error::Unreadable(format!(
            "read_leased: event {id}: fate {code} is unknown"
        ))),
    }
}

/// Parses progress. Text that does not parse counts as no progress: the handlers run again, which
/// at-least-once allows.
pub fn progress(text: &[u8]) -> Option<Progress> {
    serde_json::from_slice(text).ok()
}

/// An event that is still held under one of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct InHand {
    /// Its lease's token.
    pub token: Uuid,
    /// How often events were taken from that lease.
    pub cuts: i32,
    /// Handlers of the lease's events up to this id may have started.
    pub started_to: i64,
    /// The event's id.
    pub id: i64,
}

/// Returns the events that are held under these tokens, all read at one moment.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn in_hand(client: &impl Queryable, tokens: &[Uuid]) -> Result<Vec<InHand>> {
    documents(client, &IN_HAND, &[&tokens]).await
}

/// Makes delayed events ready whose time has come, at most `limit`, the earliest first. Returns how many, and
/// their lowest id, from which the next scan must start.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn promote(client: &impl Queryable, limit: u32) -> Result<(u64, Option<i64>)> {
    let promoted = document(client, &PROMOTE, &[&i64::from(limit)]).await?;
    Ok(promoted.unwrap_or_default())
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Swept {
    /// How many leases were broken or given back.
    pub broken: u64,
    /// The lowest id that became free.
    pub lowest: Option<i64>,
    /// Leases from this transaction on may be alive.
    pub low: Option<i64>,
}

/// Breaks the leases of workers that have disappeared: all leases of a worker or none. Also gives back leases
/// in this worker's name that are not `held`, because the answers to them were lost. Called before a walk
/// from the start.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn sweep(client: &impl Queryable, worker: Uuid, held: &[Uuid]) -> Result<Swept> {
    let swept = document(client, &SWEEP, &[&worker, &held]).await?;
    Ok(swept.unwrap_or_default())
}

/// Renews leases to `timeout` from now. Returns those that the worker still has, each with how often events
/// were taken from it. The others are lost.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn renew(
    client: &impl Queryable,
    worker: Uuid,
    tokens: &[Uuid],
    timeout: Duration,
) -> Result<Vec<(Uuid, i32)>> {
    let seconds = timeout.as_secs_f64();
    documents(client, &RENEW, &[&worker, &tokens, &seconds]).await
}

/// Lowers the marks up to which handlers of this worker's leases may have started: the token, the mark that
/// was seen, and the new one. The events in between must not have started. A mark that is another one by now
/// stays. Returns the leases whose marks were lowered.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn take_back_starts(
    client: &impl Queryable,
    worker: Uuid,
    marks: &[(Uuid, i64, i64)],
) -> Result<Vec<Uuid>> {
    let tokens: Vec<Uuid> = marks.iter().map(|mark| mark.0).collect();
    let seen: Vec<i64> = marks.iter().map(|mark| mark.1).collect();
    let lowered: Vec<i64> = marks.iter().map(|mark| mark.2).collect();
    let params: [&(dyn ToSql + Sync); 4] = [&worker, &tokens, &seen, &lowered];
    let lowered = first(client, &TAKE_BACK_STARTS, &params).await?;
    Ok(lowered.unwrap_or_default())
}

/// What became of events that were to go back to the queue. Those that are in neither list were no longer
/// held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Returned {
    /// All events that left the worker's leases, including later events of the same groups.
    #[serde(rename = "left_ids")]
    pub left: Vec<i64>,
    /// Events that stay for now, because another session has locked them or a later event of their group.
    #[serde(rename = "busy_ids")]
    pub busy: Vec<i64>,
}

/// Gives events back that have not started, without charging an attempt. Later events of their groups that
/// this worker holds go back with them.
///
/// # Errors
/// When the database fails or does not answer. It may still have been applied.
pub async fn hand_back(
    client: &impl Queryable,
    worker: Uuid,
    leases: &[Lease],
) -> Result<Returned> {
    let (ids, tokens) = columns(leases);
    let returned = document(client, &HAND_BACK, &[&worker, &ids, &tokens]).await?;
    Ok(returned.unwrap_or_default())
}

/// Returns ids and tokens as two arrays of the same length.
pub(super) fn columns(leases: &[Lease]) -> (Vec<i64>, Vec<Uuid>) {
    leases.iter().map(|lease| (lease.id, lease.token)).unzip()
}
