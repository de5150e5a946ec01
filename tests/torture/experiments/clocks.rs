//! Row 20: wrong clocks, set by libfaketime. A server clock that is set forward ends all leases at once. One
//! that is set back prolongs leases and delays events that were published in the meantime. Both are the price
//! of a single clock for all. A worker's clock has no effect.

use std::time::{Duration, Instant};

use super::killed_workers::{fleet, publisher};
use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::journal::Record;
use test_support::clock::Clock;

const HOUR: i64 = 3600;

pub async fn a_servers_clock_that_jumps_costs_duplicates_and_nothing_else(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let Some(clock) = Clock::get() else {
        return Ok(Figures::default());
    };
    let options: Vec<String> = clock
        .variables()
        .into_iter()
        .flat_map(|(name, value)| ["--env".to_owned(), format!("{name}={value}")])
        .collect();
    let mut world = World::start("server_clock", seed, &options).await;
    let mut fleet = fleet(&mut world, 3);
    let until = Instant::now() + size.seconds(8, 40);
    while Instant::now() < until {
        let up = Duration::from_millis(world.random.u64(300..2000));
        tokio::time::sleep(up).await;
        let hours = world.random.i64(-2..=2);
        set(&world, &clock, hours * HOUR);
    }
    // Events that were published or leased while the clock was ahead wait until it reaches that time again.
    set(&world, &clock, 2 * HOUR + 60);
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    let moved = world.number("SELECT (max(finished_at) > now() - interval '10 minutes' AND max(finished_at) > min(finished_at) + interval '30 minutes')::int::bigint FROM tidegate.event_log").await;
    let mut further = Vec::new();
    if moved != 1 {
        further.push(Violation {
            invariant: "clock",
            text: "the server's clock did not move".to_owned(),
        });
    }
    world.judge(further).await
}

fn set(world: &World, clock: &Clock, seconds: i64) {
    clock.set(seconds);
    world.journal.write(Record::ClockSet { seconds });
}

pub async fn a_workers_clock_that_is_a_day_off_changes_nothing(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let Some(clock) = Clock::get() else {
        return Ok(Figures::default());
    };
    let mut world = World::start("worker_clock", seed, &[]).await;
    let mut fleet = Fleet::default();
    for offset in ["-1d", "+1d"] {
        fleet.variables = vec![
            (
                "LD_PRELOAD".to_owned(),
                clock.library().display().to_string(),
            ),
            ("FAKETIME".to_owned(), offset.to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
            ("FAKETIME_DISABLE_SHM".to_owned(), "1".to_owned()),
        ];
        // These leases lapse only if a clock says so.
        let calm = crate::actor::Worker {
            lease_ms: 30_000,
            handler_ms: 20_000,
            // No run ends early and interrupts its handlers.
            budget_ms: 600_000,
            ..worker(&world)
        };
        fleet.start_worker(&world, calm);
    }
    let publisher = publisher(&mut world, false);
    fleet.start_publisher(&world, publisher);
    tokio::time::sleep(size.seconds(5, 20)).await;
    fleet.finish_publishers(&world);
    world.drain(&mut fleet).await;
    let figures = Figures::of(&world.history(true).await);
    let mut further = Vec::new();
    if figures.duplicates > 0 || figures.lease_lost > 0 || figures.starts == 0 {
        further.push(Violation {
            invariant: "clock",
            text: format!("a worker's clock made a difference: {figures}"),
        });
    }
    if !world.logs_tell_of_days_apart() {
        further.push(Violation {
            invariant: "clock",
            text: "the workers' clocks were not off".to_owned(),
        });
    }
    world.judge(further).await
}
