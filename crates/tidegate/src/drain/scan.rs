//! Decides where to lease next, how much to lease, and when to look again. It is pure except that it reads
//! tokio's clock.
//!
//! The scan keeps its place within the run. Finished rows stay in the index as dead entries, and a walk from
//! the start passes all of them. When another session holds the vacuum horizon, a drain that keeps its place
//! stays at 50,000 events/s, and one that does not falls from 34,500 to 13,300.
//!
//! How much is leased ahead follows the pace of the handlers, so that slow handlers do not hoard events that
//! other drains could handle.

use std::time::Duration;

use tidegate_core::queue::{LeasedBatch, Walk};
use tokio::time::Instant;

/// The most work in one lease, by the handlers' pace. While a lease is under way, the same amount may wait.
pub(super) const WORTH: Duration = Duration::from_millis(250);

/// No lease grows beyond what arrives within about this time. A lease that is under way when the run ends
/// goes back late, or lapses. A slow link brings little within this time.
pub(super) const ARRIVAL: Duration = Duration::from_secs(1);

/// An event that becomes ready behind the scan waits about this long at most.
const RESCAN: Duration = Duration::from_secs(1);

/// The pauses between looks at an empty queue. They double from the first to the last, but not before the
/// next event is overdue, by the pace at which events have come.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The most blocked groups remembered within a walk. So a lease sends no more than a megabyte or two of them.
const MOST_BLOCKED: usize = 10_000;

/// What the run does when the queue is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenEmpty {
    /// The run ends if nothing is left, so a scan at the end of the queue looks once more from the start.
    Ends,
    Lingers,
}

/// The place of one drain in the queue, which it walks from the start to the end over and over.
pub(super) struct Scan {
    batch: u32,
    least: u32,
    when_empty: WhenEmpty,
    /// How many events to lease next.
    want: u32,
    at: Walk,
    /// Whether the last lease reached the end of the queue. The scan stays there while events are in the
    /// buffer.
    at_end: bool,
    /// The place to which the scan was called back since the last lease was sent.
    called_back: Option<i64>,
    /// A walk from the start that has not reached this id yet is a re-scan.
    resume_at: i64,
    /// How long its leases were under way, without the time of the handlers.
    walked: Duration,
    /// Whether nothing was in the buffer when the walk began.
    began_idle: bool,
    /// Whether the walk has found nothing ready so far.
    barren: bool,
    /// Groups that this walk has found blocked, kept here while no lease is under way. The walk skips their
    /// other events.
    blocked: Vec<String>,
    due: Instant,
    pause: Duration,
    poll_at: Instant,
    /// When events were last found, and the average time from one find to the next, up to the longest pause.
    found_at: Instant,
    between: Duration,
    last_arrival: Instant,
}

/// Where and how much to lease next.
pub(super) struct ScanStep {
    pub walk: Walk,
    pub limit: u32,
    /// Groups found blocked earlier in the walk.
    pub passed_by: Vec<String>,
    /// When it was requested. Its leases are no older.
    pub sent: Instant,
}

impl ScanStep {
    /// Whether a walk begins with it.
    pub(super) fn is_start(&self) -> bool {
        self.walk.after == 0
    }

    /// Returns how long this lease, which has just arrived, was under way.
    pub(super) fn under_way(&self) -> Duration {
        self.sent.elapsed()
    }

