//! Ending events: complete, finalize, retry, and store progress.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::lease::{Returned, columns};
use super::publish::{EventColumns, column, follow_ups};
use super::statement::statements;
use super::{Queryable, document, documents, first, query, text, within_limit};
use crate::connect::Client;
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::fault::Fault;
use crate::json::Json;
use crate::lease::Lease;
use crate::progress::{Progress, Status};

statements! {
    /// The ranges are passed as text.
    COMPLETE: "complete" [UUID_ARRAY, TEXT_ARRAY, INT8_ARRAY, BOOL_ARRAY] =
        "\
SELECT to_jsonb(one)::text
  FROM @tidegate.complete($1, $2::text[]::int8multirange[], $3, $4) AS c, unnest(c.ended, c.cuts) AS one(ended, cuts)";

    FINALIZE: "finalize" [
        UUID, INT8_ARRAY, TEXT_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BOOL, INT8_ARRAY;
        follow_ups
    ] = concat!(
        "\
SELECT f.ended_ids, f.busy_ids, f.published, f.cuts
  FROM @tidegate.finalize_leased($1, $2, $3, $4, $5, $6, $7, $8, ",
        follow_ups!(),
        ") AS f"
    );

    END_UNREADABLE: "end_unreadable" [UUID, INT8, TEXT] = "SELECT @tidegate.end_unreadable($1, $2, $3)";

    RETRY: "retry" [
        UUID, INT8_ARRAY, UUID_ARRAY, BOOL_ARRAY,
        FLOAT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY
    ] = "SELECT to_jsonb(r)::text FROM @tidegate.retry_leased($1, $2, $3, $4, $5, $6, $7, $8, $9) AS r";

    SAVE_PROGRESS: "save_progress" [INT8, UUID, TEXT] = "SELECT @tidegate.save_progress($1, $2, $3)";

    REPORT_PROGRESS: "report_progress" [INT8, UUID, TEXT, FLOAT8, TEXT] =
        "SELECT @tidegate.report_progress($1, $2, $3, $4, $5)";

    LOGGED_UNDER: "logged_under" [INT8_ARRAY, UUID_ARRAY] = "SELECT to_jsonb(l)::text FROM @tidegate.logged_under($1, $2) AS l";
}

/// The SQLSTATE of an end whose event the lease does not hold any more.
pub(super) const NOT_HELD: &str = "TG001";

/// One entry of the `errors` array; the database adds `at`.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorEntry {
    /// The handler that failed; null when the system ended the event.
    pub handler: Option<String>,
    /// What is wrong.
    #[serde(flatten)]
    pub fault: Fault,
    /// The attempt in which it happened.
    pub attempt: u32,
}

impl ErrorEntry {
    /// Creates an entry for a handler, or for the system when `handler` is `None`. NUL characters, which
    /// Postgres cannot store, are dropped. The message is cut at 2,000 characters, and details of more than
    /// 16 KiB are left out.
    pub fn new(handler: Option<&str>, fault: &Fault, attempt: u32) -> Self {
        Self {
            handler: handler.map(ToOwned::to_owned),
            fault: fault.storable(),
            attempt,
        }
    }
}

/// An event's end.
#[derive(Debug, Clone)]
pub struct Finalization {
    /// The event, and the lease under which it ends.
    pub lease: Lease,
    /// The status with which the event ends.
    pub status: Status,
    /// Errors of this attempt, to be added to those already stored.
    pub errors: Vec<ErrorEntry>,
    /// Results by handler.
    pub result: Option<BTreeMap<String, Json>>,
    /// The work that was done, for a replay.
    pub progress: Option<Progress>,
    /// Follow-ups to publish with it.
    pub follow_ups: Vec<NewEvent>,
    /// Whether handlers have ended it. Then it has had an attempt.
    pub ran: bool,
    /// Whether handlers left the whole work to its follow-ups. Then the attempt is not charged.
    pub put_off: bool,
}

impl Finalization {
    /// Creates an end by handlers that stores nothing but its status.
    pub fn new(lease: Lease, status: Status) -> Self {
        Self {
            lease,
            status,
            errors: Vec::new(),
            result: None,
            progress: None,
            follow_ups: Vec::new(),
            ran: true,
            put_off: false,
        }
    }

