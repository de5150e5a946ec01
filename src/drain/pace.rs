//! Decides what to lease: where to scan, how much to take, when to look again.
//!
//! The surprises. The scan keeps a cursor within the run, because finished rows stay behind as dead
//! index entries that a scan from the start would step over every time (flat 50,000 events/s against
//! a fall from 34,500 to 13,300 when another session holds the vacuum horizon). And how much is
//! leased ahead follows the handlers' pace, so that slow handlers do not hoard what other drains
//! could be doing. And a drain that meets others at work leaps: see [`REACH`].

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::behind::Behind;
use crate::queue::{Known, LeasedBatch};

/// A lease is no more than this much work, by the handlers' pace. While one is under way as much may wait.
const WORTH: Duration = Duration::from_millis(250);

/// No lease grows beyond what arrives within about this long. What is under way when the run ends goes
/// back late, or lapses and has cost an attempt; a link that is slow brings little before that.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Old events that became ready behind the cursor wait at most about this long.
const RESCAN: Duration = Duration::from_secs(1);

/// Pauses between looks at an empty queue: they double from the first to the last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Blocked groups remembered within a walk; what a lease sends of them stays below a megabyte or two.
const MOST_BLOCKED: usize = 10_000;

/// Drains that walk side by side pass each other's events, and try to lock the same ones. So one that has passed more of
/// them than two leases are leaps ahead, anywhere within so many times the ids that it has passed; the others do the
/// same, and soon each is by itself: eight drains are 14 % faster, four 4 % (seven and five turns, all won). What a drain
/// leaves behind waits for another walk, about a second at most, which begins with the oldest. Not among groups, which
/// what is left behind would bar; nor does a drain that runs one handler at a time, for it may be one to keep the
/// order of all (A2).
const REACH: i64 = 8;

/// Where the next scan starts and how large it is. Pure but for reading tokio's clock and for the length of a leap.
pub(super) struct Pace {
    batch: u32,
    least: u32,
    /// How many to lease next.
    want: u32,
    /// How many rows to look at for them.
    page: u32,
    cursor: i64,
    /// The last lease reached the end of the queue, behind which the cursor stays while something is in hand.
    at_end: bool,
    /// The cursor was called back to here while a lease was under way.
    called_back: Option<i64>,
    /// How far the next lease may leap.
    reach: i64,
    /// A walk from the start that has not reached this id yet is a re-scan.
    resume_at: i64,
    walk: Walk,
    /// Groups that this walk has found blocked, while no lease is under way: it passes what else is theirs.
    blocked: Vec<String>,
    behind: Behind,
    walk_due: Instant,
    pause: Duration,
    poll_at: Instant,
    last_arrival: Instant,
}

/// A scan from the start of the queue to its end, over as many leases as it takes.
struct Walk {
    began: Instant,
    /// Nothing was in hand when it began.
    idle: bool,
    /// Nothing ready was met so far.
    barren: bool,
    /// A lease has leapt.
    leapt: bool,
    /// There is nothing to leap to from here on.
    bound: i64,
}

impl Walk {
    fn new(began: Instant, idle: bool) -> Self {
        Self {
            began,
            idle,
            barren: true,
            leapt: false,
            bound: i64::MAX,
        }
    }
}

impl Pace {
    pub(super) fn new(concurrency: usize, batch: u32) -> Self {
        let now = Instant::now();
        let least = u32::try_from(concurrency).unwrap_or(u32::MAX).min(batch);
        Self {
            batch,
            least,
            want: least,
            page: least,
            cursor: 0,
            at_end: false,
            called_back: None,
            reach: 0,
            resume_at: 0,
            walk: Walk::new(now, false),
            blocked: Vec::new(),
            behind: Behind::new(),
            walk_due: now + RESCAN,
            pause: PAUSE.0,
            poll_at: now,
            last_arrival: now,
        }
    }

    /// How many to lease next, at most.
    pub(super) fn want(&self) -> u32 {
        self.want
    }

    /// When to look again after the queue seemed empty.
    pub(super) fn poll_at(&self) -> Instant {
        self.poll_at
    }

    /// Something may have become ready: look at once.
    pub(super) fn hurry(&mut self) {
        self.poll_at = Instant::now();
    }

    /// Something behind the cursor may be ready: scan from there.
    pub(super) fn back_to(&mut self, id: i64) {
        self.cursor = self.cursor.min(id - 1);
        self.called_back = Some(self.called_back.map_or(id, |earlier| earlier.min(id)));
        self.reach = 0;
        self.blocked.clear();
        self.walk.barren = false;
    }

