//! Row 3: workers are frozen between a handler's end and its finalize for longer than their leases. Another
//! worker takes their events. They thaw while it is handling the events, or after it has ended them.

use std::time::Duration;

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use crate::journal::{Left, Record};

pub async fn a_worker_frozen_beyond_its_lease_changes_nothing_when_it_goes_on(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let world = World::start("frozen_worker", seed, &[]).await;
    let mut frozen = 0;
    for round in 0..size.pick(1, 6) {
        frozen += freeze_and_thaw(&world, round).await;
    }
    let mut last = Fleet::default();
    last.start_worker(&world, worker(&world));
    world.drain(&mut last).await;
    let figures = Figures::of(&world.history(true).await);
    let mut further = Vec::new();
    if figures.lease_lost < frozen {
        further.push(Violation {
            invariant: "I5",
            text: format!(
                "{frozen} leases were lost, {} were counted",
                figures.lease_lost
            ),
        });
    }
    world.judge(further).await
}

/// Leases lapse before the drain considers a handler overdue, and no run ends while its worker is frozen, on
/// however slow a machine.
fn patient(world: &World) -> Worker {
    Worker {
        lease_ms: 2000,
        handler_ms: 1800,
        budget_ms: 600_000,
        ..worker(world)
    }
}

/// Whether the handler works in its own transaction, leaves no result, and is still running in the other
/// worker when its worker thaws; and how often it asks for a retry.
const WORK: [(bool, bool, bool, u32); 7] = [
    (false, false, true, 0),
    (false, true, true, 0),
    (true, false, true, 0),
    (true, true, true, 0),
    (false, true, false, 0),
    (true, false, false, 0),
    (false, true, true, 1),
];

async fn freeze_and_thaw(world: &World, round: u32) -> u64 {
    let mut fleet = Fleet::default();
    let mut events = Vec::new();
    for (kept, silent, meanwhile, retries) in WORK {
        let key =
            format!("{round} kept {kept} silent {silent} meanwhile {meanwhile} retries {retries}");
        let work = Work {
            takes_ms: vec![0, if meanwhile { 1500 } else { 0 }],
            freeze: true,
            silent,
            retries,
            ..Work::new(&key)
        };
        let event = if kept {
            Torture::Kept(work)
        } else {
            Torture::Plain(work)
        };
        let place = fleet.start_worker(world, patient(world));
        let id = world.publish(&key, vec![(None, event)], 5).await[0];
        let name = fleet.workers[place].name.clone();
        world
            .wait_for("the worker has stopped itself", |journals| {
                journals
                    .iter()
                    .any(|journal| journal.name == name && ends(journal, id, 1))
            })
            .await;
        events.push((id, meanwhile, place));
    }
    let frozen = fleet.workers.len();
    fleet.start_worker(world, patient(world));
    for (id, meanwhile, place) in events {
        world
            .wait_for("another worker has the event", |journals| {
                journals.iter().any(|journal| {
                    if meanwhile {
                        has_started(journal, id, 2)
                    } else {
                        ends(journal, id, 2)
                    }
                })
            })
            .await;
        if !meanwhile {
            wait_until_logged(world, id).await;
        }
        fleet.workers[place].freeze(world);
        fleet.workers[place].thaw(world);
    }
    fleet.finish(world);
    frozen as u64
}

fn has_started(journal: &Left, id: i64, attempt: u32) -> bool {
    journal.lines.iter().any(|line| {
        matches!(line.record, Record::Started { id: of, attempt: in_attempt, .. } if (of, in_attempt) == (id, attempt))
    })
}

fn ends(journal: &Left, id: i64, attempt: u32) -> bool {
    journal.lines.iter().any(|line| {
        matches!(line.record, Record::Ended { id: of, attempt: in_attempt, .. } if (of, in_attempt) == (id, attempt))
    })
}

async fn wait_until_logged(world: &World, id: i64) {
    let sql = format!("SELECT count(*) FROM tidegate.event_log WHERE id = {id}");
    for _ in 0..500 {
        if world.number(&sql).await == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("event {id} does not end; seed {}", world.seed);
}
