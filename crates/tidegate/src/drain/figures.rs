//! Owns the figures of one run that no table keeps: by kind, how its events ended and how long their handlers
//! took. The module is pure: it reads no clock and sends nothing (`numbers::metrics` does).

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::progress::Status;

/// The figures of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindFigures {
    /// Events that ended COMPLETED.
    pub completed: u64,
    /// Events that ended `COMPLETED_WITH_ERRORS`.
    pub completed_with_errors: u64,
    /// Events that ended FAILED.
    pub failed: u64,
    /// Events that went back to the queue for another attempt.
    pub retried: u64,
    /// Events that their handlers snoozed or put off.
    pub snoozed: u64,
    /// How long all handlers of an event took together, with one entry per attempt.
    pub took: Histogram,
}

/// The figures of a run by kind. Events that no handler saw are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    kinds: BTreeMap<String, KindFigures>,
}

impl Figures {
    /// Records an attempt: how it ended and how long its handlers took. `None` means a retry. A snoozed
    /// attempt counts as such, however it ended.
    pub fn note(&mut self, kind: &str, ended: Option<Status>, snoozed: bool, took: Duration) {
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.to_owned(), KindFigures::default());
        }
        let Some(figures) = self.kinds.get_mut(kind) else {
            return;
        };
        *match ended {
            _ if snoozed => &mut figures.snoozed,
            Some(Status::Completed) => &mut figures.completed,
            Some(Status::CompletedWithErrors) => &mut figures.completed_with_errors,
            Some(Status::Failed) => &mut figures.failed,
            None => &mut figures.retried,
        } += 1;
        figures.took.add(took);
    }

    /// Returns each kind that a handler saw, in alphabetical order.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &KindFigures)> {
        self.kinds
            .iter()
            .map(|(kind, figures)| (kind.as_str(), figures))
    }

    /// Returns how long handlers took, over all kinds.
    pub fn took(&self) -> Histogram {
        let mut all = Histogram::default();
        for figures in self.kinds.values() {
            all.merge(&figures.took);
        }
        all
    }
}

/// Each bucket below this value holds one microsecond. Above it, eight buckets share each power of two.
const LINEAR: u64 = 16;
const LINEAR_BITS: u32 = LINEAR.trailing_zeros();

/// Durations in buckets whose width is at most an eighth of their value. Quantiles are within 7 %, in at most
/// 500 counters, for any number of durations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    fn add(&mut self, duration: Duration) {
        let bucket = bucket(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
    }

    fn merge(&mut self, other: &Self) {
        let length = self.counts.len().max(other.counts.len());
        self.counts.resize(length, 0);
        for (count, further) in self.counts.iter_mut().zip(&other.counts) {
            *count += further;
        }
        self.total += other.total;
    }

    /// Whether it holds no duration.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the duration of the `rank`-th of `of` evenly spaced durations, shortest first, with `rank`
    /// from 0. Returns `None` if it is empty. `quantile(94, 100)` is the 95th percentile.
    pub fn quantile(&self, rank: u64, of: u64) -> Option<Duration> {
        let target = (self.total * (rank + 1)).div_ceil(of.max(1)).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= target {
                return Some(Duration::from_micros(middle(bucket)));
            }
        }
        None
    }

    /// Returns at most `most` durations that represent all of them: evenly spaced quantiles, shortest first.
    pub fn sample(&self, most: u64) -> impl Iterator<Item = Duration> {
        let count = self.total.min(most);
        (0..count).filter_map(move |rank| self.quantile(rank, count))
    }
}

/// Returns the bucket of a number of microseconds.
fn bucket(micros: u64) -> usize {
    if micros < LINEAR {
        return usize::try_from(micros).unwrap_or(0);
    }
    let exponent = micros.ilog2();
    let eighth = (micros >> (exponent - 3)) & 7;
    let bucket = LINEAR + u64::from(exponent - LINEAR_BITS) * 8 + eighth;
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

/// Returns the number of microseconds in the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let Some(above) = bucket.checked_sub(LINEAR) else {
        return bucket;
    };
    let (exponent, eighth) = (above / 8 + u64::from(LINEAR_BITS), above % 8);
    let width = 1 << (exponent - 3);
    (8 + eighth) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_seven_percent() {
        let mut took = Histogram::default();
        for millis in 1..=1000 {
            took.add(Duration::from_millis(millis));
        }
        for (rank, exact) in [(49, 500.0), (94, 950.0), (98, 990.0)] {
            let shown = took.quantile(rank, 100).unwrap().as_secs_f64() * 1000.0;
            assert!(
                (shown - exact).abs() <= exact * 0.07,
                "{shown} is not {exact}"
            );
        }
        assert_eq!(took.total, 1000);
    }

    #[test]
    fn every_duration_falls_into_a_bucket_around_it() {
        for micros in (0..70).chain([1000, 65_535, 65_536, 30_000_000, u64::MAX / 2]) {
            let found = middle(bucket(micros));
            assert!(
                found.abs_diff(micros) <= micros / 8,
                "{found} stands for {micros}"
            );
        }
        let mut longest = Histogram::default();
        longest.add(Duration::MAX);
        assert!(longest.counts.len() <= 512, "{}", longest.counts.len());
    }

    #[test]
    fn a_sample_of_few_is_all_of_them_and_of_none_is_none() {
        let mut took = Histogram::default();
        assert_eq!(took.sample(100).count(), 0);
        assert_eq!(took.quantile(49, 100), None);
        took.add(Duration::from_micros(3));
        took.add(Duration::from_micros(9));
        let sample: Vec<Duration> = took.sample(100).collect();
        assert_eq!(sample, [Duration::from_micros(3), Duration::from_micros(9)]);
        for _ in 0..1000 {
            took.add(Duration::from_millis(1));
        }
        assert_eq!(took.sample(100).count(), 100);
    }

    #[test]
    fn attempts_are_counted_by_kind_and_by_how_they_ended() {
        let mut figures = Figures::default();
        figures.note(
            "a",
            Some(Status::Completed),
            false,
            Duration::from_millis(1),
        );
        figures.note("a", None, false, Duration::from_millis(2));
        figures.note("b", Some(Status::Failed), false, Duration::from_millis(3));
        figures.note(
            "b",
            Some(Status::CompletedWithErrors),
            false,
            Duration::from_millis(3),
        );
        figures.note("b", None, true, Duration::from_millis(3));
        let counts: Vec<_> = figures
            .kinds()
            .map(|(kind, f)| {
                (
                    kind,
                    f.completed,
                    f.completed_with_errors,
                    f.failed,
                    f.retried,
                )
            })
            .collect();
        assert_eq!(counts, [("a", 1, 0, 0, 1), ("b", 0, 1, 1, 0)]);
        assert_eq!(figures.took().total, 5);
    }
}
