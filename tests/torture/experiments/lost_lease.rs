//! Part of row 2: the answer to a lease is lost, and the worker leases again. Events of the lost lease do not
//! belong to the worker until they have been given back. This happens at once and without a charge. Their
//! group has to wait.

use std::time::Duration;

use super::{Figures, Fleet, Size, Violation, World, worker};
use crate::actor::{Torture, Work, Worker};
use test_support::proxy::{Harm, Proxy};

pub async fn a_group_waits_for_its_event_that_a_lost_lease_has_taken(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let world = World::start("lost_lease", seed, &[]).await;
    for round in 0..size.pick(1, 5) {
        lose_a_lease(&world, round).await;
    }
    let mut last = Fleet::default();
    last.start_worker(&world, worker(&world));
    world.drain(&mut last).await;
    let overtaken = "SELECT count(*) FROM tidegate.event_log AS ahead
                       JOIN tidegate.event_log AS behind ON behind.group_key = ahead.group_key AND behind.id > ahead.id
                      WHERE behind.processing_started_at < ahead.processing_started_at";
    let overtaken = world.number(overtaken).await;
    let mut further = Vec::new();
    if overtaken > 0 {
        let text =
            format!("{overtaken} events were leased while an earlier one of their group was open");
        further.push(Violation::new("I4", text));
    }
    // The events of the lost lease were given back: no worker died, and nothing had started.
    let charged =
        "SELECT count(*) FROM tidegate.event_log WHERE attempts <> 1 OR status <> 'COMPLETED'";
    let charged = world.number(charged).await;
    if charged > 0 {
        let text = format!("{charged} events lost an attempt by an answer that was lost");
        further.push(Violation::new("I10", text));
    }
    world.judge(further).await
}

/// The events of the lost lease may have been started by it, which must cost them no attempt. One on its last
/// attempt would not be started with its lease.
async fn lose_a_lease(world: &World, round: u32) {
    let proxy = Proxy::before(&world.url).await;
    proxy.harm_when_said("FROM tidegate.lease(", Harm::Withhold);
    let event = |name: &str, group: Option<String>| {
        let work = Work {
            takes_ms: vec![100],
            ..Work::new(format!("{round} {name}"))
        };
        (group, Torture::Plain(work))
    };
    let group = Some(format!("g{round}"));
    let ahead = event("ahead", group.clone());
    world
        .publish(&format!("{round} ahead"), vec![ahead], 5)
        .await;
    // The other events keep the worker's token in its hands.
    let mut rest: Vec<_> = (0..20)
        .map(|number| event(&number.to_string(), None))
        .collect();
    rest.push(event("behind", group));
    world.publish(&format!("{round} rest"), rest, 5).await;
    let through_proxy = Worker {
        url: proxy.url("postgres"),
        concurrency: 2,
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    fleet.start_worker(world, through_proxy);
    proxy.wait_for_harm().await;
    let leased = "SELECT count(*) FROM tidegate.lease";
    for _ in 0..200 {
        if world.number(leased).await > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.cut_withheld();
    world.drain(&mut fleet).await;
}
