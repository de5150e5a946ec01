//! Views of a queue of any size. Every statement reads a bounded number of rows.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::{GenericClient, Row};

use crate::error::Error;
use crate::queue::read::{document, parsed};
use crate::queue::{query, sql};
use crate::status::ServiceStatus;
use crate::survey::{
    AuditRequest, COUNTED, Content, DEAD_LOOKED_AT, DeadLetters, Depth, DrainRun, HEADS_LOOKED_AT,
    Kind, KindFigures, Rights, Span, Step,
};

/// Returns what the database allows this login to do.
pub(crate) async fn rights(client: &(impl GenericClient + Sync)) -> Result<Rights, Error> {
    let rows = query(client, &sql::survey::RIGHTS, &[]).await?;
    let row = rows.first();
    Ok(row.map_or_else(Rights::default, |row| Rights {
        content: row.get(0),
        act: row.get(1),
        user: row.get(2),
        database: row.get(3),
    }))
}

/// Counts live events by kind, among the first [`COUNTED`].
pub(crate) async fn depths(client: &(impl GenericClient + Sync)) -> Result<Vec<Depth>, Error> {
    let most = i64::from(COUNTED);
    let rows = query(client, &sql::survey::DEPTHS, &[&most]).await?;
    parsed("depths", &rows)
}

/// Returns groups whose first event holds back others, at most `limit`.
pub(crate) async fn blocked(
    client: &(impl GenericClient + Sync),
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let (limit, looked_at) = (i64::from(limit), i64::from(HEADS_LOOKED_AT));
    let rows = query(client, &sql::survey::BLOCKED, &[&limit, &looked_at]).await?;
    parsed("blocked", &rows)
}

/// Returns the live events of a group in order, at most `limit`.
pub(crate) async fn group(
    client: &(impl GenericClient + Sync),
    key: &str,
    limit: u32,
) -> Result<Vec<Value>, Error> {
    let rows = query(client, &sql::survey::GROUP, &[&key, &i64::from(limit)]).await?;
    parsed("group", &rows)
}

/// Returns the services, without counting the events that wait for them.
pub(crate) async fn service_states(
    client: &(impl GenericClient + Sync),
) -> Result<Vec<ServiceStatus>, Error> {
    let rows = query(client, &sql::survey::SERVICE_STATES, &[]).await?;
    parsed("service_states", &rows)
}

/// Counts the dead letters by kind, status and error code.
pub(crate) async fn dead(
    client: &(impl GenericClient + Sync),
    since: Duration,
    kind: Option<&str>,
) -> Result<Vec<DeadLetters>, Error> {
    let (since, most) = (since.as_secs_f64(), i64::from(DEAD_LOOKED_AT));
    let rows = query(client, &sql::survey::DEAD, &[&since, &kind, &most]).await?;
    parsed("dead", &rows)
}

/// Returns one event without its content.
pub(crate) async fn event(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Value>, Error> {
    let rows = query(client, &sql::survey::EVENT, &[&id]).await?;
    let row = rows.first();
    row.map(|row| document(row, || format!("event {id}")))
        .transpose()
}

/// Returns the content of one event: payload, results, progress and errors.
pub(crate) async fn content(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Content>, Error> {
    let rows = query(client, &sql::survey::CONTENT, &[&id]).await?;
    Ok(rows.first().map(|row| Content {
        payload: row.get(0),
        result: row.get(1),
        progress: row.get(2),
        errors: row.get(3),
        traceparent: row.get(4),
    }))
}

/// Returns the progress that the running handler of an event reports.
pub(crate) async fn work(
    client: &(impl GenericClient + Sync),
    id: i64,
) -> Result<Option<Value>, Error> {
    let rows = query(client, &sql::survey::WORK, &[&id]).await?;
    let row = rows.first();
    row.map(|row| document(row, || format!("work on event {id}")))
        .transpose()
}

/// Returns entries of the audit.
pub(crate) async fn audit(
    client: &(impl GenericClient + Sync),
    asked: &AuditRequest,
) -> Result<Vec<Value>, Error> {
    let limit = i64::from(asked.limit);
    let rows = query(
        client,
        &sql::survey::AUDIT,
        &[&asked.before, &asked.actor, &asked.action, &limit],
    )
    .await?;
    parsed("audit", &rows)
}

/// Returns the registered kinds.
pub(crate) async fn kinds(client: &(impl GenericClient + Sync)) -> Result<Vec<Kind>, Error> {
    let rows = query(client, &sql::survey::KINDS, &[]).await?;
    parsed("kinds", &rows)
}

/// Returns the log's partitions.
pub(crate) async fn log_partitions(
    client: &(impl GenericClient + Sync),
) -> Result<Vec<Value>, Error> {
    let rows = query(client, &sql::survey::LOG_PARTITIONS, &[]).await?;
    parsed("log_partitions", &rows)
}

/// Counts the events that ended, step by step. Steps without any are left out.
pub(crate) async fn course(
    client: &(impl GenericClient + Sync),
    span: Span,
    kind: Option<&str>,
) -> Result<Vec<Step>, Error> {
    let (length, step) = (span.length().as_secs_f64(), span.step().as_secs_f64());
    let rows = query(client, &sql::survey::COURSE, &[&length, &step, &kind]).await?;
    let mut steps: Vec<Step> = Vec::new();
    for row in &rows {
        let at = row.get::<_, i64>(0).unsigned_abs() * span.step().as_secs();
        if steps.last().is_none_or(|last| last.at != at) {
            steps.push(Step {
                at,
                ..Step::default()
            });
        }
        if let Some(last) = steps.last_mut() {
            add(last, row.get(1), count(row, 2), count(row, 3));
        }
    }
    Ok(steps)
}

/// Counts the events that ended, by kind.
pub(crate) async fn ended(
    client: &(impl GenericClient + Sync),
    span: Span,
) -> Result<Vec<KindFigures>, Error> {
    let length = span.length().as_secs_f64();
    let rows = query(client, &sql::survey::ENDED, &[&length]).await?;
    let mut kinds: Vec<KindFigures> = Vec::new();
    for row in &rows {
        let kind: String = row.get(0);
        if kinds.last().is_none_or(|last| last.kind != kind) {
            kinds.push(KindFigures {
                kind,
                ..KindFigures::default()
            });
        }
        let Some(last) = kinds.last_mut() else {
            continue;
        };
        let (bound, events) = (row.get::<_, Option<i64>>(2), count(row, 3));
        add(&mut last.sum, row.get(1), events, count(row, 5));
        last.attempts += count(row, 4);
        let bound = bound.map(i64::unsigned_abs);
        match last.within.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, known)) => *known += events,
            None => last.within.push((bound, events)),
        }
    }
    for kind in &mut kinds {
        // The events beyond all bounds come last.
        kind.within
            .sort_by_key(|(bound, _)| bound.unwrap_or(u64::MAX));
    }
    Ok(kinds)
}

/// Returns the latest drains.
pub(crate) async fn drains(
    client: &(impl GenericClient + Sync),
    limit: u32,
) -> Result<Vec<DrainRun>, Error> {
    let rows = query(client, &sql::survey::DRAINS, &[&i64::from(limit)]).await?;
    parsed("drains", &rows)
}

fn add(step: &mut Step, status: &str, events: u64, latency_ms: u64) {
    match status {
        "COMPLETED" => step.completed += events,
        "COMPLETED_WITH_ERRORS" => step.rejected += events,
        _ => step.failed += events,
    }
    step.latency_ms += latency_ms;
}

fn count(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).unsigned_abs()
}
