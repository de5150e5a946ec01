//! Row 34: quick events turn slow, and then their worker is killed. Only events that were about to start are
//! charged, however many could have started at the earlier pace. Whoever has only one attempt ends without a
//! start in few cases only.

use std::collections::HashSet;

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use crate::checker::starts;

const QUICK: usize = 800;
const SLOW: usize = 120;
const CONCURRENCY: usize = 8;

/// So many may be charged.
const FEW: usize = 6 * CONCURRENCY;

pub async fn a_worker_that_dies_when_its_events_have_turned_slow_charges_few_of_them(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("slower_pace", seed, &[]).await;
    let mut further = Vec::new();
    for max_attempts in [1, 3] {
        kill(&world, max_attempts).await;
        further.extend(harmed(&world.history(true).await, max_attempts));
    }
    world.judge(further).await
}

/// Without the guard, what could have started at the earlier pace counts as started.
pub async fn negative_control_starts_that_are_not_taken_back_charge_many(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("slower_pace_control", seed, &[]).await;
    world
        .unguard(
            "tidegate.take_back_starts",
            "AND l.started_to = a.seen",
            "AND false",
        )
        .await;
    let mut further = Vec::new();
    // How many could have started depends on the pace that the worker has seen. Mostly two rounds are enough.
    for max_attempts in 3..40 {
        kill(&world, max_attempts).await;
        further = harmed(&world.history(true).await, max_attempts);
        if !further.is_empty() {
            break;
        }
    }
    world.convict(further).await
}

/// Kills a worker that handles slow events after quick ones, and lets another one end the rest.
async fn kill(world: &World, max_attempts: u16) {
    let events = (0..QUICK + SLOW).map(|number| {
        let work = Work {
            takes_ms: vec![if number < QUICK { 0 } else { 300 }, 0],
            silent: number % 2 == 0,
            ..Work::new(format!("{number} of {max_attempts}"))
        };
        (None, Torture::Plain(work))
    });
    let name = format!("all {max_attempts}");
    let ids = world.publish(&name, events.collect(), max_attempts).await;
    let patient = Worker {
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: CONCURRENCY,
        batch: 1000,
        budget_ms: 60_000,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let place = fleet.start_worker(world, patient.clone());
    let slow: HashSet<i64> = ids[QUICK..].iter().copied().collect();
    world
        .wait_for("slow events are at work", |journals| {
            let started = starts(journals);
            let started = started.keys().filter(|id| slow.contains(id)).count();
            started > 3 * CONCURRENCY
        })
        .await;
    fleet.kill_worker(world, place).await;
    fleet.start_worker(world, patient);
    world.drain(&mut fleet).await;
}

fn harmed(history: &History, max_attempts: u16) -> Vec<Violation> {
    let started = starts(&history.journals);
    let of = format!(" of {max_attempts}");
    let rows = history.rows.iter().filter(|row| {
        let key = row.key.as_ref();
        key.is_some_and(|key| key.ends_with(&of))
    });
    let mut found = Vec::new();
    let mut ids = HashSet::new();
    let mut unseen = 0;
    for row in rows {
        ids.insert(row.id);
        unseen += usize::from(row.status != "COMPLETED" && !started.contains_key(&row.id));
    }
    // The database knows of a start before it happens.
    if unseen > CONCURRENCY {
        let text = format!("{unseen} events failed without a start");
        found.push(Violation::new("I10", text));
    }
    let charged = history.charges.iter();
    let charged = charged.filter(|charge| charge.is_lapse() && ids.contains(&charge.id));
    let charged = charged.count();
    if charged > FEW {
        let text = format!("a dead worker charged {charged} events, and {FEW} are many");
        found.push(Violation::new("I10", text));
    }
    found
}
