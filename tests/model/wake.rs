//! A model of how producers wake drains. Publishers commit and then ask whether to wake a drain. Invocations
//! arrive at any time. Drains take a slot, check the queue, announce that they are closing, check a last time
//! and leave. Every step is one statement of the database, and the model tries all their orders.
//!
//! The promise: as long as no invocation is lost, every committed event has a drain that will see it, so no
//! event waits for the schedule. Each removed guard breaks the promise.

use stateright::{Checker, Model, Property};

/// One guard removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// A drain leaves as soon as it finds no event, without announcing it.
    LeavesUnannounced,
    /// A drain announces that it is closing and does not check again.
    NoLastLook,
    /// A publisher asks before it commits.
    AsksBeforeCommit,
    /// When a drain closes, the last wake-up is not forgotten.
    SentStays,
    /// A drain that finds all slots taken ends, even if one of them is about to become free.
    DoesNotWaitForClosing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Publisher {
    /// It has published nothing yet.
    Before,
    /// It has asked whether to wake a drain, but has not committed. Only with a flaw.
    Asked,
    /// It has committed, but has not asked.
    Committed,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Drain {
    /// It is invoked, but has not reached the database.
    Invoked,
    /// It has a slot and will check the queue.
    Open,
    /// It has found no event and will announce that it is closing.
    FoundNothing,
    /// It has announced that it is closing and will check a last time.
    Closing,
    /// It has checked a last time and will free its slot.
    Leaving,
}

impl Drain {
    fn has_slot(self) -> bool {
        self != Self::Invoked
    }

    /// Whether a publisher relies on it.
    fn is_awake(self) -> bool {
        matches!(self, Self::Open | Self::FoundNothing)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    publishers: Vec<Publisher>,
    drains: Vec<Drain>,
    /// Committed events that no drain has leased.
    live: u8,
    /// Whether a wake-up was sent recently.
    sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Commit(usize),
    /// `should_wake`.
    Ask(usize),
    /// The next statement of a drain.
    Step(usize),
    /// The time that counts as recent is over.
    Later,
}

struct Waking {
    publishers: usize,
    slots: usize,
    flaw: Option<Flaw>,
}

impl Waking {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// One of the publishers that ask is told to wake a drain.
    fn ask(state: &mut State) {
        if !state.drains.iter().any(|drain| drain.is_awake()) && !state.sent {
            state.sent = true;
            state.drains.push(Drain::Invoked);
        }
    }

    fn step(&self, state: &mut State, index: usize) {
        let next = match state.drains[index] {
            Drain::Invoked => self.take_slot(state),
            // After a last look, it announces that it continues.
            Drain::Open | Drain::Closing if state.live > 0 => {
                state.live = 0;
                Some(Drain::Open)
            }
            Drain::Open => Some(if self.has(Flaw::LeavesUnannounced) {
                Drain::Leaving
            } else {
                Drain::FoundNothing
            }),
            Drain::FoundNothing => {
                state.sent &= self.has(Flaw::SentStays);
                Some(if self.has(Flaw::NoLastLook) {
                    Drain::Leaving
                } else {
                    Drain::Closing
                })
            }
            Drain::Closing => Some(Drain::Leaving),
            Drain::Leaving => {
                state.sent &= self.has(Flaw::SentStays);
                None
            }
        };
        match next {
            Some(next) => state.drains[index] = next,
            None => drop(state.drains.remove(index)),
        }
    }

    /// Takes a free slot, or waits for the slot of a closing drain, or ends because the running drains will
    /// check the queue.
    fn take_slot(&self, state: &State) -> Option<Drain> {
        let taken = state.drains.iter().filter(|drain| drain.has_slot());
        if taken.clone().count() < self.slots {
            return Some(Drain::Open);
        }
        let waits = taken.clone().any(|drain| !drain.is_awake());
        (waits && !self.has(Flaw::DoesNotWaitForClosing)).then_some(Drain::Invoked)
    }
}

impl Model for Waking {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            publishers: vec![Publisher::Before; self.publishers],
            drains: Vec::new(),
            live: 0,
            sent: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, publisher) in state.publishers.iter().enumerate() {
            match publisher {
                Publisher::Before if self.has(Flaw::AsksBeforeCommit) => {
                    actions.push(Action::Ask(index));
                }
                Publisher::Before | Publisher::Asked => actions.push(Action::Commit(index)),
                Publisher::Committed => actions.push(Action::Ask(index)),
                Publisher::Done => {}
            }
        }
        actions.extend((0..state.drains.len()).map(Action::Step));
        if state.sent {
            actions.push(Action::Later);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Commit(index) => {
                next.live += 1;
                next.publishers[index] = match next.publishers[index] {
                    Publisher::Asked => Publisher::Done,
                    _ => Publisher::Committed,
                };
            }
            Action::Ask(index) => {
                Self::ask(&mut next);
                next.publishers[index] = match next.publishers[index] {
                    Publisher::Before => Publisher::Asked,
                    _ => Publisher::Done,
                };
            }
            Action::Step(index) => self.step(&mut next, index),
            Action::Later => next.sent = false,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SEEN, |_, state: &State| {
                let is_over = state.publishers.iter().all(|one| *one == Publisher::Done);
                !is_over || !state.drains.is_empty() || state.live == 0
            }),
            Property::always(
                "so many drains at once as there are slots",
                |model: &Waking, state: &State| {
                    let taken = state.drains.iter().filter(|drain| drain.has_slot());
                    taken.count() <= model.slots
                },
            ),
            Property::sometimes(
                "one drain handles what two have published",
                |_, state: &State| {
                    let mut publishers = state.publishers.iter();
                    publishers.all(|one| *one == Publisher::Done)
                        && state.live == 0
                        && state.drains.len() == 1
                },
            ),
        ]
    }
}

const SEEN: &str = "no event waits for the schedule";

#[test]
fn no_event_waits_for_the_schedule_while_no_wake_up_is_lost() {
    for (publishers, slots) in [(2, 1), (3, 1), (3, 2), (4, 2)] {
        let model = Waking {
            publishers,
            slots,
            flaw: None,
        };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!(
            "{publishers}, {slots}: {} states",
            checker.unique_state_count()
        );
        checker.assert_properties();
    }
}

#[test]
fn each_guard_of_waking_that_is_taken_away_leaves_an_event_to_the_schedule() {
    for flaw in [
        Flaw::LeavesUnannounced,
        Flaw::NoLastLook,
        Flaw::AsksBeforeCommit,
        Flaw::SentStays,
        Flaw::DoesNotWaitForClosing,
    ] {
        let model = Waking {
            publishers: 3,
            slots: 1,
            flaw: Some(flaw),
        };
        let checker = model.checker().spawn_bfs().join();
        let path = checker.discovery(SEEN);
        let path = path.unwrap_or_else(|| panic!("{flaw:?} breaks nothing"));
        println!("{flaw:?}: {:?}", path.into_actions());
    }
}
