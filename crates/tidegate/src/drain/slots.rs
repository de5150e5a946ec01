//! The part of the loop that holds a slot while the drain works. The slots limit how many drains work at
//! once, however many are started. A drain that gets no slot ends at once. A drain that has lost its slot,
//! for instance because it was frozen, finishes what it has in the buffer.
//!
//! Where drains can start other drains, one that sees more ready events than it can finish in its budget
//! starts the missing drains. The last drain to end while events are left starts the next one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_core::chain::{Chain, StartDrain};
use tidegate_core::config::millis;
use tidegate_core::connect::Conn;
use tidegate_core::error::Error;
use tidegate_core::queue::{self, Kept, LeftToDo, Taken};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Drain, DrainReport, StopReason};
use crate::dispatch::Dispatch;

/// How often a slot is renewed, unless leases are renewed more often. A drain looks whether it needs others
/// only with a renewal, because its rate means little before the first one.
const KEEP: Duration = Duration::from_secs(1);

/// How often ready events are counted. By then, the drains that were started have a slot.
const COUNT: Duration = Duration::from_secs(5);

/// The longest time that a start may take.
const START: Duration = Duration::from_secs(2);

/// The most characters of a failed drain's error that are stored with its report.
const MOST_OF_ERROR: usize = 300;

/// The most ready events that are counted. A drain that can finish as many needs no others, and counting
/// would only keep it from leasing.
const MOST_COUNTED: u64 = 100_000;

/// The slot of a drain, and what it knows of the other drains.
pub(super) struct Slots {
    held: Option<Held>,
    /// Whether another drain has the slot.
    pub lost: bool,
    /// Whether this drain needs no slot, because there was nothing to do when it came.
    pub idle: bool,
    chain: Chain,
    starter: Option<Arc<dyn StartDrain>>,
    /// The runtime for starts. A task that a start leaves running must not end with the drain.
    runtime: Handle,
    /// When ready events were last counted.
    counted_at: Option<Instant>,
    /// Whether publishers wake drains when none is at work. Then this drain looks a last time after it has
    /// left its slot.
    wakes: bool,
    /// Events leased and ready at the last such look.
    looked: (u64, u64),
    /// The position in the server's write-ahead log when the run began.
    wal: Option<i64>,
    /// What is left when the run has ended.
    left: LeftToDo,
    starts: JoinSet<bool>,
}

#[derive(Clone, Copy)]
struct Held {
    number: i32,
    kept_at: Instant,
}

impl Slots {
    pub(super) fn new(
        chain: Option<Chain>,
        starter: Option<Arc<dyn StartDrain>>,
        runtime: Handle,
    ) -> Self {
        Self {
            held: None,
            lost: false,
            idle: false,
            chain: chain.unwrap_or_else(Chain::begin),
            starter,
            runtime,
            counted_at: None,
            wakes: false,
            looked: (0, 0),
            wal: None,
            left: LeftToDo::default(),
            starts: JoinSet::new(),
        }
    }

    /// Starts a drain, and does not wait for it.
    fn start(&mut self, chain: Option<Chain>) {
        let (Some(starter), Some(chain)) = (self.starter.clone(), chain) else {
            return;
        };
        let start = async move {
            let answer = tokio::time::timeout(START, starter.start(chain)).await;
            let failed = match answer {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {START:?}"),
            };
            tracing::warn!(error = failed, "another drain could not be started");
            false
        };
        self.starts.spawn_on(start, &self.runtime);
    }

    /// Waits for the starts, and counts those that succeeded and those that failed.
    async fn started(&mut self, report: &mut DrainReport) {
        while let Some(one) = self.starts.join_next().await {
            if one.unwrap_or(false) {
                report.started_drains += 1;
            } else {
                report.starts_failed += 1;
            }
        }
    }
}

