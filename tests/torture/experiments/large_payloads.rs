//! Part of row 24: payloads of one megabyte, many more than a small function could hold in memory
//! at once.

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{CANARY, Worker};
use crate::journal::{Record, Told};

/// Limit for a worker's peak memory: far more than it needs, and far less than all payloads.
const MOST_KILOBYTES: u64 = 96 << 10;

pub async fn payloads_of_a_megabyte_are_drained_in_little_memory(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let world = World::start("large_payloads", seed, &[]).await;
    publish(&world, size.pick(600, 1200)).await;
    let mut fleet = Fleet::default();
    let small = Worker {
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 8,
        batch: 1000,
        budget_ms: 60_000,
        // Address space: stacks and arenas reserve far more than they use.
        memory_mb: Some(1024),
        ..worker(&world)
    };
    fleet.start_worker(&world, small);
    world.drain(&mut fleet).await;
    let most = world
        .journals()
        .iter()
        .flat_map(|journal| &journal.lines)
        .find_map(|line| {
            let Record::Grew { kilobytes } = line.record else {
                return None;
            };
            Some(kilobytes)
        });
    let mut further = Vec::new();
    if most.is_none_or(|most| most > MOST_KILOBYTES) {
        let text = format!("a worker had {most:?} kB of {MOST_KILOBYTES}");
        further.push(Violation::new("memory", text));
    }
    let again = world
        .number("SELECT count(*) FROM tidegate.event_log WHERE attempts > 1")
        .await;
    if again > 0 {
        let text = format!("{again} events were tried again");
        further.push(Violation::new("I10", text));
    }
    world.judge(further).await
}

/// Publishes by a plain INSERT, which need not send the payloads.
async fn publish(world: &World, count: usize) {
    let told = |number: usize| Told {
        key: number.to_string(),
        group: None,
    };
    let publish = "large".to_owned();
    world.journal.write(Record::Trying {
        publish: publish.clone(),
        events: (0..count).map(told).collect(),
    });
    let sql = "INSERT INTO tidegate.event_queue (kind, payload)
               SELECT 'plain', json_build_object('key', n::text, 'canary', $2::text, 'silent', n % 2 = 0,
                                                 'ballast', repeat('x', 1000000))
                 FROM generate_series(0, $1::bigint - 1) AS n ORDER BY n RETURNING id";
    let count = i64::try_from(count).unwrap();
    let rows = world
        .client()
        .await
        .query(sql, &[&count, &CANARY])
        .await
        .unwrap();
    world.journal.write(Record::Acknowledged {
        publish,
        ids: rows.iter().map(|row| row.get(0)).collect(),
    });
}
