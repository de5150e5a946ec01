//! The promises of Tidegate (I1 to I8) as properties of the model, the properties they depend on, and what is
//! not promised.

use stateright::Property;

use crate::flaw::Flaw;
use crate::protocol::{Action, Protocol};
use crate::state::{
    Ask, Breach, Hand, Handling, Held, Lease, Mind, Publish, Row, Set, State, Verdict, Walk,
    Worker, in_leases,
};

pub const ONE_PLACE: &str = "I1 a committed publish is in exactly one place, any other in none";
pub const ATTEMPTS: &str = "I3 attempts are at most their limit, and nothing starts beyond it";
pub const COUNTED: &str = "I3 what was started is counted, unless its worker still holds it";
pub const UNCHARGED: &str = "I3 an attempt is counted only where a handler may have started";
pub const SNOOZED: &str =
    "I3 a snooze costs no attempt, and an event is snoozed only as often as it may be";
pub const ALONE: &str = "I3 an event that may kill its worker takes nobody's attempt along";
pub const APART: &str = "I3 an event that may kill its worker starts beside no other such event, nor a last attempt beside it";
pub const ORDER: &str = "I4 a group is started in the order its publishes were committed";
pub const RUN: &str =
    "I4 (G) whoever holds an event holds all that is live ahead of it in its group";
pub const CLEAR: &str =
    "I4 (J) where a walk is clear, what has a group has ended, is leased or is a stray";
pub const FENCED: &str = "I5 a lost lease changes nothing";
pub const ONE_HOLDER: &str = "I6 no event is in two leases";
pub const NO_CLASH: &str = "I6 no lease needs the database to refuse it";
pub const OWN_ROWS: &str = "I7 cleanup, sweep and operators touch only what is theirs to touch";
pub const ENDS: &str = "I8 once the faults are over, everything ends";
pub const GOES_ON: &str = "I8 a worker that holds something can go on with it";
pub const HOLDS: &str =
    "I8 an open transaction keeps nothing waiting but the event that it is about";
pub const EFFECT: &str =
    "effects of a handler's transaction happen at most once, and once when it completed";

type Condition = fn(&Protocol, &State) -> bool;

const ALWAYS: [(&str, Condition); 18] = [
    (ONE_PLACE, |_, state| is_in_one_place(state)),
    (ATTEMPTS, |_, state| {
        attempts_are_in_bounds(state) && kept(state, Breach::TooOften)
    }),
    (COUNTED, |_, state| kept(state, Breach::Uncounted)),
    (UNCHARGED, |_, state| kept(state, Breach::ChargedUnstarted)),
    (SNOOZED, |_, state| {
        kept(state, Breach::GivenUpUnfailed) && kept(state, Breach::SnoozedTooOften)
    }),
    (ALONE, |protocol, state| {
        protocol.scenario.wait_ends || kept(state, Breach::NeighbourCharged)
    }),
    (APART, |_, state| kept(state, Breach::StartedBeside)),
    (ORDER, |_, state| kept(state, Breach::OutOfOrder)),
    (RUN, |_, state| {
        state.leases.iter().all(|lease| is_run(state, lease))
    }),
    (CLEAR, |_, state| walks_are_clear(state)),
    (FENCED, |_, state| kept(state, Breach::StaleWrite)),
    (ONE_HOLDER, |_, state| has_one_holder_each(state)),
    (NO_CLASH, |_, state| kept(state, Breach::Clash)),
    (OWN_ROWS, |_, state| kept(state, Breach::Forbidden)),
    (ENDS, ends_after_the_faults),
    (GOES_ON, workers_can_go_on),
    (HOLDS, open_holds_its_own),
    (EFFECT, |_, state| effects_happen_once(state)),
];

pub const OVERLAP: &str = "not promised: two runs of one event overlap after a freeze";
pub const BESIDE: &str =
    "not promised: an event runs beside an earlier one of its group that was taken over";
pub const ALL_END: &str = "all events have ended";
pub const REFUSED: &str = "a statement under a lost lease changes nothing";
pub const LEASES_ON: &str = "a worker leases on behind an event of its group that it holds";
pub const RUNS_ALONE: &str = "an event runs alone that a worker has died under";
pub const SNOOZES: &str = "an event completes that was snoozed as often as it may be";
pub const GIVEN_UP: &str = "an event is given up unstarted, its attempts being spent";

