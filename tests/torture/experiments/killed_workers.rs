//! Row 1: workers, and sometimes a publisher, are killed at random times under load.

use std::time::{Duration, Instant};

use super::{Figures, Fleet, Size, World, worker};
use crate::actor::Publisher;

const WORKERS: usize = 4;

pub async fn events_of_killed_workers_are_handled_once_more_and_in_order(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("killed_workers", seed, &[]).await;
    let mut fleet = fleet(&mut world, WORKERS);
    let until = Instant::now() + size.seconds(24, 60);
    while Instant::now() < until {
        let pause = Duration::from_millis(world.random.u64(50..400));
        tokio::time::sleep(pause).await;
        misfortune(&mut world, &mut fleet);
    }
    for actor in fleet.workers.iter_mut().filter(|actor| actor.is_frozen()) {
        actor.thaw(&world);
    }
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    world.judge(Vec::new()).await
}

/// So many workers, and a publisher of either sort.
pub fn fleet(world: &mut World, workers: usize) -> Fleet {
    let mut fleet = Fleet::default();
    for _ in 0..workers {
        fleet.start_worker(world, worker(world));
    }
    for one_by_one in [true, false] {
        let publisher = publisher(world, one_by_one);
        fleet.start_publisher(world, publisher);
    }
    fleet
}

/// A publisher of single events by SQL, or of batches by Rust.
pub fn publisher(world: &mut World, one_by_one: bool) -> Publisher {
    Publisher {
        url: world.url.clone(),
        journal: std::path::PathBuf::new(),
        name: String::new(),
        seed: world.random.u64(..),
        groups: 20,
        batch: if one_by_one { 1 } else { 10 },
        pause_ms: if one_by_one { 8 } else { 60 },
        // Few attempts, so that some events are given up after the deaths of their workers.
        max_attempts: if one_by_one { 3 } else { 100 },
    }
}

fn misfortune(world: &mut World, fleet: &mut Fleet) {
    let place = world.random.usize(0..fleet.workers.len());
    match world.random.u8(0..20) {
        0..14 => {
            fleet.workers[place].kill(world);
            fleet.workers.swap_remove(place);
            fleet.start_worker(world, worker(world));
        }
        14..19 => {
            let actor = &mut fleet.workers[place];
            if actor.is_frozen() {
                actor.thaw(world);
            } else {
                actor.freeze(world);
            }
        }
        _ => {
            let place = world.random.usize(0..fleet.publishers.len());
            fleet.publishers[place].kill(world);
            fleet.publishers.swap_remove(place);
            let one_by_one = world.random.bool();
            let publisher = publisher(world, one_by_one);
            fleet.start_publisher(world, publisher);
        }
    }
}
