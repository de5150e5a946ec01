//! The part of the loop that deals with the database: sends leases and writes, one of each at a time,
//! and takes in their answers.

use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::time::Instant;
use uuid::Uuid;

use super::flusher::{Class, Flush, Found, Job, Written, flush};
use super::leaser::{Arrival, lease};
use super::pace::Order;
use super::settle::count;
use super::{Drain, FLUSH_AGE, Held, Slot, millis};
use crate::error::Error;
use crate::event::{Event, Fate, Lease, LeasedEvent};
use crate::handler::Dispatch;
use crate::outcome::Status;

/// A retry with a delay below this may be ready without ever having counted as delayed.
const AT_ONCE: Duration = Duration::from_millis(100);

impl<D: Dispatch> Drain<D> {
    /// Writes when enough has come together, when it has waited long enough, when nothing else is
    /// going on, or when leases must be renewed.
    pub(super) fn send_flush(&mut self) {
        if !self.flushing.is_idle() {
            return;
        }
        let now = Instant::now();
        self.pending.renewals = self.leases_to_renew(now);
        let enough = self.pending.outcomes() >= (self.options.batch / 2).max(1) as usize;
        let aged = now >= self.pending_since + FLUSH_AGE;
        let quiet = self.running.is_empty() && !self.schedule.has_ready();
        let outcomes_due = self.pending.has_outcomes() && (enough || aged || quiet);
        if !outcomes_due && self.pending.renewals.is_empty() {
            return;
        }
        if let Some(link) = self.flushing.take() {
            let job = std::mem::take(&mut self.pending);
            self.flushing = Slot::Busy(flush(link, job, self.options.lease_timeout).boxed());
        }
    }

    /// Leases older than a third of their time, for what runs or waits.
    fn leases_to_renew(&mut self, now: Instant) -> Vec<Lease> {
        let third = self.options.lease_timeout / 3;
        if self.held.values().all(|held| now < held.renewed + third) {
            return Vec::new();
        }
        let due: Vec<Uuid> = self
            .held
            .iter()
            .filter(|(_, held)| now >= held.renewed + third)
            .map(|(token, _)| *token)
            .collect();
        for token in &due {
            if let Some(held) = self.held.get_mut(token) {
                held.renewed = now;
            }
        }
        let handed_over = self.running.keys().copied();
        handed_over
            .chain(self.schedule.leases())
            .filter(|lease| due.contains(&lease.token))
            .collect()
    }

    pub(super) fn flush_done(&mut self, flush: Flush) -> Result<(), Error> {
        self.flushing = Slot::Idle(Box::new(flush.link));
        let written = flush.written?;
        self.count_written(&flush.job, &written);
        self.look_again(&flush.job);
        self.bar_until_leases_arrive(&flush.job);
        self.drop_lost(&flush.job, &written);
        self.flushed.0.send_if_modified(|reached| {
            let further = flush.job.up_to > *reached;
            *reached = flush.job.up_to.max(*reached);
            further
        });
        self.group_ends
            .retain(|_, number| *number > flush.job.up_to);
        self.pace.hurry();
        if let Some(progress) = &self.hooks.progress {
            let mut report = self.report.clone();
            report.elapsed_ms = millis(self.budget.elapsed());
            progress.send_replace(report);
        }
        Ok(())
    }

    fn count_written(&mut self, job: &Job, written: &Written) {
        let came_back = |held: &Option<Found>, lease: &Lease| {
            held.as_ref().is_some_and(|held| held.contains(lease))
        };
        self.report.published += written.published;
        for end in &job.ends {
            let lease = end.finalization.lease;
            self.let_go(lease.token);
            let class = if written.unstorable.contains(&lease) {
                Class::Handled(Status::Failed)
            } else {
                end.class
            };
            if came_back(&written.ended, &lease) {
                count(&mut self.report, class);
                continue;
            }
            if let Class::Handled(_) = class {
                self.count_lost(lease);
            }
            self.give_back_group(end.group.as_deref());
        }
        for retry in &job.retries {
            self.let_go(retry.lease.token);
            if came_back(&written.retried, &retry.lease) {
                self.report.retried += 1;
            } else {
                self.count_lost(retry.lease);
            }
        }
        for release in &job.releases {
            self.let_go(release.lease.token);
            match (
                release.counted,
                came_back(&written.released, &release.lease),
            ) {
                (true, true) => self.report.released += 1,
                (true, false) => self.count_lost(release.lease),
                (false, _) => {}
            }
        }
    }

    /// What went back behind the cursor is looked for at once, not only by the next walk.
    fn look_again(&mut self, job: &Job) {
        let at_once = job
            .retries
            .iter()
            .filter(|retry| retry.delay < AT_ONCE)
            .map(|retry| retry.lease.id);
        if let Some(lowest) = job
            .releases
            .iter()
            .map(|release| release.lease.id)
            .chain(at_once)
            .min()
        {
            self.pace.back_to(lowest);
        }
    }

