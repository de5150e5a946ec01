//! Row 18: ten runs begin at the same time, like a schedule that ticks twice, or a tick that arrives during
//! a run.

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};

const TICKS: usize = 10;

pub async fn ten_ticks_at_once_start_each_event_once(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("duplicate_ticks", seed, &[]).await;
    let mut events = 0;
    for round in 0..size.pick(2, 8) {
        let batch: Vec<(Option<String>, Torture)> = (0..400)
            .map(|number| {
                let work = Work {
                    takes_ms: vec![world.random.u64(0..5)],
                    retries: u32::from(world.random.u8(0..10) == 0),
                    silent: world.random.bool(),
                    ..Work::new(format!("{round}-{number}"))
                };
                let group = world
                    .random
                    .bool()
                    .then(|| format!("g{}", world.random.u8(0..10)));
                (group, Torture::Plain(work))
            })
            .collect();
        events += batch.len();
        world.publish(&format!("round {round}"), batch, 5).await;
        tick(&world);
    }
    let mut last = Fleet::default();
    last.start_worker(&world, worker(&world));
    world.drain(&mut last).await;
    let figures = Figures::of(&world.history(true).await);
    let mut further = Vec::new();
    if figures.duplicates > 0 || figures.lease_lost > 0 || figures.events != events as u64 {
        further.push(Violation {
            invariant: "ticks",
            text: format!("starts are more than events and their retries: {figures}"),
        });
    }
    world.judge(further).await
}

/// Leases are long, so nothing lapses here.
fn tick(world: &World) {
    let mut fleet = Fleet::default();
    for _ in 0..TICKS {
        let once = Worker {
            lease_ms: 30_000,
            handler_ms: 20_000,
            budget_ms: 25_000,
            once: true,
            ..worker(world)
        };
        fleet.start_worker(world, once);
    }
    // No worker is told to end: each ends at an empty queue.
    fleet.wait(world);
}
