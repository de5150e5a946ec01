//! A model of periodic events. A clock ticks, drains look for what is due, plan and fire it, operators
//! change, pause and resume the schedule. Statements of drains arrive late, twice or never. Every step is one
//! statement of the database, and the model tries all their orders.
//!
//! The promises: each slot is published at most once, only while it is one of the schedule as it is now, and
//! only if it did not pass in a pause. From every state one healthy drain publishes what the catch-up policy
//! owes. Each removed guard breaks a promise.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// One guard removed from `fire_schedules`, `switch_schedule` or the planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// It fires without checking that the stored slot is the one that the plan began with.
    SlotNotAsked,
    /// It fires without checking that the definition is the one that the plan was made from.
    RevisionNotAsked,
    /// It fires a paused schedule, and a pause is no change of the definition.
    PauseNotAsked,
    /// It publishes in one transaction and moves the slot on in the next.
    PublishesFirst,
    /// It moves the slot on in one transaction and publishes in the next.
    MovesOnFirst,
    /// Resuming does not move the time from which slots count.
    SinceStaysAtResume,
    /// A change keeps the stored slot, which the new definition may not have.
    SlotStaysAtChange,
    /// A plan that is cut short moves on to the time of the look.
    CutMovesToNow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatchUp {
    None,
    Last,
    All,
}

type Slot = u8;

/// The row of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    revision: u8,
    paused: bool,
    since: Slot,
    /// `next_at`; `None` if the next drain computes it.
    next: Option<Slot>,
}

/// What a drain has planned to fire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Plan {
    revision: u8,
    from: Option<Slot>,
    slots: Vec<Slot>,
    next: Slot,
    /// Whether the first of two transactions is done. Only with a flaw.
    half: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    clock: Slot,
    row: Row,
    drains: Vec<Option<Plan>>,
    /// Published slots, in order.
    published: Vec<Slot>,
    changes: u8,
    pauses: u8,
    /// For the witness: slots that passed in a pause.
    skipped: BTreeSet<Slot>,
    /// For the witness: a slot was published that the definition in force does not have.
    foreign: bool,
    /// For the witness: something was published during a pause.
    in_pause: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    /// `due_schedules`, and the plan made from it.
    Look(usize),
    /// `fire_schedules`, and whether the answer arrives. If not, the drain sends the statement again.
    Fire(usize, bool),
    /// A drain dies.
    Die(usize),
    /// `set_schedule`.
    Change,
    Pause,
    Resume,
}

struct Periodic {
    catch_up: CatchUp,
    /// The last tick.
    end: Slot,
    drains: usize,
    /// The most slots that are fired at once.
    most: usize,
    flaw: Option<Flaw>,
}

/// The calendars: the first definition has a slot at each tick, the others at every second one.
fn has_slot(revision: u8, slot: Slot) -> bool {
    definition(revision) == 0 || slot.is_multiple_of(2)
}

/// A pause and a resume change the revision, but not the calendar. The low bits count them.
fn definition(revision: u8) -> u8 {
    revision / 16
}

fn after(revision: u8, slot: Slot) -> Slot {
    if has_slot(revision, slot + 1) {
        slot + 1
    } else {
        slot + 2
    }
}

impl Periodic {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn is_due(state: &State) -> bool {
        !state.row.paused && state.row.next.is_none_or(|next| next <= state.clock)
    }

