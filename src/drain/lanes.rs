//! Owns the tasks that handlers run in: at most so many lanes, each of which takes the next event itself
//! when one has ended, and tells the loop of several ends at once. It neither decides what starts nor what
//! becomes of an event.
//!
//! A task for each event, and the loop woken for each end, cost a third of the client's time of quick
//! handlers. So a few events more than there are lanes are handed over, as long as handlers are quick; what
//! waits here has not started and can be taken back.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::event::Lease;

/// Handlers that take less than this, on the average of the last ones, are worth lining up for.
const QUICK: Duration = Duration::from_millis(1);

/// So many events for each lane are in hand when handlers are quick, the running one among them.
const IN_HAND: usize = 4;

/// The loop is told of ends when so many for each lane have come together.
const TOLD: usize = 2;

/// The handlers of one event, ready to run.
pub(super) struct Work {
    pub lease: Lease,
    /// Not to be started from then on: its lease may have run out, for instance while the process was frozen.
    pub start_by: Instant,
    pub handlers: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What came of an event that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub lease: Lease,
    /// How long its handlers took; `None` when they were not started, for it was too late.
    pub took: Option<Duration>,
}

/// The lanes of one drain.
pub(super) struct Lanes {
    most: usize,
    shared: Arc<Shared>,
}

struct Shared {
    line: Mutex<Line>,
    told: Notify,
    /// Ends that are worth waking the loop for.
    enough: usize,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Work>,
    ended: Vec<Ended>,
    /// What each lane runs, by its number. A lane that does not find itself here was cut and ends.
    lanes: BTreeMap<u64, Lane>,
    made: u64,
    /// How long handlers took, weighted towards the last ones; nothing before the first end.
    typical: Option<Duration>,
}

struct Lane {
    lease: Lease,
    started: Instant,
    abort: Option<AbortHandle>,
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    /// At most so many run at once.
    pub(super) fn new(most: usize) -> Self {
        let shared = Shared {
            line: Mutex::default(),
            told: Notify::new(),
            enough: most * TOLD,
        };
        Self {
            most,
            shared: Arc::new(shared),
        }
    }

    /// How many events may be handed over and not ended. A single lane is handed one, so that the whole queue
    /// is in order (A2): the next of a group can only be handed over when the one before it has ended.
    pub(super) fn room(&self) -> usize {
        if self.most == 1 {
            return 1;
        }
        match self.shared.line().typical {
            Some(typical) if typical < QUICK => self.most * IN_HAND,
            _ => self.most,
        }
    }

    /// Runs the work as soon as a lane is free.
    pub(super) fn start(&self, work: Work) {
        let mut line = self.shared.line();
        if line.lanes.len() >= self.most {
            return line.waiting.push_back(work);
        }
        line.made += 1;
        let number = line.made;
        let begun = Lane {
            lease: work.lease,
            started: Instant::now(),
            abort: None,
        };
        line.lanes.insert(number, begun);
        drop(line);
        let task = tokio::spawn(run(self.shared.clone(), number, work));
        // It may be over by now.
        if let Some(begun) = self.shared.line().lanes.get_mut(&number) {
            begun.abort = Some(task.abort_handle());
        }
    }

    /// Waits until events have ended, and takes them.
    pub(super) async fn ended(&self) -> Vec<Ended> {
        loop {
            let ended = std::mem::take(&mut self.shared.line().ended);
            if !ended.is_empty() {
                return ended;
            }
            self.shared.told.notified().await;
        }
    }

    /// Takes back what has not started.
    pub(super) fn take_waiting(&self) -> Vec<Lease> {
        let mut line = self.shared.line();
        line.waiting.drain(..).map(|work| work.lease).collect()
    }

    /// Takes back this event, if it has not started.
    pub(super) fn take(&self, lease: Lease) -> bool {
        let mut line = self.shared.line();
        let at = line.waiting.iter().position(|work| work.lease == lease);
        at.and_then(|at| line.waiting.remove(at)).is_some()
    }

    /// What runs, and since when.
    pub(super) fn running(&self) -> Vec<(Lease, Instant)> {
        let line = self.shared.line();
        line.lanes
            .values()
            .map(|lane| (lane.lease, lane.started))
            .collect()
    }

    /// Ends the lane that runs this event. If the event has ended meanwhile, nothing happens.
    pub(super) fn cut(&self, lease: Lease) -> bool {
        let mut line = self.shared.line();
        let number = line
            .lanes
            .iter()
            .find(|(_, lane)| lane.lease == lease)
            .map(|(number, _)| *number);
        let Some(removed) = number.and_then(|number| line.lanes.remove(&number)) else {
            return false;
        };
        if let Some(abort) = removed.abort {
            abort.abort();
        }
        // Others may wait for the lane's place.
        let next = line.waiting.pop_front();
        drop(line);
        if let Some(work) = next {
            self.start(work);
        }
        true
    }
}

/// Nothing more starts when the drain is gone.
impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.line().waiting.clear();
    }
}