/// States that the protocol can reach in some scenario. Without this check, a protocol that does nothing
/// would keep all promises.
const SOMETIMES: [(&str, Condition); 8] = [
    (OVERLAP, |_, state| two_runs_overlap(state)),
    (BESIDE, |_, state| runs_beside_what_was_taken_over(state)),
    (ALL_END, |_, state| {
        let mut publishes = state.publishes.iter();
        publishes.all(|publish| *publish == Publish::Over)
            && state.queue.is_empty()
            && !state.log.is_empty()
    }),
    (REFUSED, |_, state| state.witness.refused),
    (LEASES_ON, |_, state| state.minds.iter().any(holds_a_run)),
    (RUNS_ALONE, |_, state| {
        let mut hands = state.minds.iter().flat_map(Mind::hands);
        hands.any(|(held, hand)| held.suspect && hand.stage == Handling::Running)
    }),
    (SNOOZES, |protocol, state| {
        let most = protocol.scenario.most_snoozes;
        let mut log = state.log.iter();
        log.any(|ended| ended.completed && state.witness.snoozed[usize::from(ended.id) - 1] == most)
    }),
    (GIVEN_UP, |_, state| {
        let mut hands = state.minds.iter().flat_map(Mind::hands);
        hands.any(|(_, hand)| hand.abandoned && hand.is_handled())
    }),
];

/// Every promise, and the states that must be reachable in the scenario.
pub fn all(reachable: &[&str]) -> Vec<Property<Protocol>> {
    let always = ALWAYS
        .into_iter()
        .map(|(name, condition)| Property::always(name, condition));
    let sometimes = SOMETIMES
        .into_iter()
        .filter(|(name, _)| reachable.contains(name))
        .map(|(name, condition)| Property::sometimes(name, condition));
    always.chain(sometimes).collect()
}

fn kept(state: &State, breach: Breach) -> bool {
    !state.witness.broken.contains(&breach)
}

fn is_in_one_place(state: &State) -> bool {
    (1..=state.witness.drawn).all(|id| {
        let live = state.queue.iter().filter(|row| row.id == id).count();
        let ended = state.log.iter().filter(|ended| ended.id == id).count();
        let purged = usize::from(state.purged.contains(&id));
        live + ended + purged == usize::from(state.witness.committed.contains(&id))
    })
}

fn attempts_are_in_bounds(state: &State) -> bool {
    let live = state
        .queue
        .iter()
        .map(|row| (row.attempts, row.max_attempts));
    let ended = state
        .log
        .iter()
        .map(|ended| (ended.attempts, ended.max_attempts));
    live.chain(ended).all(|(attempts, most)| attempts <= most)
}

fn is_run(state: &State, lease: &Lease) -> bool {
    let theirs = |other: &&Lease| other.worker == lease.worker;
    let all = state.leases.iter().filter(theirs);
    let held = all.fold(Set::default(), |ids, lease| ids.or(lease.ids));
    let is_ahead = |row: &&Row, of: &Row| row.group == of.group && row.id < of.id;
    let mut rows = state.queue.iter();
    rows.all(|row| {
        let mut ahead = state.queue.iter().filter(|other| is_ahead(other, row));
        row.group.is_none() || !lease.ids.has(row.id) || ahead.all(|other| held.has(other.id))
    })
}

fn walks_are_clear(state: &State) -> bool {
    let leased = state.in_leases();
    let is_clear = |walk: &Walk| {
        state.queue.iter().all(|row| {
            row.group.is_none()
                || row.id > walk.clear_to
                || !walk.seen.has(row.id)
                || leased.has(row.id)
                || row.stray
        })
    };
    state.minds.iter().all(|mind| is_clear(&mind.walk))
        && state.leases.iter().all(|lease| is_clear(&lease.walk))
}

fn has_one_holder_each(state: &State) -> bool {
    let named: u32 = state.leases.iter().map(|lease| lease.ids.len()).sum();
    named == in_leases(&state.leases).len()
}

fn effects_happen_once(state: &State) -> bool {
    state.witness.effects.iter().all(|effects| *effects <= 1)
        && state.log.iter().all(|ended| {
            state.witness.effects[usize::from(ended.id) - 1] == u8::from(ended.completed)
        })
}

/// No two events that a worker holds wait for each other.
fn workers_can_go_on(protocol: &Protocol, state: &State) -> bool {
    let waits = state.calls.is_empty() && state.open.is_none() && protocol.scenario.runs;
    let workers = 0..protocol.scenario.workers;
    !waits
        || workers.into_iter().all(|worker| {
            let mind = state.mind(worker);
            if mind
                .hands()
                .any(|(held, hand)| !state.is_held(held.token, hand.id))
            {
                // An event it has lost may block it until it renews.
                return true;
            }
            let mut actions = Vec::new();
            for held in &mind.held {
                protocol.of_starts(state, worker, held, &mut actions);
            }
            for hand in mind.hands() {
                protocol.of_hand(state, worker, hand, &mut actions);
            }
            let goes_on = |action: &Action| !matches!(action, Action::HandBack(..));
            let gives_back =
                |(_, hand): (_, &Hand)| hand.stage == Handling::Over(Verdict::HandBack);
            mind.held.is_empty() || mind.hands().any(gives_back) || actions.iter().any(goes_on)
        })
}

