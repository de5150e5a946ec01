//! Owns how many events that call a limited service this run may start: its places and starts for each
//! service, and when to request more or give some back. It is pure except that it reads tokio's clock.
//!
//! Events of limited kinds are leased by walks of their own, and no more at a time than will soon start.
//! Otherwise an event that waits here for a place would wait even while another drain has a free one, and
//! leasing past such events would lease the whole queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::Lease;
use tidegate_core::queue::{Claim, Grant, LeasedBatch, Limited};
use tokio::time::Instant;

use super::fetcher::FetchKind;
use super::scan::{Scan, ScanStep, WhenEmpty};
use crate::services::Services;

/// A granted start that was not used for this long is forgotten, unless it is the only one left. Late events
/// must not all start at once.
const LATE: Duration = Duration::from_millis(200);

/// How long to wait before requesting places again after other workers had all of them.
const REFUSED: Duration = Duration::from_millis(200);

/// How long to wait before requesting again, after another worker requested at the same time.
const BUSY: Duration = Duration::from_millis(10);

/// All limited services.
pub(super) struct ServiceLimits {
    /// What is known of all services.
    pub calls: Arc<Services>,
    services: BTreeMap<String, Limit>,
    /// The version of the information that they were built from.
    version: u64,
    /// The service that had the last turn.
    last: String,
    /// Whether the last request was for a limited service.
    pub had_turn: bool,
    concurrency: usize,
    batch: u32,
    /// How long places are kept for a run that does not renew them.
    length: Duration,
}

/// A limited service.
struct Limit {
    by: Limited,
    /// The places for events that run and for events that are to run.
    places: usize,
    /// When they were last requested.
    renewed: Instant,
    /// The times at which events may start.
    starts: VecDeque<Instant>,
    scan: Scan,
    /// Whether the last lease was full.
    more: bool,
    /// Whether the last walk found nothing.
    empty: bool,
    /// Whether other workers have all places.
    refused: bool,
    ask_at: Instant,
}

/// The state of the run, as far as limits depend on it.
pub(super) struct LimitInputs<'a> {
    /// Returns how many events of these kinds wait.
    pub waiting: &'a dyn Fn(&BTreeSet<String>) -> usize,
    /// How many events the handlers do in a second.
    pub pace: usize,
    /// The kinds for which there is time, when events may be leased.
    pub kinds: &'a [&'static str],
    /// The most events to lease.
    pub most: u64,
}

impl Limit {
    fn new(by: Limited, concurrency: usize, batch: u32) -> Self {
        let now = Instant::now();
        Self {
            by,
            places: 0,
            renewed: now,
            starts: VecDeque::new(),
            scan: Scan::new(concurrency, batch, WhenEmpty::Ends),
            more: false,
            empty: false,
            refused: false,
            ask_at: now,
        }
    }

    /// Returns how many events may start besides those that run, now or at the times in `starts`.
    fn has(&self, running: usize) -> usize {
        let places = if self.by.running {
            self.places.saturating_sub(running)
        } else {
            usize::MAX
        };
        let starts = if self.by.starts {
            self.starts.len()
        } else {
            usize::MAX
        };
        places.min(starts)
    }

    /// Returns how many events to lease at once. One can be held until it may start; more only if they will
    /// start soon.
    fn most_to_lease(&self, running: usize) -> u64 {
        let soon = if self.by.running { self.places } else { 0 };
        self.has(running).max(soon).max(1) as u64
    }

    /// Whether there are unused places or starts.
    fn has_something(&self, running: usize) -> bool {
        self.places > running || !self.starts.is_empty()
    }

    fn take_starts(&mut self) -> usize {
        std::mem::take(&mut self.starts).len()
    }

    /// Whether an event may start now.
    fn is_open(&self, running: usize, length: Duration, now: Instant) -> bool {
        let trusted = !self.by.running || now < self.renewed + length.mul_f64(0.9);
        let begun = !self.by.starts || self.starts.front().is_some_and(|start| *start <= now);
        trusted && begun && self.has(running) > 0
    }

