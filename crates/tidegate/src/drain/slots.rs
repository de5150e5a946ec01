//! The part of the loop that has a slot while it works: so many drains work at once at most, however many are started. A drain
//! that gets none ends at once, and one that has lost its own, because it was frozen for instance, ends what it has in hand.

use std::time::Duration;

use tokio::time::Instant;

use super::Drain;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::queue;

/// A slot is kept this often, or as often as leases are: others read of it how fast its drain is.
const KEEP: Duration = Duration::from_secs(5);

/// Before that a drain's rate says little.
const SETTLED: Duration = Duration::from_secs(2);

/// Which slot a drain has.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainSlot {
    number: i32,
    kept_at: Instant,
}

/// What is told with a lease to keep it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Keep {
    pub slot: i32,
    pub rate: Option<f64>,
}

impl<D: Dispatch> Drain<D> {
    /// Takes a slot, if there is one.
    pub(super) async fn take_slot(&mut self) -> Result<bool, Error> {
        let most = i32::from(self.options.max_drains);
        let Some(session) = self.leasing.idle() else {
            return Ok(false);
        };
        let asked_at = Instant::now();
        let number = loop {
            let taken = match session.client().await {
                Ok(client) => {
                    queue::take_slot(client, self.worker, most, self.options.lease_timeout).await
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(number) => break number,
                Err(error) => session.retry_after(error).await?,
            }
        };
        session.recovered();
        self.slot = number.map(|number| DrainSlot {
            number,
            kept_at: asked_at,
        });
        self.report.slot = number
            .and_then(|number| u16::try_from(number).ok())
            .unwrap_or_default();
        Ok(number.is_some())
    }

    /// What to tell of the slot now, if it is time to.
    pub(super) fn keep_slot(&self, now: Instant) -> Option<Keep> {
        let slot = self.slot?;
        let often = KEEP.min(self.options.lease_timeout / 3);
        (now >= slot.kept_at + often).then(|| Keep {
            slot: slot.number,
            rate: self.rate(),
        })
    }

    /// Events that end in a second.
    fn rate(&self) -> Option<f64> {
        let elapsed = self.budget.elapsed();
        let report = &self.report;
        let ended = report.completed + report.completed_with_errors + report.failed;
        let ended = f64::from(u32::try_from(ended).unwrap_or(u32::MAX));
        (elapsed >= SETTLED).then(|| ended / elapsed.as_secs_f64())
    }

    /// The slot was told of; whether it still is ours.
    pub(super) fn slot_kept(&mut self, ours: bool, sent: Instant) {
        if !ours {
            tracing::warn!("another drain has this one's slot, and this one ends");
            self.slot = None;
            self.slot_lost = true;
            self.budget.stop();
        }
        if let Some(slot) = &mut self.slot {
            slot.kept_at = sent;
        }
    }

    /// Gives the slot back; that is nothing to fail for, for it is free again in time.
    pub(super) async fn leave_slot(&mut self) {
        let (Some(slot), Some(session)) = (self.slot.take(), self.leasing.idle()) else {
            return;
        };
        let left = match session.client().await {
            Ok(client) => queue::leave_slot(client, slot.number, self.worker).await,
            Err(error) => Err(error),
        };
        if let Err(error) = left {
            tracing::warn!(%error, "the drain's slot could not be given back");
        }
    }
}
