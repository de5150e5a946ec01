//! Owns queues in several databases, for programs that outgrow one database or have one for each tenant. It places
//! groups, drains the databases in turn, the most urgent first, and reports their state. Each database holds a complete
//! queue that knows nothing of the others.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::connect::Database;
use crate::dispatch::Dispatch;
use crate::drain::{DrainError, DrainOptions, DrainReport, drain};
use crate::error::Error;
use crate::queue::{self, Backlog};

/// A database that does not answer within this time is passed over, and drained last.
const LOOK: Duration = Duration::from_secs(3);

/// The shortest time for a drain. No drain starts with less time left, and none gets less while others wait.
const LEAST: Duration = Duration::from_secs(2);

/// How many databases are asked at once for their state.
const LOOKS_AT_ONCE: usize = 32;

/// Several databases, each with a queue.
///
/// ```
/// # use tidegate::Database;
/// # use tidegate::shards::Shards;
/// # fn main() -> Result<(), tidegate::Error> {
/// let shards = Shards::new([
///     ("north", Database::new("postgres://queue@north/app", 4)?),
///     ("south", Database::new("postgres://queue@south/app", 4)?),
/// ])?;
/// // All events of a group are in the same database. The producers of the group publish there.
/// let shard = shards.of("customer-3");
/// assert!(["north", "south"].contains(&shard.name()));
/// # Ok(())
/// # }
/// ```
pub struct Shards {
    shards: Vec<Shard>,
    at_once: usize,
}

/// One of the databases.
pub struct Shard {
    name: String,
    database: Database,
    /// Whether no more groups are placed here.
    leaving: bool,
}

impl Shard {
    /// Returns the name of the database. Groups are placed by this name, so it must stay the same when the database
    /// moves.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the weight of a key here: the first eight bytes, as a number, of the SHA-256 of the name, a zero byte
    /// and the key.
    fn weight(&self, key: &str) -> u64 {
        let mut hash = Sha256::new();
        hash.update(self.name.as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        let digest = hash.finalize();
        let first: [u8; 8] = std::array::from_fn(|at| digest[at]);
        u64::from_be_bytes(first)
    }
}

/// The state of one database.
#[derive(Debug)]
pub struct ShardStatus {
    /// Its name.
    pub name: String,
    /// What is left there, or why the question failed.
    pub backlog: Result<Backlog, Error>,
}

/// The result of a drain of one database.
#[derive(Debug)]
pub struct ShardReport {
    /// Its name.
    pub name: String,
    /// What the drain did. `None` if there was no time for it. The next run starts with this database if it is the most
    /// urgent one then.
    pub drained: Option<Result<DrainReport, DrainError>>,
}

impl Shards {
    /// Creates a set of databases, each with a name of its own. Four of them are drained at once.
    ///
    /// # Errors
    /// [`Error::Config`] when there is no database, or when a name is empty, longer than 100 characters or given twice.
    pub fn new<N: Into<String>>(
        shards: impl IntoIterator<Item = (N, Database)>,
    ) -> Result<Self, Error> {
        let shard = |(name, database): (N, Database)| Shard {
            name: name.into(),
            database,
            leaving: false,
        };
        let shards: Vec<Shard> = shards.into_iter().map(shard).collect();
        if shards.is_empty() {
            return Err(Error::Config(
                "shards: must be at least one, got none".to_owned(),
            ));
        }
        for (at, shard) in shards.iter().enumerate() {
            let count = shard.name.chars().count();
            if !(1..=100).contains(&count) {
                let why = format!("shards: a name must have 1 to 100 characters, got {count}");
                return Err(Error::Config(why));
            }
            if shards[..at].iter().any(|other| other.name == shard.name) {
                let why = format!("shards: names must differ, got {:?} twice", shard.name);
                return Err(Error::Config(why));
            }
        }
        Ok(Self { shards, at_once: 4 })
    }

    /// Sets how many databases are drained at once, at least one.
    #[must_use]
    pub fn at_once(mut self, drains: usize) -> Self {
        self.at_once = drains.max(1);
        self
    }