    /// Returns how many events would have arrived within [`ARRIVAL`], at the pace of this lease, which has
    /// just arrived.
    fn in_time(&self) -> u32 {
        let took = self.under_way().as_millis().max(1);
        let most = u128::from(self.limit) * ARRIVAL.as_millis() / took;
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

impl Scan {
    pub(super) fn new(concurrency: usize, batch: u32, when_empty: WhenEmpty) -> Self {
        let now = Instant::now();
        let least = u32::try_from(concurrency).unwrap_or(u32::MAX).min(batch);
        Self {
            batch,
            least,
            when_empty,
            want: least,
            at: Walk::default(),
            at_end: false,
            called_back: None,
            resume_at: 0,
            walked: Duration::ZERO,
            began_idle: false,
            barren: true,
            blocked: Vec::new(),
            due: now + RESCAN,
            pause: PAUSE.0,
            poll_at: now,
            found_at: now,
            between: Duration::ZERO,
            last_arrival: now,
        }
    }

    pub(super) fn want(&self) -> u32 {
        self.want
    }

    /// Returns when to look again after the queue seemed empty.
    pub(super) fn poll_at(&self) -> Instant {
        self.poll_at
    }

    /// Looks at once, because something may have become ready.
    pub(super) fn hurry(&mut self) {
        self.poll_at = Instant::now();
    }

    /// Looks at once, and from the start.
    pub(super) fn start_over(&mut self) {
        self.due = Instant::now();
        self.hurry();
    }

    pub(super) fn is_barren(&self) -> bool {
        self.barren
    }

    /// Looks no sooner than after this pause.
    pub(super) fn rest(&mut self, pause: Duration) {
        self.poll_at = self.poll_at.max(Instant::now() + pause);
    }

    /// Moves the scan back, because an event behind it may be ready.
    pub(super) fn back_to(&mut self, id: i64) {
        self.at.after = self.at.after.min(id - 1).max(0);
        self.called_back = Some(self.called_back.map_or(id, |earlier| earlier.min(id)));
        self.blocked.clear();
        self.barren = false;
    }

    /// Returns what to lease next, at most `most` events. `idle` says that nothing is in the buffer. The walk
    /// starts again when it is time for that. If it has reached the end and nothing is in the buffer, it
    /// starts again sooner: at once if the run then ends, otherwise as often as the walk is cheap.
    pub(super) fn next(&mut self, most: u64, idle: bool) -> ScanStep {
        let now = Instant::now();
        let last = idle && self.at_end && (self.when_empty == WhenEmpty::Ends || now >= self.due);
        if self.at.after > 0 && (last || self.resume_at == 0 && now >= self.due) {
            self.resume_at = self.at.after;
            self.at.after = 0;
        }
        self.called_back = None;
        if self.at.after == 0 {
            self.at = Walk::default();
            self.blocked.clear();
            self.walked = Duration::ZERO;
            self.began_idle = idle;
            self.barren = true;
        }
        let passed_by = std::mem::take(&mut self.blocked);
        ScanStep {
            walk: self.at,
            limit: u32::try_from(most).unwrap_or(u32::MAX).min(self.want),
            passed_by,
            sent: now,
        }
    }

    /// Learns from a lease how far it went and whether it found enough. `left` events were still waiting for
    /// a handler when it arrived, and the handlers' pace is `pace` events a lease. Returns whether the queue
    /// is empty: a whole walk that began with nothing in the buffer has found nothing ready.
    pub(super) fn arrived(
        &mut self,
        step: ScanStep,
        promoted: Option<i64>,
        batch: &mut LeasedBatch,
        left: usize,
        pace: u32,
    ) -> bool {
        let now = Instant::now();
        self.walked += step.under_way();
        let leased = u32::try_from(batch.events.len()).unwrap_or(u32::MAX);
        let full = leased >= step.limit;
        let reached_end = batch.scanned < step.limit;
        let since = now - std::mem::replace(&mut self.last_arrival, now);
        if full {
            let most = pace.clamp(self.least, self.batch);
            let fast = step.in_time();
            self.want = self.adapted(left, since, fast).clamp(self.least, most);
        }
        self.barren &= leased == 0 && batch.unreadable.is_empty() && promoted.is_none();
        self.advance(batch.walk, reached_end, now);
        if self.called_back.is_none() && !reached_end {
            self.blocked = step.passed_by;
            self.blocked.append(&mut batch.blocked);
            self.blocked.truncate(MOST_BLOCKED);
        }
        if !reached_end && leased < step.limit.div_ceil(2) {
            // This was a page of blocked rows, so look further at once.
            self.want = self.want.saturating_mul(2).clamp(self.least, self.batch);
        }
        if let Some(lowest) = promoted {
            self.back_to(lowest);
        }
        self.pause_after(leased > 0, reached_end, now);
        let empty = reached_end && self.began_idle && self.barren;
        if empty && (self.when_empty == WhenEmpty::Ends || self.at.after == 0) {
            // A long walk past blocked or dead rows is not repeated all the time.
            self.poll_at = self.poll_at.max(now + self.walked * 4);
        }
        // What follows at the end of the queue says nothing of its beginning.
        self.began_idle &= !reached_end;
        empty
    }

    fn pause_after(&mut self, found: bool, reached_end: bool, now: Instant) {
        let since = now - self.found_at;
        if found {
            self.between = (self.between * 3 + since.min(PAUSE.1)) / 4;
            self.pause = (self.between / 2).clamp(PAUSE.0, PAUSE.1 / 4);
            (self.found_at, self.poll_at) = (now, now);
        } else if reached_end && self.called_back.is_none() {
            self.poll_at = now + self.pause;
            if since >= self.between * 2 {
                self.pause = (self.pause * 2).min(PAUSE.1);
            }
        }
    }

    /// Moves the scan past the rows that were examined. An expensive walk past many blocked or dead rows is
    /// repeated less often. A walk from the end of a short queue is repeated at once.
    fn advance(&mut self, walk: Walk, reached_end: bool, now: Instant) {
        self.at = walk;
        self.at_end = reached_end;
        if reached_end {
            // A walk that has found nothing does not know where the end is.
            self.at.after = self.at.after.max(self.resume_at);
        }
        if let Some(id) = self.called_back {
            self.at.after = self.at.after.min(id - 1).max(0);
        }
        let not_too_often = self.walked * 8;
        if self.resume_at > 0 && (reached_end || self.at.after >= self.resume_at) {
            self.resume_at = 0;
            self.due = now + RESCAN.max(not_too_often);
        }
        if reached_end {
            self.due = self.due.min(now + not_too_often);
        }
    }

    /// Adapts the size of a full lease to the work that the handlers do in [`WORTH`]. It grows faster while
    /// they had to wait for this lease, up to what would have arrived in time. The caller bounds it by their
    /// pace: many leases may arrive before a slow handler ends for the first time, and none of them says that
    /// it is slow.
    fn adapted(&self, left: usize, since: Duration, in_time: u32) -> u32 {
        if left == 0 {
            self.want.saturating_mul(4).min(in_time)
        } else if since > WORTH {
            self.want / 2
        } else if since < WORTH / 4 {
            self.want.saturating_mul(2)
        } else {
            self.want
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::lease::LeasedEvent;

    fn batch(scanned: u32, after: i64) -> LeasedBatch {
        LeasedBatch {
            scanned,
            walk: Walk {
                after,
                clear_to: Some(after),
                as_of: Some(1),
                low: Some(1),
                connection: 1,
            },
            ..LeasedBatch::default()
        }
    }

    fn leased(count: i64, after: i64) -> LeasedBatch {
        LeasedBatch {
            events: (after - count + 1..=after)
                .map(|id| LeasedEvent::sample(id, None))
                .collect(),
            ..batch(u32::try_from(count).unwrap(), after)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_before_an_empty_queue_grows_up_to_its_limit() {
        let mut scan = Scan::new(8, 1000, WhenEmpty::Ends);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let step = scan.next(1000, true);
            assert!(scan.arrived(step, None, &mut LeasedBatch::default(), 0, u32::MAX));
            pauses.push((scan.poll_at() - Instant::now()).as_millis());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 200, 200]);
        scan.hurry();
        assert!(scan.poll_at() <= Instant::now());
    }

    /// Lets an event become ready so often, for a minute. Returns the longest wait of 95 per cent of the
    /// events, and the looks in a second.
    async fn lingers(every: Duration) -> (Duration, i64) {
        let mut scan = Scan::new(8, 1000, WhenEmpty::Lingers);
        let began = Instant::now();
        let (mut ready, mut waits, mut looks) = (began + every, Vec::new(), 0);
        while began.elapsed() < Duration::from_mins(1) {
            tokio::time::sleep_until(scan.poll_at()).await;
            looks += 1;
            let step = scan.next(1000, true);
            let mut found = LeasedBatch::default();
            if ready <= Instant::now() {
                found = leased(1, looks);
                waits.push(ready.elapsed());
                ready += every;
            }
            scan.arrived(step, None, &mut found, 0, u32::MAX);
        }
        waits.sort_unstable();
        (waits[waits.len() * 95 / 100], looks / 60)
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_follow_the_pace_at_which_events_come() {
        for (every, wait, looks) in [(20, 12, 160), (200, 52, 26), (10_000, 205, 7)] {
            let (waited, looked) = lingers(Duration::from_millis(every)).await;
            assert!(waited <= Duration::from_millis(wait), "{every}: {waited:?}");
            assert!(looked <= looks, "{every}: {looked} looks");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_page_without_an_event_is_passed_with_larger_steps() {
        let mut scan = Scan::new(8, 1000, WhenEmpty::Ends);
        let mut limits = Vec::new();
        for page in 1..=4 {
            let step = scan.next(1000, true);
            limits.push(step.limit);
            let scanned = step.limit;
            assert!(!scan.arrived(step, None, &mut batch(scanned, page * 80), 0, u32::MAX));
        }
        assert_eq!(limits, [8, 16, 32, 64]);
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_arrive_before_any_handler_has_ended_stay_small() {
        let mut scan = Scan::new(8, 1000, WhenEmpty::Ends);
        let mut limits = Vec::new();
        for at in 1..=6 {
            let step = scan.next(1000, false);
            let count = i64::from(step.limit);
            limits.push(count);
            scan.arrived(step, None, &mut leased(count, at * 1000), 1, 16);
        }
        assert_eq!(limits, [8, 16, 16, 16, 16, 16]);
        // A long page of blocked rows has made it larger, but a handler is as slow as before.
        let step = scan.next(1000, false);
        assert!(!scan.arrived(step, None, &mut batch(16, 7000), 1, 16));
        let step = scan.next(1000, false);
        scan.arrived(step, None, &mut leased(32, 8000), 1, 16);
        assert_eq!(scan.next(1000, false).limit, 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_long_under_way_is_not_followed_by_a_larger_one() {
        let mut scan = Scan::new(100, 1000, WhenEmpty::Ends);
        for (took, next) in [(ARRIVAL / 8, 400), (ARRIVAL * 2, 200), (ARRIVAL * 4, 100)] {
            let step = scan.next(1000, false);
            let count = i64::from(step.limit);
            tokio::time::advance(took).await;
            // No event waited for a handler, so a quick lease would be followed by a four times larger one.
            scan.arrived(step, None, &mut leased(count, count), 0, u32::MAX);
            assert_eq!(scan.want(), next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_goes_on_where_it_was_and_begins_anew_after_a_while() {
        let mut scan = Scan::new(8, 8, WhenEmpty::Ends);
        let step = scan.next(8, true);
        assert!(step.is_start());
        scan.arrived(step, None, &mut leased(8, 8), 0, u32::MAX);
        let step = scan.next(8, false);
        assert_eq!(step.walk.after, 8);
        scan.arrived(step, None, &mut leased(8, 16), 0, u32::MAX);
        tokio::time::advance(RESCAN * 2).await;
        let step = scan.next(8, false);
        assert!(step.is_start() && step.walk == Walk::default());
        // The re-scan takes its time, finds nothing, and arrives where the walk was.
        tokio::time::advance(RESCAN / 10).await;
        scan.arrived(step, None, &mut batch(0, 0), 0, u32::MAX);
        assert_eq!(scan.next(8, false).walk.after, 16);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_free_behind_the_cursor_is_looked_for_at_once() {
        let mut scan = Scan::new(8, 8, WhenEmpty::Ends);
        let step = scan.next(8, true);
        scan.arrived(step, None, &mut leased(8, 8), 0, u32::MAX);
        let step = scan.next(8, false);
        // If the scan is called back while a lease is under way, the lease's scan is not taken over.
        scan.back_to(3);
        scan.arrived(step, None, &mut leased(8, 16), 0, u32::MAX);
        let step = scan.next(8, false);
        assert_eq!(step.walk.after, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_a_walk_has_found_blocked_are_passed_until_it_ends() {
        let mut scan = Scan::new(8, 8, WhenEmpty::Ends);
        let step = scan.next(8, false);
        let mut found = leased(8, 8);
        found.blocked = vec!["a".to_owned()];
        scan.arrived(step, None, &mut found, 0, u32::MAX);
        let step = scan.next(8, false);
        assert_eq!(step.passed_by, ["a"]);
        scan.arrived(step, None, &mut batch(0, 8), 0, u32::MAX);
        assert!(scan.next(8, false).passed_by.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_leased_than_handlers_do() {
        let mut scan = Scan::new(1, 1000, WhenEmpty::Ends);
        for _ in 0..3 {
            let step = scan.next(1000, false);
            let limit = i64::from(step.limit);
            tokio::time::advance(WORTH * 2).await;
            scan.arrived(step, None, &mut leased(limit, limit), 1, u32::MAX);
        }
        assert_eq!(scan.want(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_lingers_looks_at_the_end_and_walks_as_often_as_that_is_cheap() {
        let mut scan = Scan::new(8, 8, WhenEmpty::Lingers);
        let cost = Duration::from_millis(20);
        let step = scan.next(8, true);
        tokio::time::advance(cost).await;
        assert!(!scan.arrived(step, None, &mut leased(4, 4), 0, u32::MAX));
        let (mut walks, mut looks, mut empty) = (0, 0, 0);
        for _ in 0..100 {
            let step = scan.next(8, true);
            let starts = step.is_start();
            if starts {
                walks += 1;
                tokio::time::advance(cost).await;
            } else {
                assert_eq!(step.walk.after, 4);
                looks += 1;
            }
            let mut nothing = batch(0, step.walk.after);
            let was_empty = scan.arrived(step, None, &mut nothing, 0, u32::MAX);
            assert_eq!(was_empty, starts);
            empty += u32::from(was_empty);
            assert!(scan.is_barren() || empty == 0);
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        assert_eq!((walks, looks, empty), (3, 97, 3));
        scan.start_over();
        // However long the handlers of what a walk finds take, the next one comes soon after it.
        for after in 1..=4 {
            let step = scan.next(8, true);
            tokio::time::advance(Duration::from_millis(1)).await;
            scan.arrived(step, None, &mut leased(8, after * 8), 0, u32::MAX);
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        let step = scan.next(8, true);
        scan.arrived(step, None, &mut batch(0, 32), 0, u32::MAX);
        tokio::time::advance(Duration::from_millis(50)).await;
        assert!(scan.next(8, true).is_start());
        // Without an event so far, each look is a walk.
        let mut scan = Scan::new(8, 8, WhenEmpty::Lingers);
        let step = scan.next(8, true);
        tokio::time::advance(cost).await;
        assert!(scan.arrived(step, None, &mut batch(0, 0), 0, u32::MAX));
        assert_eq!(scan.poll_at(), Instant::now() + cost * 4);
    }
}