    /// What `schedule::plan` plans.
    fn plan(&self, state: &State) -> Plan {
        let (row, now) = (&state.row, state.clock);
        let first = row.next.unwrap_or_else(|| after(row.revision, row.since));
        // Without a catch-up, a slot is worth firing only at its own tick.
        let worth = if self.catch_up == CatchUp::None {
            now.saturating_sub(1)
        } else {
            0
        };
        let first = if first > worth {
            first
        } else {
            after(row.revision, worth)
        };
        let mut due = Vec::new();
        let mut slot = first;
        while slot <= now {
            due.push(slot);
            slot = after(row.revision, slot);
        }
        let slots: Vec<Slot> = match self.catch_up {
            CatchUp::All => due.into_iter().take(self.most).collect(),
            CatchUp::None | CatchUp::Last => due.into_iter().next_back().into_iter().collect(),
        };
        let next = match slots.last() {
            None => first,
            Some(_) if self.has(Flaw::CutMovesToNow) => after(row.revision, now),
            Some(last) => after(row.revision, *last),
        };
        Plan {
            revision: row.revision,
            from: row.next,
            slots,
            next,
            half: false,
        }
    }

    fn fire(&self, state: &mut State, index: usize, heard: bool) {
        let Some(plan) = state.drains[index].clone() else {
            return;
        };
        let (row, in_two) = (
            &state.row,
            self.has(Flaw::PublishesFirst) || self.has(Flaw::MovesOnFirst),
        );
        let fits = plan.half
            || (row.revision == plan.revision || self.has(Flaw::RevisionNotAsked))
                && (row.next == plan.from || self.has(Flaw::SlotNotAsked))
                && (!row.paused || self.has(Flaw::PauseNotAsked));
        if fits {
            if !in_two || plan.half == self.has(Flaw::MovesOnFirst) {
                publish(state, &plan.slots);
            }
            if !in_two || plan.half == self.has(Flaw::PublishesFirst) {
                state.row.next = Some(plan.next);
            }
        }
        let goes_on = fits && in_two && !plan.half;
        state.drains[index] = if goes_on {
            Some(Plan { half: true, ..plan })
        } else {
            Some(plan).filter(|_| !heard)
        };
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => {
                state.clock += 1;
                if state.row.paused {
                    state.skipped.insert(state.clock);
                }
            }
            Action::Look(index) => state.drains[index] = Some(self.plan(state)),
            Action::Fire(index, heard) => self.fire(state, index, heard),
            Action::Die(index) => state.drains[index] = None,
            Action::Change => {
                state.changes += 1;
                let kept = state.row.next.filter(|_| self.has(Flaw::SlotStaysAtChange));
                state.row = Row {
                    revision: 16 * (definition(state.row.revision) + 1),
                    next: kept,
                    since: state.clock,
                    ..state.row
                };
            }
            Action::Pause => {
                state.pauses += 1;
                state.row.paused = true;
                state.row.revision += u8::from(!self.has(Flaw::PauseNotAsked));
            }
            Action::Resume => {
                state.row.paused = false;
                state.row.revision += u8::from(!self.has(Flaw::PauseNotAsked));
                if !self.has(Flaw::SinceStaysAtResume) {
                    state.row.since = state.clock;
                    state.row.next = None;
                }
            }
        }
    }

    /// Whether one healthy drain leaves nothing due, and has published what the policy owes.
    fn keeps_up(&self, state: &State) -> bool {
        let mut state = state.clone();
        state.drains = vec![None];
        if state.row.paused {
            self.step(&mut state, Action::Resume);
        }
        let owed: Vec<Slot> = (state.row.since + 1..=state.clock)
            .filter(|slot| has_slot(state.row.revision, *slot))
            .collect();
        let owed = match self.catch_up {
            CatchUp::All => owed,
            CatchUp::Last => owed.last().copied().into_iter().collect(),
            CatchUp::None => owed
                .into_iter()
                .filter(|slot| *slot == state.clock)
                .collect(),
        };
        for _ in 0..=self.end {
            if Self::is_due(&state) {
                self.step(&mut state, Action::Look(0));
                self.step(&mut state, Action::Fire(0, true));
                // The second transaction, with a flaw.
                self.step(&mut state, Action::Fire(0, true));
            }
        }
        !Self::is_due(&state) && owed.iter().all(|slot| state.published.contains(slot))
    }
}