    /// Whether the event completes and has nothing else to store.
    pub fn is_plain(&self) -> bool {
        self.status == Status::Completed
            && self.ran
            && !self.put_off
            && self.errors.is_empty()
            && self.result.is_none()
            && self.progress.is_none()
            && self.follow_ups.is_empty()
    }
}

/// An event's return to the queue.
#[derive(Debug, Clone)]
pub struct Retried {
    /// The event, and the lease that it leaves.
    pub lease: Lease,
    /// Whether an attempt has ended. An event that did not cause its return keeps its attempt.
    pub charged: bool,
    /// The shortest time until the next attempt.
    pub delay: Duration,
    /// Errors of this attempt.
    pub errors: Vec<ErrorEntry>,
    /// The work that need not be repeated.
    pub progress: Option<Progress>,
    /// Services that have not answered. The errors of such an event are not added to those that it ends with.
    pub deferred: Vec<&'static str>,
}

impl Retried {
    /// Whether its handlers snoozed it, and nothing failed.
    pub fn is_snoozed(&self) -> bool {
        let snoozed = self.progress.as_ref().is_some_and(|p| p.snoozed.is_some());
        snoozed && self.errors.is_empty()
    }
}

/// What a finalize changed.
#[derive(Debug, Default)]
pub struct FinalizeAnswer {
    /// Leases whose events this has moved to the log.
    pub ended: Vec<Lease>,
    /// Events that are still held, because another transaction publishes to the group of one of their
    /// follow-ups.
    pub busy: Vec<i64>,
    /// How many follow-ups were published. Duplicates of live events do not count.
    pub published: u64,
    /// How often events were taken from the lease; `None` when the lease is gone or was not looked at.
    pub cuts: Option<i32>,
}

/// What to write for one lease at once.
#[derive(Debug, Clone, Default)]
pub struct Completion {
    /// The lease's token.
    pub token: Uuid,
    /// Its events that have completed and have nothing else to store, in order.
    pub done: Vec<i64>,
    /// Handlers of its events up to this id may start.
    pub start_to: Option<i64>,
    /// Whether none of its events is in hand any more. The lease is then marked as ended, and the worker's
    /// next lease removes it.
    pub over: bool,
}

/// The result of a [`Completion`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Completed {
    /// How many events were held and are now in the log.
    pub ended: u64,
    /// How often events were taken from the lease; `None` when it is gone.
    pub cuts: Option<i32>,
}

/// Returns a column of JSON texts, as [`column`] does.
fn json_column<'a, S, T: Serialize + 'a>(
    what: &str,
    rows: &(impl Iterator<Item = S> + Clone),
    value: impl Fn(S) -> Option<&'a T>,
) -> Result<Vec<Option<String>>> {
    let values = column(rows, value).into_iter();
    let texts = values.map(|value| value.map(|value| text(what, value)).transpose());
    texts.collect()
}

fn unless_empty(errors: &Vec<ErrorEntry>) -> Option<&Vec<ErrorEntry>> {
    (!errors.is_empty()).then_some(errors)
}

/// Moves completed events to the log that store nothing but their row, lets more events of their leases
/// start, and marks leases as ended, all in one statement.
///
/// # Errors
/// When the database fails or does not answer. It may still have been applied; [`finished_under`] finds out.
pub async fn complete(
    client: &impl Queryable,
    completions: &[Completion],
) -> Result<Vec<Completed>> {
    if completions.is_empty() {
        return Ok(Vec::new());
    }
    let tokens: Vec<Uuid> = completions.iter().map(|lease| lease.token).collect();
    let done: Vec<String> = completions
        .iter()
        .map(|lease| ranges(&lease.done))
        .collect();
    let upto: Vec<Option<i64>> = completions.iter().map(|lease| lease.start_to).collect();
    let over: Vec<bool> = completions.iter().map(|lease| lease.over).collect();
    documents(client, &COMPLETE, &[&tokens, &done, &upto, &over]).await
}

/// Returns ordered ids as the text of a multirange. A thousand consecutive ids are one range.
fn ranges(ids: &[i64]) -> String {
    use std::fmt::Write;
    let mut text = String::from("{");
    let mut ids = ids.iter().copied().peekable();
    while let Some(first) = ids.next() {
        let mut last = first;
        while let Some(next) = ids.next_if(|next| *next <= last + 1) {
            last = next;
        }
        let comma = if text.len() > 1 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}[{first},{last}]");
    }
    text.push('}');
    text
}

