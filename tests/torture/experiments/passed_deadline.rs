//! Part of row 35: events are leased before their deadline, and wait in hand behind a slow one until the
//! deadline has passed. None of them starts after that.

use std::time::Duration;

use crate::actor::{Torture, Work, Worker};
use crate::checker::{Violation, starts};
use crate::experiments::Size;
use crate::figures::Figures;
use crate::fleet::{Fleet, worker};
use crate::journal::monotonic;
use crate::world::World;

/// No more than a worker with one place leases ahead.
const LATE: i64 = 4;

/// From the publish to the deadline. The lease must be taken before it, on the slowest of machines too.
const DEADLINE: Duration = Duration::from_secs(4);

pub async fn an_event_whose_deadline_passes_in_hand_does_not_start(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("passed_deadline", seed, &[]).await;
    let late = late_starts(&world).await?;
    world.judge(late).await
}

/// Without the guard, the worker does not know how long it may wait.
pub async fn negative_control_an_event_whose_deadline_is_not_told_starts_after_it(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("passed_deadline_control", seed, &[]).await;
    let guard = "extract(epoch FROM q.expires_at - l.taken_at)::double precision";
    world
        .unguard("tidegate.read_leased", guard, "NULL::double precision")
        .await;
    let late = late_starts(&world).await?;
    world.convict(late).await
}

async fn late_starts(world: &World) -> Result<Vec<Violation>, String> {
    let slow = Work {
        takes_ms: vec![1500 + u64::try_from(DEADLINE.as_millis()).unwrap()],
        ..Work::new("slow")
    };
    let late = (0..LATE).map(|number| Work::new(number.to_string()));
    let all = std::iter::once(slow).chain(late);
    let all = all.map(|work| (None, Torture::Plain(work))).collect();
    let ids = world.publish("all", all, 5).await;
    let sql = format!(
        "UPDATE tidegate.event_queue SET expires_at = clock_timestamp() + interval '{} seconds' WHERE id > $1",
        DEADLINE.as_secs()
    );
    world
        .client()
        .await
        .execute(&sql, &[&ids[0]])
        .await
        .unwrap();
    let deadline = monotonic() + u64::try_from(DEADLINE.as_nanos()).unwrap();
    let mut fleet = Fleet::default();
    let alone = Worker {
        lease_ms: 30_000,
        handler_ms: 20_000,
        concurrency: 1,
        budget_ms: 60_000,
        ..worker(world)
    };
    fleet.start_worker(world, alone);
    world.drain(&mut fleet).await;
    let in_time = "SELECT count(DISTINCT id) FROM torture.taken WHERE attempt IS NOT NULL";
    let in_time = world.number(in_time).await;
    if in_time != 1 + LATE {
        return Err(format!(
            "only {in_time} events were leased in time; seed {}",
            world.seed
        ));
    }
    let journals = world.journals();
    let late = starts(&journals).into_iter().filter_map(|(id, of_event)| {
        let late = id != ids[0] && of_event.iter().any(|start| start.at > deadline);
        late.then(|| Violation::new("B13", format!("event {id} started after its deadline")))
    });
    Ok(late.collect())
}
