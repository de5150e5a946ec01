//! Row 7: two publishers of one group, each in its own transaction, with all kinds of timing, beside running
//! workers.

use std::cell::Cell;
use std::time::Duration;

use tidegate::connect::Client;
use tidegate::{publish, publish_batch};

use super::{Figures, Fleet, Size, World, worker};
use crate::actor::{Torture, Work, new_event};
use crate::journal::{Journal, Record, Told};

/// Number of concurrent pairs of publishers.
const PAIRS: u32 = 3;

/// Number of other publishers.
const OTHERS: u32 = 3;

pub async fn a_groups_order_is_that_of_its_commits_however_two_publishers_race(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("commit_order", seed, &[]).await;
    let mut fleet = Fleet::default();
    for _ in 0..2 {
        fleet.start_worker(&world, worker(&world));
    }
    let mut publishers = Vec::new();
    for number in 0..PAIRS * 2 {
        publishers.push(Publisher {
            client: world.client().await,
            name: format!("publisher-{number}"),
            // Each pair shares a group.
            group: format!("g{}", number / 2),
            random: world.random.fork(),
        });
    }
    let rounds = size.pick(120, 600);
    let over = Cell::new(false);
    let racing = async {
        let each = publishers
            .iter_mut()
            .map(|publisher| publisher.race(&world.journal, rounds));
        futures_util::future::join_all(each).await;
        over.set(true);
    };
    let others = (0..OTHERS).map(|who| publish_others(&world, who, &over));
    futures_util::future::join(racing, futures_util::future::join_all(others)).await;
    world.drain(&mut fleet).await;
    world.judge(Vec::new()).await
}

/// Publishes events of other groups, so that walks pass the events that the pairs have not committed yet.
async fn publish_others(world: &World, who: u32, over: &Cell<bool>) {
    for number in 0.. {
        if over.get() {
            return;
        }
        let name = format!("other-{who}-{number}");
        let other = |n: u32| {
            let key = format!("{name}-{n}");
            (Some(key.clone()), Torture::Plain(Work::new(&key)))
        };
        world.publish(&name, (0..4).map(other).collect(), 5).await;
    }
}

struct Publisher {
    client: Client,
    name: String,
    group: String,
    random: fastrand::Rng,
}

impl Publisher {
    async fn race(&mut self, journal: &Journal, rounds: u32) {
        for round in 0..rounds {
            let name = format!("{}-{round}", self.name);
            let told: Vec<Told> = (0..self.random.usize(1..4))
                .map(|number| Told {
                    key: format!("{name}-{number}"),
                    group: Some(self.group.clone()),
                })
                .collect();
            journal.write(Record::Trying {
                publish: name.clone(),
                events: told.clone(),
            });
            self.client.batch_execute("BEGIN").await.unwrap();
            self.pause().await;
            let ids = self.publish(&told).await;
            self.pause().await;
            if self.random.u8(0..10) == 0 {
                self.client.batch_execute("ROLLBACK").await.unwrap();
                let error = "rolled back".to_owned();
                journal.write(Record::Refused {
                    publish: name,
                    error,
                });
            } else {
                self.client.batch_execute("COMMIT").await.unwrap();
                journal.write(Record::Acknowledged { publish: name, ids });
            }
        }
    }

    /// Publishes one by one or in a batch.
    async fn publish(&mut self, told: &[Told]) -> Vec<i64> {
        let events: Vec<_> = told
            .iter()
            .map(|told| new_event(told, &Torture::Plain(Work::new(&told.key)), 5))
            .collect();
        if self.random.bool() {
            let published = publish_batch(&self.client, &events).await.unwrap();
            return published.iter().map(|published| published.id).collect();
        }
        let mut ids = Vec::new();
        for event in &events {
            ids.push(publish(&self.client, event).await.unwrap().id);
            self.pause().await;
        }
        ids
    }

    /// Pauses, but half of the time not at all.
    async fn pause(&mut self) {
        if self.random.bool() {
            tokio::time::sleep(Duration::from_micros(self.random.u64(0..6000))).await;
        }
    }
}
