//! Owns the judgement of a group's leases: by the order in which the database changed them, so by nobody's
//! clock, and however long a process takes to write down what it has done.
//!
//! The one surprise: a process may lease past an event that was its own until a moment ago. Its statement had
//! begun when the event was taken from it or went back; what it does with what it leased is told by the starts.

use std::collections::{BTreeMap, HashMap};

use crate::checker::{History, LeaseChange, Place, Row, Start};

/// What happened to the leases of one run.
struct Leases<'a> {
    /// Of each event, with its position among all.
    changes: HashMap<i64, Vec<(usize, &'a LeaseChange)>>,
    rows: HashMap<i64, &'a Row>,
    /// The events of each group, in order.
    groups: HashMap<&'a str, Vec<i64>>,
}

/// In whose hand an event was.
enum Hand<'a> {
    Over,
    Nobodys {
        before: Option<&'a str>,
    },
    Of {
        process: &'a str,
        attempt: u32,
        before: Option<&'a str>,
    },
}

/// Every lease of an event while an earlier one of its group was open and not in the same hand, and every
/// start of one before its process was done with what it had leased ahead of it.
pub fn violations(history: &History, starts: &BTreeMap<i64, Vec<Start<'_>>>) -> Vec<String> {
    let leases = Leases::of(history);
    let mut found = Vec::new();
    for (position, change) in history.leases.iter().enumerate() {
        if let Some(token) = &change.now {
            found.extend(leases.overtakings(change, position, token));
        }
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
        let mut changes: HashMap<_, Vec<_>> = HashMap::new();
        for (position, change) in history.leases.iter().enumerate() {
            changes
                .entry(change.id)
                .or_default()
                .push((position, change));
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

    /// In whose hand an event was when the statement with this token leased. What that one leased, it leased
    /// at once, in whatever order it was told.
    fn hand(&self, id: i64, position: usize, token: &str) -> Hand<'a> {
        let changes = self.changes.get(&id).map_or(&[][..], Vec::as_slice);
        let last = changes
            .iter()
            .rposition(|(at, change)| *at < position || change.now.as_deref() == Some(token));
        let Some(last) = last else {
            return Hand::Nobodys { before: None };
        };
        let change = changes[last].1;
        let giver = changes[..last]
            .iter()
            .rfind(|(_, earlier)| earlier.now.is_some() && earlier.now == change.was);
        let before = giver.map(|(_, earlier)| earlier.by.as_str());
        match change.now {
            _ if change.gone => Hand::Over,
            None => Hand::Nobodys { before },
            Some(_) => Hand::Of {
                process: &change.by,
                attempt: change.attempts,
                before,
            },
        }
    }

    fn overtakings(&self, change: &LeaseChange, position: usize, token: &str) -> Vec<String> {
        let (id, by) = (change.id, change.by.as_str());
        let overtaken = |earlier: &i64| {
            let (what, before) = match self.hand(*earlier, position, token) {
                Hand::Over => return None,
                Hand::Of { process, .. } if process == by => return None,
                Hand::Of {
                    process, before, ..
                } => (format!("in the hand of {process}"), before),
                Hand::Nobodys { before } => ("open".to_owned(), before),
            };
            let violation = format!("{by} leased event {id} while {earlier} was {what}");
            (before != Some(by)).then_some(violation)
        };
        self.earlier(id).iter().filter_map(overtaken).collect()
    }

    /// The earlier events of the group, and their attempts, that the process of this start had in its hand
    /// when it leased this one.
    fn ahead_of(&self, id: i64, start: &Start<'_>) -> Vec<(i64, u32)> {
        let changes = self.changes.get(&id).map_or(&[][..], Vec::as_slice);
        let lease = changes.iter().rev().find_map(|(position, change)| {
            let is_its = change.attempts == start.attempt && change.by == start.process;
            Some((*position, change.now.as_deref().filter(|_| is_its)?))
        });
        let Some((position, token)) = lease else {
            return Vec::new();
        };
        let in_its_hand = |earlier: &i64| match self.hand(*earlier, position, token) {
            Hand::Of {
                process, attempt, ..
            } if process == start.process => Some((*earlier, attempt)),
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

/// Whether the process of a start had ended this attempt by then.
fn has_ended(
    starts: &BTreeMap<i64, Vec<Start<'_>>>,
    id: i64,
    attempt: u32,
    next: &Start<'_>,
) -> bool {
    starts.get(&id).into_iter().flatten().any(|start| {
        let ended = start.end.is_some_and(|(at, _)| at <= next.at);
        ended && start.process == next.process && start.attempt == attempt
    })
}
