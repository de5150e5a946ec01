//! Part of row 25: a producer has published to a group and leaves its transaction open, while handlers
//! publish follow-ups to the same group. Only the events of these handlers may wait for it, whatever timeouts
//! the drain's sessions have.

use std::collections::HashSet;

use tidegate::publish;

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker, new_event};
use crate::journal::{Record, Told};

const INNOCENT: i64 = 300;

/// The number of events with follow-ups to the held group.
const WAITING: i64 = 5;

pub async fn a_producer_that_holds_a_group_keeps_only_that_groups_parents_waiting(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("held_group", seed, &[]).await;
    // A role of its own, because timeouts are set on roles.
    let role = "CREATE ROLE night_shift LOGIN SUPERUSER";
    world.client().await.batch_execute(role).await.unwrap();
    let mut further = Vec::new();
    for limits in [
        "",
        "ALTER ROLE night_shift SET statement_timeout = '400ms'",
        "ALTER ROLE night_shift SET lock_timeout = '200ms'",
    ] {
        world.client().await.batch_execute(limits).await.unwrap();
        further.extend(hold(&world, limits).await);
    }
    further.extend(harmed(&world.history(true).await));
    world.judge(further).await
}

async fn hold(world: &World, limits: &str) -> Vec<Violation> {
    let group = format!("held {limits}");
    let producer = world.client().await;
    producer.batch_execute("BEGIN").await.unwrap();
    let told = Told {
        key: format!("of the producer {limits}"),
        group: Some(group.clone()),
    };
    let first = new_event(&told, &Torture::Plain(Work::new(&told.key)), 5);
    let name = told.key.clone();
    world.journal.write(Record::Trying {
        publish: name.clone(),
        events: vec![told],
    });
    let id = publish(&producer, &first).await.unwrap().id;
    publish_work(world, limits, &group).await;
    let mut fleet = Fleet::default();
    let of_role = Worker {
        url: world.url.replace("postgres@", "night_shift@"),
        // Nothing lapses here.
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 8,
        batch: 1000,
        ..worker(world)
    };
    fleet.start_worker(world, of_role);
    let ended = "SELECT count(*) FROM tidegate.event_log WHERE finished_at >= (SELECT max(created_at) FROM tidegate.event_queue
                  WHERE payload->>'follow_up' IS NOT NULL)";
    let mut found = Vec::new();
    if !world.comes_to(ended, INNOCENT).await {
        let text = format!("others wait for a producer that holds a group, with {limits:?}");
        found.push(Violation::new("I10", text));
    }
    let waiting =
        "SELECT count(*) FROM tidegate.event_queue WHERE payload->>'follow_up' IS NOT NULL";
    let waiting = world.number(waiting).await;
    if waiting != WAITING {
        let text = format!("{waiting} of {WAITING} wait for the group that is held");
        found.push(Violation::new("I1", text));
    }
    producer.batch_execute("COMMIT").await.unwrap();
    world.journal.write(Record::Acknowledged {
        publish: name,
        ids: vec![id],
    });
    world.drain(&mut fleet).await;
    found
}

/// The events that will wait come first. The others have results to store too.
async fn publish_work(world: &World, limits: &str, group: &str) {
    let waiting = (0..WAITING).map(|number| Work {
        follow_up: Some(group.to_owned()),
        ..Work::new(format!("waits {number} {limits}"))
    });
    let waiting: Vec<Work> = waiting.collect();
    world.foretell(&waiting);
    let innocent = (0..INNOCENT).map(|number| Work {
        silent: number % 2 == 0,
        ..Work::new(format!("{number} {limits}"))
    });
    let all = waiting.into_iter().chain(innocent);
    let all = all.map(|work| (None, Torture::Plain(work))).collect();
    world.publish(&format!("work {limits}"), all, 5).await;
}

/// Other events must not be affected. Waiting events may lose at most two attempts, and all their follow-ups
/// must exist.
fn harmed(history: &History) -> Vec<Violation> {
    let keys: HashSet<&str> = history
        .rows
        .iter()
        .filter_map(|row| row.key.as_deref())
        .collect();
    let harm = history.rows.iter().filter_map(|row| {
        let key = row.key.as_deref()?;
        let waits = key.starts_with("waits") && !key.ends_with("next");
        let most = if waits { 3 } else { 1 };
        let (id, status, attempts) = (row.id, &row.status, row.attempts);
        if status != "COMPLETED" || attempts > most {
            let text = format!("event {id} ({key}) is {status} after {attempts} attempts");
            return Some(Violation::new("I10", text));
        }
        let next = format!("{key} next");
        (waits && !keys.contains(next.as_str()))
            .then(|| Violation::new("I1", format!("the follow-up of event {id} is not there")))
    });
    harm.collect()
}
