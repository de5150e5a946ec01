//! The part of the loop that holds a slot while it works. The slots limit how many drains work at once,
//! however many are started. A drain that gets no slot ends at once. A drain that has lost its slot, for
//! instance because it was frozen, finishes what it has in the buffer.
//!
//! Where drains can start other drains, the one in the lowest slot checks from time to time whether more of
//! them would help. The last drain to end while events are left starts the next one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join, join3};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Drain, DrainReport, StopReason};
use crate::chain::{Chain, Fleet, Seen, StartDrain, wanted};
use crate::connect::Client;
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::queue::{self, Kept, Left, Taken};

/// How often a slot is renewed, unless leases are renewed more often. Other drains read from it how fast this
/// drain is.
const KEEP: Duration = Duration::from_secs(2);

/// A drain's rate means little before it has run for this long.
const SETTLED: Duration = Duration::from_secs(1);

/// The longest time that a start may take.
const START: Duration = Duration::from_secs(2);

/// The longest time to wait for the slot of a drain that closes. Such a drain gives its slot back within a
/// few statements, unless it was killed in the meantime.
const LONGEST_CLOSING: Duration = Duration::from_secs(2);

/// How often a drain that waits for such a slot requests it.
const WHILE_CLOSING: Duration = Duration::from_millis(20);

/// The most characters of a failed drain's error that are stored with its report.
const MOST_OF_ERROR: usize = 300;

/// The most ready events that are counted to find out how many drains they need.
const MOST_SURVEYED: i32 = 100_000;

/// The slot of a drain, and what it knows of the other drains.
pub(super) struct Slots {
    held: Option<Held>,
    /// Whether another drain has the slot.
    pub lost: bool,
    chain: Chain,
    starter: Option<Arc<dyn StartDrain>>,
    /// The runtime for starts. A task that a start leaves running must not end with the drain.
    runtime: Handle,
    fleet: Fleet,
    /// The number of ends and the time when the slot was last renewed, from which the rate is computed.
    counted: (u64, Instant),
    rate: Option<f64>,
    /// Whether the next lease is to look at all drains.
    surveys: bool,
    /// Whether publishers wake drains when none is at work. If so, this drain announces its end and looks one
    /// last time.
    closing: Closing,
    /// The position in the server's write-ahead log when the run began.
    wal: Option<i64>,
    /// What is left when the run has ended.
    left: Left,
    starts: JoinSet<bool>,
}

/// Whether publishers know that they must wake another drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// No publisher wakes drains.
    NeedNot,
    /// Publishers rely on this drain.
    Open,
    /// The end is to be announced.
    Due,
    /// The end is announced.
    Announced,
}

#[derive(Clone, Copy)]
struct Held {
    number: i32,
    kept_at: Instant,
}

/// What a lease requests about slots.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SlotRequest {
    /// Renew this slot, with the number of events that its drain ends per second.
    keep: Option<(i32, Option<f64>)>,
    /// Look at all drains.
    surveys: bool,
    /// Announce that the drain in this slot looks one last time, or that it goes on.
    closes: Option<(i32, bool)>,
}

/// The answers.
#[derive(Default)]
pub(super) struct SlotAnswer {
    kept: Option<Kept>,
    /// Whether the announcement was made, or cannot be made.
    closes: bool,
    surveyed: Option<Left>,
}

impl SlotAnswer {
    /// Whether something was announced to publishers.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }
}