/// What to do with a follow-up while another transaction publishes to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Wait for a moment. If the other transaction is still open then, the event does not end, and is
    /// reported as busy.
    IfFree,
    /// Wait for the other transaction, a second at most.
    Wait,
}

/// Moves events of one lease to the log and publishes their follow-ups. An event that the answer does not
/// list was no longer held, and nothing of it was changed (I5). Busy events are not changed either.
///
/// # Errors
/// When the database fails or does not answer. It may still have been applied; [`finished_under`] finds out.
pub async fn finalize_under(
    client: &impl Queryable,
    token: Uuid,
    ends: &[&Finalization],
    follow: Follow,
) -> Result<FinalizeAnswer> {
    let each = || ends.iter().copied();
    let ids: Vec<i64> = each().map(|end| end.lease.id).collect();
    let statuses: Vec<&str> = each().map(|end| end.status.as_str()).collect();
    let rans: Vec<bool> = each().map(|end| end.ran && !end.put_off).collect();
    let errors = json_column("errors", &each(), |end| unless_empty(&end.errors))?;
    let results = json_column("result", &each(), |end| end.result.as_ref())?;
    let progress = json_column("progress", &each(), |end| end.progress.as_ref())?;
    let follow_ups: Vec<(i64, &NewEvent)> = each()
        .flat_map(|end| {
            end.follow_ups
                .iter()
                .map(move |event| (end.lease.id, event))
        })
        .collect();
    let parents: Vec<i64> = follow_ups.iter().map(|(parent, _)| *parent).collect();
    let events = EventColumns::of(&follow_ups.iter().map(|(_, event)| *event));
    let waits = follow == Follow::Wait;
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![
        &token, &ids, &statuses, &rans, &errors, &results, &progress, &waits, &parents,
    ];
    values.extend(events.values());
    let rows = query(client, &FINALIZE, &values).await;
    let rows = rows.map_err(|error| match ends {
        [end] => if_held(error, end.lease),
        _ => error,
    })?;
    let Some(row) = rows.first() else {
        return Ok(FinalizeAnswer::default());
    };
    let ended: Vec<i64> = row.get(0);
    Ok(FinalizeAnswer {
        ended: ended.into_iter().map(|id| Lease { id, token }).collect(),
        busy: row.get(1),
        published: row.get::<_, i64>(2).unsigned_abs(),
        cuts: row.get(3),
    })
}

/// Ends an event of which the database cannot read something as FAILED, with the code `unreadable`. What
/// cannot be read is lost. Returns whether the event was held.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn end_unreadable(client: &impl Queryable, lease: Lease) -> Result<bool> {
    let message = "the database cannot read a part of the event, which is thrown away";
    let values: &[&(dyn ToSql + Sync)] = &[&lease.token, &lease.id, &message];
    let ended = first(client, &END_UNREADABLE, values).await?;
    Ok(ended.unwrap_or_default())
}

/// Completes an event that stores nothing but its row, in the open transaction of its handler, and commits
/// that transaction.
///
/// # Errors
/// [`Error::LeaseLost`] when another lease holds the event or it has ended; otherwise the database's error.
/// Then nothing is committed, unless only the answer to the commit was lost.
pub async fn complete_and_commit(client: &Client, lease: Lease) -> Result<()> {
    let script = format!(
        "SELECT {}.complete_held({}, '{}'); COMMIT",
        client.conn().schema.name(),
        lease.id,
        lease.token
    );
    let answer = within_limit("complete_and_commit", client.batch_execute(&script)).await;
    answer.map_err(|error| if_held(error, lease))
}

/// Returns [`Error::LeaseLost`] for an event that its lease does not hold any more, and other errors as they
/// are.
fn if_held(error: Error, lease: Lease) -> Error {
    match error.sqlstate() {
        Some(state) if state.code() == NOT_HELD => Error::LeaseLost(lease.id),
        _ => error,
    }
}

/// Commits the open transaction of a handler.
///
/// # Errors
/// When the database refuses the commit, or fails.
pub async fn commit(client: &Client) -> Result<()> {
    within_limit("commit", client.batch_execute("COMMIT")).await
}

