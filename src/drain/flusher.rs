//! Writes down what became of events, many at a time: ends, retries, releases, and prolonged leases.
//!
//! The surprise: after a lost connection nobody knows whether the last statement was applied. An end
//! that does not come back on the second try is looked up in the log by its lease token, so that it
//! is not mistaken for a lost lease.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Client;

use super::link::Link;
use crate::error::Error;
use crate::event::Lease;
use crate::handler::Fault;
use crate::outcome::Status;
use crate::queue::{self, ErrorEntry, Finalization, Released, Retried};

/// How the report counts an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// It was leased to be handled, and ended so.
    Handled(Status),
    /// Swept: its deadline had passed.
    Expired,
    /// Swept: abandoned on its last attempt.
    Abandoned,
}

/// An event's end, with what the loop must know when it is written.
pub(super) struct End {
    pub finalization: Finalization,
    pub class: Class,
    pub group: Option<String>,
}

/// One round of writing.
#[derive(Default)]
pub(super) struct Job {
    pub ends: Vec<End>,
    pub retries: Vec<Retried>,
    pub releases: Vec<Released>,
    pub renewals: Vec<Lease>,
    /// Completions up to this number are in this job or an earlier one.
    pub up_to: u64,
    /// Groups whose event goes back to the queue with this job.
    pub closed_groups: Vec<String>,
}

impl Job {
    /// Rows are locked in the order of the arguments, and everybody locks them by id: otherwise an
    /// operator's requeue of many events and this could wait for each other.
    fn sort(&mut self) {
        self.ends.sort_unstable_by_key(|end| end.finalization.lease);
        self.retries.sort_unstable_by_key(|retry| retry.lease);
        self.releases.sort_unstable_by_key(|release| release.lease);
        self.renewals.sort_unstable();
    }

    /// Whether it writes any event's fate.
    pub(super) fn has_outcomes(&self) -> bool {
        !self.ends.is_empty() || !self.retries.is_empty() || !self.releases.is_empty()
    }

    /// Events whose fate it writes.
    pub(super) fn outcomes(&self) -> usize {
        self.ends.len() + self.retries.len() + self.releases.len()
    }
}

/// What a job changed. A part is `None` until it is written.
#[derive(Default)]
pub(super) struct Written {
    pub ended: Option<Found>,
    pub retried: Option<Found>,
    pub released: Option<Found>,
    pub renewed: Option<Found>,
    pub published: u64,
    /// Ends that could not be stored as they were and became FAILED.
    pub unstorable: HashSet<Lease>,
}

/// The leases that were still held, sorted: an answer has them nearly in order.
#[derive(Default)]
pub(super) struct Found(Vec<Lease>);

impl Found {
    pub(super) fn contains(&self, lease: &Lease) -> bool {
        self.0.binary_search(lease).is_ok()
    }

    fn extend(&mut self, more: impl IntoIterator<Item = Lease>) {
        self.0.extend(more);
        self.0.sort_unstable();
    }
}

impl From<Vec<Lease>> for Found {
    fn from(mut leases: Vec<Lease>) -> Self {
        leases.sort_unstable();
        Self(leases)
    }
}

/// The answer, with the link and the job handed back.
pub(super) struct Flush {
    pub link: Link,
    pub job: Job,
    pub written: Result<Written, Error>,
}

/// Writes a job, with bounded reconnects.
pub(super) async fn flush(mut link: Link, mut job: Job, lease_timeout: Duration) -> Flush {
    job.sort();
    let mut written = Written::default();
    let mut unsure = false;
    loop {
        let tried = match link.client().await {
            Ok(client) => write(client, &job, &mut written, unsure, lease_timeout).await,
            Err(error) => Err(error),
        };
        let Err(error) = tried else {
            link.recovered();
            return Flush {
                link,
                job,
                written: Ok(written),
            };
        };
        // Ends go in several statements, of which the first ones may be stored.
        unsure = true;
        if let Err(error) = link.retry_after(error).await {
            return Flush {
                link,
                job,
                written: Err(error),
            };
        }
    }
}

