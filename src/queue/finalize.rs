//! Ending a lease: finalize, retry, release, and what was done so far.

use std::borrow::Borrow;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::{Client, GenericClient, Row};
use uuid::Uuid;

use super::lease::{as_leases, columns};
use super::{query, sql, within_limit};
use crate::error::Error;
use crate::event::{Lease, NewEvent};
use crate::handler::Fault;
use crate::outcome::{Progress, Status};

/// One entry of the `errors` array; the database adds `at`.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorEntry {
    /// The handler that failed; null when the system ended the event.
    pub handler: Option<String>,
    /// Short and stable.
    pub code: String,
    /// For people.
    pub message: String,
    /// The attempt it happened in.
    pub attempt: u32,
    /// Whatever programs need beyond the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// The longest message kept of one error; a handler may say megabytes.
const MESSAGE_LIMIT: usize = 2000;

impl ErrorEntry {
    /// An entry of a handler's, or of the system's when `handler` is `None`. NUL characters, which
    /// Postgres cannot store, are dropped; the message is cut at 2,000 characters.
    #[must_use]
    pub fn new(handler: Option<&str>, fault: &Fault, attempt: u32) -> Self {
        let storable = |text: &str, limit: usize| -> String {
            text.chars().filter(|c| *c != '\0').take(limit).collect()
        };
        Self {
            handler: handler.map(ToOwned::to_owned),
            code: storable(&fault.code, 100),
            message: storable(&fault.message, MESSAGE_LIMIT),
            attempt,
            details: fault.details.clone(),
        }
    }
}

/// An event's end.
#[derive(Debug, Clone)]
pub struct Finalization {
    /// Whose.
    pub lease: Lease,
    /// How.
    pub status: Status,
    /// Errors of this attempt, behind those stored already.
    pub errors: Vec<ErrorEntry>,
    /// Results by handler.
    pub result: Option<Value>,
    /// What was done, for those who replay it.
    pub progress: Option<Progress>,
    /// To publish with it.
    pub follow_ups: Vec<NewEvent>,
}

impl Finalization {
    /// Whether the event completes and leaves nothing else to store.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.status == Status::Completed
            && self.errors.is_empty()
            && self.result.is_none()
            && self.progress.is_none()
            && self.follow_ups.is_empty()
    }
}

/// An event's return to the queue after a failed attempt.
#[derive(Debug, Clone)]
pub struct Retried {
    /// Whose.
    pub lease: Lease,
    /// Not before this long from now.
    pub delay: Duration,
    /// Errors of this attempt.
    pub errors: Vec<ErrorEntry>,
    /// What need not be done again.
    pub progress: Option<Progress>,
}

/// An event's return to the queue unstarted.
#[derive(Debug, Clone, Copy)]
pub struct Released {
    /// Whose.
    pub lease: Lease,
    /// Whether the lease had counted an attempt, to be taken back.
    pub counted: bool,
}

/// What a finalize changed.
#[derive(Debug, Default)]
pub struct Flushed {
    /// Leases whose events are in the log now because of it.
    pub ended: Vec<Lease>,
    /// Follow-ups that are new events; duplicates of live ones do not count.
    pub published: u64,
}

/// JSON text for a column, or null for nothing.
fn json<T: Serialize>(value: Option<&T>) -> Option<String> {
    value.and_then(|value| serde_json::to_string(value).ok())
}

fn errors_json(errors: &[ErrorEntry]) -> Option<String> {
    (!errors.is_empty()).then(|| json(Some(&errors))).flatten()
}

