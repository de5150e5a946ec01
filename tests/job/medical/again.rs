//! Every kind of job, run more than once.

use serde_json::Value;
use tidegate::Event as _;
use tidegate::testing::handlers_of;
use tidegate_job::app::Event;
use tidegate_job::app::medical::KINDS;
use tidegate_job::app::medical::services::{OTP, SIGNATURE, SMS};

use super::cases::{Case, cases};
use super::world::{World, payload};
use crate::support::services::Mode;

#[tokio::test]
async fn d8_every_kind_of_job_that_runs_again_has_the_effects_of_once() {
    let good: Vec<Case> = cases()
        .into_iter()
        .filter(|case| case.code == 200)
        .collect();
    for kind in KINDS {
        assert!(
            good.iter().any(|case| case.kind == *kind),
            "{kind}: no case to run again"
        );
    }
    for case in &good {
        let name = case.to_string();
        let once = once(case).await;
        assert_eq!(again(case, &name).await, once, "{name}");
    }
}

/// Jobs that talk to the patient verify a signature as well, once: they name the other one.
const TWO_SERVICES: [&str; 2] = ["service_request_cancel_job", "service_request_recall_job"];

#[tokio::test]
async fn a18_each_kind_of_job_calls_the_service_that_it_names_and_but_for_two_no_other() {
    for case in cases().iter().filter(|case| case.code == 200) {
        let world = submitted(case).await;
        world.drain().await;
        let payload = payload(&case.own).to_string();
        let event = Event::decode(case.kind, Some(payload.as_bytes())).unwrap();
        let mut named: Vec<(String, &str)> = handlers_of(&*world.app, &event)
            .into_iter()
            .filter_map(|(handler, service)| Some((handler.to_owned(), service?)))
            .collect();
        if TWO_SERVICES.contains(&case.kind) {
            named.push((case.kind.to_owned(), SIGNATURE));
        }
        named.sort_unstable();
        let called = Vec::from_iter(world.services.callers());
        assert_eq!(called, named, "{case}");
    }
}

async fn submitted(case: &Case) -> World {
    let mut world = World::new().await;
    world.seed(&case.seed).await;
    world.submit(case.kind, &payload(&case.own)).await;
    world
}

async fn once(case: &Case) -> Value {
    let world = submitted(case).await;
    world.drain().await;
    world.effects().await
}

/// Each service in turn does what it is asked and its answer is lost; then all is done, and the database
/// refuses the job's end, twice; then the job runs to its end.
async fn again(case: &Case, name: &str) -> Value {
    let world = submitted(case).await;
    let before = world.effects().await;
    world
        .execute(
            "ALTER TABLE tidegate.event_log ADD CONSTRAINT not_now CHECK (kind = '') NOT VALID",
        )
        .await;
    for service in [SIGNATURE, OTP, SMS] {
        world.services.set(service, Mode::Mute);
        run_in_vain(&world).await;
        world.services.set(service, Mode::Up);
    }
    for _ in 0..2 {
        run_in_vain(&world).await;
    }
    let meanwhile = world.effects().await;
    for left in ["entities", "audit", "jobs"] {
        assert_eq!(
            meanwhile[left], before[left],
            "{name}: {left} before its end"
        );
    }
    world
        .execute("ALTER TABLE tidegate.event_log DROP CONSTRAINT not_now")
        .await;
    world.drain().await;
    let attempts = "SELECT attempts FROM tidegate.event_log ORDER BY id LIMIT 1";
    let attempts = world.value(attempts).await;
    assert!(attempts.as_i64() >= Some(3), "{name}: {attempts} runs");
    world.effects().await
}

async fn run_in_vain(world: &World) {
    let report = world.drain().await;
    assert_eq!(report.completed, 0, "{report:?}");
    world.time_passes().await;
    world.requeue().await;
}
