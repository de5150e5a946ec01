//! Row 33: the database has lost a part of payloads. One such event is planned for later, others are in the
//! lease of a worker that is killed. They fail, and no other event waits for them.

use std::time::Duration;

use tidegate::Database;
use tidegate::retention::{CleanupHooks, CleanupOptions, cleanup};
use tokio_postgres::Client;

use crate::actor::{Torture, Work, Worker};
use crate::checker::{History, Violation};
use crate::experiments::Size;
use crate::figures::Figures;
use crate::fleet::{Fleet, worker};
use crate::journal::Record;
use crate::world::World;

const NEIGHBOURS: i64 = 60;

/// Only a hang takes longer.
const BOUND: Duration = Duration::from_mins(1);

pub async fn payloads_that_cannot_be_read_keep_no_other_event_waiting(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("unreadable_payloads", seed, &[]).await;
    let further = lose_some(&mut world, BOUND).await;
    world.judge(further).await
}

/// Without the guard, the end of such an event reads its payload.
pub async fn negative_control_an_end_that_reads_the_payload_never_ends_what_cannot_be_read(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let mut world = World::start("unreadable_payloads_control", seed, &[]).await;
    world
        .unguard(
            "tidegate.end_unreadable",
            "SET payload = NULL",
            "SET last_error = NULL",
        )
        .await;
    let further = lose_some(&mut world, Duration::from_secs(8)).await;
    world.convict(further).await
}

async fn lose_some(world: &mut World, bound: Duration) -> Vec<Violation> {
    let client = world.client().await;
    let slow = Work {
        takes_ms: vec![4000, 0],
        ..Work::new("slow")
    };
    let slow = world
        .publish("slow", vec![(None, Torture::Plain(slow))], 5)
        .await[0];
    let mut lost = Vec::new();
    for (number, group) in ["NULL", "'g0'", "NULL"].into_iter().enumerate() {
        lost.push(publish_large(&client, number, group).await);
    }
    let ids = publish(world).await;
    // The last ones are planned for later.
    let later = "UPDATE tidegate.event_queue SET available_at = clock_timestamp() + interval '1 second' WHERE id = ANY ($1)";
    let planned = [&ids[ids.len() / 2..], &lost[2..]].concat();
    client.execute(later, &[&planned]).await.unwrap();
    let patient = Worker {
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 1,
        budget_ms: 60_000,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let place = fleet.start_worker(world, patient.clone());
    world
        .wait_for("the slow event is at work", |journals| {
            let mut lines = journals.iter().flat_map(|journal| &journal.lines);
            lines.any(|line| matches!(line.record, Record::Started { id, .. } if id == slow))
        })
        .await;
    lose_payloads(&client).await;
    fleet.kill_worker(world, place).await;
    let mut further: Vec<Violation> = not_held(world, &lost[..2]).await.into_iter().collect();
    fleet.start_worker(
        world,
        Worker {
            concurrency: 4,
            ..patient
        },
    );
    clean(world).await;
    let patience = std::mem::replace(&mut world.patience, bound);
    let left = "SELECT count(*) FROM tidegate.event_queue";
    if !world.comes_to(left, 0).await {
        let left = world.number(left).await;
        let text = format!("{left} events do not end beside payloads that cannot be read");
        further.push(Violation::new("I8", text));
        // Nobody can read the history beside them.
        let mend =
            r#"UPDATE tidegate.event_queue SET payload = '{"key": "lost"}' WHERE id = ANY ($1)"#;
        client.execute(mend, &[&lost]).await.unwrap();
    }
    world.patience = patience;
    fleet.finish(world);
    further.extend(harmed(&world.history(true).await, &lost));
    further
}

/// Whether the dead worker had not leased all of these events.
async fn not_held(world: &World, ids: &[i64]) -> Option<Violation> {
    let leased = "SELECT count(DISTINCT id) FROM torture.taken WHERE id = ANY ($1)";
    let client = world.client().await;
    let leased: i64 = client.query_one(leased, &[&ids]).await.unwrap().get(0);
    let text = "the worker died without what cannot be read".to_owned();
    (leased < 2).then(|| Violation::new("lease", text))
}

async fn clean(world: &World) {
    let database = Database::new(&(world.url.clone() + "?application_name=cleanup"), 1).unwrap();
    let options = CleanupOptions::default();
    let swept = cleanup(&database, &options, CleanupHooks::default()).await;
    swept.unwrap();
}

async fn publish(world: &World) -> Vec<i64> {
    let events = (0..NEIGHBOURS).map(|number| {
        let work = Work {
            silent: number % 2 == 0,
            ..Work::new(number.to_string())
        };
        let group = (number % 3 == 0).then(|| format!("g{}", number % 2));
        (group, Torture::Plain(work))
    });
    world.publish("all", events.collect(), 5).await
}

/// Publishes an event whose payload is stored aside. No journal tells of it, because its key will be lost.
async fn publish_large(client: &Client, number: usize, group: &str) -> i64 {
    // Random text, which no compression keeps within the row.
    let sql = format!(
        "SELECT p.id FROM tidegate.publish('plain', jsonb_build_object('key', 'lost {number}', 'canary', '', 'ballast',
                (SELECT string_agg(md5(n::text || random()), '') FROM generate_series(1, 300) AS n)), {group}) AS p"
    );
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Removes the first part of everything that is stored aside.
async fn lose_payloads(client: &Client) {
    let aside = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'tidegate.event_queue'::regclass";
    let aside: String = client.query_one(aside, &[]).await.unwrap().get(0);
    // No statement deletes from where payloads are stored aside, not even a superuser's: for a moment it is a
    // plain table.
    let lose = format!(
        "BEGIN;
         SET LOCAL allow_system_table_mods = on;
         UPDATE pg_class SET relkind = 'r' WHERE oid = '{aside}'::regclass;
         DELETE FROM {aside} WHERE chunk_seq = 0;
         UPDATE pg_class SET relkind = 't' WHERE oid = '{aside}'::regclass;
         COMMIT"
    );
    client.batch_execute(&lose).await.unwrap();
    // What was deleted is read until it is gone.
    let read = "SELECT sum(length(payload::text)) FROM tidegate.event_queue";
    while client.query(read, &[]).await.is_ok() {
        let vacuum = "VACUUM tidegate.event_queue";
        client.batch_execute(vacuum).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn harmed(history: &History, lost: &[i64]) -> Vec<Violation> {
    let wrong = history.rows.iter().filter(|row| {
        if lost.contains(&row.id) {
            row.status != "FAILED" || row.code.as_deref() != Some("unreadable")
        } else {
            row.status != "COMPLETED" || row.attempts > 2
        }
    });
    wrong
        .map(|row| {
            let (id, status, attempts, code) = (row.id, &row.status, row.attempts, &row.code);
            let text = format!("event {id} is {status} after {attempts} attempts ({code:?})");
            Violation::new("I10", text)
        })
        .collect()
}