    /// Places no more groups in this database. It is drained as before, until it is empty.
    ///
    /// # Errors
    /// [`Error::Config`] when there is no database of this name, or no other one that takes groups.
    pub fn leaving(mut self, name: &str) -> Result<Self, Error> {
        let Some(shard) = self.shards.iter_mut().find(|shard| shard.name == name) else {
            let why = format!("shards: must be the name of a shard, got {name:?}");
            return Err(Error::Config(why));
        };
        shard.leaving = true;
        if self.shards.iter().all(|shard| shard.leaving) {
            let why = format!(
                "shards: at least one must take groups, and {name:?} is the last that does"
            );
            return Err(Error::Config(why));
        }
        Ok(self)
    }

    /// Returns all databases.
    pub fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter()
    }

    /// Returns the database where events of this group are published. For events without a group, use any key that
    /// spreads them. This is rendezvous hashing: it returns the database in which the key weighs most. A new database
    /// takes an equal part from each of the others and moves nothing else. The groups of a leaving database are spread
    /// over all others.
    #[must_use]
    pub fn of(&self, key: &str) -> &Shard {
        let takes = self.shards.iter().filter(|shard| !shard.leaving);
        let heaviest = takes.max_by_key(|shard| (shard.weight(key), &shard.name));
        // At least one database takes groups, so the fallback is never used.
        heaviest.unwrap_or(&self.shards[0])
    }

    /// Returns the state of all databases, asked at once. A database that does not answer within three seconds is
    /// reported as such.
    pub async fn status(&self) -> Vec<ShardStatus> {
        let looks = self.shards.iter().map(async |shard| ShardStatus {
            name: shard.name.clone(),
            backlog: look(&shard.database).await,
        });
        let looks: Vec<_> = looks.collect();
        futures_util::stream::iter(looks)
            .buffered(LOOKS_AT_ONCE)
            .collect()
            .await
    }

    /// Drains the databases within the options' budget, several at once, the one with the oldest event first. While
    /// others wait, none gets more than its share of the remaining time, so a slow or unreachable database takes no
    /// time from the others. Databases that do not answer are tried last.
    pub async fn drain<D: Dispatch>(
        &self,
        app: &Arc<D>,
        options: &DrainOptions,
    ) -> Vec<ShardReport> {
        let databases = self.shards.iter().map(|shard| &shard.database).collect();
        let drains = in_turn(databases, options.budget, self.at_once, |at, budget| {
            let (database, app) = (&self.shards[at].database, app.clone());
            let options = DrainOptions {
                budget,
                ..options.clone()
            };
            async move { drain(database, app, &options).await }
        });
        let reports = drains.await.into_iter().map(|(at, drained)| ShardReport {
            name: self.shards[at].name.clone(),
            drained,
        });
        reports.collect()
    }
}

/// Does `work` on each of these databases within `budget`, on `at_once` of them at a time. The one with the oldest
/// event is first, and those that do not answer are last. While others wait, none gets more than its share of the
/// remaining time. Returns the results by place in the list, or `None` where there was no time.
pub(crate) async fn in_turn<T, F>(
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
    let turns = order.into_iter().enumerate().map(|(turn, at)| async move {
        let left = budget.saturating_sub(began.elapsed());
        let done = match part(left, count - turn, at_once) {
            Some(budget) => Some(work(at, budget).await),
            None => None,
        };
        (at, done)
    });
    let turns: Vec<_> = turns.collect();
    futures_util::stream::iter(turns)
        .buffer_unordered(at_once)
        .collect()
        .await
}