fn publish(state: &mut State, slots: &[Slot]) {
    for slot in slots {
        state.foreign |= !has_slot(state.row.revision, *slot);
        state.in_pause |= state.row.paused;
        state.published.push(*slot);
    }
}

const ONCE: &str = "each slot is published at most once";
const OWN: &str = "only slots of the definition in force are published";
const SKIPS: &str = "nothing is published in a pause, nor later for a slot that passed in it";
const KEEPS_UP: &str = "one healthy drain publishes what the catch-up policy owes";
const CAUGHT_UP: &str = "several slots are published late";

impl Model for Periodic {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            clock: 0,
            row: Row {
                revision: 0,
                paused: false,
                since: 0,
                next: None,
            },
            drains: vec![None; self.drains],
            published: Vec::new(),
            changes: 0,
            pauses: 0,
            skipped: BTreeSet::new(),
            foreign: false,
            in_pause: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.clock < self.end {
            actions.push(Action::Tick);
        }
        for (index, plan) in state.drains.iter().enumerate() {
            match plan {
                None if Self::is_due(state) => actions.push(Action::Look(index)),
                None => {}
                Some(_) => {
                    actions.extend([true, false].map(|heard| Action::Fire(index, heard)));
                    actions.push(Action::Die(index));
                }
            }
        }
        if state.changes == 0 {
            actions.push(Action::Change);
        }
        if state.row.paused {
            actions.push(Action::Resume);
        } else if state.pauses == 0 {
            actions.push(Action::Pause);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| {
                let different: BTreeSet<Slot> = state.published.iter().copied().collect();
                different.len() == state.published.len()
            }),
            Property::always(OWN, |_, state: &State| !state.foreign),
            Property::always(SKIPS, |_, state: &State| {
                let mut published = state.published.iter();
                !state.in_pause && !published.any(|slot| state.skipped.contains(slot))
            }),
            Property::always(KEEPS_UP, |model: &Self, state: &State| {
                model.keeps_up(state)
            }),
            Property::sometimes(CAUGHT_UP, |model: &Self, state: &State| {
                let late = state.clock == model.end && !state.published.is_empty();
                late && (model.catch_up != CatchUp::All || state.published.len() > 2)
            }),
        ]
    }
}

fn periodic(catch_up: CatchUp, flaw: Option<Flaw>) -> Periodic {
    Periodic {
        catch_up,
        end: 4,
        drains: 2,
        most: 2,
        flaw,
    }
}

#[test]
fn every_slot_is_published_once_whatever_befalls_the_schedule() {
    for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
        let checker = periodic(catch_up, None)
            .checker()
            .threads(2)
            .spawn_bfs()
            .join();
        println!("{catch_up:?}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn each_guard_of_periodic_events_that_is_taken_away_breaks_its_promise() {
    for (flaw, catch_up, promise) in [
        (Flaw::SlotNotAsked, CatchUp::All, ONCE),
        (Flaw::RevisionNotAsked, CatchUp::All, OWN),
        (Flaw::PauseNotAsked, CatchUp::Last, SKIPS),
        (Flaw::PublishesFirst, CatchUp::Last, ONCE),
        (Flaw::MovesOnFirst, CatchUp::All, KEEPS_UP),
        (Flaw::SinceStaysAtResume, CatchUp::All, SKIPS),
        (Flaw::SlotStaysAtChange, CatchUp::Last, OWN),
        (Flaw::CutMovesToNow, CatchUp::All, KEEPS_UP),
    ] {
        let wanted = [promise].into_iter().collect();
        let checker = periodic(catch_up, Some(flaw))
            .checker()
            .finish_when(HasDiscoveries::AllOf(wanted))
            .spawn_bfs()
            .join();
        let path = checker.discovery(promise);
        let path = path.unwrap_or_else(|| panic!("{flaw:?} does not break: {promise}"));
        println!("{flaw:?} breaks: {promise}\n    {:?}", path.into_actions());
    }
}
