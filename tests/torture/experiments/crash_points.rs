//! Row 2: a worker dies right after its lease committed, after the effect, in every attempt, or after it
//! sent its finalize but before the answer arrived.

use std::time::{Duration, Instant};

use super::{Figures, Fleet, History, Size, Violation, World, worker};
use crate::actor::{Crash, Torture, Work, Worker};
use crate::checker::{Place, starts};
use crate::journal::Record;
use test_support::proxy::{Harm, Proxy};

/// The expected state of an event after its fault.
struct Expected {
    id: i64,
    fate: &'static str,
    attempts: u32,
    starts: usize,
    status: &'static str,
}

pub async fn a_worker_that_dies_at_a_set_point_costs_an_attempt_and_no_more(
    seed: u64,
    size: Size,
) -> Result<Figures, String> {
    let mut world = World::start("crash_points", seed, &[]).await;
    world.patience = Duration::from_mins(1);
    let mut expected = Vec::new();
    for round in 0..size.pick(2, 10) {
        for kept in [false, true] {
            if !deaths_by_own_hand(&world, &format!("{round}-{kept}"), kept, &mut expected).await {
                // The checker reports events that do not end.
                return world.judge(Vec::new()).await;
            }
        }
        for write in [
            Write::Complete,
            Write::Finalize,
            Write::Commit,
            Write::CompleteAndCommit,
        ] {
            unanswered(&world, round, write, &mut expected).await;
        }
    }
    let mut last = Fleet::default();
    last.start_worker(&world, worker(&world));
    world.drain(&mut last).await;
    let history = world.history(true).await;
    let further = expected
        .iter()
        .filter_map(|expected| expected.missed(&history));
    let further = further.collect();
    world.judge(further).await
}

/// Runs them one at a time, so that a death affects only its own event. Returns false if one does not end.
async fn deaths_by_own_hand(
    world: &World,
    round: &str,
    kept: bool,
    expected: &mut Vec<Expected>,
) -> bool {
    let points = [
        (Crash::AfterLease, "died after the lease", 2, 1, "COMPLETED"),
        (
            Crash::AfterEffect,
            "died after the effect",
            2,
            2,
            "COMPLETED",
        ),
        (Crash::Always, "dies in every attempt", 2, 2, "FAILED"),
    ];
    for (crash, fate, attempts, starts, status) in points {
        let key = format!("{round} {fate}");
        let work = Work {
            crash: Some(crash),
            ..Work::new(&key)
        };
        let id = publish(world, work, kept).await;
        let mut fleet = Fleet::default();
        let mut place = fleet.start_worker(world, worker(world));
        let deadline = Instant::now() + world.patience;
        while Instant::now() < deadline && !is_over(world, id).await {
            if fleet.workers[place].has_ended() {
                let process = fleet.workers[place].name.clone();
                world.journal.write(Record::Killed { process });
                place = fleet.start_worker(world, worker(world));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fleet.finish(world);
        if !is_over(world, id).await {
            return false;
        }
        expected.push(Expected {
            id,
            fate,
            attempts,
            starts,
            status,
        });
    }
    true
}

async fn publish(world: &World, work: Work, kept: bool) -> i64 {
    let name = work.key.clone();
    let event = if kept {
        Torture::Kept(work)
    } else {
        Torture::Plain(work)
    };
    world.publish(&name, vec![(None, event)], 2).await[0]
}

async fn is_over(world: &World, id: i64) -> bool {
    world
        .number(&format!(
            "SELECT count(*) FROM tidegate.event_log WHERE id = {id}"
        ))
        .await
        == 1
}

/// The statement that ends an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    /// The statement for events without results or follow-ups.
    Complete,
    /// The statement for all others.
    Finalize,
    /// The handler's own transaction.
    Commit,
    /// The same, for an event without results or follow-ups.
    CompleteAndCommit,
}

impl Write {
    fn marker(self) -> &'static str {
        match self {
            Self::Complete => "tidegate.complete(",
            Self::Finalize => "tidegate.finalize_leased(",
            Self::Commit => "COMMIT\0",
            Self::CompleteAndCommit => "tidegate.complete_held(",
        }
    }
}

/// The server writes the end, its answer is withheld, and the worker dies without receiving it.
async fn unanswered(world: &World, round: u32, write: Write, expected: &mut Vec<Expected>) {
    let fate = "died before the answer to its end";
    let proxy = Proxy::before(&world.url).await;
    proxy.harm_when_said(write.marker(), Harm::Withhold);
    let work = Work {
        silent: matches!(write, Write::Complete | Write::CompleteAndCommit),
        ..Work::new(format!("{round} {write:?} {fate}"))
    };
    let kept = matches!(write, Write::Commit | Write::CompleteAndCommit);
    let id = publish(world, work, kept).await;
    let through_proxy = Worker {
        url: proxy.url("postgres"),
        ..worker(world)
    };
    let mut fleet = Fleet::default();
    let place = fleet.start_worker(world, through_proxy);
    let limit = Duration::from_mins(1);
    proxy.wait_for_harm().await;
    let deadline = Instant::now() + limit;
    while !is_over(world, id).await {
        assert!(
            Instant::now() < deadline,
            "the end does not arrive; seed {}",
            world.seed
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fleet.workers[place].kill(world);
    expected.push(Expected {
        id,
        fate,
        attempts: 1,
        starts: 1,
        status: "COMPLETED",
    });
}

impl Expected {
    fn missed(&self, history: &History) -> Option<Violation> {
        let row = history.rows.iter().find(|row| row.id == self.id)?;
        let started = starts(&history.journals).get(&self.id).map_or(0, Vec::len);
        let found = (row.place, row.attempts, started, row.status.as_str());
        let wanted = (Place::Log, self.attempts, self.starts, self.status);
        (found != wanted).then(|| Violation {
            invariant: "crash points",
            text: format!(
                "event {}, which {}: {found:?}, not {wanted:?}",
                self.id, self.fate
            ),
        })
    }
}