/// Moves events to the log and publishes their follow-ups, all in one statement. Leases that do
/// not come back were not held any more, and nothing of theirs was changed (I5).
///
/// # Errors
/// When the database fails or does not answer; it may then still have been applied, which
/// [`finished_under`] tells.
pub async fn finalize(
    client: &(impl GenericClient + Sync),
    ends: &[impl Borrow<Finalization> + Sync],
) -> Result<Flushed, Error> {
    let each = || ends.iter().map(Borrow::borrow);
    if let Some(leases) = plain_completions(&each()) {
        return complete(client, leases).await;
    }
    let (ids, tokens): (Vec<i64>, Vec<Uuid>) = each()
        .map(|end: &Finalization| (end.lease.id, end.lease.token))
        .unzip();
    let statuses: Vec<&str> = each().map(|end| end.status.as_str()).collect();
    let errors = column(&each(), |end| errors_json(&end.errors));
    let results = column(&each(), |end| json(end.result.as_ref()));
    let progress = column(&each(), |end| json(end.progress.as_ref()));
    let follow_ups: Vec<(i64, &NewEvent)> = each()
        .flat_map(|end| {
            end.follow_ups
                .iter()
                .map(move |event| (end.lease.id, event))
        })
        .collect();
    let parents: Vec<i64> = follow_ups.iter().map(|(parent, _)| *parent).collect();
    let events = EventColumns::of(&follow_ups.iter().map(|(_, event)| *event));
    let rows = query(
        client,
        &sql::live::FINALIZE,
        &[
            &ids,
            &tokens,
            &statuses,
            &errors,
            &results,
            &progress,
            &parents,
            &events.kinds,
            &events.payloads,
            &events.group_keys,
            &events.dedup_keys,
            &events.correlation_ids,
            &events.delays,
            &events.expires_ats,
            &events.max_attempts,
            &events.expires_ins,
            &events.traceparents,
        ],
    )
    .await?;
    let mut flushed = Flushed::default();
    if let Some(row) = rows.first() {
        let published: Option<i64> = row.get(0);
        flushed.published = published.unwrap_or(0).unsigned_abs();
        let count: i64 = row.get(1);
        flushed.ended = if count.unsigned_abs() == ends.len() as u64 {
            ends.iter().map(|end| end.borrow().lease).collect()
        } else {
            some_ended(row)
        };
    }
    Ok(flushed)
}

/// The leases in order, if all these events just complete.
fn plain_completions<'a>(
    ends: &(impl Iterator<Item = &'a Finalization> + Clone),
) -> Option<Vec<Lease>> {
    if !ends.clone().all(Finalization::is_plain) {
        return None;
    }
    let mut leases: Vec<Lease> = ends.clone().map(|end| end.lease).collect();
    leases.sort_unstable();
    // An event under two leases, one of them lost, needs each looked at.
    let unique = leases.windows(2).all(|pair| pair[0].id != pair[1].id);
    unique.then_some(leases)
}

/// Ends events that leave nothing but their rows.
async fn complete(
    client: &(impl GenericClient + Sync),
    leases: Vec<Lease>,
) -> Result<Flushed, Error> {
    let (ids, _) = columns(&leases);
    let (tokens, firsts) = runs(&leases);
    let rows = query(client, &sql::live::COMPLETE, &[&ids, &tokens, &firsts]).await?;
    let count: i64 = rows.first().map_or(0, |row| row.get(0));
    let ended = match count.unsigned_abs() {
        0 => Vec::new(),
        count if count == leases.len() as u64 => leases,
        _ => finished_under(client, &leases).await?,
    };
    Ok(Flushed {
        ended,
        published: 0,
    })
}

/// Ends an event that leaves nothing but its row, in the open transaction of its handler, and commits that.
///
/// # Errors
/// [`Error::LeaseLost`] when another lease holds the event or it has ended, else the database's failure;
/// nothing is committed then, unless the answer to the commit was lost.
pub(crate) async fn complete_and_commit(client: &Client, lease: Lease) -> Result<(), Error> {
    let script = sql::live::complete_and_commit(lease);
    let answer = within_limit("complete_and_commit", client.batch_execute(&script)).await;
    answer.map_err(|error| match error.sqlstate() {
        Some(state) if state.code() == sql::live::NOT_HELD => Error::LeaseLost(lease.id),
        _ => error,
    })
}