    /// What this lease need not look for, while the lowest id in hand is `lowest`.
    pub(super) fn known(&self, order: &Order, lowest: Option<i64>) -> Option<Known> {
        self.behind.known(order, lowest)
    }

    /// An event of this group is not in hand any more, and has not ended here.
    pub(super) fn doubt(&mut self, group: &str) {
        self.behind.doubt(group);
    }

    /// Where to scan next: behind the cursor, or from the start when it is time for that, or when the
    /// end was reached and nothing is in hand: whether the queue is empty is all that is left to ask.
    fn start(&mut self, idle: bool) -> i64 {
        let now = Instant::now();
        let last = idle && self.at_end;
        if self.cursor > 0 && (last || self.resume_at == 0 && now >= self.walk_due) {
            self.resume_at = self.cursor;
            self.cursor = 0;
        }
        self.called_back = None;
        if self.cursor == 0 {
            self.blocked.clear();
            self.behind = Behind::new();
            self.walk = Walk::new(now, idle);
            self.reach = 0;
        }
        self.cursor
    }

    /// How far the scan leaps from there.
    fn leap(&mut self) -> i64 {
        let leap = fastrand::i64(0..=std::mem::take(&mut self.reach));
        self.walk.leapt |= leap > 0;
        leap
    }

    /// Learns from a lease how far it came and whether it brought enough; `left` events were still
    /// waiting for a handler when it came. Returns whether the queue is empty: a whole walk, begun
    /// with nothing in hand, has met nothing ready.
    pub(super) fn arrived(
        &mut self,
        order: &mut Order,
        promoted: Option<i64>,
        batch: &mut LeasedBatch,
        left: usize,
    ) -> bool {
        let now = Instant::now();
        let leased = u32::try_from(batch.events.len()).unwrap_or(u32::MAX);
        let found = Found::of(order, batch);
        if self.called_back.is_none() {
            self.blocked = std::mem::take(&mut order.blocked);
            if !found.astray {
                self.blocked.append(&mut batch.blocked);
            }
            self.blocked.truncate(MOST_BLOCKED);
        }
        self.adapt(found.full, left, order, now);
        self.walk.barren &= leased == 0 && promoted.is_none();
        self.advance(order, batch, &found, now);
        // A page of blocked rows: look further at once.
        let blocked = !found.reached_end && leased < order.limit.div_ceil(2);
        self.page = if blocked {
            (order.page * 2).min(1000.max(self.batch))
        } else {
            self.want
        };
        if let Some(lowest) = promoted {
            self.back_to(lowest);
        }
        if leased > 0 {
            self.pause = PAUSE.0;
            self.poll_at = now;
        } else if found.reached_end && promoted.is_none() && self.called_back.is_none() {
            self.poll_at = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        let empty = found.reached_end && self.walk.idle && self.walk.barren;
        if empty {
            // A long walk past blocked rows is not repeated all the time.
            self.poll_at = self.poll_at.max(now + (now - self.walk.began) * 4);
        }
        empty
    }

    /// Moves the cursor behind what was looked at. A walk that was expensive, past many blocked or dead rows,
    /// is repeated less often; from the end of a short queue it is repeated at once, and so is one that has leapt.
    fn advance(&mut self, order: &Order, batch: &mut LeasedBatch, found: &Found, now: Instant) {
        let at_end = found.reached_end && !found.full;
        self.cursor = found.cursor;
        self.behind.learn(order, batch, self.cursor);
        if found.astray {
            self.walk.bound = order.after;
        }
        if self.least > 1 {
            let most = self.walk.bound - 1 - self.cursor;
            self.reach = found.passed.saturating_mul(REACH).min(most).max(0);
        }
        self.at_end = at_end;
        if at_end {
            // A walk that has met nothing does not know where the end is.
            self.cursor = self.cursor.max(self.resume_at);
        }
        if let Some(id) = self.called_back {
            self.cursor = self.cursor.min(id - 1);
            self.reach = 0;
        }
        let not_too_often = (now - self.walk.began) * 8;
        if self.resume_at > 0 && (at_end || self.cursor >= self.resume_at) {
            self.resume_at = 0;
            self.walk_due = now + RESCAN.max(not_too_often);
        }
        if at_end {
            let pause = if self.walk.leapt {
                Duration::ZERO
            } else {
                not_too_often
            };
            self.walk_due = self.walk_due.min(now + pause);
            self.blocked.clear();
        }
    }

    /// As much as the handlers do in [`WORTH`]; faster while they had to wait for this lease, but for one
    /// that was long under way itself.
    fn adapt(&mut self, full: bool, left: usize, order: &Order, now: Instant) {
        let since = now - std::mem::replace(&mut self.last_arrival, now);
        if !full {
            return;
        }
        if left == 0 {
            let most = self.want.saturating_mul(4).min(order.in_time(now));
            self.want = most.clamp(self.least, self.batch);
        } else if since > WORTH {
            self.want = (self.want / 2).clamp(self.least, self.batch);
        } else if since < WORTH / 4 {
            self.want = self.want.saturating_mul(2).clamp(self.least, self.batch);
        }
    }
}

/// What a lease says of the queue.
struct Found {
    full: bool,
    /// It has leapt to where it does not help.
    astray: bool,
    reached_end: bool,
    /// All up to here has been looked at, but for what the walk has leapt over.
    cursor: i64,
    /// Ids that it has passed among others at work, on its way to events without groups; 0 if none are.
    passed: i64,
}

impl Found {
    fn of(order: &Order, batch: &LeasedBatch) -> Self {
        let full = batch.events.len() == order.limit as usize;
        let at_end = batch.scanned < order.page;
        let has_groups =
            !batch.blocked.is_empty() || batch.events.iter().any(|event| event.group_key.is_some());
        let astray = order.leap > 0 && (has_groups || at_end && !full);
        let last = if full {
            batch.events.last().map(|event| event.lease.id)
        } else {
            batch.last_id
        };
        let last = last.unwrap_or(order.after);
        let is_crowded = batch.crowded && full && !has_groups;
        Self {
            full,
            astray,
            reached_end: at_end && !astray,
            cursor: if astray {
                order.after - order.leap
            } else {
                last
            },
            passed: if is_crowded {
                last - order.after - i64::from(batch.scanned)
            } else {
                0
            },
        }
    }
}

/// What to lease next.
pub(super) struct Order {
    /// Where the scan starts: behind the cursor, and behind the ids that it leaps over.
    pub after: i64,
    /// How many ids those are.
    pub leap: i64,
    pub limit: u32,
    pub page: u32,
    pub held: Vec<Uuid>,
    /// Groups found blocked earlier in the walk.
    pub blocked: Vec<String>,
    pub known: Option<Known>,
    pub timeout: Duration,
    /// Kinds this program knows and has time for.
    pub kinds: Vec<&'static str>,
    /// Number of this lease within the run.
    pub number: u64,
    /// When it was made: its leases are no older.
    pub sent: Instant,
}

impl Order {
    pub(super) fn new(pace: &mut Pace, most: u64, idle: bool) -> Self {
        let limit = u32::try_from(most).unwrap_or(u32::MAX).min(pace.want);
        let from = pace.start(idle);
        let leap = pace.leap();
        Self {
            after: from + leap,
            leap,
            limit,
            page: pace.page.max(limit),
            held: Vec::new(),
            blocked: std::mem::take(&mut pace.blocked),
            known: None,
            timeout: Duration::ZERO,
            kinds: Vec::new(),
            number: 0,
            sent: Instant::now(),
        }
    }

