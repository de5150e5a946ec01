//! Owns the tasks in which handlers run. There is a limited number of lanes. Each lane takes its next event
//! itself when one has ended, and reports several ends to the loop at once. The lanes decide neither what
//! starts nor what becomes of an event.
//!
//! With quick handlers, a task for each event and a wake-up of the loop for each end took a third of the
//! client's time. So while handlers are quick, a few more events are handed over than there are lanes. An
//! event that waits here has not started and can be taken back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::clocks::Reading;
use crate::lease::Lease;

/// Handlers that have recently taken less than this on average count as quick: events may line up behind
/// them.
const QUICK: Duration = Duration::from_millis(1);

/// The minimum and the maximum number of events in hand for each lane while handlers are quick, including the
/// running one. The number above the minimum is limited to the work of [`SHORT`]. The loop is notified of
/// ends when half as many have accumulated.
const IN_HAND: (usize, usize) = (4, 32);

/// A line with less work than this is left to the lane that runs. With a lane for each event, two threads
/// passed the processor to each other for every second event of a drain of quick handlers (14 % slower; six
/// turns, four won).
const SHORT: Duration = Duration::from_micros(200);

/// The size of one place among the handlers that run at once. Events that share a call share a place, so a
/// place has parts.
pub(super) const PLACE: usize = 1_000_000;

/// How long to wait for handlers that were cut. Those that were waiting for something are gone by then.
const LEAVING: Duration = Duration::from_millis(50);

/// What a lane runs for an event.
pub(super) trait Run: Send + 'static {
    /// Runs the event's handlers, and returns whether the event that follows it may start at once. The lane
    /// creates the future itself. A future is large: moving it to the lane, and freeing it on another thread,
    /// took a tenth of the client's time.
    fn run(self) -> impl Future<Output = bool> + Send;
}

/// An event that may start.
pub(super) struct Work<H> {
    pub lease: Lease,
    /// From this time on the event must not start, because its lease may have run out, for instance while the
    /// process was frozen.
    pub start_by: Reading,
    /// How much of a [`PLACE`] the event takes.
    pub part: usize,
    pub handlers: H,
    /// The events that follow it in its group. The lane continues with them as long as all goes well.
    pub then: VecDeque<Work<H>>,
}

impl<H> Work<H> {
    fn leases(&self) -> impl Iterator<Item = Lease> {
        std::iter::once(self.lease).chain(self.then.iter().map(|work| work.lease))
    }
}

/// An event that was handed over and is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub lease: Lease,
    pub came: Came,
}

/// What happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// Its handlers ended after this time.
    Ran(Duration),
    /// It was too late to start them.
    Late,
    /// A preceding event of its group did not end well.
    NotReached,
}

/// The lanes of one drain.
pub(super) struct Lanes<H> {
    shared: Arc<Shared<H>>,
}

struct Shared<H> {
    /// The runtime in which the lanes' tasks run.
    runtime: Handle,
    /// The most lanes at once.
    most: usize,
    line: Mutex<Line<H>>,
    ended_signal: Notify,
}

struct Line<H> {
    waiting: VecDeque<Work<H>>,
    ended: Vec<Ended>,
    /// The event that each lane runs, by the lane's number. A lane that does not find its number here was
    /// cut, and ends.
    lanes: BTreeMap<u64, Lane<H>>,
    /// The parts of places that the lanes take.
    taken: usize,
    /// The lanes that were cut and have not noticed yet, because their handlers block their threads.
    cut: BTreeSet<u64>,
    made: u64,
    /// The typical time of a handler, weighted towards recent ones. `None` before the first end.
    typical: Option<Duration>,
}

struct Lane<H> {
    lease: Lease,
    part: usize,
    started: Instant,
    /// Whether its handler waits for something, so that its thread is free.
    waits: bool,
    abort: Option<AbortHandle>,
    /// The events that it continues with.
    then: VecDeque<Work<H>>,
}

