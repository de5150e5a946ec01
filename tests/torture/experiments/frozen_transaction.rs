//! Row 32: a worker is frozen while its handler has an open transaction with the lock of a row. Its lease
//! expires, and its event becomes a suspect, whose next handler waits for that row. All other events go on.

use std::time::Duration;

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use crate::journal::Record;

const NEIGHBOURS: i64 = 400;

/// Only a hang takes longer.
const BOUND: Duration = Duration::from_mins(1);

pub async fn a_frozen_workers_transaction_keeps_only_its_own_event_waiting(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("frozen_transaction", seed, &[]).await;
    let table =
        "CREATE TABLE torture.shared (n int NOT NULL); INSERT INTO torture.shared VALUES (0)";
    world.client().await.batch_execute(table).await.unwrap();
    let work = Work {
        statement: Some("UPDATE torture.shared SET n = n + 1".to_owned()),
        lingers_ms: 3000,
        ..Work::new("frozen")
    };
    let id = world
        .publish("frozen", vec![(None, Torture::Kept(work))], 5)
        .await[0];
    // The server ends the transaction after the limit of the handler, and so does the worker that waits for
    // it. Before that all others must have ended.
    let patient = Worker {
        lease_ms: 100_000,
        handler_ms: 85_000,
        budget_ms: 600_000,
        ..worker(&world)
    };
    let mut fleet = Fleet::default();
    let frozen = fleet.start_worker(&world, patient.clone());
    let unlocked = "SELECT count(*) FROM (SELECT FROM torture.shared FOR UPDATE SKIP LOCKED) AS s";
    world.comes_to(unlocked, 0).await;
    fleet.workers[frozen].freeze(&world);
    publish(&world).await;
    fleet.let_leases_expire(&world, frozen).await;
    for _ in 0..2 {
        fleet.start_worker(&world, patient.clone());
    }
    let mut further = Vec::new();
    let patience = std::mem::replace(&mut world.patience, BOUND);
    let ended = "SELECT count(*) FROM tidegate.event_log";
    if !world.comes_to(ended, NEIGHBOURS).await {
        let ended = world.number(ended).await;
        let text = format!("{ended} of {NEIGHBOURS} others end beside a suspect that waits");
        further.push(Violation::new("I10", text));
    }
    world.patience = patience;
    // Otherwise nothing was tried.
    world
        .wait_for("the suspect has started", |journals| {
            let mut lines = journals.iter().flat_map(|journal| &journal.lines);
            lines.any(|line| matches!(line.record, Record::Started { id: of, attempt: 2, .. } if of == id))
        })
        .await;
    if world.number(unlocked).await > 0 {
        let text = "the frozen worker's transaction has ended".to_owned();
        further.push(Violation::new("freeze", text));
    }
    fleet.workers[frozen].thaw(&world);
    world.drain(&mut fleet).await;
    let counted = "SELECT n::bigint FROM torture.shared";
    let counted = world.number(counted).await;
    if counted != 1 {
        let text = format!("the handler's update happened {counted} times");
        further.push(Violation::new("effects", text));
    }
    world.judge(further).await
}

async fn publish(world: &World) {
    let events = (0..NEIGHBOURS).map(|number| {
        let work = Work {
            silent: number % 2 == 0,
            ..Work::new(number.to_string())
        };
        let group = (number % 4 == 0).then(|| format!("g{}", number % 5));
        (group, Torture::Plain(work))
    });
    world.publish("all", events.collect(), 5).await;
}