    /// How many would have arrived within [`ARRIVAL`], at the pace of this lease that has just arrived.
    fn in_time(&self, now: Instant) -> u32 {
        let took = (now - self.sent).as_millis().max(1);
        let most = u128::from(self.limit) * ARRIVAL.as_millis() / took;
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::LeasedEvent;

    fn batch(scanned: u32, last_id: i64) -> LeasedBatch {
        LeasedBatch {
            scanned,
            last_id: Some(last_id),
            ..LeasedBatch::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_before_an_empty_queue_grows_up_to_its_limit() {
        let mut pace = Pace::new(8, 1000);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let mut order = Order::new(&mut pace, 1000, true);
            assert!(pace.arrived(&mut order, None, &mut LeasedBatch::default(), 0));
            pauses.push((pace.poll_at() - Instant::now()).as_millis());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 200, 200]);
        pace.hurry();
        assert!(pace.poll_at() <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_page_without_an_event_is_passed_with_larger_steps() {
        let mut pace = Pace::new(8, 1000);
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!((order.after, order.page, order.limit), (0, 8, 8));
        assert!(!pace.arrived(&mut order, None, &mut batch(8, 80), 0));
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!((order.after, order.page, order.limit), (80, 16, 8));
        assert!(
            pace.arrived(&mut order, None, &mut batch(3, 90), 0),
            "the whole walk met nothing"
        );
        assert_eq!(pace.start(true), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_long_under_way_is_not_followed_by_a_larger_one() {
        let mut pace = Pace::new(8, 1000);
        let mut wanted = Vec::new();
        // Milliseconds for each event: no link is too slow for the first lease of a run.
        for each in [1, 1, 5, 5, 500, 500] {
            let mut order = Order::new(&mut pace, 1000, true);
            tokio::time::advance(Duration::from_millis(each) * order.limit).await;
            let mut batch = LeasedBatch {
                events: vec![LeasedEvent::sample(1, None); order.limit as usize],
                ..batch(order.page, 1)
            };
            pace.arrived(&mut order, None, &mut batch, 0);
            wanted.push(pace.want());
        }
        assert_eq!(wanted, [32, 128, 200, 200, 8, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_not_empty_while_something_is_in_hand_or_came_back() {
        let mut pace = Pace::new(8, 1000);
        let mut busy = Order::new(&mut pace, 1000, false);
        assert!(!pace.arrived(&mut busy, None, &mut LeasedBatch::default(), 0));
        let mut order = Order::new(&mut pace, 1000, true);
        pace.back_to(3);
        assert!(!pace.arrived(&mut order, None, &mut LeasedBatch::default(), 0));
        let mut order = Order::new(&mut pace, 1000, true);
        assert!(pace.arrived(&mut order, None, &mut LeasedBatch::default(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_took_long_to_reach_is_left_for_the_start_once_nothing_is_in_hand() {
        let mut pace = Pace::new(8, 1000);
        let mut order = Order::new(&mut pace, 1000, true);
        pace.arrived(&mut order, None, &mut batch(8, 800), 0);
        tokio::time::advance(RESCAN / 2).await;
        let mut order = Order::new(&mut pace, 1000, false);
        let mut last = LeasedBatch {
            events: vec![LeasedEvent::sample(1, None)],
            ..batch(1, 900)
        };
        pace.arrived(&mut order, None, &mut last, 0);
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let mut busy = Order::new(&mut pace, 1000, false);
            assert_eq!(busy.after, 900);
            assert!(!pace.arrived(&mut busy, None, &mut LeasedBatch::default(), 0));
            pauses.push((pace.poll_at() - Instant::now()).as_millis());
        }
        assert_eq!(pauses, [5, 10, 20]);
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!(order.after, 0);
        assert!(pace.arrived(&mut order, None, &mut LeasedBatch::default(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_was_near_is_left_for_the_start_soon_whatever_is_in_hand() {
        let mut pace = Pace::new(8, 1000);
        let mut starts = Vec::new();
        let nothing = LeasedBatch::default;
        for mut met in [batch(1, 7), nothing(), nothing(), nothing()] {
            let mut order = Order::new(&mut pace, 1000, false);
            starts.push(order.after);
            tokio::time::advance(Duration::from_millis(1)).await;
            pace.arrived(&mut order, None, &mut met, 0);
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        assert_eq!(starts, [0, 7, 0, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn a5_the_cursor_goes_back_to_a_promoted_event_and_to_the_start_now_and_then() {
        let mut pace = Pace::new(8, 1000);
        let mut order = Order::new(&mut pace, 1000, true);
        pace.arrived(&mut order, None, &mut batch(8, 800), 0);
        let mut order = Order::new(&mut pace, 1000, true);
        pace.arrived(&mut order, Some(5), &mut batch(16, 900), 0);
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!(order.after, 4);
        pace.arrived(&mut order, None, &mut batch(32, 950), 0);
        assert_eq!(pace.start(true), 950);
        tokio::time::advance(RESCAN).await;
        assert_eq!(pace.start(true), 0);
    }

    /// A lease that came back full.
    fn full(order: &Order, passed: i64, group: Option<&str>) -> LeasedBatch {
        let last = order.after + passed + i64::from(order.limit);
        LeasedBatch {
            events: vec![LeasedEvent::sample(last, group); order.limit as usize],
            crowded: passed > 0,
            ..batch(order.page, last)
        }
    }

    /// A drain in the middle of a walk, whose last lease has passed so many ids of others.
    fn beside_others(concurrency: usize, passed: i64, group: Option<&str>) -> Pace {
        let mut pace = Pace::new(concurrency, 1000);
        for passed in [0, passed] {
            let mut order = Order::new(&mut pace, 1000, false);
            let mut met = full(&order, passed, group);
            pace.arrived(&mut order, None, &mut met, 0);
        }
        pace
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_beside_others_leaps_ahead_and_walks_on_from_there() {
        let leaps = || {
            let mut pace = beside_others(8, 800, None);
            let from = pace.cursor;
            let mut order = Order::new(&mut pace, 1000, false);
            assert_eq!(order.after, from + order.leap);
            let mut met = full(&order, 0, None);
            pace.arrived(&mut order, None, &mut met, 0);
            let next = Order::new(&mut pace, 1000, false);
            assert_eq!(next.after, order.after + i64::from(order.limit));
            assert_eq!(next.leap, 0);
            order.leap
        };
        let leaps: Vec<i64> = (0..1000).map(|_| leaps()).collect();
        assert!(leaps.iter().all(|leap| (0..=800 * REACH).contains(leap)));
        assert!(leaps.iter().any(|leap| *leap > 400 * REACH));
    }

    #[tokio::test(start_paused = true)]
    async fn a2_i4_nobody_leaps_who_is_alone_or_runs_one_at_a_time_or_meets_groups() {
        for pace in [
            beside_others(8, 0, None),
            beside_others(1, 800, None),
            beside_others(8, 800, Some("a")),
        ] {
            assert_eq!(pace.reach, 0);
        }
        assert_eq!(beside_others(8, 800, None).reach, 800 * REACH);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_become_ready_behind_the_cursor_or_a_new_walk_ends_a_leap() {
        let mut pace = beside_others(8, 800, None);
        pace.back_to(3);
        let order = Order::new(&mut pace, 1000, false);
        assert_eq!((order.after, order.leap), (2, 0));
        let mut pace = beside_others(8, 800, None);
        tokio::time::advance(RESCAN).await;
        let order = Order::new(&mut pace, 1000, false);
        assert_eq!((order.after, order.leap), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leap_to_the_end_or_among_groups_is_taken_back_and_the_next_one_is_shorter() {
        for lands_on in [None, Some("a")] {
            let mut pace = beside_others(8, 800, None);
            let from = pace.cursor;
            pace.reach = 100;
            let mut order = Order::new(&mut pace, 1000, false);
            while order.leap == 0 {
                pace.reach = 100;
                order = Order::new(&mut pace, 1000, false);
            }
            let mut met = match lands_on {
                None => LeasedBatch::default(),
                group => LeasedBatch {
                    blocked: vec!["b".to_owned()],
                    ..full(&order, 0, group)
                },
            };
            assert!(!pace.arrived(&mut order, None, &mut met, 0));
            assert!(pace.poll_at() <= Instant::now());
            let bound = order.after;
            let mut order = Order::new(&mut pace, 1000, false);
            assert_eq!((order.after, order.leap), (from, 0));
            assert!(order.blocked.is_empty(), "what stands ahead was leapt over");
            let mut met = full(&order, 40, None);
            pace.arrived(&mut order, None, &mut met, 0);
            assert!(pace.reach <= (bound - 1 - pace.cursor).max(0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_that_has_leapt_is_followed_by_another_at_once() {
        let mut pace = beside_others(8, 800, None);
        tokio::time::advance(RESCAN / 2).await;
        pace.walk.leapt = true;
        let order = Order::new(&mut pace, 1000, false);
        let mut order = Order { leap: 0, ..order };
        pace.arrived(&mut order, None, &mut LeasedBatch::default(), 0);
        assert_eq!(Order::new(&mut pace, 1000, false).after, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_remembers_blocked_groups_until_it_ends_or_is_called_back() {
        let mut pace = Pace::new(8, 1000);
        let found = |group: &str, last_id| LeasedBatch {
            blocked: vec![group.to_owned()],
            ..batch(8, last_id)
        };
        let mut order = Order::new(&mut pace, 1000, true);
        pace.arrived(&mut order, None, &mut found("a", 80), 0);
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!(order.blocked, ["a"]);
        pace.arrived(
            &mut order,
            None,
            &mut LeasedBatch {
                scanned: 16,
                ..found("b", 90)
            },
            0,
        );
        let mut order = Order::new(&mut pace, 1000, true);
        assert_eq!(order.blocked, ["a", "b"]);
        pace.back_to(85);
        pace.arrived(
            &mut order,
            None,
            &mut LeasedBatch {
                scanned: 32,
                ..found("c", 99)
            },
            0,
        );
        let mut order = Order::new(&mut pace, 1000, true);
        assert!(
            order.blocked.is_empty(),
            "what came back may have opened a group"
        );
        pace.arrived(&mut order, None, &mut found("d", 99), 0);
        assert!(
            Order::new(&mut pace, 1000, true).blocked.is_empty(),
            "a new walk"
        );
    }
}
