//! Owns the judgement of a group's leases: by what the statement that leased could see of the others, so by
//! nobody's clock, and however long a process takes to write down what it has done.
//!
//! The one surprise: what has happened meanwhile counts for nothing. An event may be leased behind one that its
//! process is just losing, or giving back; that it is then not started is what the starts are held against.

use std::collections::{BTreeMap, HashMap};

use crate::checker::{History, LeaseChange, Place, Row, Start};
use crate::journal::Verdict;

/// What happened to the leases of one run.
struct Leases<'a> {
    /// Of each event, in order, and whether an attempt was counted.
    changes: HashMap<i64, Vec<(&'a LeaseChange, bool)>>,
    rows: HashMap<i64, &'a Row>,
    /// The events of each group, in order.
    groups: HashMap<&'a str, Vec<i64>>,
}

/// In whose hand an event was.
enum Hand<'a> {
    Over,
    Nobodys,
    Of {
        process: &'a str,
        /// None of an event whose attempts were spent: it is given up and not started.
        attempt: Option<u32>,
    },
}

/// What a statement could see: every transaction that had ended when it began.
struct Snapshot {
    /// All below have ended.
    least: u64,
    /// All from here on have not.
    next: u64,
    under_way: Vec<u64>,
}

impl Snapshot {
    /// <https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT-PARTS>
    fn read(text: &str) -> Option<Self> {
        let (least, rest) = text.split_once(':')?;
        let (next, under_way) = rest.split_once(':')?;
        let under_way = under_way.split(',').filter(|id| !id.is_empty());
        Some(Self {
            least: least.parse().ok()?,
            next: next.parse().ok()?,
            under_way: under_way.map(str::parse).collect::<Result<_, _>>().ok()?,
        })
    }

    fn shows(&self, transaction: u64) -> bool {
        transaction < self.least
            || transaction < self.next && !self.under_way.contains(&transaction)
    }
}

/// A lease, and what its statement could see.
struct Taken<'a> {
    change: &'a LeaseChange,
    snapshot: Snapshot,
}

impl<'a> Taken<'a> {
    fn of(change: &'a LeaseChange) -> Option<Self> {
        change.now.as_ref()?;
        let snapshot = change.snapshot.as_deref().and_then(Snapshot::read);
        Some(Self {
            change,
            snapshot: snapshot.expect("a lease tells what it could see"),
        })
    }

    /// Whether its statement saw this change or made it, in whatever order it leased its events.
    fn knows(&self, other: &LeaseChange) -> bool {
        other.now.is_some() && other.now == self.change.now
            || self.snapshot.shows(other.transaction)
    }
}

/// Every lease of an event while an earlier one of its group was open and not in the same hand, and every
/// start of one before its process was done with what it had leased ahead of it.
pub fn violations(history: &History, starts: &BTreeMap<i64, Vec<Start<'_>>>) -> Vec<String> {
    let leases = Leases::of(history);
    let mut found = Vec::new();
    for taken in history.leases.iter().filter_map(Taken::of) {
        found.extend(leases.overtakings(&taken));
    }
    for (id, of_event) in starts {
        for start in of_event {
            let done = |earlier, attempt| {
                history.requeued.contains(&earlier)
                    || leases.gave_up(earlier, attempt)
                    || has_ended(starts, earlier, attempt, start)
            };
            let undone = leases.ahead_of(*id, start).into_iter();
            for (earlier, _) in undone.filter(|(earlier, attempt)| !done(*earlier, *attempt)) {
                let process = start.process;
                found.push(format!(
                    "{process} started event {id} before {earlier}, which it had leased, was over"
                ));
            }
        }
    }
    found
}