impl SlotRequest {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sends all requests in one round trip.
    pub(super) async fn ask(
        self,
        client: &Client,
        worker: Uuid,
        timeout: Duration,
        kinds: &[&str],
    ) -> Result<SlotAnswer, Error> {
        let keep = self
            .keep
            .map(|(slot, rate)| queue::keep_slot(client, (slot, worker), timeout, rate));
        let survey = self
            .surveys
            .then(|| queue::left_to_do(client, kinds, MOST_SURVEYED.into()));
        let close = self
            .closes
            .map(|(slot, closing)| queue::close_slot(client, (slot, worker), closing));
        let (kept, surveyed, closed) = join3(
            OptionFuture::from(keep),
            OptionFuture::from(survey),
            OptionFuture::from(close),
        )
        .await;
        Ok(SlotAnswer {
            kept: kept.transpose()?,
            closes: closed.transpose()?.is_some(),
            surveyed: surveyed.transpose()?,
        })
    }
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
            chain: chain.unwrap_or_else(Chain::begin),
            starter,
            runtime,
            fleet: Fleet::default(),
            counted: (0, Instant::now()),
            rate: None,
            surveys: false,
            closing: Closing::NeedNot,
            wal: None,
            left: Left::default(),
            starts: JoinSet::new(),
        }
    }

    /// Whether no slot has been requested yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.held.is_none() && !self.lost
    }

    /// Begins to start a drain.
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
        let worker = (self.fetcher.worker, &*name);
        let Some(session) = self.fetcher.session() else {
            return Ok(Some(StopReason::NoSlot));
        };
        let requested_at = Instant::now();
        let mut kept_at = requested_at;
        let taken = loop {
            let timeout = self.options.lease_timeout;
            let taken = match session.client().await {
                Ok(client) => {
                    queue::take_slot(client, worker, most, timeout, self.slots.chain).await
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(Taken::Soon) if requested_at.elapsed() < LONGEST_CLOSING => {
                    tokio::time::sleep(WHILE_CLOSING).await;
                    kept_at = Instant::now();
                }
                Ok(taken) => break taken,
                Err(error) => session.retry_after(error).await?,
            }
        };
        session.recovered();
        let number = match taken {
            Taken::Slot(slot) => {
                if slot.wakes {
                    self.slots.closing = Closing::Open;
                }
                self.slots.wal = slot.wal;
                slot.number
            }
            Taken::None | Taken::Soon => return Ok(Some(StopReason::NoSlot)),
            Taken::Repeated => return Ok(Some(StopReason::AlreadyRun)),
        };
        self.slots.held = Some(Held { number, kept_at });
        self.report.slot = u16::try_from(number).unwrap_or_default();
        Ok(None)
    }

    /// Returns what to request about slots now.
    pub(super) fn slot_request(&mut self, now: Instant) -> SlotRequest {
        SlotRequest {
            keep: self.keep_slot(now),
            surveys: std::mem::take(&mut self.slots.surveys),
            closes: self.close_slot(),
        }
    }

    /// Returns what to announce to publishers now: that this drain looks one last time, or that it has found
    /// something and goes on.
    fn close_slot(&mut self) -> Option<(i32, bool)> {
        let number = self.slots.held?.number;
        match self.slots.closing {
            Closing::Due => Some((number, true)),
            Closing::Announced if !self.is_idle() => {
                self.slots.closing = Closing::Open;
                Some((number, false))
            }
            Closing::NeedNot | Closing::Open | Closing::Announced => None,
        }
    }

    /// Whether publishers know that this drain ends, so that it looks one last time.
    pub(super) fn is_closing(&self) -> bool {
        self.slots.closing == Closing::Announced
    }

    /// Whether a drain that has found the queue empty may end, because no publisher has relied on it since.
    /// If not, it announces its end, and another look follows.
    pub(super) fn may_end_empty(&mut self) -> bool {
        if self.slots.closing == Closing::Open {
            self.slots.closing = Closing::Due;
        }
        self.slots.held.is_none() || self.slots.closing != Closing::Due
    }

    /// Processes the answers about slots.
    pub(super) fn on_slot_answer(&mut self, answer: &SlotAnswer, sent: Instant) {
        if let Some(kept) = answer.kept {
            self.slot_kept(kept, sent);
        }
        if let Some(left) = &answer.surveyed {
            self.surveyed(left);
        }
    }

    /// Notes that publishers know of the end, as far as possible.
    pub(super) fn closed(&mut self) {
        if self.slots.closing == Closing::Due {
            self.slots.closing = Closing::Announced;
            self.rescan();
        }
    }

    /// Returns how to renew the slot, if it is time to.
    fn keep_slot(&mut self, now: Instant) -> Option<(i32, Option<f64>)> {
        let held = self.slots.held?;
        // Other drains start no more of them until the newest one has reported its rate.
        let often = self.slots.rate.map_or(SETTLED, |_| KEEP);
        let often = often.min(self.options.lease_timeout / 3);
        if now < held.kept_at + often {
            return None;
        }
        let ended = self.report.ended();
        let (before, since) = self.slots.counted;
        let passed = now - since;
        if passed >= SETTLED {
            let count = u32::try_from(ended - before).unwrap_or(u32::MAX);
            self.slots.rate = Some(f64::from(count) / passed.as_secs_f64());
            self.slots.counted = (ended, now);
        }
        Some((held.number, self.slots.rate))
    }

    /// Processes the answer to a renewal of the slot.
    fn slot_kept(&mut self, kept: Kept, sent: Instant) {
        if !kept.ours {
            tracing::warn!("another drain has taken this drain's slot; this drain ends");
            self.slots.held = None;
            self.slots.lost = true;
            self.budget.stop();
        }
        if let Some(held) = &mut self.slots.held {
            held.kept_at = sent;
        }
        self.slots.surveys =
            kept.first && self.slots.starter.is_some() && self.may_be_slow() && !self.is_spent();
    }

    /// Whether the events that can be counted may be more than this drain ends in time. If not, counting
    /// would only keep it from leasing.
    fn may_be_slow(&self) -> bool {
        let within = self.options.empty_within.as_secs_f64();
        let rate = self.slots.rate;
        rate.is_some_and(|rate| rate * within < f64::from(MOST_SURVEYED))
    }

    /// Processes a look at all drains, and starts more of them if they would help. As long as the rate of the
    /// newest ones is unknown, it starts none.
    fn surveyed(&mut self, left: &Left) {
        if left.unrated > 0 {
            return;
        }
        let seen = Seen {
            ready: left.ready,
            at_work: left.at_work,
            rate: left.rate,
        };
        let (within, most) = (self.options.empty_within, self.options.max_drains);
        let more = self.slots.fleet.more(seen, within, most);
        for _ in 0..more {
            self.slots.start(self.slots.chain.beside());
        }
    }

    /// Gives the slot back, and reads what is left. An error while giving it back is only logged, because the
    /// slot becomes free in time.
    pub(super) async fn leave_slot(&mut self) -> Result<Left, Error> {
        let held = self.slots.held.take();
        let worker = self.fetcher.worker;
        let kinds = self.fetcher.all_kinds.clone();
        let Some(session) = self.fetcher.session() else {
            return Ok(Left::default());
        };
        let client = session.client().await?;
        // In this order: of several drains that end at once, the last one sees none at work.
        if let Some(held) = held
            && let Err(error) = queue::leave_slot(client, held.number, worker).await
        {
            tracing::warn!(%error, "the drain's slot could not be released");
        }
        // Behind an empty queue are all its finished rows, still dead in the index. Counting there took a
        // twentieth of a drain of 200,000 events.
        let most = if self.report.stop_reason == StopReason::QueueEmpty {
            0
        } else {
            queue::MOST_LEFT
        };
        let (left, wal) = join(
            queue::left_to_do(client, &kinds, most),
            queue::wal_position(client),
        )
        .await;
        let (left, wal) = (left?, wal?);
        let written = wal.zip(self.slots.wal).map(|(now, then)| now - then);
        self.report.cost.server_wal_bytes = written.map(i64::unsigned_abs);
        self.slots.left = left.clone();
        Ok(left)
    }

    /// Starts the drain that follows this one, if those at work are too few for what is left. Not after a
    /// drain that has ended no event: then something other than time is missing. All starts together may take
    /// the rest of the run's overrun.
    pub(super) async fn start_next(&mut self) {
        if self.report.goes_on() {
            let count = f64::from(u32::try_from(self.report.ended()).unwrap_or(u32::MAX));
            let rate = count / self.budget.elapsed().as_secs_f64();
            let left = &self.slots.left;
            let wanted = wanted(left.ready, rate, self.options.empty_within);
            if wanted > u64::from(left.at_work) {
                self.slots.start(self.slots.chain.behind());
            }
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
        if self.report.slot == 0 {
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
