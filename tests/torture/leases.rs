//! Owns the judgement of leases: what was taken, what left without having ended, and what was charged for it. All of it
//! was written down in the transactions that did it, so it is by nobody's clock, and however long a process takes to
//! write down what it has done.
//!
//! The one surprise: of what stands ahead in a group only the nearest live event is held against a lease or a start. What
//! is ahead of that one was held against its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::checker::{Charge, Departure, History, Place, Row, Start, Taking, Violation};
use crate::journal::Verdict;

/// What happened to the leases of one run.
struct Leases<'a> {
    history: &'a History,
    /// Of each event, in order.
    takings: HashMap<i64, Vec<&'a Taking>>,
    /// What left which event's lease in which transaction.
    departures: HashMap<(u64, i64), &'a Departure>,
    rows: HashMap<i64, &'a Row>,
}

/// Every lease, break of a lease and charge that must not be, and every start of an event before its process was done
/// with what it had leased ahead of it.
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

    /// I4: leases past an earlier event of the group that is not in the same worker's hands.
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

    /// The nearest earlier event of the group, and its attempt, that the process of this start had in its hand when
    /// it leased this one.
    fn ahead_of(&self, id: i64, start: &Start<'_>) -> Option<(i64, u32)> {
        let of_start =
            |taking: &&&Taking| taking.attempt == Some(start.attempt) && taking.by == start.process;
        let taking = self.takings.get(&id)?.iter().rfind(of_start)?;
        Some((taking.ahead?, taking.ahead_attempt?))
    }

    /// Whether an event was given up with this attempt, perhaps without its handler's end: it took too long,
    /// or was not started at all.
    fn gave_up(&self, id: i64, attempt: u32) -> bool {
        self.rows.get(&id).is_some_and(|row| {
            row.place != Place::Queue && row.status == "FAILED" && row.attempts == attempt
        })
    }

    /// Whether the process of a start had ended this attempt for good by then: or had done so without knowing, because the
    /// answer to the handler's own commit was lost.
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

    /// I6: nothing is taken from a worker none of whose leases had run out. Who has no name is an operator, who may take
    /// what they like.
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

    /// I3: an attempt is charged to what leaves a lease only if it may have been started there; I5: what is stored with it
    /// is of that attempt.
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

    /// I10: an event whose worker has gone away before takes nobody along when it happens again.
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
