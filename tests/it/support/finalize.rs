//! Ends events like a worker, without a drain.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use tidegate::Error;
use tidegate::lease::Lease;
use tidegate::outcome::Status;
use tidegate::queue::{ErrorEntry, Finalization, Flushed, Follow, finalize_under};
use tokio_postgres::GenericClient;
use uuid::Uuid;

/// Moves events to the log, with one statement for each lease.
pub async fn finalize(
    client: &(impl GenericClient + Sync),
    ends: &[impl Borrow<Finalization> + Sync],
) -> Result<Flushed, Error> {
    let mut flushed = Flushed::default();
    let mut by_token: BTreeMap<Uuid, Vec<&Finalization>> = BTreeMap::new();
    for end in ends.iter().map(Borrow::borrow) {
        by_token.entry(end.lease.token).or_default().push(end);
    }
    for (token, ends) in by_token {
        let more = finalize_under(client, token, &ends, Follow::IfFree).await?;
        flushed.ended.extend(more.ended);
        flushed.busy.extend(more.busy);
        flushed.published += more.published;
    }
    Ok(flushed)
}

/// The result of [`finalize_one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalized {
    /// It is in the log now.
    Now,
    /// It was already in the log. Nothing was changed.
    Already,
}

/// Ends one event by its list of errors: COMPLETED without errors, `COMPLETED_WITH_ERRORS`
/// otherwise.
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
        errors,
        ..Finalization::new(lease, status)
    };
    if !finalize(client, &[end]).await?.ended.is_empty() {
        return Ok(Finalized::Now);
    }
    let whereabouts = "SELECT 'live' FROM tidegate.event_queue WHERE id = $1
                       UNION ALL
                       SELECT 'logged' FROM tidegate.event_log WHERE id = $1";
    let rows = client.query(whereabouts, &[&lease.id]).await.unwrap();
    match rows.first().map(|row| row.get::<_, &str>(0)) {
        Some("logged") => Ok(Finalized::Already),
        Some(_) => Err(Error::LeaseLost(lease.id)),
        None => Err(Error::UnknownEvent(lease.id)),
    }
}
