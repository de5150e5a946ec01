//! The metrics of one run, in the form in which they are sent. They are deltas: they count what has happened since the
//! run began. If many short runs each sent cumulative counts from zero, a backend would only see restarts.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

use super::{nanos, text};

/// The upper bounds of the buckets of durations, in seconds. The conventions advise most of them; the highest ones are
/// for slow services.
pub(crate) const BOUNDS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];

/// Attributes of a point.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Durations in [`BOUNDS`]; the last bucket has no upper bound.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    pub counts: [u64; BOUNDS.len() + 1],
    pub sum: Duration,
}

impl Buckets {
    /// Counts a number of events of about this duration.
    pub(crate) fn add(&mut self, duration: Duration, count: u64) {
        let seconds = duration.as_secs_f64();
        self.counts[BOUNDS.partition_point(|bound| *bound < seconds)] += count;
        self.sum += duration.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    }
}

/// Metrics under construction.
pub(crate) struct Metrics {
    began: u64,
    now: u64,
    pub(super) made: Vec<Metric>,
}

impl Metrics {
    pub(crate) fn of_run(began: SystemTime) -> Self {
        Self {
            began: nanos(began),
            now: nanos(SystemTime::now()),
            made: Vec::new(),
        }
    }

    /// Adds counters. Counts of zero are left out.
    pub(crate) fn sum(&mut self, name: &str, unit: &str, points: &[(Labels<'_>, u64)]) {
        let counted = points.iter().filter(|(_, count)| *count > 0);
        let data_points: Vec<_> = counted
            .map(|(labels, count)| self.point(labels, *count))
            .collect();
        if !data_points.is_empty() {
            let sum = Sum {
                data_points,
                aggregation_temporality: AggregationTemporality::Delta.into(),
                is_monotonic: true,
            };
            self.add(name, unit, Data::Sum(sum));
        }
    }

    /// Adds the values at the end of the run.
    pub(crate) fn gauge(&mut self, name: &str, unit: &str, points: &[(Labels<'_>, u64)]) {
        let data_points = points
            .iter()
            .map(|(labels, value)| self.point(labels, *value))
            .collect();
        self.add(name, unit, Data::Gauge(Gauge { data_points }));
    }

    /// Adds durations.
    pub(crate) fn histogram(&mut self, name: &str, points: &[(Labels<'_>, Buckets)]) {
        let point = |(labels, buckets): &(Labels<'_>, Buckets)| HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.began,
            time_unix_nano: self.now,
            count: buckets.counts.iter().sum(),
            sum: Some(buckets.sum.as_secs_f64()),
            bucket_counts: buckets.counts.to_vec(),
            explicit_bounds: BOUNDS.to_vec(),
            ..HistogramDataPoint::default()
        };
        let data_points: Vec<_> = points.iter().map(point).collect();
        if !data_points.is_empty() {
            let histogram = Histogram {
                data_points,
                aggregation_temporality: AggregationTemporality::Delta.into(),
            };
            self.add(name, "s", Data::Histogram(histogram));
        }
    }

    fn point(&self, labels: Labels<'_>, value: u64) -> NumberDataPoint {
        NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: self.began,
            time_unix_nano: self.now,
            value: Some(Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))),
            ..NumberDataPoint::default()
        }
    }

    fn add(&mut self, name: &str, unit: &str, data: Data) {
        self.made.push(Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        });
    }
}

fn attributes(labels: Labels<'_>) -> Vec<KeyValue> {
    labels
        .iter()
        .map(|(key, value)| text(key, *value))
        .collect()
}
