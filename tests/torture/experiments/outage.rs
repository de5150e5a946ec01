//! The service that all handlers call is down for a while, and workers are killed in the meantime, including
//! probing ones. No event loses an attempt to the outage. An event in a killed process may lose the attempt
//! that it can always lose. The service is called rarely, and when it is back, all events end, in order.

use std::path::Path;
use std::time::Duration;

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};

/// Number of workers, each of which runs this many handlers at once.
const WORKERS: usize = 3;
const CONCURRENCY: usize = 8;

pub async fn a_service_that_is_down_while_workers_are_killed_spends_no_attempt_of_those_that_wait(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("outage", seed, &[]).await;
    let up = world.path("up");
    let count = size.pick(600, 5000);
    publish(&world, count, &up).await;
    let template = Worker {
        concurrency: CONCURRENCY,
        batch: 1000,
        budget_ms: 60_000,
        ..worker(&world)
    };
    let mut fleet = Fleet::default();
    for _ in 0..WORKERS {
        fleet.start_worker(&world, template.clone());
    }
    let mut further = Vec::new();
    let open = "SELECT count(*) FROM tidegate.service WHERE state <> 'closed'";
    if !world.comes_to(open, 1).await {
        further.push(Violation::new(
            "I10",
            "nobody noticed the outage".to_owned(),
        ));
    }
    let kills = size.pick(4, 30);
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(world.random.u64(200..1500))).await;
        let place = world.random.usize(0..fleet.workers.len());
        fleet.workers[place].kill(&world);
        fleet.workers.swap_remove(place);
        fleet.start_worker(&world, template.clone());
    }
    std::fs::write(&up, "").unwrap();
    world.drain(&mut fleet).await;
    let most_calls = count + (WORKERS + kills) * 64 + 100;
    further.extend(harmed(&world.history(true).await, most_calls));
    world.judge(further).await
}

async fn publish(world: &World, count: usize, up: &Path) {
    let events = (0..count).map(|number| {
        let group = (number % 3 == 0).then(|| format!("g{}", number % 10));
        let work = Work {
            down_until: Some(up.to_owned()),
            silent: number % 2 == 0,
            ..Work::new(number.to_string())
        };
        (group, Torture::Plain(work))
    });
    world.publish("all", events.collect(), 5).await;
}

/// Returns the cost of the outage: attempts that were not lost with a worker, calls beyond `most_calls`, and
/// events that did not complete. Each worker has some calls in progress when the outage begins. After that
/// there is one call every few seconds.
fn harmed(history: &History, most_calls: usize) -> Vec<Violation> {
    let lapses = history.charges.iter().filter(|charge| charge.is_lapse());
    let lapses = lapses.count();
    let spent = history
        .rows
        .iter()
        .map(|row| row.attempts.saturating_sub(1));
    let spent: u32 = spent.sum();
    let calls = Figures::of(history).starts;
    let told = [
        (spent as usize > lapses)
            .then(|| format!("{spent} attempts were spent, and {lapses} lost with their workers")),
        (calls > most_calls as u64).then(|| format!("{calls} calls, and {most_calls} are many")),
    ];
    let open = history.rows.iter().filter(|row| row.status != "COMPLETED");
    let open = open.map(|row| format!("event {} is {}", row.id, row.status));
    let told = told.into_iter().flatten().chain(open);
    told.map(|text| Violation::new("I10", text)).collect()
}