impl<'a> Leases<'a> {
    fn of(history: &'a History) -> Self {
        let mut changes: HashMap<_, Vec<(&LeaseChange, bool)>> = HashMap::new();
        for change in &history.leases {
            let of_event = changes.entry(change.id).or_default();
            let before = of_event.last().map_or(0, |(before, _)| before.attempts);
            of_event.push((change, change.attempts > before));
        }
        let mut groups: HashMap<_, Vec<_>> = HashMap::new();
        for row in &history.rows {
            if let Some(group) = &row.group_key {
                groups.entry(group.as_str()).or_default().push(row.id);
            }
        }
        for ids in groups.values_mut() {
            ids.sort_unstable();
        }
        Self {
            changes,
            rows: history.rows.iter().map(|row| (row.id, row)).collect(),
            groups,
        }
    }

    /// The events of the group ahead of this one.
    fn earlier(&self, id: i64) -> &[i64] {
        let group = self.rows.get(&id).and_then(|row| row.group_key.as_deref());
        let ids = group.and_then(|group| self.groups.get(group));
        let ids = ids.map_or(&[][..], Vec::as_slice);
        &ids[..ids.partition_point(|other| *other < id)]
    }

    fn changes(&self, id: i64) -> &[(&'a LeaseChange, bool)] {
        self.changes.get(&id).map_or(&[], Vec::as_slice)
    }

    /// In whose hand an event was for the statement that leased.
    fn hand(&self, id: i64, taken: &Taken<'_>) -> Hand<'a> {
        let mut changes = self.changes(id).iter();
        match changes.rfind(|(other, _)| taken.knows(other)) {
            Some((change, _)) if change.gone => Hand::Over,
            Some((change, is_counted)) if change.now.is_some() => Hand::Of {
                process: &change.by,
                attempt: is_counted.then_some(change.attempts),
            },
            _ => Hand::Nobodys,
        }
    }

    fn overtakings(&self, taken: &Taken<'_>) -> Vec<String> {
        let (id, by) = (taken.change.id, taken.change.by.as_str());
        let overtaken = |earlier: &i64| match self.hand(*earlier, taken) {
            Hand::Nobodys => Some(format!("{by} leased event {id} while {earlier} was open")),
            Hand::Of { process, .. } if process != by => Some(format!(
                "{by} leased event {id} while {earlier} was in the hand of {process}"
            )),
            Hand::Of { .. } | Hand::Over => None,
        };
        self.earlier(id).iter().filter_map(overtaken).collect()
    }

    /// The earlier events of the group, and their attempts, that the process of this start had in its hand
    /// when it leased this one.
    fn ahead_of(&self, id: i64, start: &Start<'_>) -> Vec<(i64, u32)> {
        let lease = self.changes(id).iter().rfind(|(change, is_counted)| {
            *is_counted && change.attempts == start.attempt && change.by == start.process
        });
        let Some(taken) = lease.and_then(|(change, _)| Taken::of(change)) else {
            return Vec::new();
        };
        let in_its_hand = |earlier: &i64| match self.hand(*earlier, &taken) {
            Hand::Of { process, attempt } if process == start.process => Some((*earlier, attempt?)),
            _ => None,
        };
        self.earlier(id).iter().filter_map(in_its_hand).collect()
    }

    /// Whether an event was given up with this attempt, perhaps without its handler's end: it took too long,
    /// or was not started at all.
    fn gave_up(&self, id: i64, attempt: u32) -> bool {
        self.rows.get(&id).is_some_and(|row| {
            row.place != Place::Queue && row.status == "FAILED" && row.attempts == attempt
        })
    }
}

/// Whether the process of a start had ended this attempt for good by then.
fn has_ended(
    starts: &BTreeMap<i64, Vec<Start<'_>>>,
    id: i64,
    attempt: u32,
    next: &Start<'_>,
) -> bool {
    starts.get(&id).into_iter().flatten().any(|start| {
        let ended =
            matches!(start.end, Some((at, Verdict::Done | Verdict::Reject)) if at <= next.at);
        ended && start.process == next.process && start.attempt == attempt
    })
}