/// Writes the parts that are not written yet.
async fn write(
    client: &Client,
    job: &Job,
    written: &mut Written,
    unsure: bool,
    lease_timeout: Duration,
) -> Result<(), Error> {
    if written.ended.is_none() {
        let mut ended = finalize(client, job, written).await?;
        if unsure {
            let missing: Vec<Lease> = job
                .ends
                .iter()
                .map(|end| end.finalization.lease)
                .filter(|lease| !ended.contains(lease))
                .collect();
            ended.extend(queue::finished_under(client, &missing).await?);
        }
        written.ended = Some(ended);
    }
    if written.retried.is_none() {
        written.retried = Some(match job.retries.as_slice() {
            [] => Found::default(),
            retries => queue::retry(client, retries).await?.into(),
        });
    }
    if written.released.is_none() {
        written.released = Some(match job.releases.as_slice() {
            [] => Found::default(),
            releases => queue::release(client, releases).await?.into(),
        });
    }
    if written.renewed.is_none() {
        written.renewed = Some(match job.renewals.as_slice() {
            [] => Found::default(),
            renewals => queue::renew(client, renewals, lease_timeout).await?.into(),
        });
    }
    Ok(())
}

/// Finalizes in up to three statements: events that just complete, which is the quickest; the others; and
/// those with follow-ups in a group, which may have to wait for a publisher's lock, and nobody else should.
async fn finalize(client: &Client, job: &Job, written: &mut Written) -> Result<Found, Error> {
    let ends = job.ends.iter().map(|end| &end.finalization);
    let (plain, rest): (Vec<_>, Vec<_>) = ends.partition(|end| end.is_plain());
    let (locking, free): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|end| end.follow_ups.iter().any(|event| event.group_key.is_some()));
    let mut ended = Found::default();
    for batch in [plain, free, locking] {
        ended.extend(finalize_batch(client, batch, written).await?.0);
    }
    Ok(ended)
}

/// One statement for the batch; if the database refuses its data, one by one, so that a bad one
/// harms only itself.
async fn finalize_batch(
    client: &Client,
    ends: Vec<&Finalization>,
    written: &mut Written,
) -> Result<Found, Error> {
    if ends.is_empty() {
        return Ok(Found::default());
    }
    match queue::finalize(client, &ends).await {
        Ok(flushed) => {
            written.published += flushed.published;
            Ok(flushed.ended.into())
        }
        Err(error) if error.is_bad_data() => one_by_one(client, ends, written).await,
        Err(error) => Err(error),
    }
}

async fn one_by_one(
    client: &Client,
    ends: Vec<&Finalization>,
    written: &mut Written,
) -> Result<Found, Error> {
    let mut ended = Found::default();
    for end in ends {
        let flushed = match queue::finalize(client, &[end]).await {
            Err(error) if error.is_bad_data() => {
                tracing::error!(event.id = end.lease.id, error = %error, "outcome cannot be stored; event fails");
                written.unstorable.insert(end.lease);
                queue::finalize(client, &[unstorable(end, &error)]).await?
            }
            flushed => flushed?,
        };
        written.published += flushed.published;
        ended.extend(flushed.ended);
    }
    Ok(ended)
}

/// What remains of an end whose result or follow-ups the database refuses.
fn unstorable(end: &Finalization, error: &Error) -> Finalization {
    let attempt = end.errors.last().map_or(0, |entry| entry.attempt);
    let fault = Fault::new(
        "unstorable",
        format!("the outcome cannot be stored: {error}"),
    );
    Finalization {
        lease: end.lease,
        status: Status::Failed,
        errors: vec![ErrorEntry::new(None, &fault, attempt)],
        result: None,
        progress: None,
        follow_ups: Vec::new(),
    }
}