impl<H> Shared<H> {
    fn line(&self) -> MutexGuard<'_, Line<H>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Run> Shared<H> {
    /// Opens as many lanes as the line needs.
    fn open(self: &Arc<Self>) {
        loop {
            let begun = self.line().begin(self.most);
            let Some((number, work)) = begun else { return };
            let task = InLane {
                shared: self.clone(),
                number,
            };
            let task = self.runtime.spawn(run(task, work));
            // The lane may have ended by now.
            if let Some(lane) = self.line().lanes.get_mut(&number) {
                lane.abort = Some(task.abort_handle());
            }
        }
    }
}

impl<H: Run> Lanes<H> {
    /// Creates lanes, at most `most` of which run at once.
    pub(super) fn new(most: usize, runtime: Handle) -> Self {
        let shared = Shared {
            runtime,
            most,
            line: Mutex::new(Line::new()),
            ended_signal: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the runtime in which handlers run.
    pub(super) fn runtime(&self) -> Handle {
        self.shared.runtime.clone()
    }

    /// Returns how many events may be handed over and not ended. A single lane receives one event at a time,
    /// so that the whole queue is handled in order (A2). The next event of a group can only be handed over
    /// when the preceding one has ended.
    pub(super) fn room(&self) -> usize {
        self.shared.line().room(self.shared.most)
    }

    /// Returns the lower limit that holds while the next event is large. A decoded payload may take a
    /// multiple of its size, and all handed-over events are decoded.
    pub(super) fn room_for_large(&self) -> usize {
        self.room().min(self.shared.most * IN_HAND.0)
    }

    /// Whether the later events of a group are handed over together with its first one. With quick handlers
    /// they would wait longer for the loop than they take. Not with a single lane, which keeps the order of
    /// all events.
    pub(super) fn chains(&self) -> bool {
        self.room() > self.shared.most
    }

    /// Returns how many events were handed over to follow others, and still wait for them.
    pub(super) fn chained(&self) -> usize {
        let line = self.shared.line();
        let waiting = line.waiting.iter().map(|work| work.then.len());
        let running = line.lanes.values().map(|lane| lane.then.len());
        waiting.chain(running).sum()
    }

    /// Returns the recent typical time of a handler, or `None` before the first has ended. If all places are
    /// taken by handlers that have been running for longer, that time counts: quick events may have turned
    /// slow.
    pub(super) fn typical(&self) -> Option<Duration> {
        self.shared.line().pace(self.shared.most)
    }

    /// Returns how many events were handed over and wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.shared.line().waiting.len()
    }

    /// Puts the work in line. [`Lanes::open`] makes it run.
    pub(super) fn push(&self, work: Work<H>) {
        self.shared.line().waiting.push_back(work);
    }

    /// Opens lanes for the events in line.
    pub(super) fn open(&self) {
        self.shared.open();
    }

    /// Returns when to call [`Lanes::open`] again, if a handler that blocks its thread may hold up others in
    /// line.
    pub(super) fn open_at(&self) -> Option<Instant> {
        let line = self.shared.line();
        let held_up = !line.waiting.is_empty() && line.has_place(self.shared.most);
        held_up.then(|| Instant::now() + QUICK)
    }

    /// Waits until events have ended, and takes them.
    pub(super) async fn ended(&self) -> Vec<Ended> {
        loop {
            let ended = std::mem::take(&mut self.shared.line().ended);
            if !ended.is_empty() {
                return ended;
            }
            self.shared.ended_signal.notified().await;
        }
    }

    /// Takes back the events that have not started and that `asked` selects.
    pub(super) fn take_waiting(&self, asked: impl Fn(Lease) -> bool) -> Vec<Lease> {
        let mut line = self.shared.line();
        let mut taken = Vec::new();
        line.waiting.retain(|work| {
            let goes = asked(work.lease);
            if goes {
                taken.extend(work.leases());
            }
            !goes
        });
        for lane in line.lanes.values_mut() {
            if lane.then.front().is_some_and(|work| asked(work.lease)) {
                taken.extend(lane.then.drain(..).map(|work| work.lease));
            }
        }
        taken
    }

    /// Returns the events that run, and since when.
    pub(super) fn running(&self) -> Vec<(Lease, Instant)> {
        let line = self.shared.line();
        line.lanes
            .values()
            .map(|lane| (lane.lease, lane.started))
            .collect()
    }

    /// Ends the lane that runs this event. If the event has ended in the meantime, nothing happens.
    pub(super) fn cut(&self, lease: Lease) -> bool {
        let mut line = self.shared.line();
        let mut lanes = line.lanes.iter();
        let found = lanes.find(|(_, lane)| lane.lease == lease);
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        let Some(removed) = line.remove(number) else {
            return false;
        };
        line.cut.insert(number);
        line.leave(removed.then);
        drop(line);
        // Not under the lock: a runtime that has shut down drops the task here.
        if let Some(abort) = removed.abort {
            abort.abort();
        }
        // Other events may wait for the lane's place.
        self.shared.open();
        true
    }
}

impl<H> Lanes<H> {
    /// Ends all lanes. Returns how many handlers still run: a handler that waits for nothing cannot be ended,
    /// and blocks its thread for as long as it likes.
    pub(super) async fn close(&self) -> usize {
        self.shared.cut_all();
        let all_gone = async {
            while !self.shared.line().cut.is_empty() {
                self.shared.ended_signal.notified().await;
            }
        };
        let _ = tokio::time::timeout(LEAVING, all_gone).await;
        self.shared.line().cut.len()
    }
}

impl<H> Shared<H> {
    fn cut_all(&self) {
        let mut line = self.line();
        line.waiting.clear();
        let lanes = std::mem::take(&mut line.lanes);
        line.taken = 0;
        line.cut.extend(lanes.keys());
        drop(line);
        for abort in lanes.into_values().filter_map(|lane| lane.abort) {
            abort.abort();
        }
    }
}

/// When the drain is gone, nothing starts or continues except handlers that block their thread.
impl<H> Drop for Lanes<H> {
    fn drop(&mut self) {
        self.shared.cut_all();
    }
}

/// A lane's task, from before its first step until it is dropped.
struct InLane<H> {
    shared: Arc<Shared<H>>,
    number: u64,
}

impl<H> Drop for InLane<H> {
    fn drop(&mut self) {
        if self.shared.line().cut.remove(&self.number) {
            self.shared.ended_signal.notify_one();
        }
    }
}

/// Runs one lane: one event after the other until none waits.
async fn run<H: Run>(lane: InLane<H>, first: Work<H>) {
    let (shared, number) = (&lane.shared, lane.number);
    let (mut next, mut now) = (Some(first), Instant::now());
    while let Some(work) = next {
        let (lease, started) = (work.lease, now);
        let (came, goes_on) = if work.start_by.is_over(started) {
            (Came::Late, false)
        } else {
            let goes_on = run_one(shared, number, work.handlers).await;
            now = Instant::now();
            (Came::Ran(now - started), goes_on)
        };
        let ended = Ended { lease, came };
        next = shared.line().advance(shared, (number, now), ended, goes_on);
    }
}

/// Runs the handlers of one event. As soon as they wait for something, the loop is notified of earlier ends,
/// and other lanes take the events that are in line.
async fn run_one<H: Run>(shared: &Arc<Shared<H>>, number: u64, handlers: H) -> bool {
    let mut handlers = pin!(handlers.run());
    let mut waits = false;
    poll_fn(|context| {
        let polled = handlers.as_mut().poll(context);
        if polled.is_pending() && !waits {
            waits = true;
            if shared.line().note_waiting(number) {
                shared.ended_signal.notify_one();
            }
            shared.open();
        }
        polled
    })
    .await
}

impl<H> Line<H> {
    fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            ended: Vec::new(),
            lanes: BTreeMap::new(),
            taken: 0,
            cut: BTreeSet::new(),
            made: 0,
            typical: None,
        }
    }

    fn pace(&self, most: usize) -> Option<Duration> {
        let typical = self.typical?;
        if self.taken + PLACE <= most * PLACE {
            return Some(typical);
        }
        let now = Instant::now();
        let running = self.lanes.values().map(|lane| now - lane.started).min();
        Some(typical.max(running.unwrap_or_default()))
    }

    /// Returns how many events may be handed over and not ended.
    fn room(&self, most: usize) -> usize {
        match self.pace(most) {
            Some(typical) if typical < QUICK && most > 1 => {
                let short = SHORT.as_nanos() / typical.as_nanos().max(1);
                let short = usize::try_from(short).unwrap_or(usize::MAX);
                short.clamp(most * IN_HAND.0, most * IN_HAND.1)
            }
            _ => most,
        }
    }

    /// Returns how many ends accumulate before the loop is notified.
    fn notify_at(&self, most: usize) -> usize {
        (self.room(most) / 2).max(most * IN_HAND.0 / 2)
    }

    /// Returns the next lane's number and first work, if another lane is needed.
    fn begin(&mut self, most: usize) -> Option<(u64, Work<H>)> {
        if !self.has_place(most) || self.is_looked_after(Instant::now()) {
            return None;
        }
        let mut work = self.waiting.pop_front()?;
        self.made += 1;
        self.taken += work.part;
        let lane = Lane {
            lease: work.lease,
            part: work.part,
            started: Instant::now(),
            waits: false,
            abort: None,
            then: std::mem::take(&mut work.then),
        };
        self.lanes.insert(self.made, lane);
        Some((self.made, work))
    }

    /// Whether the first event in line may have a lane.
    fn has_place(&self, most: usize) -> bool {
        let part = self.waiting.front().map_or(PLACE, |work| work.part);
        self.taken + part <= most * PLACE
    }

    /// Removes a lane, because it ends.
    fn remove(&mut self, number: u64) -> Option<Lane<H>> {
        let removed = self.lanes.remove(&number)?;
        self.taken -= removed.part;
        Some(removed)
    }

    /// Whether the line is short and a running lane will soon come to it.
    fn is_looked_after(&self, now: Instant) -> bool {
        let little = u32::try_from(self.waiting.len())
            .is_ok_and(|count| self.typical.is_some_and(|typical| typical * count < SHORT));
        let mut lanes = self.lanes.values();
        little && lanes.any(|lane| !lane.waits && now < lane.started + QUICK)
    }

    /// Notes that a lane's handler waits. Returns whether there are ends for the loop.
    fn note_waiting(&mut self, number: u64) -> bool {
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.waits = true;
        }
        !self.ended.is_empty()
    }

    /// Notes an end. Returns what the lane runs next, or `None` if the lane ends.
    fn advance(
        &mut self,
        shared: &Shared<H>,
        (number, now): (u64, Instant),
        ended: Ended,
        goes_on: bool,
    ) -> Option<Work<H>> {
        // Without an entry, the lane was cut: the loop has settled the event itself, and another lane has
        // this one's place.
        let lane = self.lanes.get_mut(&number)?;
        let mut then = std::mem::take(&mut lane.then);
        self.taken -= std::mem::take(&mut lane.part);
        self.ended.push(ended);
        if let Came::Ran(took) = ended.came {
            self.typical = Some(
                self.typical
                    .map_or(took, |typical| (typical * 7 + took) / 8),
            );
        }
        if !goes_on {
            self.leave(std::mem::take(&mut then));
        }
        let mut next = then.pop_front();
        if next.is_none() && self.has_place(shared.most) {
            next = self.waiting.pop_front();
            then = next
                .as_mut()
                .map_or_else(VecDeque::new, |work| std::mem::take(&mut work.then));
        }
        if let (Some(work), Some(lane)) = (&next, self.lanes.get_mut(&number)) {
            (lane.lease, lane.part, lane.then) = (work.lease, work.part, then);
            (lane.started, lane.waits) = (now, false);
            self.taken += lane.part;
        } else {
            self.lanes.remove(&number);
        }
        if next.is_none() || self.ended.len() >= self.notify_at(shared.most) {
            shared.ended_signal.notify_one();
        }
        next
    }

    /// Reports events that will not start because of a preceding event of their group.
    fn leave(&mut self, then: VecDeque<Work<H>>) {
        let left = then.into_iter().map(|work| Ended {
            lease: work.lease,
            came: Came::NotReached,
        });
        self.ended.extend(left);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::time::SystemTime;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::*;

    type Boxed = Pin<Box<dyn Future<Output = bool> + Send>>;

    impl Run for Boxed {
        fn run(self) -> impl Future<Output = bool> + Send {
            self
        }
    }

    fn lease(id: i64) -> Lease {
        Lease {
            id,
            token: Uuid::nil(),
        }
    }

    fn work(id: i64, handlers: impl Future<Output = ()> + Send + 'static) -> Work<Boxed> {
        ending(id, true, handlers)
    }

    /// Ends, and says whether the following event may start.
    fn ending(
        id: i64,
        well: bool,
        handlers: impl Future<Output = ()> + Send + 'static,
    ) -> Work<Boxed> {
        Work {
            lease: lease(id),
            start_by: Reading::now() + Duration::from_mins(1),
            part: PLACE,
            handlers: Box::pin(handlers.map(move |()| well)),
            then: VecDeque::new(),
        }
    }

    /// Chains events, one after the other.
    fn chain(mut head: Work<Boxed>, then: Vec<Work<Boxed>>) -> Work<Boxed> {
        head.then.extend(then);
        head
    }

    fn start(lanes: &Lanes<Boxed>, work: Work<Boxed>) {
        lanes.push(work);
        lanes.open();
    }

    fn ids(ended: &[Ended]) -> Vec<i64> {
        ended.iter().map(|ended| ended.lease.id).collect()
    }

    /// A handler that waits until it is notified.
    fn waiting() -> (oneshot::Sender<()>, impl Future<Output = ()>) {
        let (tell, told) = oneshot::channel::<()>();
        (tell, async move { drop(told.await) })
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_there_are_lanes_and_the_rest_follows_in_order() {
        let lanes = Lanes::new(2, Handle::current());
        let (first, one) = waiting();
        let (second, two) = waiting();
        start(&lanes, work(1, one));
        start(&lanes, work(2, two));
        start(&lanes, work(3, async {}));
        start(&lanes, work(4, std::future::pending()));
        tokio::task::yield_now().await;
        let running = |lanes: &Lanes<Boxed>| -> Vec<i64> {
            lanes.running().iter().map(|(lease, _)| lease.id).collect()
        };
        assert_eq!(running(&lanes), [1, 2]);
        second.send(()).unwrap();
        assert_eq!(ids(&lanes.ended().await), [2, 3]);
        assert_eq!(running(&lanes), [1, 4]);
        first.send(()).unwrap();
        assert_eq!(ids(&lanes.ended().await), [1]);
        assert_eq!(running(&lanes), [4]);
    }

    #[tokio::test]
    async fn what_shares_a_place_runs_at_once_and_what_has_one_of_its_own_waits_for_a_whole_one() {
        let lanes = Lanes::new(2, Handle::current());
        let (told, mut ends) = (Vec::from([1, 2, 3, 4].map(|_| waiting())), Vec::new());
        for (id, (tell, handlers)) in (1..).zip(told) {
            ends.push(tell);
            let part = PLACE / 4;
            start(
                &lanes,
                Work {
                    part,
                    ..work(id, handlers)
                },
            );
        }
        for id in [5, 6] {
            start(&lanes, work(id, std::future::pending()));
        }
        tokio::task::yield_now().await;
        let running = |lanes: &Lanes<Boxed>| -> Vec<i64> {
            lanes.running().iter().map(|(lease, _)| lease.id).collect()
        };
        assert_eq!(running(&lanes), [1, 2, 3, 4, 5]);
        // A quarter of a place is too little for it.
        for (left, tell) in ends.into_iter().enumerate() {
            tell.send(()).unwrap();
            lanes.ended().await;
            lanes.open();
            assert_eq!(running(&lanes).contains(&6), left == 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn more_are_taken_on_only_while_handlers_are_quick() {
        let lanes = Lanes::new(3, Handle::current());
        assert_eq!(lanes.room(), 3, "nothing is known yet");
        start(&lanes, work(1, async {}));
        lanes.ended().await;
        assert_eq!(lanes.room(), 3 * IN_HAND.1, "it took no time");
        for (typical, room) in [(5, 40), (50, 3 * IN_HAND.0)] {
            lanes.shared.line().typical = Some(Duration::from_micros(typical));
            assert_eq!(lanes.room(), room, "{typical} us each");
        }
        start(&lanes, work(2, tokio::time::sleep(QUICK * 20)));
        lanes.ended().await;
        assert_eq!(lanes.room(), 3);
    }

    /// Creates lanes that have learnt that handlers are quick.
    async fn quick_lanes(most: usize) -> Lanes<Boxed> {
        let lanes = Lanes::new(most, Handle::current());
        start(&lanes, work(0, async {}));
        assert_eq!(ids(&lanes.ended().await), [0]);
        lanes.shared.line().typical = Some(Duration::from_micros(2));
        lanes
    }

    #[tokio::test(start_paused = true)]
    async fn one_lane_runs_a_line_of_quick_handlers_and_many_run_a_long_one() {
        let lanes = quick_lanes(4).await;
        for id in 1..=8 {
            start(&lanes, work(id, async {}));
        }
        assert_eq!(lanes.running().len(), 1);
        lanes.shared.line().typical = Some(SHORT);
        lanes.open();
        assert_eq!(lanes.running().len(), 4);
        assert_eq!(lanes.open_at(), None, "there is no lane left to open");
        tokio::task::yield_now().await;
        assert_eq!(ids(&lanes.ended().await), [1, 5, 6, 7, 8, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_waits_lets_others_pass_though_most_are_quick() {
        let lanes = quick_lanes(2).await;
        let (tell, one) = waiting();
        start(&lanes, work(1, one));
        start(&lanes, work(2, async {}));
        assert_eq!(ids(&lanes.ended().await), [2]);
        start(&lanes, work(3, async {}));
        assert_eq!(ids(&lanes.ended().await), [3]);
        tell.send(()).unwrap();
        assert_eq!(ids(&lanes.ended().await), [1]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_handler_that_keeps_its_thread_to_itself_lets_others_pass_though_most_are_quick() {
        let lanes = quick_lanes(2).await;
        let (tell, told) = std::sync::mpsc::channel::<()>();
        start(&lanes, work(1, async move { told.recv().unwrap() }));
        start(&lanes, work(2, async {}));
        while let Some(at) = lanes.open_at() {
            tokio::time::sleep_until(at).await;
            lanes.open();
        }
        assert_eq!(ids(&lanes.ended().await), [2]);
        tell.send(()).unwrap();
        assert_eq!(ids(&lanes.ended().await), [1]);
    }

    #[tokio::test]
    async fn a2_a_single_lane_takes_one_event_at_a_time_however_quick() {
        let lanes = Lanes::new(1, Handle::current());
        start(&lanes, work(1, async {}));
        lanes.ended().await;
        assert_eq!(lanes.room(), 1);
    }

    #[tokio::test]
    async fn a_lane_goes_on_with_what_stands_behind_as_long_as_all_goes_well() {
        let lanes = Lanes::new(2, Handle::current());
        let (tell, two) = waiting();
        let never = || work(4, async { unreachable!() });
        start(
            &lanes,
            chain(
                work(1, async {}),
                vec![
                    ending(2, false, two),
                    work(3, async { unreachable!() }),
                    never(),
                ],
            ),
        );
        tokio::task::yield_now().await;
        assert_eq!((ids(&lanes.ended().await), lanes.chained()), (vec![1], 2));
        tell.send(()).unwrap();
        let ended = lanes.ended().await;
        assert_eq!(ids(&ended), [2, 3, 4]);
        let ran: Vec<bool> = ended
            .iter()
            .map(|ended| matches!(ended.came, Came::Ran(_)))
            .collect();
        assert_eq!(ran, [true, false, false]);
        assert_eq!((lanes.chained(), lanes.running().len()), (0, 0));
    }

    #[tokio::test]
    async fn what_stands_behind_is_taken_back_or_left_with_what_is_ahead() {
        let lanes = Lanes::new(1, Handle::current());
        let behind = |ids: [i64; 2]| ids.map(|id| work(id, async { unreachable!() })).into();
        start(
            &lanes,
            chain(work(1, std::future::pending()), behind([2, 3])),
        );
        start(
            &lanes,
            chain(work(4, std::future::pending()), behind([5, 6])),
        );
        tokio::task::yield_now().await;
        assert_eq!(
            lanes.take_waiting(|lease| lease.id == 4),
            [4, 5, 6].map(lease)
        );
        assert!(lanes.cut(lease(1)));
        assert_eq!(ids(&lanes.ended().await), [2, 3]);
        assert!(lanes.running().is_empty());
    }

    #[tokio::test]
    async fn what_was_cut_is_not_told_of_and_leaves_its_place_to_the_next() {
        let lanes = Lanes::new(1, Handle::current());
        start(&lanes, work(1, std::future::pending()));
        start(&lanes, work(2, async {}));
        tokio::task::yield_now().await;
        assert!(lanes.cut(lease(1)));
        assert!(!lanes.cut(lease(1)));
        assert_eq!(ids(&lanes.ended().await), [2]);
        assert!(lanes.running().is_empty());
    }

    #[tokio::test]
    async fn what_waits_can_be_taken_back_and_does_not_outlive_the_drain() {
        let lanes = Lanes::new(1, Handle::current());
        let (tell, one) = waiting();
        start(&lanes, work(1, one));
        for id in [2, 3, 4] {
            start(&lanes, work(id, async {}));
        }
        assert_eq!(lanes.take_waiting(|_| true), [lease(2), lease(3), lease(4)]);
        let (outlived, told) = oneshot::channel::<()>();
        start(&lanes, work(5, async move { outlived.send(()).unwrap() }));
        drop(lanes);
        let _ = tell.send(());
        assert!(told.await.is_err(), "event 5 was dropped unstarted");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_waits_ends_with_the_drain_and_what_keeps_its_thread_is_told() {
        let lanes = Lanes::new(4, Handle::current());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (here, blocks) = oneshot::channel();
        let (held, dropped) = oneshot::channel::<()>();
        start(
            &lanes,
            work(1, async move {
                here.send(()).unwrap();
                let _ = released.recv();
            }),
        );
        start(
            &lanes,
            work(2, async move {
                std::future::pending::<()>().await;
                drop(held);
            }),
        );
        blocks.await.unwrap();
        assert_eq!(lanes.close().await, 1, "event 1 blocks");
        assert!(dropped.await.is_err(), "event 2 was ended");
        drop(release);
        while lanes.close().await > 0 {}
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_late_is_not_started() {
        let lanes = Lanes::new(1, Handle::current());
        let mut late = work(1, async { unreachable!() });
        late.start_by = Reading::now();
        start(&lanes, late);
        // The machine was suspended, so only the wall clock has gone on.
        let mut thawed = work(2, async { unreachable!() });
        thawed.start_by.wall = SystemTime::now();
        start(&lanes, thawed);
        let mut ended = lanes.ended().await;
        while ended.len() < 2 {
            ended.extend(lanes.ended().await);
        }
        let came = [1, 2].map(|id| (lease(id), Came::Late));
        assert_eq!(
            ended.iter().map(|e| (e.lease, e.came)).collect::<Vec<_>>(),
            came
        );
    }
}
