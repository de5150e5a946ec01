//! The part of the loop that has a slot while it works: so many drains work at once at most, however many are started. A drain
//! that gets none ends at once, and one that has lost its own, because it was frozen for instance, ends what it has in hand.
//!
//! Where drains can be started from here, the one in the lowest slot looks now and then whether more of them would help, and
//! whoever is the last to end while something is left starts the next one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join, join3};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Drain, OVERRUN, StopReason};
use crate::chain::{Chain, Fleet, Seen, StartDrain, wanted};
use crate::dispatch::Dispatch;
use crate::error::Error;
use crate::event::Event;
use crate::queue::{self, Kept, Left, Taken};

/// A slot is kept this often, or as often as leases are: others read of it how fast its drain is.
const KEEP: Duration = Duration::from_secs(2);

/// Before that a drain's rate says little.
const SETTLED: Duration = Duration::from_secs(1);

/// A start takes no longer.
const START: Duration = Duration::from_secs(2);

/// So much of what is left is counted to find how many drains it is worth.
const MOST_SURVEYED: i32 = 100_000;

/// The slot of a drain, and what it knows of the others.
pub(super) struct Slots {
    held: Option<Held>,
    /// Somebody else has it.
    pub lost: bool,
    chain: Chain,
    starter: Option<Arc<dyn StartDrain>>,
    /// Where starts are made: what one leaves behind must not end with the drain.
    runtime: Handle,
    fleet: Fleet,
    /// Ends so far when the slot was kept last, by which the rate is known.
    counted: (u64, Instant),
    rate: Option<f64>,
    /// The next lease is to look at all drains.
    surveys: bool,
    /// Publishers wake drains when none is at work: before this one ends, it says so and looks a last time.
    closing: Closing,
    /// How far the server had written its log ahead when the run began.
    wal: Option<i64>,
    /// What is left when the run has ended.
    left: Left,
    starts: JoinSet<bool>,
}

/// Whether publishers know that they must wake another drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// There are none that do.
    NeedNot,
    /// They count on this one.
    Open,
    /// It is to be told.
    Asked,
    /// It is known.
    Told,
}

#[derive(Clone, Copy)]
struct Held {
    number: i32,
    kept_at: Instant,
}

/// What is asked of slots with a lease.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SlotAsk {
    /// To keep this one, whose drain ends so many events in a second.
    keep: Option<(i32, Option<f64>)>,
    /// To look at all drains.
    surveys: bool,
    /// To tell that the drain of this one looks a last time, or that it goes on.
    closes: Option<(i32, bool)>,
}

/// What came of it.
#[derive(Default)]
pub(super) struct SlotTold {
    kept: Option<Kept>,
    /// What was told is known, or cannot be told.
    closes: bool,
    surveyed: Option<Left>,
}

impl SlotTold {
    /// Whether something was told to publishers.
    pub(super) fn closes(&self) -> bool {
        self.closes
    }
}