/// Commits the open transaction of a handler.
pub(crate) async fn commit(client: &Client) -> Result<(), Error> {
    within_limit("commit", client.batch_execute("COMMIT")).await
}

/// The token of each run of leases under the same one, and the first id of each run but the first.
fn runs(leases: &[Lease]) -> (Vec<Uuid>, Vec<i64>) {
    let (mut tokens, mut firsts) = (Vec::new(), Vec::new());
    for lease in leases {
        match tokens.last() {
            Some(token) if *token == lease.token => continue,
            Some(_) => firsts.push(lease.id),
            None => {}
        }
        tokens.push(lease.token);
    }
    (tokens, firsts)
}

/// The leases that a finalize found, when it did not find them all.
fn some_ended(row: &Row) -> Vec<Lease> {
    let ids: Option<Vec<i64>> = row.get(2);
    let tokens: Option<Vec<Uuid>> = row.get(3);
    let pairs = ids.into_iter().flatten().zip(tokens.into_iter().flatten());
    pairs.map(|(id, token)| Lease { id, token }).collect()
}

/// Events to publish as arrays, shorter where the rest is null.
pub(super) struct EventColumns<'a> {
    pub kinds: Vec<&'a str>,
    pub payloads: Vec<Option<&'a str>>,
    pub group_keys: Vec<Option<&'a str>>,
    pub dedup_keys: Vec<Option<&'a str>>,
    pub correlation_ids: Vec<Option<&'a str>>,
    pub delays: Vec<Option<f64>>,
    pub expires_ats: Vec<Option<SystemTime>>,
    pub expires_ins: Vec<Option<f64>>,
    pub max_attempts: Vec<Option<i32>>,
    pub traceparents: Vec<Option<&'a str>>,
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
}

/// A column of values; none at all if every one is null, which the database makes of a missing end
/// (publishing 1,000 events takes a tenth less).
fn column<S, T>(
    rows: &(impl Iterator<Item = S> + Clone),
    value: impl Fn(S) -> Option<T>,
) -> Vec<Option<T>> {
    if rows.clone().all(|row| value(row).is_none()) {
        return Vec::new();
    }
    rows.clone().map(value).collect()
}

/// What [`finalize_one`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalized {
    /// It is in the log now.
    Now,
    /// It was in the log already; nothing was changed (C9).
    Already,
}

/// Ends one event by its list of errors: none is COMPLETED, some are `COMPLETED_WITH_ERRORS` with the
/// whole list stored (C8). Twice is the same as once (C9).
///
/// # Errors
/// [`Error::LeaseLost`] when another lease holds the event, [`Error::UnknownEvent`] when there is no
/// such event, else the database's failure.
pub async fn finalize_one(
    client: &(impl GenericClient + Sync),
    lease: Lease,
    errors: Vec<ErrorEntry>,
) -> Result<Finalized, Error> {
    let status = if errors.is_empty() {
        Status::Completed
    } else {
        Status::CompletedWithErrors
    };
    let end = Finalization {
        lease,
        status,
        errors,
        result: None,
        progress: None,
        follow_ups: Vec::new(),
    };
    if !finalize(client, &[end]).await?.ended.is_empty() {
        return Ok(Finalized::Now);
    }
    let rows = query(client, &sql::live::WHEREABOUTS, &[&lease.id]).await?;
    match rows.first().map(|row| row.get::<_, &str>(0)) {
        Some("logged") => Ok(Finalized::Already),
        Some(_) => Err(Error::LeaseLost(lease.id)),
        None => Err(Error::UnknownEvent(lease.id)),
    }
}

/// Which of these leases finished their event.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn finished_under(
    client: &(impl GenericClient + Sync),
    leases: &[Lease],
) -> Result<Vec<Lease>, Error> {
    let (ids, tokens) = columns(leases);
    let rows = query(client, &sql::live::LOGGED_UNDER, &[&ids, &tokens]).await?;
    Ok(as_leases(&rows))
}

