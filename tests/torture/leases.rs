//! Owns the verdict on leases: which events were leased, left a lease without having ended, or were charged.
//! All of it was recorded in the same transactions, so it depends on no clock, and not on how long a process
//! takes to record its actions.
//!
//! Only the nearest earlier live event of a group is checked for a lease or a start. Events before that one
//! were checked for its own lease.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::checker::{Charge, Departure, History, Place, Row, Start, Taking, Violation};
use crate::journal::Verdict;

/// The history of the leases of one run.
struct Leases<'a> {
    history: &'a History,
    /// The leases of each event, in order.
    takings: HashMap<i64, Vec<&'a Taking>>,
    /// The departures, by transaction and event.
    departures: HashMap<(u64, i64), &'a Departure>,
    rows: HashMap<i64, &'a Row>,
}

/// Returns every forbidden lease, break of a lease and charge, and every start of an event before its process
/// was done with the earlier events that it had leased.
pub fn violations(history: &History, starts: &BTreeMap<i64, Vec<Start<'_>>>) -> Vec<Violation> {
    let leases = Leases::of(history);
    let mut found = Vec::new();
    leases.overtakings(&mut found);
    leases.early_starts(starts, &mut found);
    leases.breaks(&mut found);
    leases.charges(&mut found);
    leases.neighbours(&mut found);
    found
}

impl<'a> Leases<'a> {
    fn of(history: &'a History) -> Self {
        let mut takings: HashMap<_, Vec<_>> = HashMap::new();
        for taking in &history.takings {
            takings.entry(taking.id).or_default().push(taking);
        }
        let departures = history.departures.iter();
        Self {
            history,
            takings,
            departures: departures
                .map(|left| ((left.transaction, left.id), left))
                .collect(),
            rows: history.rows.iter().map(|row| (row.id, row)).collect(),
        }
    }

    /// I4: leases of events whose earlier event of the group is not in the same worker's hands.
    fn overtakings(&self, found: &mut Vec<Violation>) {
        for taking in &self.history.takings {
            if let (Some(ahead), false) = (taking.ahead, taking.together) {
                let (by, id) = (&taking.by, taking.id);
                let text = format!("{by} leased event {id} while {ahead} was open and not its own");
                found.push(Violation::new("I4", text));
            }
        }
    }

    fn early_starts(&self, starts: &BTreeMap<i64, Vec<Start<'_>>>, found: &mut Vec<Violation>) {
        for (id, of_event) in starts {
            for start in of_event {
                let Some((ahead, attempt)) = self.ahead_of(*id, start) else {
                    continue;
                };
                let mut kept = self.history.kept_attempts(ahead);
                let done = self.history.requeued.contains(&ahead)
                    || kept.any(|kept| kept <= attempt)
                    || self.gave_up(ahead, attempt)
                    || self.has_ended(starts, ahead, attempt, start);
                if !done {
                    let by = start.process;
                    let text = format!(
                        "{by} started event {id} before {ahead}, which it had leased, was over"
                    );
                    found.push(Violation::new("I4", text));
                }
            }
        }
    }

    /// Returns the nearest earlier event of the group, and its attempt, that the process of this start had in
    /// hand when it leased this event.
    fn ahead_of(&self, id: i64, start: &Start<'_>) -> Option<(i64, u32)> {
        let of_start =
            |taking: &&&Taking| taking.attempt == Some(start.attempt) && taking.by == start.process;
        let taking = self.takings.get(&id)?.iter().rfind(of_start)?;
        Some((taking.ahead?, taking.ahead_attempt?))
    }

    /// Whether an event was given up with this attempt, perhaps without the end of its handler: it took too
    /// long, or was not started at all.
    fn gave_up(&self, id: i64, attempt: u32) -> bool {
        self.rows.get(&id).is_some_and(|row| {
            let unreadable = row.code.as_deref() == Some("unreadable");
            row.place != Place::Queue
                && row.status == "FAILED"
                && (row.attempts == attempt || unreadable)
        })
    }

    /// Whether the process of a start had finally ended this attempt by then, or had done so without knowing,
    /// because the answer to the handler's own commit was lost.
    fn has_ended(
        &self,
        starts: &BTreeMap<i64, Vec<Start<'_>>>,
        id: i64,
        attempt: u32,
        next: &Start<'_>,
    ) -> bool {
        let committed = self.rows.get(&id).is_some_and(|row| {
            row.place != Place::Queue && row.status == "COMPLETED" && row.attempts == attempt
        });
        starts.get(&id).into_iter().flatten().any(|start| {
            let of_attempt = start.process == next.process && start.attempt == attempt;
            of_attempt
                && start.end.is_some_and(|(at, verdict)| {
                    at <= next.at
                        && (!matches!(verdict, Verdict::Retry | Verdict::Unavailable) || committed)
                })
        })
    }

    /// I6: no event is taken from a worker unless one of its leases has expired. An empty name is an
    /// operator, who may take any event.
    fn breaks(&self, found: &mut Vec<Violation>) {
        let takings = self.history.takings.iter();
        let owners: HashMap<&str, &str> = takings
            .map(|taking| (taking.token.as_str(), taking.by.as_str()))
            .collect();
        for left in &self.history.departures {
            let owner = owners.get(left.token.as_str()).copied();
            let taken = !left.by.is_empty() && owner.is_some_and(|owner| owner != left.by);
            if taken && !left.expired {
                let (by, id) = (&left.by, left.id);
                let text = format!("{by} took event {id} from a worker whose leases were running");
                found.push(Violation::new("I6", text));
            }
        }
    }

    /// I3: an event that leaves a lease is charged an attempt only if it may have been started there. I5:
    /// what is stored with it belongs to that attempt.
    fn charges(&self, found: &mut Vec<Violation>) {
        for charge in &self.history.charges {
            let id = charge.id;
            let left = self.departures.get(&(charge.transaction, id));
            if charge.attempts > charge.attempts_were && !left.is_some_and(|left| left.started) {
                let by = &charge.by;
                let text = format!("{by} charged an attempt to event {id}, which had not started");
                found.push(Violation::new("I3", text));
            }
            let attempt = charge.attempts_were + 1;
            if let Some(told) = charge.error_attempt.filter(|told| *told != attempt) {
                let text = format!("event {id} went back from attempt {attempt} by attempt {told}");
                found.push(Violation::new("I5", text));
            }
        }
    }

    /// I10: an event whose worker died before affects no other event when this happens again.
    fn neighbours(&self, found: &mut Vec<Violation>) {
        let mut together: BTreeMap<(u64, &str), Vec<&Charge>> = BTreeMap::new();
        for charge in self
            .history
            .charges
            .iter()
            .filter(|charge| charge.is_lapse())
        {
            if let Some(left) = self.departures.get(&(charge.transaction, charge.id)) {
                let of_worker = together.entry((charge.transaction, &left.worker));
                of_worker.or_default().push(charge);
            }
        }
        for lapsed in together.values().filter(|lapsed| lapsed.len() > 1) {
            if let Some(suspect) = lapsed.iter().find(|charge| charge.lapses_were > 0) {
                let ids: BTreeSet<i64> = lapsed.iter().map(|charge| charge.id).collect();
                let id = suspect.id;
                let text =
                    format!("event {id}, which had lapsed before, ran beside others: {ids:?}");
                found.push(Violation::new("I10", text));
            }
        }
    }
}