/// One lane: runs one event after the other until none waits.
async fn run(shared: Arc<Shared>, number: u64, first: Work) {
    let mut next = Some(first);
    while let Some(mut work) = next {
        let started = Instant::now();
        let took = if started < work.start_by {
            run_one(&shared, &mut work).await;
            Some(started.elapsed())
        } else {
            None
        };
        next = shared.line().advance(&shared, number, work.lease, took);
    }
}

/// Runs the handlers. As soon as they wait for something, the loop is told of what ended before them.
async fn run_one(shared: &Shared, work: &mut Work) {
    let mut waits = false;
    poll_fn(|context| {
        let polled = work.handlers.as_mut().poll(context);
        if polled.is_pending() && !waits {
            waits = true;
            if !shared.line().ended.is_empty() {
                shared.told.notify_one();
            }
        }
        polled
    })
    .await;
}

impl Line {
    /// Notes an end, and what the lane runs next; nothing ends the lane.
    fn advance(
        &mut self,
        shared: &Shared,
        number: u64,
        lease: Lease,
        took: Option<Duration>,
    ) -> Option<Work> {
        // Cut: the loop has settled the event itself, and another lane has this one's place.
        let lane = self.lanes.get_mut(&number)?;
        self.ended.push(Ended { lease, took });
        if let Some(took) = took {
            self.typical = Some(
                self.typical
                    .map_or(took, |typical| (typical * 7 + took) / 8),
            );
        }
        let next = self.waiting.pop_front();
        match &next {
            Some(work) => (lane.lease, lane.started) = (work.lease, Instant::now()),
            None => drop(self.lanes.remove(&number)),
        }
        if next.is_none() || self.ended.len() >= shared.enough {
            shared.told.notify_one();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::*;

    fn lease(id: i64) -> Lease {
        Lease {
            id,
            token: Uuid::nil(),
        }
    }

    fn work(id: i64, handlers: impl Future<Output = ()> + Send + 'static) -> Work {
        Work {
            lease: lease(id),
            start_by: Instant::now() + Duration::from_mins(1),
            handlers: Box::pin(handlers),
        }
    }

    fn ids(ended: &[Ended]) -> Vec<i64> {
        ended.iter().map(|ended| ended.lease.id).collect()
    }

    /// A handler that waits until it is told.
    fn waiting() -> (oneshot::Sender<()>, impl Future<Output = ()>) {
        let (tell, told) = oneshot::channel::<()>();
        (tell, async move { drop(told.await) })
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_there_are_lanes_and_the_rest_follows_in_order() {
        let lanes = Lanes::new(2);
        let (first, one) = waiting();
        let (second, two) = waiting();
        lanes.start(work(1, one));
        lanes.start(work(2, two));
        lanes.start(work(3, async {}));
        lanes.start(work(4, std::future::pending()));
        tokio::task::yield_now().await;
        let running = |lanes: &Lanes| -> Vec<i64> {
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
    async fn more_are_taken_on_only_while_handlers_are_quick() {
        let lanes = Lanes::new(3);
        assert_eq!(lanes.room(), 3, "nothing is known yet");
        lanes.start(work(1, async {}));
        lanes.ended().await;
        assert_eq!(lanes.room(), 3 * IN_HAND);
        lanes.start(work(2, tokio::time::sleep(QUICK * 20)));
        lanes.ended().await;
        assert_eq!(lanes.room(), 3);
    }

    #[tokio::test]
    async fn a2_a_single_lane_takes_one_event_at_a_time_however_quick() {
        let lanes = Lanes::new(1);
        lanes.start(work(1, async {}));
        lanes.ended().await;
        assert_eq!(lanes.room(), 1);
    }

    #[tokio::test]
    async fn what_was_cut_is_not_told_of_and_leaves_its_place_to_the_next() {
        let lanes = Lanes::new(1);
        lanes.start(work(1, std::future::pending()));
        lanes.start(work(2, async {}));
        tokio::task::yield_now().await;
        assert!(lanes.cut(lease(1)));
        assert!(!lanes.cut(lease(1)));
        assert_eq!(ids(&lanes.ended().await), [2]);
        assert!(lanes.running().is_empty());
    }

    #[tokio::test]
    async fn what_waits_can_be_taken_back_and_does_not_outlive_the_drain() {
        let lanes = Lanes::new(1);
        let (tell, one) = waiting();
        lanes.start(work(1, one));
        for id in [2, 3, 4] {
            lanes.start(work(id, async {}));
        }
        assert!(lanes.take(lease(3)));
        assert!(!lanes.take(lease(1)), "it runs");
        assert_eq!(lanes.take_waiting(), [lease(2), lease(4)]);
        let (outlived, told) = oneshot::channel::<()>();
        lanes.start(work(5, async move { outlived.send(()).unwrap() }));
        drop(lanes);
        tell.send(()).unwrap();
        assert!(told.await.is_err(), "event 5 was dropped unstarted");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_late_is_not_started() {
        let lanes = Lanes::new(1);
        let mut late = work(1, async { unreachable!() });
        late.start_by = Instant::now();
        lanes.start(late);
        let ended = lanes.ended().await;
        assert_eq!(
            ended,
            [Ended {
                lease: lease(1),
                took: None
            }]
        );
    }
}
