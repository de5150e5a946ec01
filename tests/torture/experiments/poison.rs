//! Row 23: events that kill their worker, mixed with events that do not. A dead worker is replaced at once,
//! and its events become free at once. An innocent event may lose the one attempt in which it ran beside a
//! killing event, and no more, because lapsed events run alone.

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Crash, Torture, Work, Worker};

/// The default number of attempts.
const MOST_ATTEMPTS: u16 = 5;

pub async fn an_event_that_kills_its_worker_takes_none_of_thousands_with_it(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let events = size.pick(2_000, 5_000);
    poisoned("one_poison", seed, size, (events, 1), 1).await
}

pub async fn one_in_a_hundred_that_kills_its_worker_takes_none_of_the_others_with_it(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let events = size.pick((2_000, 20), (10_000, 100));
    poisoned("many_poisons", seed, size, events, 4).await
}

async fn poisoned(
    name: &str,
    seed: u64,
    size: Size,
    (events, poisons): (usize, usize),
    workers: usize,
) -> Result<Figures, String> {
    let mut world = World::start(name, seed, &[]).await;
    world.patience = size.seconds(300, 1400);
    publish(&mut world, events, poisons).await;
    // A live worker always renews these leases in time, so only leases of dead workers lapse.
    let patient = Worker {
        lease_ms: 20_000,
        handler_ms: 15_000,
        concurrency: 8,
        batch: 1000,
        budget_ms: 60_000,
        ..worker(&world)
    };
    let mut fleet = Fleet::default();
    for _ in 0..workers {
        fleet.start_worker(&world, patient.clone());
    }
    fleet.tend_to_the_end(&world, &patient).await;
    fleet.finish(&world);
    let history = world.history(true).await;
    let further = harmed(&history);
    world.judge(further).await
}

/// Publishes events, a third of them in groups. The killing events may be anywhere.
async fn publish(world: &mut World, events: usize, poisons: usize) {
    let mut fates: Vec<bool> = (0..events).map(|number| number < poisons).collect();
    world.random.shuffle(&mut fates);
    let mut all = Vec::new();
    for (number, poison) in fates.into_iter().enumerate() {
        let work = Work {
            crash: poison.then_some(Crash::Abort),
            silent: world.random.bool(),
            ..Work::new(if poison {
                format!("poison {number}")
            } else {
                number.to_string()
            })
        };
        let group = world.random.u8(0..60);
        all.push((
            (group < 20).then(|| format!("g{group}")),
            Torture::Plain(work),
        ));
    }
    for part in 0..events.div_ceil(500) {
        let batch: Vec<_> = all.drain(..all.len().min(500)).collect();
        world
            .publish(&format!("part {part}"), batch, MOST_ATTEMPTS)
            .await;
    }
}

/// Returns innocent events that were harmed, and killing events that were not given up.
fn harmed(history: &History) -> Vec<Violation> {
    let wrong = history.rows.iter().filter(|row| {
        let is_poison = row
            .key
            .as_ref()
            .is_some_and(|key| key.starts_with("poison"));
        let fine = if is_poison {
            row.status == "FAILED" && row.attempts == u32::from(MOST_ATTEMPTS)
        } else {
            row.status == "COMPLETED" && row.attempts <= 2
        };
        !fine
    });
    wrong
        .map(|row| {
            let (id, key, status, attempts) = (row.id, &row.key, &row.status, row.attempts);
            let text = format!("event {id} ({key:?}) is {status} after {attempts} attempts");
            Violation::new("I10", text)
        })
        .collect()
}
