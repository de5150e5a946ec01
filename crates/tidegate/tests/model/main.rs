//! A model of the lease protocol, and a search through all its states. Publishes draw ids and commit in
//! different orders. Leases meet statement by statement, lapse at any moment, or get lost on the way to the
//! worker. Workers freeze, crash and return. Statements arrive late, twice or never. Operators and the
//! cleanup act in between. The model keeps every promise in every state. If one guard is removed, it breaks
//! the promise that the guard protects.
//!
//! Each action names the function it stands for (`protocol.rs`). `queue/interleave.rs` of the core shows on a
//! real Postgres that these functions are as atomic as the model assumes. The rules for a worker are part of
//! the protocol: `worker.rs` contains the rules, and `flaw.rs` the consequences of breaking each one.
//!
//! `cargo test -p tidegate --test model` takes seconds; with `--release`, `-- --ignored` searches further.

mod flaw;
mod lease;
mod others;
mod promise;
mod protocol;
mod scenario;
mod state;
mod worker;

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use flaw::Flaw;
use protocol::Protocol;
use scenario::Scenario;

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
    check(Scenario::ONE_REQUEUED);
    check(Scenario::ONE_CANCELLED);
    check(Scenario::ONE_SNOOZED);
    check(Scenario::REPLAYED);
}

#[test]
fn every_promise_is_kept_in_a_group() {
    check(Scenario::GROUP);
    check(Scenario::LOST);
    check(Scenario::REQUEUED);
    check(Scenario::CANCELLED);
    check(Scenario::SNOOZED);
}

#[test]
fn every_promise_is_kept_when_the_statements_of_leases_meet() {
    check(Scenario::MEETING);
    check(Scenario::APART);
    check(Scenario::APART_BESIDE);
    check(Scenario::APART_LAPSE);
}

#[test]
fn every_promise_is_kept_by_workers_that_use_what_they_know() {
    check(Scenario::WALK);
    check(Scenario::WALK_TOGETHER);
    check(Scenario::WALK_BACK);
    check(Scenario::WALK_PAUSED);
    check(Scenario::WALK_DELAYED);
    check(Scenario::WALK_RUNS);
}

#[test]
fn every_promise_is_kept_by_events_that_may_kill_their_worker() {
    check(Scenario::SUSPECTS);
    check(Scenario::SUSPECTS_OF_A_GROUP);
    check(Scenario::SUSPECTS_THAT_WAIT);
    check(Scenario::ENDED);
}

#[test]
fn every_promise_is_kept_beside_a_poller() {
    check(Scenario::POLLED);
}

#[test]
fn every_promise_is_kept_beside_a_transaction_that_stays_open() {
    check(Scenario::OPEN);
}

#[test]
fn each_removed_guard_breaks_its_promises() {
    for flaw in Flaw::ALL.iter().copied() {
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
#[ignore = "wider; for `cargo test -p tidegate --release --test model -- --ignored`"]
fn every_promise_is_kept_in_wider_worlds() {
    for scenario in [
        Scenario::ONE_FOR_LONG,
        Scenario::MEETING_LOST,
        Scenario::GROUP_UNHEARD,
        Scenario::GROUP_TWICE,
        Scenario::GROUP_REQUEUED,
        Scenario::GROUP_REPLAYED,
        Scenario::APART_LOST,
        Scenario::APART_REQUEUED,
        Scenario::WALK_APART,
        Scenario::WALK_APART_BACK,
        Scenario::WALK_WIDE,
        Scenario::THREE,
        Scenario::THREE_SUSPECTS,
        Scenario::POLLED_WIDE,
    ] {
        check(scenario);
    }
}