/// This is not "on every path something good happens", because a worker may freeze forever. It says: from
/// here, one healthy worker ends all events within a bounded number of steps.
fn ends_after_the_faults(protocol: &Protocol, state: &State) -> bool {
    let mut state = state.clone();
    state.open = None;
    left_by_a_healthy_worker(protocol, state).is_empty()
}

/// Beside an open transaction, workers give back what they hold, and a healthy one ends the rest.
fn open_holds_its_own(protocol: &Protocol, state: &State) -> bool {
    let Some(open) = state.open else {
        return true;
    };
    let own = Set::one(open.id).or(state.behind(open.id));
    let left = left_by_a_healthy_worker(protocol, state.clone());
    let workers = 0..protocol.scenario.workers;
    left.minus(own).is_empty()
        && (!state.calls.is_empty()
            || workers.into_iter().all(|worker| {
                let mut hands = state.mind(worker).hands();
                hands.all(|(held, hand)| {
                    let event = (held.token, hand.id);
                    let mut actions = Vec::new();
                    protocol.of_give_back(state, worker, event, Verdict::Retry, &mut actions);
                    hand.stage != Handling::Running || own.has(hand.id) || !actions.is_empty()
                })
            }))
}

/// Returns what is left when one healthy worker has had a bounded number of steps.
fn left_by_a_healthy_worker(protocol: &Protocol, mut state: State) -> Set {
    let healthy: Worker = protocol.scenario.workers;
    state.resumed = true;
    // Their sessions end.
    state.calls.clear();
    for index in 0..state.publishes.len() {
        if let Publish::Open(_) = state.publishes[index] {
            protocol.step(&mut state, Action::Commit(index));
        }
    }
    for lease in &mut state.leases {
        lease.expired = true;
    }
    let locked = protocol.locked_rows(&state);
    for row in &mut state.queue {
        row.delayed &= locked.has(row.id);
    }
    protocol.step(&mut state, Action::Sweep(healthy));
    for _ in 0..state.queue.len() {
        let ask = Ask {
            from_start: true,
            most: u8::MAX,
            ..Ask::default()
        };
        protocol.step(&mut state, Action::Lease(healthy, ask, true));
        for held in state.mind(healthy).held.clone() {
            handle_all(protocol, &mut state, healthy, &held);
        }
    }
    state.queue.iter().map(|row| row.id).collect()
}

fn handle_all(protocol: &Protocol, state: &mut State, worker: Worker, held: &Held) {
    let token = held.token;
    let last = held.hands.iter().map(|hand| hand.id).max().unwrap_or(0);
    protocol.step(state, Action::Start(worker, token, last, true));
    for hand in &held.hands {
        let verdict = if hand.abandoned {
            Verdict::Fail
        } else {
            protocol.step(state, Action::Handle(worker, token, hand.id));
            Verdict::Complete
        };
        protocol.step(state, Action::End(worker, token, hand.id, verdict));
        if protocol.has(Flaw::NoFence) {
            protocol.step(state, Action::Peek(worker, token, hand.id));
        }
        protocol.step(state, Action::Complete(worker, token, hand.id, true));
    }
}

/// The running events, by worker.
fn running(state: &State) -> impl Iterator<Item = (usize, u8, Option<u8>)> {
    state.minds.iter().enumerate().flat_map(|(worker, mind)| {
        mind.hands()
            .filter(|(_, hand)| hand.stage == Handling::Running)
            .map(move |(_, hand)| (worker, hand.id, hand.group))
    })
}

fn two_runs_overlap(state: &State) -> bool {
    running(state).any(|one| running(state).any(|other| one.0 < other.0 && one.1 == other.1))
}

/// Its worker froze, lost the lease of the earlier event, and does not know it yet.
fn runs_beside_what_was_taken_over(state: &State) -> bool {
    running(state).any(|later| {
        running(state).any(|earlier| {
            later.2.is_some() && earlier.2 == later.2 && earlier.1 < later.1 && earlier.0 != later.0
        })
    })
}

fn holds_a_run(mind: &Mind) -> bool {
    mind.hands().any(|(one, later)| {
        mind.hands().any(|(other, earlier)| {
            one.token != other.token && later.group == earlier.group && earlier.id < later.id
        })
    })
}
