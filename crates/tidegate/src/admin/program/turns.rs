//! Shares the time of an invocation among several queues. Each is complete and knows nothing of the others.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use crate::connect::{Client, Database};
use crate::queue::{self, Look};

/// A queue whose database does not answer within this time is passed over, and worked on last.
const LOOK: Duration = Duration::from_secs(3);

/// The longest time to look at one queue of a connection that works.
const ONE_LOOK: Duration = Duration::from_millis(500);

/// The shortest time for one queue. None is begun with less time left, and none gets less while others wait.
const LEAST: Duration = Duration::from_secs(2);

/// How many connections look at once.
const LOOKS_AT_ONCE: usize = 32;

/// How many queues of a database one connection looks at.
const LOOKED_AT: usize = 250;

/// How many queues are worked on at once.
const AT_ONCE: usize = 4;

/// What became of one of several queues.
#[derive(Debug)]
pub enum Turn<T> {
    /// The work's result.
    Done(T),
    /// There was no time.
    Skipped,
    /// There was nothing to do. This many events wait for a later time, and the oldest is so old, in
    /// milliseconds.
    Idle {
        /// Live events.
        events: u64,
        /// The age of the oldest.
        oldest_age_ms: u64,
    },
}

impl<T> Turn<T> {
    /// Changes the result of the work.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Turn<U> {
        match self {
            Self::Done(done) => Turn::Done(change(done)),
            Self::Skipped => Turn::Skipped,
            Self::Idle {
                events,
                oldest_age_ms,
            } => Turn::Idle {
                events,
                oldest_age_ms,
            },
        }
    }
}

/// Queues that take turns.
pub(super) struct Turns<'a> {
    /// Where each of them is.
    pub databases: Vec<&'a Database>,
    /// The time for all.
    pub budget: Duration,
    /// Whether queues without work get no turn.
    pub only_needed: bool,
}

impl Turns<'_> {
    /// Does `work` on each of the queues, on four of them at a time. The one whose event has been ready for
    /// the longest time is first, and those that do not answer are last. While others wait, none gets more than
    /// its share of the remaining time, so a slow or unreachable database takes no time from the others. A
    /// queue with an event that perhaps ended its worker comes last and alone, because the events of other
    /// queues would share that fate. Returns the results by place in the list.
    pub(super) async fn take<T, F>(
        &self,
        work: impl Fn(usize, Duration) -> F,
    ) -> Vec<(usize, Turn<T>)>
    where
        F: Future<Output = T>,
    {
        let began = Instant::now();
        let looks = look_at_all(&self.databases).await;
        let is_idle = |look: &Option<Look>| {
            let idle = look.filter(|look| !look.needs_drain);
            idle.filter(|_| self.only_needed)
        };
        let (idle, order): (Vec<usize>, Vec<usize>) = by_urgency(&looks)
            .into_iter()
            .partition(|at| is_idle(&looks[*at]).is_some());
        let has_suspect = |at: &usize| looks[*at].is_some_and(|look| look.has_suspect);
        let (alone, order): (Vec<usize>, Vec<usize>) = order.into_iter().partition(has_suspect);
        // One that is alone takes the time of as many as are worked on at once.
        let (count, work) = (order.len() + alone.len() * AT_ONCE, &work);
        let turn = |waiting: usize, at: usize| async move {
            let left = self.budget.saturating_sub(began.elapsed());
            let turn = match share(left, waiting, AT_ONCE) {
                Some(budget) => Turn::Done(work(at, budget).await),
                None => Turn::Skipped,
            };
            (at, turn)
        };
        let works = order.into_iter().enumerate();
        let works: Vec<_> = works.map(|(place, at)| turn(count - place, at)).collect();
        let works = futures_util::stream::iter(works).buffer_unordered(AT_ONCE);
        let mut turns: Vec<_> = works.collect().await;
        for (place, at) in alone.iter().enumerate() {
            turns.push(turn((alone.len() - place) * AT_ONCE, *at).await);
        }
        turns.extend(idle.into_iter().filter_map(|at| {
            let Look {
                events,
                oldest_age_ms,
                ..
            } = looks[at]?;
            Some((
                at,
                Turn::Idle {
                    events,
                    oldest_age_ms,
                },
            ))
        }));
        turns
    }
}

/// Returns the places in the list by urgency: first the event that has been ready for the longest time, then
/// queues without one, then those that do not answer.
pub(super) fn by_urgency(looks: &[Option<Look>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..looks.len()).collect();
    order.sort_by_key(|at| match looks[*at] {
        Some(look) => (0, u64::MAX - look.ready_ms),
        None => (1, 0),
    });
    order
}

/// Looks at each queue. `None` for one that does not answer.
pub(super) async fn look_at_all(databases: &[&Database]) -> Vec<Option<Look>> {
    let mut looks = vec![None; databases.len()];
    let mut by_login: Vec<Vec<usize>> = Vec::new();
    for (at, database) in databases.iter().enumerate() {
        let known = by_login
            .iter_mut()
            .rev()
            .find(|of| databases[of[0]].shares_login(database) && of.len() < LOOKED_AT);
        match known {
            Some(of) => of.push(at),
            None => by_login.push(vec![at]),
        }
    }
    let works = by_login.iter().map(|places| look_at(databases, places));
    let works: Vec<_> = works.collect();
    let mut works = futures_util::stream::iter(works).buffer_unordered(LOOKS_AT_ONCE);
    while let Some(found) = works.next().await {
        for (at, look) in found {
            looks[at] = Some(look);
        }
    }
    looks
}

/// Looks at the queues of one login, over one connection while it works. One that takes too long costs its
/// neighbours nothing but a new connection.
async fn look_at(databases: &[&Database], places: &[usize]) -> Vec<(usize, Look)> {
    let mut found = Vec::new();
    let looking = async {
        let mut client: Option<Client> = None;
        for &at in places {
            let connected = match client.take() {
                Some(connected) => connected,
                None => match databases[at].connect().await {
                    Ok(connected) => connected,
                    Err(_) => return,
                },
            };
            let queue = databases[at].schema().on(&*connected);
            let look = timeout(ONE_LOOK, queue::look(&queue)).await;
            match look {
                Ok(Ok(look)) => found.push((at, look)),
                Ok(Err(_)) if !connected.is_closed() => {}
                Ok(Err(_)) => continue,
                // It may wait for a lock for hours, and the next look would add another session.
                Err(_) => {
                    databases[at].cancel(&connected);
                    continue;
                }
            }
            client = Some(connected);
        }
    };
    // What was found by then counts.
    let _ = timeout(LOOK, looking).await;
    found
}

/// Returns one queue's share of the remaining time, of `waiting` queues of which `at_once` are worked on at a
/// time.
fn share(left: Duration, waiting: usize, at_once: usize) -> Option<Duration> {
    if left < LEAST {
        return None;
    }
    let rounds = u32::try_from(waiting.div_ceil(at_once).max(1)).unwrap_or(u32::MAX);
    Some((left / rounds).max(LEAST).min(left))
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
