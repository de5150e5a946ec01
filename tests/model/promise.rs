//! What Tidegate promises (I1 to I8), as properties of the model, and what it does not.

use stateright::Property;

use crate::protocol::{Action, Protocol};
use crate::state::{Breach, Publish, Stage, State, Verdict, Worker};

pub const ONE_PLACE: &str = "I1 a committed publish is in exactly one place, any other in none";
pub const ATTEMPTS: &str = "I3 attempts are at most their limit and at least the handler's starts";
pub const COUNTED: &str = "I3 attempts are the leases that were not given back";
pub const ORDER: &str = "I4 a group is leased in the order its publishes were committed";
pub const FENCED: &str = "I5 a stale token changes nothing";
pub const ONE_HOLDER: &str = "I6 nobody is leased what somebody holds";
pub const OWN_ROWS: &str = "I7 cleanup and operators touch only what is theirs to touch";
pub const ENDS: &str = "I8 once the faults are over, everything ends";
pub const EFFECT: &str =
    "effects of a handler's transaction happen at most once, and once when it completed";
pub const CREDIT: &str = "an end is credited to the lease that made it, or to nobody";

type Condition = fn(&Protocol, &State) -> bool;

const ALWAYS: [(&str, Condition); 10] = [
    (ONE_PLACE, |_, state| is_in_one_place(state)),
    (ATTEMPTS, |_, state| attempts_are_in_bounds(state)),
    (COUNTED, |_, state| attempts_are_counted(state)),
    (ORDER, |_, state| kept(state, Breach::OutOfOrder)),
    (FENCED, |_, state| kept(state, Breach::StaleWrite)),
    (ONE_HOLDER, |_, state| kept(state, Breach::LeasedTwice)),
    (OWN_ROWS, |_, state| kept(state, Breach::Forbidden)),
    (ENDS, ends_after_the_faults),
    (EFFECT, |_, state| effects_happen_once(state)),
    (CREDIT, |_, state| ends_are_credited(state)),
];

/// What the whole protocol can reach: without it the promises would be kept by doing nothing. The first
/// two are documented as not promised.
const SOMETIMES: [(&str, Condition); 6] = [
    (
        "not promised: two runs of one event overlap after a freeze",
        |protocol, state| !has_second_attempts(protocol) || two_runs_overlap(state),
    ),
    (
        "not promised: an event runs beside an earlier one of its group that was taken over",
        |protocol, state| {
            !has_a_group(protocol)
                || !has_second_attempts(protocol)
                || runs_beside_what_was_taken_over(state)
        },
    ),
    ("all events have ended", |_, state| {
        state
            .publishes
            .iter()
            .all(|publish| *publish == Publish::Over)
            && state.queue.is_empty()
            && !state.log.is_empty()
    }),
    (
        "a statement under a lost lease changes nothing",
        |_, state| state.witness.refused,
    ),
    ("an event is given up on its last attempt", |_, state| {
        let is_given_up = |stage| {
            matches!(
                stage,
                Stage::Sent {
                    verdict: Verdict::Fail,
                    arrived: true
                }
            )
        };
        state.grants.iter().any(|grant| is_given_up(grant.stage))
    }),
    (
        "a worker leases on behind an event of its group that it holds",
        |protocol, state| !has_a_group(protocol) || holds_a_run(state),
    ),
];

/// Every promise; with them, what must be reachable.
pub fn all(with_sometimes: bool) -> Vec<Property<Protocol>> {
    let always = ALWAYS
        .into_iter()
        .map(|(name, condition)| Property::always(name, condition));
    let sometimes = SOMETIMES
        .into_iter()
        .filter(|_| with_sometimes)
        .map(|(name, condition)| Property::sometimes(name, condition));
    always.chain(sometimes).collect()
}

fn kept(state: &State, breach: Breach) -> bool {
    !state.witness.broken.contains(&breach)
}

fn is_in_one_place(state: &State) -> bool {
    (1..=state.witness.events.len()).all(|id| {
        let places = state
            .queue
            .iter()
            .filter(|row| usize::from(row.id) == id)
            .count()
            + state
                .log
                .iter()
                .filter(|ended| usize::from(ended.id) == id)
                .count()
            + state
                .purged
                .iter()
                .filter(|gone| usize::from(**gone) == id)
                .count();
        let committed = state
            .witness
            .committed
            .iter()
            .any(|other| usize::from(*other) == id);
        places == usize::from(committed)
    })
}

