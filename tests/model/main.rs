//! A model of the lease protocol, and a search through all its states: publishes whose ids and commits
//! cross, leases that lapse at any moment, workers that freeze, crash and come back, statements that
//! arrive late, twice or never, operators and the cleanup in between. The model keeps every promise in
//! every state; with one guard taken away it breaks the promise that the guard is for.
//!
//! Each action names the statement it stands for (`protocol.rs`). That those are as atomic as the model
//! takes them to be is shown on a real Postgres by `tests/it/interleave.rs`.
//!
//! `cargo test --test model` takes seconds; `cargo test --release --test model -- --ignored` looks
//! further.

mod flaw;
mod promise;
mod protocol;
mod state;

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use flaw::Flaw;
use protocol::{Protocol, Scenario};

/// Searches all states of the whole protocol.
fn check(scenario: Scenario) {
    let began = Instant::now();
    let protocol = Protocol {
        scenario,
        flaw: None,
    };
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{}: {} states, depth {}, {:.1?}",
        scenario.name,
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    checker.assert_properties();
}

#[test]
fn every_promise_is_kept_whatever_befalls_one_event() {
    check(Scenario::ONE_EVENT);
    check(Scenario::REPLAYED);
}

#[test]
fn every_promise_is_kept_in_a_group() {
    check(Scenario::GROUP);
}

#[test]
fn every_promise_is_kept_by_workers_that_use_what_they_know() {
    check(Scenario::SHORT_WALK);
}

#[test]
fn each_guard_that_is_taken_away_breaks_its_promises() {
    for flaw in Flaw::ALL {
        let (scenario, promises) = flaw.breaks();
        let wanted = promises.iter().copied().collect();
        let protocol = Protocol {
            scenario,
            flaw: Some(flaw),
        };
        let checker = protocol
            .checker()
            .finish_when(HasDiscoveries::AllOf(wanted))
            .timeout(Duration::from_mins(2))
            .spawn_bfs()
            .join();
        for promise in promises {
            let broken = checker.discovery(promise);
            let path = broken.unwrap_or_else(|| panic!("{flaw:?} does not break: {promise}"));
            println!("{flaw:?} breaks: {promise}\n    {:?}", path.into_actions());
        }
    }
}

#[test]
#[ignore = "wider; for `cargo test --release --test model -- --ignored`"]
fn every_promise_is_kept_in_a_group_under_an_operator_and_beside_another_event() {
    for scenario in [
        Scenario::REPLAYED_GROUP,
        Scenario::CANCELLED_GROUP,
        Scenario::REQUEUED_GROUP,
        Scenario::THREE_EVENTS,
        Scenario::WALK,
        Scenario::WALK_PAST,
        Scenario::WALK_PAST_BOTH,
        Scenario::WALK_REQUEUED,
    ] {
        check(scenario);
    }
}
