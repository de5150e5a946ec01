//! Owns how a large number of live events is cancelled or rescheduled: in short transactions of a thousand
//! events each, so that drains, producers and other operators can work in between. It knows no SQL.
//!
//! An event that another transaction has locked at that moment is skipped, and tried again later by its id,
//! so that the other events do not wait for it.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use crate::connect::Database;
use crate::error::Error;
use crate::operate::{
    CancelReport, CancelRequest, Change, DIGESTED, RescheduleReport, RescheduleRequest, Selection,
    Skipped,
};
use crate::queue::{self, ChangedPage, Page};

/// How many events one transaction changes.
const BATCH: u32 = 1000;

/// How often skipped events are tried again, and how long to wait before each try.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The reported reason when nothing is changed.
const REFUSED: &str =
    "digest: must match the selected events, and these have changed since the dry run";

/// The most ids in each list of a report.
const LISTED: usize = 100;

/// Ends events as FAILED with the code `cancelled`.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was cancelled
/// before the error stays cancelled.
pub(crate) async fn cancel(
    database: &Database,
    request: &CancelRequest,
) -> Result<CancelReport, Error> {
    let done = change(database, Change::Cancel(request)).await?;
    Ok(CancelReport {
        dry_run: request.dry_run,
        cancelled: done.page.changed,
        begun: done.page.begun,
        ids: done.page.ids,
        kinds: done.page.kinds,
        skipped_count: done.skipped_count,
        skipped: done.page.skipped,
        limit_reached: done.limit_reached,
        digest: done.digest,
        refused: done.refused,
    })
}

/// Moves the start time or the deadline of waiting events.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was changed
/// before the error stays changed.
pub(crate) async fn reschedule(
    database: &Database,
    request: &RescheduleRequest,
) -> Result<RescheduleReport, Error> {
    let done = change(database, Change::Reschedule(request)).await?;
    Ok(RescheduleReport {
        dry_run: request.dry_run,
        rescheduled: done.page.changed,
        ids: done.page.ids,
        kinds: done.page.kinds,
        in_hand: done.page.in_hand,
        too_late: done.page.too_late,
        past_deadline: done.page.past_deadline,
        past_deadline_ids: done.page.past_deadline_ids,
        skipped_count: done.skipped_count,
        skipped: done.page.skipped,
        limit_reached: done.limit_reached,
        digest: done.digest,
        refused: done.refused,
    })
}

/// The results of all pages together.
#[derive(Default)]
struct Changed {
    page: ChangedPage,
    /// All ids that the pages listed.
    every: Vec<i64>,
    skipped_count: u64,
    limit_reached: bool,
    digest: Option<String>,
    refused: Option<String>,
}

async fn change(database: &Database, change: Change<'_>) -> Result<Changed, Error> {
    let limit = change.limit()?;
    let client = database.connect().await?;
    let selection = change.selection();
    if selection.dry_run && limit <= DIGESTED {
        return look(&client, &change, limit).await;
    }
    let mut all = Changed::default();
    if let Some(digest) = change.digest() {
        let seen = look(&client, &change, limit).await?;
        if seen.digest.as_deref() != Some(digest) {
            all.refused = Some(REFUSED.to_owned());
            return Ok(all);
        }
        for ids in seen.every.chunks(BATCH as usize) {
            let exactly = selection.of(ids);
            walk(&client, &change, exactly, (BATCH, BATCH), &mut all).await?;
        }
        all.limit_reached = seen.limit_reached;
    } else {
        walk(&client, &change, selection, (limit, BATCH), &mut all).await?;
    }
    again(&client, &change, &mut all).await?;
    Ok(all)
}

/// A dry run, with the ids of all its events and their digest.
async fn look(client: &Client, change: &Change<'_>, limit: u32) -> Result<Changed, Error> {
    let mut selection = change.selection();
    selection.dry_run = true;
    let mut all = Changed::default();
    walk(client, change, selection, (limit, BATCH), &mut all).await?;
    all.digest = Some(digest(&all.every));
    Ok(all)
}

/// Returns the digest of ids, computed as for a replay's dry run.
fn digest(ids: &[i64]) -> String {
    let texts: Vec<String> = ids.iter().map(i64::to_string).collect();
    let digest = Sha256::digest(texts.join(","));
    let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.concat()
}

/// Changes at most `limit` events of the selection, in pages of at most `batch`.
async fn walk(
    client: &Client,
    change: &Change<'_>,
    selection: Selection<'_>,
    (limit, batch): (u32, u32),
    all: &mut Changed,
) -> Result<(), Error> {
    let mut left = limit;
    let mut page = Page {
        selection,
        after: 0,
        most: 0,
    };
    let mut next = Some(0);
    while let Some(after) = next.filter(|_| left > 0) {
        page.after = after;
        page.most = left.min(batch);
        let done = queue::change(client, change, &page).await?;
        left = left.saturating_sub(u32::try_from(done.matched).unwrap_or(u32::MAX));
        next = done.next;
        all.take(done);
    }
    if let Some(after) = next {
        let mut look = Page {
            after,
            most: 1,
            ..page
        };
        look.selection.dry_run = true;
        all.limit_reached = queue::change(client, change, &look).await?.matched > 0;
    }
    Ok(())
}

/// Tries again to change the events that another session had locked.
async fn again(client: &Client, change: &Change<'_>, all: &mut Changed) -> Result<(), Error> {
    let selection = change.selection();
    for _ in 0..ROUNDS {
        let missed = std::mem::take(&mut all.page.missed);
        if missed.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        let page = Page {
            selection: selection.of(&missed),
            after: 0,
            most: 10_000,
        };
        let mut done = queue::change(client, change, &page).await?;
        done.kinds.clear();
        all.take(done);
    }
    let missed = std::mem::take(&mut all.page.missed);
    all.skip(&missed, "another session has locked it; try again");
    Ok(())
}

impl Changed {
    fn take(&mut self, done: ChangedPage) {
        self.every.extend(&done.ids);
        let all = &mut self.page;
        all.changed += done.changed;
        all.begun += done.begun;
        all.in_hand += done.in_hand;
        all.too_late += done.too_late;
        all.past_deadline += done.past_deadline;
        for (kind, count) in done.kinds {
            *all.kinds.entry(kind).or_default() += count;
        }
        extend(&mut all.ids, done.ids);
        extend(&mut all.past_deadline_ids, done.past_deadline_ids);
        all.missed.extend(done.missed);
        self.skipped_count += done.skipped.len() as u64;
        extend(&mut all.skipped, done.skipped);
        self.skipped_count += done.in_hand - done.in_hand_ids.len() as u64;
        self.skipped_count += done.too_late - done.too_late_ids.len() as u64;
        self.skip(&done.in_hand_ids, "in a worker's hands");
        self.skip(&done.too_late_ids, "would hold up its group for too long");
    }

    fn skip(&mut self, ids: &[i64], reason: &str) {
        self.skipped_count += ids.len() as u64;
        let skipped = ids.iter().map(|id| Skipped {
            id: *id,
            reason: reason.to_owned(),
            by: None,
        });
        extend(&mut self.page.skipped, skipped);
    }
}

fn extend<T>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    let room = LISTED.saturating_sub(list.len());
    list.extend(more.into_iter().take(room));
}