/// Returns the places in the list by urgency: first the oldest event, then databases without events, then those that do
/// not answer.
async fn by_urgency(databases: &[&Database]) -> Vec<usize> {
    let looks: Vec<_> = databases.iter().map(|database| look(database)).collect();
    let looks: Vec<_> = futures_util::stream::iter(looks)
        .buffered(LOOKS_AT_ONCE)
        .collect()
        .await;
    let urgency = |backlog: &Result<Backlog, Error>| match backlog {
        Ok(backlog) => (0, u64::MAX - backlog.oldest_age_ms),
        Err(_) => (1, 0),
    };
    let mut order: Vec<usize> = (0..databases.len()).collect();
    order.sort_by_key(|at| urgency(&looks[*at]));
    order
}

/// Returns the share of the remaining time for one of `waiting` databases, of which `at_once` are drained at a time.
fn part(left: Duration, waiting: usize, at_once: usize) -> Option<Duration> {
    if left < LEAST {
        return None;
    }
    let turns = u32::try_from(waiting.div_ceil(at_once).max(1)).unwrap_or(u32::MAX);
    Some((left / turns).max(LEAST).min(left))
}

async fn look(database: &Database) -> Result<Backlog, Error> {
    let asked = async {
        let client = database.connect().await?;
        queue::backlog(&client).await
    };
    tokio::time::timeout(LOOK, asked)
        .await
        .unwrap_or(Err(Error::TimedOut {
            stage: "look at a shard",
            limit: LOOK,
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(names: &[&str]) -> Shards {
        let database = || Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
        Shards::new(names.iter().map(|name| (*name, database()))).unwrap()
    }

    fn places(shards: &Shards) -> Vec<String> {
        let keys = (0..10_000).map(|key| format!("group-{key}"));
        keys.map(|key| shards.of(&key).name().to_owned()).collect()
    }

    #[test]
    fn groups_are_spread_evenly_and_a_further_shard_takes_its_part_and_moves_nothing_else() {
        let before = places(&shards(&["a", "b", "c"]));
        let after = places(&shards(&["c", "a", "d", "b"]));
        let moved = before.iter().zip(&after).filter(|(was, is)| was != is);
        let moved: Vec<_> = moved.collect();
        assert!(moved.iter().all(|(_, is)| *is == "d"));
        assert!((2300..2700).contains(&moved.len()), "{}", moved.len());
        for name in ["a", "b", "c", "d"] {
            let here = after.iter().filter(|place| *place == name).count();
            assert!((2300..2700).contains(&here), "{name}: {here}");
        }
        // This value must never change: producers elsewhere compute the same.
        assert_eq!(shards(&["north", "south"]).of("customer-3").name(), "south");
    }

    #[test]
    fn one_that_leaves_gives_its_groups_to_all_others_and_no_other_moves() {
        let before = places(&shards(&["a", "b", "c"]));
        let leaving = shards(&["a", "b", "c"]).leaving("b").unwrap();
        for (was, is) in before.iter().zip(places(&leaving)) {
            assert!(is != "b" && (was == "b" || *was == is), "{was} {is}");
        }
        let last = shards(&["a"]).leaving("a").err().unwrap().to_string();
        assert!(last.contains("one must take groups"), "{last}");
        let unknown = leaving.leaving("z").err().unwrap().to_string();
        assert!(unknown.contains("got \"z\""), "{unknown}");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let database = || Database::new("postgres://nobody@127.0.0.1:1/nothing", 1).unwrap();
        let none: [(&str, Database); 0] = [];
        for (refused, told) in [
            (Shards::new(none), "at least one"),
            (
                Shards::new([("", database())]),
                "1 to 100 characters, got 0",
            ),
            (
                Shards::new([("a", database()), ("a", database())]),
                "got \"a\" twice",
            ),
        ] {
            let refused = refused.err().unwrap().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn each_has_its_part_of_the_time_that_is_left() {
        let seconds = Duration::from_secs;
        assert_eq!(part(seconds(60), 1, 4), Some(seconds(60)));
        assert_eq!(part(seconds(60), 4, 4), Some(seconds(60)));
        assert_eq!(part(seconds(60), 12, 4), Some(seconds(20)));
        assert_eq!(part(seconds(60), 1000, 4), Some(LEAST));
        assert_eq!(part(seconds(1), 1, 4), None);
    }
}
