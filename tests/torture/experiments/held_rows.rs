//! Part of row 31: an operator has changed an event and leaves the transaction open. The event is at work, or
//! its worker was killed. Only this event may wait for the operator: not the others of its lease, and not
//! what comes later. When the drains have ended, no session of theirs waits on.

use std::time::Duration;

use crate::actor::{Torture, Work, Worker};
use crate::checker::{History, Violation};
use crate::experiments::Size;
use crate::figures::Figures;
use crate::fleet::{Fleet, worker};
use crate::journal::Record;
use crate::world::World;

/// The events in the lease of the held one, and as many again that are published when it is held.
const NEIGHBOURS: i64 = 200;

/// Only a hang takes longer.
const BOUND: Duration = Duration::from_mins(1);

/// An operator's statement for the event `$`, and whether its worker is killed.
type Case = (&'static str, bool);

const UPDATE: &str = "UPDATE tidegate.events SET max_attempts = 9 WHERE id = $";
const REQUEUE: &str = "SELECT tidegate.requeue(ARRAY[$]::bigint[], 'torture')";

pub async fn an_operator_who_leaves_a_transaction_open_keeps_only_that_event_waiting(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("held_rows", seed, &[]).await;
    let mut further = Vec::new();
    for case in [
        (UPDATE, false),
        (UPDATE, true),
        (REQUEUE, false),
        (REQUEUE, true),
    ] {
        further.extend(hold(&mut world, case, BOUND).await);
    }
    further.extend(harmed(&world.history(true).await));
    world.judge(further).await
}

/// Without the guard, the sweep waits for the event.
pub async fn negative_control_a_sweep_that_waits_for_an_event_frees_none_of_its_lease(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("held_rows_control", seed, &[]).await;
    let guard = "FOR NO KEY UPDATE SKIP LOCKED";
    world
        .unguard("tidegate.locked_with_earlier", guard, "FOR NO KEY UPDATE")
        .await;
    let further = hold(&mut world, (UPDATE, true), Duration::from_secs(8)).await;
    world.convict(further).await
}

async fn hold(world: &mut World, case: Case, bound: Duration) -> Vec<Violation> {
    let (statement, killed) = case;
    let name = format!("{statement}, killed {killed}");
    let before = world.number(ENDED).await;
    let held = Work {
        takes_ms: vec![1000],
        ..Work::new(format!("held: {name}"))
    };
    let held = std::iter::once((None, Torture::Kept(held)));
    let near = neighbours("near", &name);
    let ids = world.publish(&name, held.chain(near).collect(), 5).await;
    let patient = Worker {
        lease_ms: 3000,
        handler_ms: 2500,
        concurrency: 2,
        batch: 1000,
        budget_ms: 30_000,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let place = fleet.start_worker(world, patient.clone());
    world
        .wait_for("the event is at work", |journals| {
            let mut lines = journals.iter().flat_map(|journal| &journal.lines);
            lines.any(|line| matches!(line.record, Record::Started { id, .. } if id == ids[0]))
        })
        .await;
    let operator = world.client().await;
    let open = format!("BEGIN; {}", statement.replace('$', &ids[0].to_string()));
    operator.batch_execute(&open).await.unwrap();
    if killed {
        fleet.kill_worker(world, place).await;
        fleet.start_worker(world, patient.clone());
    }
    let later = neighbours("later", &name).collect();
    world.publish(&format!("later: {name}"), later, 5).await;
    let patience = std::mem::replace(&mut world.patience, bound);
    let mut found = Vec::new();
    if !world.comes_to(ENDED, before + 2 * NEIGHBOURS).await {
        let ended = world.number(ENDED).await - before;
        let text = format!("{ended} of {} others end ({name})", 2 * NEIGHBOURS);
        found.push(Violation::new("I10", text));
    }
    fleet.finish(world);
    if !world.comes_to(WAITING, 0).await {
        let text = format!("a session of a drain that has ended waits on ({name})");
        found.push(Violation::new("I8", text));
    }
    world.patience = patience;
    operator.batch_execute("COMMIT").await.unwrap();
    let mut last = Fleet::default();
    last.start_worker(world, patient);
    world.drain(&mut last).await;
    found
}

const ENDED: &str = "SELECT count(*) FROM tidegate.event_log WHERE kind = 'plain'";

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
                        WHERE application_name LIKE 'worker-%' AND wait_event_type = 'Lock'";

fn neighbours(which: &str, case: &str) -> impl Iterator<Item = (Option<String>, Torture)> {
    let names = (0..NEIGHBOURS).map(move |number| (number, format!("{which} {number}: {case}")));
    let names: Vec<(i64, String)> = names.collect();
    names.into_iter().map(|(number, key)| {
        let work = Work {
            takes_ms: vec![10],
            silent: number % 2 == 0,
            ..Work::new(key)
        };
        (None, Torture::Plain(work))
    })
}

/// No other event may lose more than the attempt that it lost with its worker, and the held one no more than
/// two.
fn harmed(history: &History) -> Vec<Violation> {
    let harm = history.rows.iter().filter(|row| {
        let held = row.key.as_ref().is_some_and(|key| key.starts_with("held"));
        row.status != "COMPLETED" || row.attempts > if held { 3 } else { 2 }
    });
    harm.map(|row| {
        let (id, status, attempts) = (row.id, &row.status, row.attempts);
        let text = format!("event {id} is {status} after {attempts} attempts");
        Violation::new("I10", text)
    })
    .collect()
}
