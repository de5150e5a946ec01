//! Owns how many live events are cancelled or rescheduled at once: with a short transaction for each thousand events,
//! so that drains, producers and other operators can work in between. It knows no SQL.
//!
//! An event that another transaction has locked at that moment is skipped, and tried again later by its id, so that the
//! other events do not wait for it.

use std::time::Duration;

use crate::connect::Database;
use crate::error::Error;
use crate::operate::{
    CancelReport, CancelRequest, Change, RescheduleReport, RescheduleRequest, Skipped,
};
use crate::queue::{self, ChangedPage, Page};

/// Events in one transaction.
const BATCH: u32 = 1000;

/// How often skipped events are tried again, and how long to wait before each try.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The most ids of each sort in a report.
const LISTED: usize = 100;

/// Ends events as FAILED with the code `cancelled`.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was cancelled before
/// the error stays cancelled.
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
    })
}

/// Moves the start time or the deadline of waiting events.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error. What was changed before the
/// error stays changed.
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
    })
}

/// The results of all pages together.
#[derive(Default)]
struct Changed {
    page: ChangedPage,
    skipped_count: u64,
    limit_reached: bool,
}

async fn change(database: &Database, change: Change<'_>) -> Result<Changed, Error> {
    let mut left = change.limit()?;
    let client = database.connect().await?;
    let mut all = Changed::default();
    let mut page = Page {
        selection: change.selection(),
        after: 0,
        most: 0,
    };
    let mut next = Some(0);
    while let Some(after) = next.filter(|_| left > 0) {
        page.after = after;
        page.most = left.min(BATCH);
        let done = queue::change(&client, &change, &page).await?;
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
        all.limit_reached = queue::change(&client, &change, &look).await?.matched > 0;
    }
    for _ in 0..ROUNDS {
        let missed = std::mem::take(&mut all.page.missed);
        if missed.is_empty() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        let again = Page {
            selection: page.selection.of(&missed),
            after: 0,
            most: 10_000,
        };
        let mut done = queue::change(&client, &change, &again).await?;
        done.kinds.clear();
        all.take(done);
    }
    let missed = std::mem::take(&mut all.page.missed);
    all.skip(&missed, "another session has locked it; try again");
    Ok(all)
}

impl Changed {
    fn take(&mut self, done: ChangedPage) {
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
