//! Row 30: a worker leases nothing more for longer than a lease lasts, because it may lease no further
//! events. It does not know of one of its leases, whose answer was lost, and does not renew it. Beside it a
//! cleanup and another worker look for dead workers.

use std::time::Duration;

use tidegate::Database;
use tidegate::retention::{CleanupHooks, CleanupOptions, cleanup};

use crate::actor::{Torture, Work, Worker};
use crate::checker::Violation;
use crate::experiments::Size;
use crate::figures::Figures;
use crate::fleet::{Fleet, worker};
use crate::world::World;

/// The events of the first lease, which end at once, and those of the second, which take longer than a lease.
const QUICK: usize = 10;
const SLOW: usize = 8;

pub async fn a_worker_that_leases_nothing_more_keeps_what_it_holds(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("idle_leases", seed, &[]).await;
    let mut further = work_on(&world).await;
    let figures = Figures::of(&world.history(true).await);
    if figures.lease_lost > 0 {
        let text = format!("{} leases of live workers were lost", figures.lease_lost);
        further.push(Violation::new("I6", text));
    }
    let charged =
        "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1 OR status <> 'COMPLETED'";
    let charged = world.number(charged).await;
    if charged > 0 {
        let text = format!("{charged} events of a live worker lost an attempt");
        further.push(Violation::new("I10", text));
    }
    world.judge(further).await
}

/// Without the guard, one lease that has expired stands for its worker.
pub async fn negative_control_one_lease_that_expires_ends_its_live_worker(
    seed: u64,
    _: Size,
) -> Result<Figures, String> {
    let world = World::start("idle_leases_control", seed, &[]).await;
    let guard = "coalesce(max(l.expires_at) FILTER (WHERE NOT l.ended), max(l.expires_at))";
    world
        .unguard("tidegate.dead_workers", guard, "min(l.expires_at)")
        .await;
    // A sweep may break the leases before anybody has seen that one has expired.
    work_on(&world).await;
    let lost = Figures::of(&world.history(true).await).lease_lost;
    let lost = (lost > 0).then(|| Violation::new("I6", format!("{lost} leases were lost")));
    world.convict(lost.into_iter().collect()).await
}

/// Returns a violation if the lost lease did not expire while its worker was at work. Ends when all events
/// have ended.
async fn work_on(world: &World) -> Vec<Violation> {
    let events = (0..QUICK + SLOW).map(|number| {
        let work = Work {
            takes_ms: vec![if number < QUICK { 0 } else { 1200 }],
            silent: number % 2 == 0,
            ..Work::new(number.to_string())
        };
        (None, Torture::Plain(work))
    });
    world.publish("all", events.collect(), 5).await;
    let patient = Worker {
        lease_ms: 2000,
        handler_ms: 1700,
        concurrency: 2,
        batch: 10,
        budget_ms: 20_000,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let at_work = fleet.start_worker(
        world,
        Worker {
            max_events: Some((QUICK + SLOW) as u64),
            once: true,
            ..patient.clone()
        },
    );
    let leased = "SELECT count(*) FROM torture.taken";
    let all = i64::try_from(QUICK + SLOW).unwrap();
    world.comes_to(leased, all).await;
    lose_a_lease(world).await;
    fleet.start_worker(world, patient);
    let database = Database::new(&(world.url.clone() + "?application_name=cleanup"), 1).unwrap();
    let expired = "SELECT count(*) FROM tidegate.lease WHERE expires_at < clock_timestamp()";
    let mut was_there = false;
    while !fleet.workers[at_work].has_ended() {
        was_there |= world.number(expired).await > 0;
        let options = CleanupOptions::default();
        let swept = cleanup(&database, &options, CleanupHooks::default()).await;
        swept.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.drain(&mut fleet).await;
    let untried = || Violation::new("lease", "no lease expired".to_owned());
    (!was_there).then(untried).into_iter().collect()
}

/// Leases an event in the name of the worker, which has leased all that it may.
async fn lose_a_lease(world: &World) {
    let lost = (None, Torture::Plain(Work::new("lost")));
    let ids = world.publish("lost", vec![lost], 5).await;
    let lease = "INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
                 SELECT gen_random_uuid(), l.worker, int8multirange(int8range($1, $1, '[]')), 0, now, now,
                        now + interval '2 seconds', 0, pg_current_xact_id()
                   FROM (SELECT clock_timestamp() AS now) AS n, (SELECT DISTINCT worker FROM tidegate.lease) AS l";
    let leases = world.client().await.execute(lease, &[&ids[0]]).await;
    assert_eq!(leases.unwrap(), 1, "one worker holds leases");
}