    fn forget_late(&mut self, now: Instant) {
        while self.starts.len() > 1 && self.starts[0] + LATE < now {
            self.starts.pop_front();
        }
    }
}

impl ServiceLimits {
    pub(super) fn new(concurrency: usize, batch: u32, length: Duration) -> Self {
        Self {
            calls: Arc::default(),
            services: BTreeMap::new(),
            version: 0,
            last: String::new(),
            had_turn: false,
            concurrency,
            batch,
            length,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Learns which services are limited. Returns the kinds that are limited now and were not before: their
    /// events in the buffer were not leased to start soon.
    pub(super) fn refresh(&mut self) -> BTreeSet<String> {
        let version = self.calls.limits_version();
        if version == self.version {
            return BTreeSet::new();
        }
        self.version = version;
        let before = self.kinds();
        let limited = self.calls.limited();
        self.services.retain(|name, _| limited.contains_key(name));
        for (name, by) in limited {
            let new = || Limit::new(by.clone(), self.concurrency, self.batch);
            self.services.entry(name).or_insert_with(new).by = by.clone();
        }
        self.kinds().difference(&before).cloned().collect()
    }

    /// Returns all limited kinds.
    pub(super) fn kinds(&self) -> BTreeSet<String> {
        let kinds = self.services.values().flat_map(|limit| &limit.by.kinds);
        kinds.cloned().collect()
    }

    /// Whether events of this kind call a limited service.
    pub(super) fn has_kind(&self, kind: &str) -> bool {
        let mut limits = self.services.values();
        limits.any(|limit| limit.by.kinds.contains(kind))
    }

    /// Returns the kinds whose events may not start now.
    pub(super) fn barred(&mut self, now: Instant) -> BTreeSet<String> {
        let mut barred = BTreeSet::new();
        for (name, limit) in &mut self.services {
            limit.forget_late(now);
            if !limit.is_open(self.calls.running(name), self.length, now) {
                barred.extend(limit.by.kinds.iter().cloned());
            }
        }
        barred
    }

    /// Takes a place and a start for an event of this kind, at each service that it calls.
    pub(super) fn start(&mut self, kind: &str, lease: Lease) {
        for (name, limit) in &mut self.services {
            if limit.by.kinds.contains(kind) {
                self.calls.begin(name, lease);
                limit.starts.pop_front();
            }
        }
    }

    /// Returns what to request from the database next, and for which kinds. The services take turns.
    pub(super) fn next(
        &mut self,
        demand: &LimitInputs<'_>,
        now: Instant,
    ) -> Option<(FetchKind, Vec<&'static str>)> {
        let after = self.services.keys().filter(|name| **name > self.last);
        let names: Vec<String> = after.chain(self.services.keys()).cloned().collect();
        let (name, next) = names.into_iter().find_map(|name| {
            let next = self.next_of(&name, demand, now)?;
            Some((name, next))
        })?;
        (self.last, self.had_turn) = (name, true);
        Some(next)
    }

    fn next_of(
        &mut self,
        name: &str,
        demand: &LimitInputs<'_>,
        now: Instant,
    ) -> Option<(FetchKind, Vec<&'static str>)> {
        let (concurrency, length) = (self.concurrency, self.length);
        let limit = self.services.get_mut(name)?;
        let running = self.calls.running(name);
        let waiting = (demand.waiting)(&limit.by.kinds);
        if waiting == 0 && limit.scan.poll_at() <= now {
            let of_service = |kind: &&&str| limit.by.kinds.contains(**kind);
            let kinds: Vec<&'static str> =
                demand.kinds.iter().filter(of_service).copied().collect();
            if !kinds.is_empty() {
                let most = limit.most_to_lease(running).min(demand.most);
                let step = limit.scan.next(most, running == 0);
                return Some((FetchKind::Limited(name.to_owned(), step), kinds));
            }
        }
        let workers = concurrency.saturating_sub(running).max(1);
        let (wanted, starts) = if waiting > limit.has(running) && now >= limit.ask_at {
            let ahead = if limit.more { demand.pace } else { 0 };
            let wanted = waiting.max(ahead);
            let starts = wanted.saturating_sub(limit.starts.len());
            (wanted.min(workers), count(starts))
        } else if waiting == 0 && limit.has_something(running) {
            (0, -count(limit.take_starts()))
        } else if limit.places > 0 && now >= limit.renewed + length / 3 {
            (limit.places.saturating_sub(running), 0)
        } else {
            return None;
        };
        let claim = Claim {
            service: name.to_owned(),
            running: count(running).unsigned_abs(),
            wanted: count(wanted).unsigned_abs(),
            starts,
            length,
        };
        Some((FetchKind::Claim(claim), Vec::new()))
    }

    /// Processes the answer to a claim. Returns the kinds whose events need not wait in the buffer, because
    /// other workers have all places.
    pub(super) fn granted(
        &mut self,
        claim: &Claim,
        grant: Grant,
        sent: Instant,
    ) -> Option<BTreeSet<String>> {
        let running = self.calls.running(&claim.service);
        let limit = self.services.get_mut(&claim.service)?;
        let now = Instant::now();
        limit.ask_at = now;
        if limit.by.running != grant.places.is_some() || limit.by.starts != grant.starts.is_some() {
            limit.ask_at = now + BUSY;
            return None;
        }
        limit.places = grant.places.map_or(0, |places| places as usize);
        limit.renewed = sent;
        if let Some(starts) = grant.starts {
            let first = now + starts.first_in;
            let moments = (0..starts.count).map(|count| first + starts.apart * count);
            limit.starts.extend(moments);
            if starts.count == 0 && claim.starts > 0 {
                let ahead = Duration::from_secs(1);
                limit.ask_at = now + starts.first_in.saturating_sub(ahead).max(BUSY);
            }
        }
        let wanted = claim.wanted > 0;
        limit.refused = wanted && limit.by.running && limit.places <= running;
        if limit.refused {
            limit.ask_at = limit.ask_at.max(now + REFUSED);
            limit.scan.rest(REFUSED);
        }
        (limit.refused && running == 0).then(|| limit.by.kinds.clone())
    }

    pub(super) fn arrived(
        &mut self,
        service: &str,
        step: ScanStep,
        promoted: Option<i64>,
        batch: &mut LeasedBatch,
    ) {
        if let Some(limit) = self.services.get_mut(service) {
            limit.more = batch.events.len() >= step.limit as usize;
            limit.empty = limit.scan.arrived(step, promoted, batch, 0, u32::MAX);
        }
    }

    pub(super) fn back_to(&mut self, id: i64) {
        for limit in self.services.values_mut() {
            limit.scan.back_to(id);
            limit.empty = false;
        }
    }

    pub(super) fn hurry(&mut self) {
        for limit in self.services.values_mut() {
            limit.scan.hurry();
        }
    }

    /// Whether nothing of these kinds is left to do, or other workers do it.
    pub(super) fn is_quiet(&self, kinds: &[&str]) -> bool {
        let mut limits = self.services.values();
        limits.all(|limit| {
            let concerns = kinds.iter().any(|kind| limit.by.kinds.contains(*kind));
            limit.empty || limit.refused || !concerns
        })
    }

    /// Returns the next time at which something is to be done.
    pub(super) fn wake(&self) -> Option<Instant> {
        let limits = self.services.values();
        let moments = limits.flat_map(|limit| {
            let start = limit.starts.front().copied();
            let look = (!limit.empty).then(|| limit.scan.poll_at());
            [start, look, Some(limit.ask_at)]
        });
        let now = Instant::now();
        moments.flatten().filter(|moment| *moment > now).min()
    }

    /// Gives back all places and starts at the end of the run.
    pub(super) fn release(&mut self) -> Vec<Claim> {
        let length = self.length;
        let services = self.services.iter_mut();
        let has = services.filter(|(_, limit)| limit.has_something(0));
        let claims = has.map(|(name, limit)| Claim {
            service: name.clone(),
            running: 0,
            wanted: 0,
            starts: -count(limit.take_starts()),
            length,
        });
        claims.collect()
    }
}

fn count(of: usize) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}