/// Each event with its attempts and their limit, live or logged.
fn tries(state: &State) -> impl Iterator<Item = (usize, u8, u8)> {
    let live = state
        .queue
        .iter()
        .map(|row| (row.id, row.attempts, row.max_attempts));
    let logged = state
        .log
        .iter()
        .map(|ended| (ended.id, ended.attempts, ended.max_attempts));
    live.chain(logged)
        .map(|(id, attempts, most)| (usize::from(id) - 1, attempts, most))
}

fn attempts_are_in_bounds(state: &State) -> bool {
    tries(state).all(|(index, attempts, most)| {
        attempts <= most && attempts >= state.witness.events[index].starts
    })
}

fn attempts_are_counted(state: &State) -> bool {
    tries(state).all(|(index, attempts, _)| {
        let story = &state.witness.events[index];
        attempts + story.uncounted == story.leases
    })
}

fn effects_happen_once(state: &State) -> bool {
    state.witness.events.iter().all(|story| story.effects <= 1)
        && state.log.iter().all(|ended| {
            let finalized = ended
                .token
                .and_then(|token| state.grant(ended.id, token))
                .is_some_and(|grant| {
                    matches!(
                        grant.stage,
                        Stage::Sent {
                            verdict: Verdict::Finalize,
                            ..
                        }
                    )
                });
            let effects = state.witness.events[usize::from(ended.id) - 1].effects;
            effects == u8::from(finalized)
        })
}

fn ends_are_credited(state: &State) -> bool {
    state.log.iter().all(|ended| {
        let story = &state.witness.events[usize::from(ended.id) - 1];
        ended
            .token
            .is_none_or(|token| story.ended_by == Some(token))
    })
}

/// Not "on every path something good comes" (paths on which a worker freezes for ever are none of ours)
/// but: from here, within a bounded number of steps, one healthy worker ends everything.
fn ends_after_the_faults(protocol: &Protocol, state: &State) -> bool {
    const HEALTHY: Worker = Worker::MAX;
    let mut state = state.clone();
    for index in 0..state.publishes.len() {
        if let Publish::Open(_) = state.publishes[index] {
            protocol.step(&mut state, Action::Commit(index));
        }
    }
    for id in state.queue.iter().map(|row| row.id).collect::<Vec<_>>() {
        protocol.step(&mut state, Action::Expire(id));
        protocol.step(&mut state, Action::Promote(id));
    }
    for _ in 0..=state.queue.len() {
        protocol.step(&mut state, Action::Lease(HEALTHY, usize::MAX));
        let leased = state.grants.iter().filter(|grant| grant.worker == HEALTHY);
        for grant in leased.cloned().collect::<Vec<_>>() {
            let (id, token) = (grant.id, grant.token);
            if grant.abandoned {
                protocol.step(&mut state, Action::Send(id, token, Verdict::Fail));
            } else if grant.stage == Stage::Held {
                protocol.step(&mut state, Action::Start(id, token));
                protocol.step(&mut state, Action::Send(id, token, Verdict::Finalize));
            }
            protocol.step(&mut state, Action::Arrive(id, token));
        }
    }
    state.queue.is_empty()
}

fn two_runs_overlap(state: &State) -> bool {
    let running = || {
        state
            .grants
            .iter()
            .filter(|grant| grant.stage == Stage::Running)
    };
    running().any(|one| {
        running().any(|other| (one.id, one.token) < (other.id, other.token) && one.id == other.id)
    })
}

/// Its worker froze, lost the lease of the earlier one and does not know it yet.
fn runs_beside_what_was_taken_over(state: &State) -> bool {
    let running = || {
        state
            .grants
            .iter()
            .filter(|grant| grant.stage == Stage::Running)
    };
    running().any(|later| {
        running().any(|earlier| {
            later.group.is_some()
                && earlier.group == later.group
                && earlier.id < later.id
                && earlier.worker != later.worker
        })
    })
}

fn holds_a_run(state: &State) -> bool {
    state.grants.iter().any(|one| {
        one.stage == Stage::Held
            && state.grants.iter().any(|other| {
                other.stage == Stage::Running && other.worker == one.worker && other.id < one.id
            })
    })
}

fn has_a_group(protocol: &Protocol) -> bool {
    protocol.scenario.groups.iter().any(Option::is_some)
}

fn has_second_attempts(protocol: &Protocol) -> bool {
    protocol.scenario.max_attempts > 1
}