    /// An event turns out not to be over: what is in hand behind it must not start.
    fn give_back_group(&mut self, group: Option<&str>) {
        if let Some(group) = group {
            self.pace.doubt(group);
            let behind = self.schedule.take_group(group);
            self.release(behind);
        }
    }

    fn count_lost(&mut self, lease: Lease) {
        tracing::warn!(
            event.id = lease.id,
            "lease lost; what became of the event here changes nothing"
        );
        self.report.lease_lost += 1;
    }

    /// A group stays barred until no lease from before its last write is under way.
    fn bar_until_leases_arrive(&mut self, job: &Job) {
        for group in &job.closed_groups {
            self.pace.doubt(group);
            let Some(barred) = self.barred.get_mut(group) else {
                continue;
            };
            barred.unwritten -= 1;
            if barred.unwritten == 0 && self.leasing.is_idle() {
                self.barred.remove(group);
            } else if barred.unwritten == 0 {
                barred.until_lease = Some(self.leases_sent);
            }
        }
    }

    /// Unstarted events whose lease could not be renewed belong to somebody else now.
    fn drop_lost(&mut self, job: &Job, written: &Written) {
        for lease in &job.renewals {
            if written
                .renewed
                .as_ref()
                .is_some_and(|renewed| renewed.contains(lease))
            {
                continue;
            }
            let unstarted = match self.take_back(*lease) {
                Some(event) => {
                    let group = event.group_key.as_deref();
                    let behind = group.map(|group| self.schedule.close(group));
                    Some((event, behind.unwrap_or_default()))
                }
                None => self.schedule.remove(*lease),
            };
            if let Some((event, behind)) = unstarted {
                self.let_go(event.lease.token);
                if let Some(group) = &event.group_key {
                    self.pace.doubt(group);
                }
                if event.fate == Fate::Run {
                    self.count_lost(event.lease);
                }
                self.release(behind);
            }
        }
    }

    /// One row fewer of this lease is in hand.
    pub(super) fn let_go(&mut self, token: Uuid) {
        if let Some(held) = self.held.get_mut(&token) {
            held.rows -= 1;
            if held.rows == 0 {
                self.held.remove(&token);
            }
        }
    }

    /// Leases ahead: as soon as no more than one lease's worth of events waits. With half of that the leasing
    /// session, the busier one, was idle for a seventh of a drain of quick handlers (5 % slower).
    pub(super) fn send_lease(&mut self) {
        let most = self
            .options
            .max_events
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.report.leased));
        let enough = self.schedule.len() > self.pace.want() as usize;
        if !self.leasing.is_idle()
            || enough
            || most == 0
            || self.is_spent()
            || Instant::now() < self.pace.poll_at()
        {
            return;
        }
        if let Some(link) = self.leasing.take() {
            self.leases_sent += 1;
            let idle = self.is_idle();
            let mut order = Order::new(&mut self.pace, most, idle);
            order.held = self.held.keys().copied().collect();
            order.timeout = self.options.lease_timeout;
            let lowest = self.held.values().map(|held| held.lowest).min();
            order.known = self.pace.known(&order, lowest);
            order.kinds = self.budget.kinds_with_time(D::Event::KINDS);
            self.kinds_left_out = order.kinds.len() < D::Event::KINDS.len();
            order.number = self.leases_sent;
            self.leasing = Slot::Busy(lease(link, order).boxed());
        }
    }

    pub(super) fn lease_arrived(&mut self, mut arrival: Arrival) -> Result<(), Error> {
        self.leasing = Slot::Idle(Box::new(arrival.link));
        let mut batch = arrival.batch?;
        let empty = self.pace.arrived(
            &mut arrival.order,
            arrival.promoted,
            &mut batch,
            self.schedule.len(),
        );
        self.seen_empty = empty && self.is_idle();
        if !batch.events.is_empty() {
            self.report.batches += 1;
        }
        for event in batch.events {
            let held = self.held.entry(event.lease.token).or_insert(Held {
                rows: 0,
                lowest: event.lease.id,
                renewed: arrival.order.sent,
            });
            held.rows += 1;
            self.report.leased += u64::from(event.fate == Fate::Run);
            if self.is_barred(&event, arrival.order.number) {
                self.release(vec![event]);
            } else {
                self.schedule.push(event);
            }
        }
        self.barred.retain(|_, barred| {
            barred
                .until_lease
                .is_none_or(|until| until > arrival.order.number)
        });
        Ok(())
    }

    fn is_barred(&self, event: &LeasedEvent, lease_number: u64) -> bool {
        let barred = event
            .group_key
            .as_ref()
            .and_then(|group| self.barred.get(group));
        barred.is_some_and(|barred| barred.until_lease.is_none_or(|until| lease_number <= until))
    }
}
