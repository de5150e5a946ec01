//! Shares the time of an invocation among several databases. Each holds a complete queue that knows nothing
//! of the others.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;

use crate::connect::Database;
use crate::error::{Error, Result};
use crate::queue::{self, Backlog};

/// A database that does not answer within this time is passed over, and worked on last.
const LOOK: Duration = Duration::from_secs(3);

/// The shortest time for one database. None is begun with less time left, and none gets less while others
/// wait.
const LEAST: Duration = Duration::from_secs(2);

/// How many databases are looked at at once.
const LOOKS_AT_ONCE: usize = 32;

/// Does `work` on each of these databases within `budget`, on `at_once` of them at a time. The one with the
/// oldest event is first, and those that do not answer are last. While others wait, none gets more than its
/// share of the remaining time, so a slow or unreachable database takes no time from the others. Returns the
/// results by place in the list, or `None` where there was no time.
pub(super) async fn one_after_the_other<T, F>(
    databases: Vec<&Database>,
    budget: Duration,
    at_once: usize,
    work: impl Fn(usize, Duration) -> F,
) -> Vec<(usize, Option<T>)>
where
    F: Future<Output = T>,
{
    let began = Instant::now();
    let order = by_urgency(&databases).await;
    let (count, work) = (order.len(), &work);
    let works = order.into_iter().enumerate().map(|(place, at)| async move {
        let left = budget.saturating_sub(began.elapsed());
        let done = match share(left, count - place, at_once) {
            Some(budget) => Some(work(at, budget).await),
            None => None,
        };
        (at, done)
    });
    let works: Vec<_> = works.collect();
    futures_util::stream::iter(works)
        .buffer_unordered(at_once)
        .collect()
        .await
}

/// Returns the places in the list by urgency: first the oldest event, then databases without events, then
/// those that do not answer.
async fn by_urgency(databases: &[&Database]) -> Vec<usize> {
    let looks: Vec<_> = databases.iter().map(|database| look(database)).collect();
    let looks: Vec<_> = futures_util::stream::iter(looks)
        .buffered(LOOKS_AT_ONCE)
        .collect()
        .await;
    let urgency = |backlog: &Result<Backlog>| match backlog {
        Ok(backlog) => (0, u64::MAX - backlog.oldest_age_ms),
        Err(_) => (1, 0),
    };
    let mut order: Vec<usize> = (0..databases.len()).collect();
    order.sort_by_key(|at| urgency(&looks[*at]));
    order
}

/// Returns one database's share of the remaining time, of `waiting` databases of which `at_once` are worked
/// on at a time.
fn share(left: Duration, waiting: usize, at_once: usize) -> Option<Duration> {
    if left < LEAST {
        return None;
    }
    let rounds = u32::try_from(waiting.div_ceil(at_once).max(1)).unwrap_or(u32::MAX);
    Some((left / rounds).max(LEAST).min(left))
}

async fn look(database: &Database) -> Result<Backlog> {
    let request = async {
        let client = database.connect().await?;
        queue::backlog(&client).await
    };
    Error::within("look at a database", LOOK, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_share_of_the_time_that_is_left() {
        let seconds = Duration::from_secs;
        assert_eq!(share(seconds(60), 1, 4), Some(seconds(60)));
        assert_eq!(share(seconds(60), 4, 4), Some(seconds(60)));
        assert_eq!(share(seconds(60), 12, 4), Some(seconds(20)));
        assert_eq!(share(seconds(60), 1000, 4), Some(LEAST));
        assert_eq!(share(seconds(1), 1, 4), None);
    }
}
