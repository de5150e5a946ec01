//! Row 26: handlers that block all their threads. The drain has its own thread: it renews its leases, its run
//! ends, and events that it had not started return to the queue.

use std::time::{Duration, Instant};

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use crate::journal::{Left, Record};

pub async fn handlers_that_block_every_thread_stop_neither_renewals_nor_the_runs_end(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("blocked_threads", seed, &[]).await;
    let mut further = Vec::new();
    for concurrency in [8, 1] {
        further.extend(block(&world, concurrency).await);
    }
    let history = world.history(true).await;
    further.extend(harmed(&history));
    world.judge(further).await
}

/// Measures no time: the gate opens after the run was reported, which must happen while the gate is closed.
async fn block(world: &World, concurrency: usize) -> Vec<Violation> {
    let gate = world.path(&format!("gate-{concurrency}"));
    let blocking = (0..concurrency).map(|number| Work {
        gate: Some(gate.clone()),
        ..Work::new(format!("blocks {number} of {concurrency}"))
    });
    let innocent = (0..30).map(|number| Work::new(format!("{number} beside {concurrency}")));
    let all = blocking
        .chain(innocent)
        .map(|work| (None, Torture::Plain(work)));
    let name = format!("beside {concurrency}");
    world.publish(&name, all.collect(), 5).await;
    let calm = Worker {
        lease_ms: 9_000,
        handler_ms: 8_100,
        budget_ms: 8_000,
        concurrency,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let once = Worker {
        once: true,
        ..calm.clone()
    };
    let place = fleet.start_worker(world, once);
    let process = fleet.workers[place].name.clone();
    let mut found = Vec::new();
    let renewed = "SELECT count(*) FROM (SELECT FROM tidegate.lease WHERE renewed_at > taken_at LIMIT 1) AS l";
    if !world.comes_to(renewed, 1).await {
        let text = format!("no lease is renewed beside {concurrency} handlers that block");
        found.push(Violation::new("I6", text));
    }
    if !is_reported(world, &process).await {
        let text = format!("a run does not end beside {concurrency} handlers that block");
        found.push(Violation::new("I8", text));
    }
    std::fs::write(&gate, "").unwrap();
    fleet.wait(world);
    fleet.start_worker(world, calm);
    world.drain(&mut fleet).await;
    found
}

async fn is_reported(world: &World, process: &str) -> bool {
    let reported = |journal: &Left| {
        let mut lines = journal.lines.iter();
        journal.name == process && lines.any(|line| matches!(line.record, Record::Reported { .. }))
    };
    let deadline = Instant::now() + world.patience;
    while !world.journals().iter().any(reported) {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Nothing lapsed, and events that did not block had one attempt.
fn harmed(history: &History) -> Vec<Violation> {
    let lapses = history.charges.iter().filter(|charge| charge.is_lapse());
    let lapses = lapses.map(|charge| {
        Violation::new(
            "I10",
            format!("event {} lapsed under a worker that lived", charge.id),
        )
    });
    let harmed = history.rows.iter().filter(|row| {
        let blocks = row
            .key
            .as_ref()
            .is_some_and(|key| key.starts_with("blocks"));
        row.status != "COMPLETED" || row.attempts > if blocks { 3 } else { 1 }
    });
    let harmed = harmed.map(|row| {
        let (id, status, attempts) = (row.id, &row.status, row.attempts);
        Violation::new(
            "I10",
            format!("event {id} is {status} after {attempts} attempts"),
        )
    });
    lapses.chain(harmed).collect()
}