impl SlotAsk {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Both travel together.
    pub(super) async fn ask(
        self,
        client: &Client,
        worker: Uuid,
        timeout: Duration,
        kinds: &[&str],
    ) -> Result<SlotTold, Error> {
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
        Ok(SlotTold {
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

    /// Whether none has been asked for yet.
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
            tracing::warn!(error = failed, "a further drain could not be started");
            false
        };
        self.starts.spawn_on(start, &self.runtime);
    }

    /// How many of those that were to be started were.
    async fn started(&mut self) -> u64 {
        let mut started = 0;
        while let Some(one) = self.starts.join_next().await {
            started += u64::from(one.unwrap_or(false));
        }
        started
    }
}

impl<D: Dispatch> Drain<D> {
    /// Takes a slot. Why there is nothing to do, if there is none.
    pub(super) async fn take_slot(&mut self) -> Result<Option<StopReason>, Error> {
        let most = i32::from(self.options.max_drains);
        let Some(session) = self.leasing.idle() else {
            return Ok(Some(StopReason::NoSlot));
        };
        let kept_at = Instant::now();
        let taken = loop {
            let timeout = self.options.lease_timeout;
            let taken = match session.client().await {
                Ok(client) => {
                    queue::take_slot(client, self.worker, most, timeout, self.slots.chain).await
                }
                Err(error) => Err(error),
            };
            match taken {
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
            Taken::None => return Ok(Some(StopReason::NoSlot)),
            Taken::Repeated => return Ok(Some(StopReason::AlreadyRun)),
        };
        self.slots.held = Some(Held { number, kept_at });
        self.report.slot = u16::try_from(number).unwrap_or_default();
        Ok(None)
    }

    /// What to ask of slots now.
    pub(super) fn ask_of_slots(&mut self, now: Instant) -> SlotAsk {
        SlotAsk {
            keep: self.keep_slot(now),
            surveys: std::mem::take(&mut self.slots.surveys),
            closes: self.close_slot(),
        }
    }

    /// What to tell publishers now: that this drain looks a last time, or that it has found something and goes on.
    fn close_slot(&mut self) -> Option<(i32, bool)> {
        let number = self.slots.held?.number;
        match self.slots.closing {
            Closing::Asked => Some((number, true)),
            Closing::Told if !self.is_idle() => {
                self.slots.closing = Closing::Open;
                Some((number, false))
            }
            Closing::NeedNot | Closing::Open | Closing::Told => None,
        }
    }

    /// Whether publishers have been told that this drain ends, and it looks a last time.
    pub(super) fn is_closing(&self) -> bool {
        self.slots.closing == Closing::Told
    }

    /// Whether a drain that has found the queue empty may end: nobody counts on it any more who has published since. If that is not
    /// so yet, it will be, and another look follows.
    pub(super) fn may_end_empty(&mut self) -> bool {
        if self.slots.closing == Closing::Open {
            self.slots.closing = Closing::Asked;
        }
        self.slots.held.is_none() || self.slots.closing != Closing::Asked
    }

    /// What has come of it.
    pub(super) fn told_of_slots(&mut self, told: &SlotTold, sent: Instant) {
        if let Some(kept) = told.kept {
            self.slot_kept(kept, sent);
        }
        if let Some(left) = &told.surveyed {
            self.surveyed(left);
        }
    }

    /// Publishers have been told, as far as that goes.
    pub(super) fn closed(&mut self) {
        if self.slots.closing == Closing::Asked {
            self.slots.closing = Closing::Told;
            self.look_again();
        }
    }

    /// What to tell of the slot now, if it is time to.
    fn keep_slot(&mut self, now: Instant) -> Option<(i32, Option<f64>)> {
        let held = self.slots.held?;
        let often = KEEP.min(self.options.lease_timeout / 3);
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

    /// The slot was told of.
    fn slot_kept(&mut self, kept: Kept, sent: Instant) {
        if !kept.ours {
            tracing::warn!("another drain has this one's slot, and this one ends");
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

    /// Whether what can be counted may be more than this drain ends in time; if not, counting it would only keep it from leasing.
    fn may_be_slow(&self) -> bool {
        let within = self.options.empty_within.as_secs_f64();
        let rate = self.slots.rate;
        rate.is_some_and(|rate| rate * within < f64::from(MOST_SURVEYED))
    }

    /// What a look at all drains has brought: starts more, if they would help. While it is not known yet how fast the last ones are,
    /// nothing is.
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

    /// Gives the slot back, and reads what is left. That the slot is not given back is nothing to fail for: it is free in time.
    pub(super) async fn leave_slot(&mut self) -> Result<Left, Error> {
        let held = self.slots.held.take();
        let Some(session) = self.leasing.idle() else {
            return Ok(Left::default());
        };
        let client = session.client().await?;
        // In this order: of several that end at once, the last one sees nobody at work.
        if let Some(held) = held
            && let Err(error) = queue::leave_slot(client, held.number, self.worker).await
        {
            tracing::warn!(%error, "the drain's slot could not be given back");
        }
        // Behind an empty queue lies all that it had, dead: to count nothing there took a twentieth of a drain of 200,000.
        let most = if self.report.stop_reason == StopReason::QueueEmpty {
            0
        } else {
            queue::MOST_LEFT
        };
        let (left, wal) = join(
            queue::left_to_do(client, D::Event::KINDS, most),
            queue::wal_position(client),
        )
        .await;
        let (left, wal) = (left?, wal?);
        let written = wal.zip(self.slots.wal).map(|(now, then)| now - then);
        self.report.cost.server_wal_bytes = written.map(i64::unsigned_abs);
        self.slots.left = left.clone();
        Ok(left)
    }

    /// Starts the drain that goes on behind this one, if those at work are too few for what is left. Not behind one that has ended
    /// nothing: then something else than time is wanting. All starts together have what is left of the run's overrun.
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
        let limit = self.budget.total() + OVERRUN;
        let left = limit.saturating_sub(self.budget.elapsed());
        let started = tokio::time::timeout(left, self.slots.started()).await;
        self.report.started_drains = started.unwrap_or_default();
    }

    /// Leaves the report in the database, for people who look at drains that have run. A drain that had no slot has done nothing. That
    /// it cannot be left is nothing to fail for; it takes no longer than what is left of the run's overrun.
    pub(super) async fn note_run(&mut self) {
        if self.report.slot == 0 {
            return;
        }
        let limit = self.budget.total() + OVERRUN;
        let left = limit.saturating_sub(self.budget.elapsed());
        let noted = tokio::time::timeout(left, self.note()).await;
        let noted = noted.unwrap_or(Err(Error::TimedOut {
            stage: "report",
            limit: left,
        }));
        if let Err(error) = noted {
            tracing::debug!(%error, "the drain's report could not be left in the database");
        }
    }

    async fn note(&mut self) -> Result<(), Error> {
        let report = serde_json::to_string(&self.report)
            .map_err(|error| Error::Invalid(format!("report: {error}")))?;
        let Some(session) = self.leasing.idle() else {
            return Ok(());
        };
        let client = session.client().await?;
        queue::note_run(client, self.worker, &report).await
    }
}