impl<D: Dispatch> Drain<D> {
    /// Takes a slot. If there is none, returns why there is nothing to do.
    pub(super) async fn take_slot(&mut self) -> Result<Option<StopReason>, Error> {
        let most = i32::from(self.options.max_drains);
        let name = self.options.worker_name();
        let worker = self.fetcher.worker;
        // A drain that others have started, or that lingers, has its place in any case.
        let (timeout, chain) = (self.options.lease_timeout, self.slots.chain);
        let kinds = self.fetcher.all_kinds.clone();
        let kinds = (chain.hop == 0 && self.options.linger.is_zero()).then_some(&*kinds);
        let Some(session) = self.fetcher.session() else {
            return Ok(Some(StopReason::NoSlot));
        };
        let now = Instant::now();
        let taken = loop {
            let taken = match session.client().await {
                Ok(client) => {
                    queue::take_slot(client, worker, &name, most, timeout, chain, kinds).await
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(taken) => break taken,
                Err(error) => session.retry_after(error).await?,
            }
        };
        session.recovered();
        self.slots.idle = taken == Taken::Idle;
        let slot = match taken {
            Taken::Slot(slot) => slot,
            Taken::None => return Ok(Some(StopReason::NoSlot)),
            Taken::Idle => return Ok(Some(StopReason::QueueEmpty)),
            Taken::Repeated => return Ok(Some(StopReason::AlreadyRun)),
        };
        self.slots.wakes = slot.wakes;
        self.slots.wal = self.slots.wal.or(slot.wal);
        self.slots.held = Some(Held {
            number: slot.number,
            kept_at: now,
        });
        self.report.slot = u16::try_from(slot.number).unwrap_or_default();
        Ok(None)
    }

    /// Whether there is something to do after all, for a drain that has found the queue empty. If publishers
    /// wake drains, it leaves its slot first and then looks: a publisher that saw it in its slot has woken
    /// nobody, and has committed before. Then it takes a slot again. What it can see but not lease, such as
    /// events of a limited service, is no news the second time.
    pub(super) async fn finds_news(&mut self) -> Result<bool, Error> {
        if !self.slots.wakes || self.slots.held.is_none() {
            return Ok(false);
        }
        self.leave_slot().await?;
        let kinds = self.fetcher.all_kinds.clone();
        let look = async |look: Conn<'_>| queue::left_to_do(&look, &kinds, queue::MOST_LEFT).await;
        let Some(left) = self.look(look).await else {
            return Ok(false);
        };
        let (leased, ready) =
            std::mem::replace(&mut self.slots.looked, (self.report.leased, left.ready));
        let is_news = left.ready > 0 && (self.report.leased > leased || left.ready > ready);
        if !is_news || self.take_slot().await?.is_some() {
            return Ok(false);
        }
        self.rescan();
        Ok(true)
    }

    /// Returns the slot to renew, if it is time to, and up to which number to count ready events if no other
    /// drain has a lower slot: 0, unless this drain may start others.
    pub(super) fn keep_slot(&self, now: Instant) -> Option<(i32, u64)> {
        let often = KEEP.min(self.options.lease_timeout / 3);
        let held = self.slots.held.filter(|held| now >= held.kept_at + often)?;
        let counted_at = self.slots.counted_at;
        let is_due = counted_at.is_none_or(|counted| now >= counted + COUNT);
        let starts = self.slots.starter.is_some() && is_due && !self.is_spent();
        let finishes = self.can_finish();
        // As many more as all drains have handlers: then none is started that would have nothing to do.
        let handlers = self.options.concurrency as u64 * u64::from(self.options.max_drains);
        let counts = starts && finishes < MOST_COUNTED;
        Some((held.number, u64::from(counts) * (finishes + handlers)))
    }

    pub(super) fn slot_kept(&mut self, kept: Kept, sent: Instant) {
        if !kept.ours {
            tracing::warn!("another drain has taken this drain's slot; this drain ends");
            self.slots.held = None;
            self.slots.lost = true;
            self.budget.stop();
        }
        if let Some(held) = &mut self.slots.held {
            held.kept_at = sent;
        }
        if let Some(at_work) = kept.at_work {
            self.slots.counted_at = Some(sent);
            self.start_missing(kept.ready, at_work);
        }
    }

    /// Returns how many events this drain can finish in the rest of its budget, at its rate so far.
    fn can_finish(&self) -> u64 {
        let worked = millis(self.budget.elapsed()).max(1);
        let left = self.budget.cut().saturating_duration_since(Instant::now());
        self.report.ended().saturating_mul(millis(left)) / worked
    }

    /// Starts the missing drains if more events are ready than this one can finish. Each is to have as many
    /// as it has handlers.
    fn start_missing(&mut self, ready: u64, at_work: u16) {
        if ready <= self.can_finish() {
            return;
        }
        let missing = self.options.max_drains.saturating_sub(at_work);
        let useful = ready.div_ceil(self.options.concurrency as u64);
        for _ in 0..useful.min(missing.into()) {
            self.slots.start(self.slots.chain.beside());
        }
    }

    /// A slot that cannot be given back becomes free when its time is up.
    pub(super) async fn leave_slot(&mut self) -> Result<(), Error> {
        let held = self.slots.held.take();
        let worker = self.fetcher.worker;
        if let (Some(held), Some(session)) = (held, self.fetcher.session())
            && let Err(error) =
                queue::leave_slot(session.client().await?, held.number, worker).await
        {
            tracing::warn!(%error, "the drain's slot could not be released");
        }
        Ok(())
    }

    /// Records what is left for other drains, and what the run has cost. That must be read after the slot was
    /// left: of several drains that end at once, the last one then sees none at work.
    pub(super) fn note_left(&mut self, left: LeftToDo, wal: Option<i64>) {
        let written = wal.zip(self.slots.wal).map(|(now, then)| now - then);
        self.report.cost.server_wal_bytes = written.map(i64::unsigned_abs);
        self.report.ready_left = Some(left.ready);
        self.report.next_due_at.clone_from(&left.next_due_at);
        self.slots.left = left;
    }

    /// Starts the drain that follows this one, unless those at work finish what is left in as much time as
    /// this one had. Not after a drain that has ended no event: then something other than time is missing.
    /// All starts together may take the rest of the run's overrun.
    pub(super) async fn start_next(&mut self) {
        let left = &self.slots.left;
        let finished = self.report.ended().saturating_mul(left.at_work.into());
        if self.report.goes_on() && left.ready > finished {
            self.slots.start(self.slots.chain.behind());
        }
        let left = self.limit().saturating_sub(self.budget.elapsed());
        let started = self.slots.started(&mut self.report);
        if tokio::time::timeout(left, started).await.is_err() {
            self.report.starts_failed += self.slots.starts.len() as u64;
        }
    }

    /// Stores the report in the database, for operators who look at past drains. A drain without a slot has
    /// done nothing. A failure to store it is only logged, and it takes no longer than the rest of the run's
    /// overrun.
    pub(super) async fn note_run(&mut self, failed: Option<&Error>) {
        if self.report.slot == 0 && !self.slots.idle {
            return;
        }
        let left = self.limit().saturating_sub(self.budget.elapsed());
        if let Err(error) = Error::within("report", left, self.note(failed)).await {
            tracing::debug!(%error, "the drain's report could not be stored in the database");
        }
    }

    async fn note(&mut self, failed: Option<&Error>) -> Result<(), Error> {
        let mut report = json!(self.report);
        if let Some(error) = failed {
            report["stop_reason"] = "failed".into();
            let error: String = error.to_string().chars().take(MOST_OF_ERROR).collect();
            report["error"] = error.into();
        }
        let report = report.to_string();
        let worker = self.fetcher.worker;
        let Some(session) = self.fetcher.session() else {
            return Ok(());
        };
        let client = session.client().await?;
        queue::note_run(client, worker, &report).await
    }
}