/// Puts events back for another attempt. Returns those that were still held.
///
/// # Errors
/// When the database fails or does not answer; it may then still have been applied.
pub async fn retry(
    client: &(impl GenericClient + Sync),
    retries: &[Retried],
) -> Result<Vec<Lease>, Error> {
    let (ids, tokens): (Vec<i64>, Vec<Uuid>) =
        retries.iter().map(|r| (r.lease.id, r.lease.token)).unzip();
    let delays: Vec<f64> = retries.iter().map(|r| r.delay.as_secs_f64()).collect();
    let last_errors: Vec<Option<String>> = retries
        .iter()
        .map(|r| {
            r.errors
                .last()
                .map(|error| format!("{}: {}", error.code, error.message))
        })
        .collect();
    let errors: Vec<Option<String>> = retries.iter().map(|r| errors_json(&r.errors)).collect();
    let progress: Vec<Option<String>> = retries.iter().map(|r| json(r.progress.as_ref())).collect();
    let rows = query(
        client,
        &sql::live::RETRY,
        &[&ids, &tokens, &delays, &last_errors, &errors, &progress],
    )
    .await?;
    Ok(as_leases(&rows))
}

/// Gives events back unstarted. Returns those that were still held.
///
/// # Errors
/// When the database fails or does not answer; it may then still have been applied.
pub async fn release(
    client: &(impl GenericClient + Sync),
    released: &[Released],
) -> Result<Vec<Lease>, Error> {
    let (ids, tokens): (Vec<i64>, Vec<Uuid>) =
        released.iter().map(|r| (r.lease.id, r.lease.token)).unzip();
    let counted: Vec<i32> = released.iter().map(|r| i32::from(r.counted)).collect();
    let rows = query(client, &sql::live::RELEASE, &[&ids, &tokens, &counted]).await?;
    Ok(as_leases(&rows))
}

/// Keeps progress with an event that is still held.
///
/// # Errors
/// [`Error::LeaseLost`] when it is not held any more, else the database's failure.
pub async fn save_progress(
    client: &(impl GenericClient + Sync),
    lease: Lease,
    progress: &Progress,
) -> Result<(), Error> {
    let text = json(Some(progress));
    let rows = query(
        client,
        &sql::live::SAVE_PROGRESS,
        &[&lease.id, &lease.token, &text],
    )
    .await?;
    if rows.is_empty() {
        Err(Error::LeaseLost(lease.id))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: i64, token: u128) -> Lease {
        Lease {
            id,
            token: Uuid::from_u128(token),
        }
    }

    fn end(lease: Lease) -> Finalization {
        Finalization {
            lease,
            status: Status::Completed,
            errors: Vec::new(),
            result: None,
            progress: None,
            follow_ups: Vec::new(),
        }
    }

    #[test]
    fn a_run_of_leases_under_one_token_is_told_by_its_first_id() {
        let leases = [(2, 1), (5, 1), (6, 2), (9, 1)].map(|(id, token)| lease(id, token));
        let tokens = [1, 2, 1].map(Uuid::from_u128).to_vec();
        assert_eq!(runs(&leases), (tokens, vec![6, 9]));
        assert_eq!(runs(&leases[..2]), (vec![Uuid::from_u128(1)], Vec::new()));
    }

    #[test]
    fn only_ends_that_leave_nothing_else_go_the_short_way() {
        let plain = |ends: &[Finalization]| plain_completions(&ends.iter());
        let (one, two) = (end(lease(2, 1)), end(lease(1, 1)));
        let ordered = vec![two.lease, one.lease];
        assert_eq!(plain(&[one.clone(), two.clone()]), Some(ordered));
        let failed = Finalization {
            status: Status::Failed,
            ..two.clone()
        };
        assert_eq!(plain(&[one.clone(), failed]), None);
        let told = Finalization {
            result: Some(Value::Null),
            ..two
        };
        assert_eq!(plain(&[one.clone(), told]), None);
        assert_eq!(
            plain(&[one, end(lease(2, 7))]),
            None,
            "twice the same event"
        );
    }
}
