//! What the runners in Rust do at a steady rate, `steady SECONDS RATE`: it publishes jobs every 10 ms, notes
//! when each one starts, and answers with waits and backlogs, also those of every ten seconds. It knows no
//! queue. Tidegate's runner, which is not part of this workspace, includes this file.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const TICK: Duration = Duration::from_millis(10);
/// The most jobs that are published at once, after a publish that was late.
const MOST: usize = 1000;
const SAMPLE: Duration = Duration::from_secs(10);
/// How long the rest may take when nothing is published any more.
const REST: Duration = Duration::from_mins(2);

/// The time and the number of jobs a second, if the words on the command line ask for it.
pub fn asked() -> Option<(Duration, usize)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first()?.as_str() {
        "steady" => Some((
            Duration::from_secs(words.get(1)?.parse().ok()?),
            words.get(2)?.parse().ok()?,
        )),
        _ => None,
    }
}

/// The jobs, which are numbered in the order in which they are published.
#[derive(Default)]
pub struct Steady {
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    /// When each job was about to be published, and whether it has started.
    published: Vec<(Instant, bool)>,
    /// From then to the start, in the order of the starts.
    waits: Vec<Duration>,
    doubled: usize,
    backlogs: Vec<usize>,
    /// How many had started at each sample.
    starts: Vec<usize>,
    greatest: usize,
    backlog_at_end: usize,
}

impl Jobs {
    fn backlog(&self) -> usize {
        self.published.len() - self.waits.len()
    }

    /// The median and the 99th percentile of what started between two samples.
    fn waits_of_samples(&self) -> Vec<[Option<f64>; 2]> {
        let from = std::iter::once(&0).chain(&self.starts);
        let samples = from.zip(&self.starts);
        let waits = samples.map(|(from, to)| {
            let mut waits = self.waits[*from..*to].to_vec();
            waits.sort_unstable();
            [wait_ms(&waits, 50), wait_ms(&waits, 99)]
        });
        waits.collect()
    }
}

/// The wait that so many of a hundred do not exceed, in milliseconds. The waits must be sorted.
fn wait_ms(waits: &[Duration], percent: usize) -> Option<f64> {
    let last = waits.len().checked_sub(1)?;
    Some(waits[(last * percent).div_ceil(100)].as_secs_f64() * 1000.0)
}

impl Steady {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes at this rate for this long, and then waits until all jobs have started, or for two minutes.
    pub async fn publish<E>(
        &self,
        (time, rate): (Duration, usize),
        mut send: impl AsyncFnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while began.elapsed() < time {
            ticks.tick().await;
            let numbers = self.due(began, rate);
            if !numbers.is_empty() {
                send(numbers).await?;
            }
        }
        let backlog = self.jobs().backlog();
        self.jobs().backlog_at_end = backlog;
        let over = Instant::now() + REST;
        while self.jobs().backlog() > 0 && Instant::now() < over {
            ticks.tick().await;
        }
        Ok(())
    }

    /// Numbers the jobs that are due, and notes the time.
    fn due(&self, began: Instant, rate: usize) -> Range<usize> {
        let (now, mut jobs) = (Instant::now(), self.jobs());
        let (backlog, from) = (jobs.backlog(), jobs.published.len());
        jobs.greatest = jobs.greatest.max(backlog);
        let elapsed = now - began;
        while elapsed >= SAMPLE * u32::try_from(jobs.backlogs.len() + 1).unwrap_or(u32::MAX) {
            let started = jobs.waits.len();
            jobs.backlogs.push(backlog);
            jobs.starts.push(started);
        }
        let due = usize::try_from(elapsed.as_millis()).unwrap_or(0) * rate / 1000;
        let to = due.clamp(from, from + MOST);
        jobs.published.resize(to, (now, false));
        from..to
    }

    /// Notes that a handler starts with this job.
    pub fn started(&self, number: usize) {
        let mut jobs = self.jobs();
        let (published, has_started) = jobs.published[number];
        if has_started {
            jobs.doubled += 1;
        } else {
            jobs.published[number].1 = true;
            jobs.waits.push(published.elapsed());
        }
    }

    /// To be called when every completion is stored.
    pub fn answer(&self) -> Value {
        let jobs = self.jobs();
        let mut waits = jobs.waits.clone();
        waits.sort_unstable();
        let ms = |percent| wait_ms(&waits, percent);
        json!({"published": jobs.published.len(), "started": jobs.waits.len(), "doubled": jobs.doubled,
               "backlog_at_end": jobs.backlog_at_end, "greatest_backlog": jobs.greatest,
               "backlog_each_10_s": jobs.backlogs, "waits_each_10_s": jobs.waits_of_samples(),
               "p50_ms": ms(50), "p95_ms": ms(95), "p99_ms": ms(99), "most_ms": ms(100)})
    }
}
