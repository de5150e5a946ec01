//! Owns the events in hand that have not started: lowest id first, one of a group at a time. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::event::{Lease, LeasedEvent};

/// Leased events that wait for a free handler.
#[derive(Default)]
pub(super) struct Schedule {
    /// What may start: events without a group, and the head of each group that is not running.
    ready: BTreeMap<Lease, LeasedEvent>,
    /// Groups with an event ready or running, and what waits behind it.
    groups: HashMap<String, VecDeque<LeasedEvent>>,
    waiting: usize,
}

impl Schedule {
    /// Adds an event; those of one group must come in order, as a lease returns them.
    pub(super) fn push(&mut self, event: LeasedEvent) {
        if let Some(group) = &event.group_key {
            if let Some(behind) = self.groups.get_mut(group) {
                behind.push_back(event);
                self.waiting += 1;
                return;
            }
            self.groups.insert(group.clone(), VecDeque::new());
        }
        self.ready.insert(event.lease, event);
    }

    /// The next event to start. Its group stays closed until [`Schedule::open`].
    pub(super) fn pop(&mut self) -> Option<LeasedEvent> {
        self.ready.pop_first().map(|(_, event)| event)
    }

    /// The group's event ended for good: the next one may start.
    pub(super) fn open(&mut self, group: &str) {
        match self.groups.get_mut(group).and_then(VecDeque::pop_front) {
            Some(next) => {
                self.waiting -= 1;
                self.ready.insert(next.lease, next);
            }
            None => drop(self.groups.remove(group)),
        }
    }

    /// The group's event goes back to the queue, so what waits behind it must too.
    pub(super) fn close(&mut self, group: &str) -> Vec<LeasedEvent> {
        let behind: Vec<LeasedEvent> = self.groups.remove(group).map(Vec::from).unwrap_or_default();
        self.waiting -= behind.len();
        behind
    }

    /// Everything of a group that has not started, when an event ahead of it was lost. That one has
    /// ended here, so another of the group may be running: then the group stays shut until it is opened.
    pub(super) fn take_group(&mut self, group: &str) -> Vec<LeasedEvent> {
        let of_group = |event: &LeasedEvent| event.group_key.as_deref() == Some(group);
        let head = self.ready.values().find(|event| of_group(event));
        let head = head.map(|event| event.lease);
        let Some(head) = head.and_then(|lease| self.ready.remove(&lease)) else {
            let behind = self.groups.get_mut(group).map(std::mem::take);
            let behind = behind.unwrap_or_default();
            self.waiting -= behind.len();
            return behind.into();
        };
        std::iter::once(head).chain(self.close(group)).collect()
    }

    /// Everything unstarted, at the end of the run.
    pub(super) fn take_all(&mut self) -> Vec<LeasedEvent> {
        self.waiting = 0;
        let behind = self.groups.values_mut().flat_map(std::mem::take);
        std::mem::take(&mut self.ready)
            .into_values()
            .chain(behind)
            .collect()
    }

    /// Takes out an event whose lease is lost, with what waits behind it in its group.
    pub(super) fn remove(&mut self, lease: Lease) -> Option<(LeasedEvent, Vec<LeasedEvent>)> {
        if let Some(event) = self.ready.remove(&lease) {
            let behind = event
                .group_key
                .clone()
                .map(|group| self.close(&group))
                .unwrap_or_default();
            return Some((event, behind));
        }
        let (line, at) = self.groups.values_mut().find_map(|line| {
            let at = line.iter().position(|event| event.lease == lease)?;
            Some((line, at))
        })?;
        let mut behind: Vec<LeasedEvent> = line.drain(at..).collect();
        self.waiting -= behind.len();
        let event = behind.remove(0);
        Some((event, behind))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.waiting
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an event could start now.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The leases of all that wait.
    pub(super) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.ready
            .values()
            .chain(self.groups.values().flatten())
            .map(|event| event.lease)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn lease(id: i64) -> Lease {
        Lease {
            id,
            token: Uuid::nil(),
        }
    }

    fn ids(events: &[LeasedEvent]) -> Vec<i64> {
        events.iter().map(|event| event.lease.id).collect()
    }

    fn filled() -> Schedule {
        let mut schedule = Schedule::default();
        for (id, group) in [
            (1, Some("a")),
            (2, Some("a")),
            (3, None),
            (4, Some("b")),
            (5, Some("a")),
        ] {
            schedule.push(LeasedEvent::sample(id, group));
        }
        schedule
    }

    #[test]
    fn b10_a_group_gives_one_event_at_a_time_and_others_pass() {
        let mut schedule = filled();
        let started: Vec<i64> = std::iter::from_fn(|| schedule.pop())
            .map(|event| event.lease.id)
            .collect();
        assert_eq!(started, [1, 3, 4]);
        schedule.open("a");
        assert_eq!(schedule.pop().unwrap().lease.id, 2);
        assert_eq!(schedule.len(), 1);
    }

    #[test]
    fn an_older_event_that_comes_later_starts_first() {
        let mut schedule = Schedule::default();
        schedule.push(LeasedEvent::sample(7, None));
        schedule.push(LeasedEvent::sample(2, None));
        assert_eq!(schedule.pop().unwrap().lease.id, 2);
    }

    #[test]
    fn closing_a_group_gives_back_its_rest_and_nothing_else() {
        let mut schedule = filled();
        schedule.pop();
        assert_eq!(ids(&schedule.close("a")), [2, 5]);
        assert_eq!(schedule.len(), 2);
        schedule.push(LeasedEvent::sample(9, Some("a")));
        assert_eq!(schedule.len(), 3);
    }

    #[test]
    fn a_lost_lease_takes_those_behind_it_along() {
        let mut schedule = filled();
        let (lost, behind) = schedule.remove(lease(2)).unwrap();
        assert_eq!((lost.lease.id, ids(&behind)), (2, vec![5]));
        assert!(schedule.remove(lease(99)).is_none());
        assert_eq!(schedule.len(), 3);
        assert_eq!(schedule.leases().count(), 3);
    }

    #[test]
    fn taking_a_group_leaves_the_others() {
        let mut schedule = filled();
        assert_eq!(ids(&schedule.take_group("a")), [1, 2, 5]);
        assert_eq!(schedule.len(), 2);
        assert!(schedule.take_group("a").is_empty());
    }

    #[test]
    fn i4_a_group_whose_event_was_lost_stays_shut_while_another_of_it_runs() {
        let mut schedule = filled();
        assert_eq!(schedule.pop().unwrap().lease.id, 1);
        schedule.open("a");
        assert_eq!(schedule.pop().unwrap().lease.id, 2);
        // Event 1 has ended, and only now its end turns out to be nobody's.
        assert_eq!(ids(&schedule.take_group("a")), [5]);
        schedule.push(LeasedEvent::sample(6, Some("a")));
        schedule.push(LeasedEvent::sample(7, Some("a")));
        assert_eq!(schedule.pop().unwrap().lease.id, 3);
        assert_eq!(schedule.pop().unwrap().lease.id, 4);
        assert!(!schedule.has_ready(), "event 2 is running");
        schedule.open("a");
        assert_eq!(schedule.pop().unwrap().lease.id, 6);
        assert!(!schedule.has_ready(), "event 6 is running");
    }

    #[test]
    fn taking_all_empties_it() {
        let mut schedule = filled();
        schedule.pop();
        assert_eq!(schedule.take_all().len(), 4);
        assert!(schedule.is_empty() && !schedule.has_ready());
    }
}
