//! Part of row 31: handlers wait in `Context::connection` for a table that somebody has locked, until they
//! are cut off. The events after them get other connections, or wait for none of this.

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};

const CONCURRENCY: usize = 4;
const INNOCENT: usize = 60;

pub async fn handlers_that_are_cut_off_in_a_statement_spoil_no_connection(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("cut_handlers", seed, &[]).await;
    let table = "CREATE TABLE torture.shut (n int)";
    world.client().await.batch_execute(table).await.unwrap();
    let operator = world.client().await;
    let lock = "BEGIN; LOCK TABLE torture.shut IN ACCESS EXCLUSIVE MODE";
    operator.batch_execute(lock).await.unwrap();
    let victims = (0..CONCURRENCY).map(|number| Work {
        statement: Some("SELECT count(*) FROM torture.shut".to_owned()),
        ..Work::new(format!("victim {number}"))
    });
    let innocent = (0..INNOCENT).map(|number| Work {
        statement: Some("SELECT 1".to_owned()),
        takes_ms: vec![10],
        ..Work::new(number.to_string())
    });
    let all = victims.chain(innocent);
    let all = all.map(|work| (None, Torture::Plain(work))).collect();
    // Whoever is harmed has no further attempt.
    world.publish("all", all, 1).await;
    let mut fleet = Fleet::default();
    let patient = Worker {
        lease_ms: 20_000,
        handler_ms: 2000,
        concurrency: CONCURRENCY,
        budget_ms: 60_000,
        ..worker(&world)
    };
    fleet.start_worker(&world, patient);
    let mut further = Vec::new();
    let patience = std::mem::replace(&mut world.patience, std::time::Duration::from_mins(1));
    let left = "SELECT count(*) FROM tidegate.event_queue";
    if !world.comes_to(left, 0).await {
        let text = "events wait for a table that is locked".to_owned();
        further.push(Violation::new("I8", text));
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE application_name LIKE 'worker-%' AND wait_event_type = 'Lock'";
    if !world.comes_to(waiting, 0).await {
        let text = "a statement that was cut off waits on in the server".to_owned();
        further.push(Violation::new("I8", text));
    }
    world.patience = patience;
    operator.batch_execute("COMMIT").await.unwrap();
    world.drain(&mut fleet).await;
    further.extend(harmed(&world.history(true).await));
    world.judge(further).await
}

fn harmed(history: &History) -> Vec<Violation> {
    let wrong = history.rows.iter().filter(|row| {
        let is_victim = row
            .key
            .as_ref()
            .is_some_and(|key| key.starts_with("victim"));
        row.status != if is_victim { "FAILED" } else { "COMPLETED" }
    });
    wrong
        .map(|row| {
            let (id, key, status) = (row.id, &row.key, &row.status);
            Violation::new("I10", format!("event {id} ({key:?}) is {status}"))
        })
        .collect()
}