/// Returns those of these leases that have finished their event. So a worker learns whether an end whose
/// answer was lost was applied.
///
/// # Errors
/// When the database fails or does not answer.
pub async fn finished_under(client: &impl Queryable, leases: &[Lease]) -> Result<Vec<Lease>> {
    let (ids, tokens) = columns(leases);
    documents(client, &LOGGED_UNDER, &[&ids, &tokens]).await
}

/// Puts events back for another attempt. Those that were still held leave the worker, with the later events
/// of their groups. A later event that is in `ran` was started, and has had an attempt.
///
/// # Errors
/// When the database fails or does not answer; it may then still have been applied.
pub async fn retry(
    client: &impl Queryable,
    worker: Uuid,
    retries: &[Retried],
    ran: &[i64],
) -> Result<Returned> {
    let each = || retries.iter();
    let (ids, tokens): (Vec<i64>, Vec<Uuid>) = each().map(|r| (r.lease.id, r.lease.token)).unzip();
    let charged: Vec<bool> = each().map(|r| r.charged).collect();
    let delays: Vec<f64> = each().map(|r| r.delay.as_secs_f64()).collect();
    let last_errors = column(&each(), |r| {
        let last = r.errors.last();
        last.map(|error| format!("{}: {}", error.fault.code, error.fault.message))
    });
    let errors = json_column("errors", &each(), |r| {
        unless_empty(&r.errors).filter(|_| r.deferred.is_empty())
    })?;
    let progress = json_column("progress", &each(), |r| r.progress.as_ref())?;
    let values: [&(dyn ToSql + Sync); 9] = [
        &worker,
        &ids,
        &tokens,
        &charged,
        &delays,
        &last_errors,
        &errors,
        &progress,
        &ran,
    ];
    let returned = document(client, &RETRY, &values).await?;
    Ok(returned.unwrap_or_default())
}

/// Stores the result of a step, or a handler's end, with an event that is still held.
///
/// # Errors
/// [`Error::LeaseLost`] when it is no longer held; otherwise the database's error.
pub async fn save_progress(
    client: &impl Queryable,
    lease: Lease,
    progress: &Progress,
) -> Result<()> {
    let progress = text("progress", progress)?;
    let values: &[&(dyn ToSql + Sync)] = &[&lease.id, &lease.token, &progress];
    under(lease, first(client, &SAVE_PROGRESS, values).await?)
}

fn under(lease: Lease, is_held: Option<bool>) -> Result<()> {
    let held = is_held.filter(|is_held| *is_held).map(drop);
    held.ok_or(Error::LeaseLost(lease.id))
}

/// Stores how far a handler has come with an event that is still held: a part from 0 to 1, and a note.
///
/// # Errors
/// [`Error::LeaseLost`] when it is no longer held; otherwise the database's error.
pub async fn report_progress(
    client: &impl Queryable,
    lease: Lease,
    handler: &str,
    part: f64,
    note: &str,
) -> Result<()> {
    let values: &[&(dyn ToSql + Sync)] = &[&lease.id, &lease.token, &handler, &part, &note];
    under(lease, first(client, &REPORT_PROGRESS, values).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_follow_each_other_are_one_range() {
        assert_eq!(ranges(&[]), "{}");
        assert_eq!(ranges(&[7]), "{[7,7]}");
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "{[1,3],[5,5],[7,8]}");
    }

    #[test]
    fn what_cannot_be_written_as_json_is_an_error_and_not_null() {
        let keyed_by_lists = BTreeMap::from([(vec![1], 2)]);
        let error = text("result", &keyed_by_lists).unwrap_err();
        assert!(error.to_string().starts_with("result: "), "{error}");
    }

    #[test]
    fn only_ends_that_leave_nothing_else_go_the_short_way() {
        let lease = Lease {
            id: 1,
            token: Uuid::nil(),
        };
        let plain = Finalization::new(lease, Status::Completed);
        assert!(plain.is_plain());
        let others = [
            Finalization {
                status: Status::Failed,
                ..plain.clone()
            },
            Finalization {
                result: Some(BTreeMap::new()),
                ..plain.clone()
            },
            Finalization {
                ran: false,
                ..plain
            },
        ];
        assert!(others.iter().all(|end| !end.is_plain()));
    }
}
