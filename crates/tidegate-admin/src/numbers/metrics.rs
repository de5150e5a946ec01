//! Owns the metrics of a drain for CloudWatch: one line in its embedded metric format. A Lambda function
//! writes this line to its log, so no call, no sidecar and no further permission is needed.
//!
//! Every metric costs money in each hour that has a value of it. Therefore a count of nothing is a plain
//! field, which Logs Insights can query, and so is what no alarm watches: also the figures of each kind and
//! service.
//!
//! The format is Amazon's "Specification: Embedded metric format" in the guide of CloudWatch. It is small
//! enough that a crate for it would bring more code than it replaces.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tidegate::drain::figures::{Figures, Histogram, KindFigures};
use tidegate::drain::report::{COUNTERS, DrainReport};
use tidegate_core::config::Lookup;
use tidegate_core::error::{Error, Result};
use tidegate_core::status::ServiceState;

/// The CloudWatch namespace of all metrics.
pub const NAMESPACE: &str = "Tidegate";

/// The longest array that the format allows.
const MOST_VALUES: u64 = 100;

/// What to report to CloudWatch, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// The value of the dimension `Queue`.
    pub queue: String,
}

impl Metrics {
    /// Reads `TIDEGATE_METRICS`, which is `off` (the default) or `emf`, and `TIDEGATE_METRICS_QUEUE`, which
    /// defaults to the function's name, or else to `tidegate`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Option<Self>> {
        match lookup("TIDEGATE_METRICS").as_deref() {
            None | Some("off") => return Ok(None),
            Some("emf") => {}
            Some(other) => {
                return Err(Error::Config(format!(
                    "TIDEGATE_METRICS: must be off or emf, got {other:?}"
                )));
            }
        }
        let queue = lookup("TIDEGATE_METRICS_QUEUE")
            .or_else(|| lookup("AWS_LAMBDA_FUNCTION_NAME"))
            .unwrap_or_else(|| "tidegate".to_owned());
        Ok(Some(Self { queue }))
    }

    /// Returns the line of one cleanup: `Cleanups` is 1 if it succeeded, otherwise 0.
    pub fn of_cleanup(&self, succeeded: bool, at: SystemTime) -> String {
        let mut document = Document::new(&self.queue, at);
        document.metric("Cleanups", "Count", json!(u64::from(succeeded)));
        document.line()
    }

    /// Returns the line that counts the spans that did not reach a collector.
    pub fn of_spans_dropped(&self, dropped: u64, at: SystemTime) -> String {
        let mut document = Document::new(&self.queue, at);
        document.metric("SpansDropped", "Count", json!(dropped));
        document.line()
    }

    /// Returns the line of one drain. `succeeded` is false if an infrastructure error ended the drain. Then
    /// the rest of the queue is unknown, and no successful drain is counted (B9).
    pub fn render_drain(
        &self,
        report: &DrainReport,
        figures: &Figures,
        succeeded: bool,
        at: SystemTime,
    ) -> String {
        let mut document = Document::new(&self.queue, at);
        for (name, count) in counted(report) {
            document.count(name, count);
        }
        let broken = succeeded && !report.is_balanced();
        document.count("ReportBroken", u64::from(broken));
        document.count("DrainsFailed", u64::from(!succeeded));
        document.metric("Drains", "Count", json!(u64::from(succeeded)));
        // Without a backlog, nothing is known of the queue.
        if let Some(backlog) = report.backlog {
            document.count("Expiring", report.expiring);
            document.metric("ServicesDown", "Count", json!(services_down(report)));
            document.field("Backlog", json!(backlog));
            document.field("OldestAgeMs", json!(report.oldest_age_ms));
        }
        if let Some(oldest) = report.oldest_ready_ms {
            document.metric("OldestReadyMs", "Milliseconds", json!(oldest));
        }
        let used = report.elapsed_ms * 100 / report.budget_ms.max(1);
        document.field("BudgetUsedPercent", json!(used));
        document.latency(&figures.took());
        let kinds: Map<String, Value> = figures
            .kinds()
            .map(|(kind, figures)| (kind.to_owned(), fields(figures)))
            .collect();
        document.field("Kinds", Value::Object(kinds));
        document.field("Services", json!(report.services));
        document.line()
    }
}

/// What a run counted, by metric.
fn counted(report: &DrainReport) -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    for counter in COUNTERS.iter().filter(|counter| !counter.metric.is_empty()) {
        *counted.entry(counter.metric).or_default() += (counter.of)(report);
    }
    counted
}

/// Counts the services that do not answer. Services that an operator has paused do not count, because they
/// may well answer.
fn services_down(report: &DrainReport) -> u64 {
    let down = report.services_down.iter();
    let silent = down.filter(|service| service.state != ServiceState::Paused);
    silent.count() as u64
}

fn fields(figures: &KindFigures) -> Value {
    let percentile = |rank| figures.took.quantile(rank, 100).map(millis);
    json!({
        "completed": figures.completed,
        "completed_with_errors": figures.completed_with_errors,
        "failed": figures.failed,
        "retried": figures.retried,
        "p50_ms": percentile(49),
        "p95_ms": percentile(94),
        "p99_ms": percentile(98),
    })
}

/// Milliseconds with their fraction, because handlers may take microseconds.
fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// One line in the embedded metric format.
#[derive(Default)]
struct Document {
    at_ms: u64,
    declared: Vec<Value>,
    fields: Map<String, Value>,
}

impl Document {
    fn new(queue: &str, at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            fields: Map::from_iter([("Queue".to_owned(), json!(queue))]),
            ..Self::default()
        }
    }

    fn count(&mut self, name: &str, count: u64) {
        if count > 0 {
            self.metric(name, "Count", json!(count));
        } else {
            self.field(name, json!(count));
        }
    }

    fn metric(&mut self, name: &str, unit: &str, value: Value) {
        self.declared.push(json!({"Name": name, "Unit": unit}));
        self.field(name, value);
    }

    /// Adds evenly spaced quantiles in place of all durations. CloudWatch computes the same percentiles from
    /// them.
    fn latency(&mut self, took: &Histogram) {
        if !took.is_empty() {
            let values: Vec<f64> = took.sample(MOST_VALUES).map(millis).collect();
            self.metric("HandlerLatencyMs", "Milliseconds", json!(values));
        }
    }

    fn field(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    fn line(mut self) -> String {
        let metrics = json!([{
            "Namespace": NAMESPACE,
            "Dimensions": [["Queue"]],
            "Metrics": self.declared,
        }]);
        let head = json!({"Timestamp": self.at_ms, "CloudWatchMetrics": metrics});
        self.field("_aws", head);
        Value::Object(self.fields).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::progress::Status;

    fn queue() -> Metrics {
        let queue = "orders".to_owned();
        Metrics { queue }
    }

    fn figures(events: u64) -> Figures {
        let mut figures = Figures::default();
        for n in 0..events {
            figures.note(
                "paid",
                Some(Status::Completed),
                false,
                Duration::from_micros(n),
            );
        }
        figures
    }

    fn changed(mut report: DrainReport, change: impl FnOnce(&mut DrainReport)) -> DrainReport {
        change(&mut report);
        report
    }

    fn report() -> DrainReport {
        changed(DrainReport::default(), |report| {
            (report.leased, report.completed, report.lease_lost) = (3, 2, 1);
            (report.backlog, report.oldest_age_ms) = (Some(7), Some(1234));
            (report.oldest_ready_ms, report.expiring) = (Some(900), 2);
            (report.elapsed_ms, report.budget_ms) = (500, 2000);
        })
    }

    fn parsed(line: &str) -> Value {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn b9_b13_c13_a_drain_is_one_line_whose_metrics_all_have_values() {
        let at = UNIX_EPOCH + Duration::from_secs(9);
        let text = queue().render_drain(&report(), &figures(250), true, at);
        assert!(!text.contains('\n'));
        let line = parsed(&text);
        assert_eq!(line["_aws"]["Timestamp"], 9000);
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Namespace"], "Tidegate");
        assert_eq!(directive["Dimensions"], json!([["Queue"]]));
        let declared = directive["Metrics"].as_array().unwrap();
        for metric in declared {
            let value = &line[metric["Name"].as_str().unwrap()];
            assert!(value.is_number() || value.is_array(), "{metric}");
        }
        assert!(declared.len() <= 100);
        for (name, value) in [
            ("Backlog", 7),
            ("OldestAgeMs", 1234),
            ("OldestReadyMs", 900),
            ("Expiring", 2),
            ("LeaseLost", 1),
            ("ServicesDown", 0),
            ("Drains", 1),
            ("ReportBroken", 0),
            ("BudgetUsedPercent", 25),
        ] {
            assert_eq!(line[name], value, "{name}");
        }
        assert_eq!(line["HandlerLatencyMs"].as_array().unwrap().len(), 100);
        assert_eq!(line["Kinds"]["paid"]["completed"], 250);
    }

    #[test]
    fn a_drain_that_failed_counts_as_none_and_claims_nothing_of_the_queue() {
        let broken_off = changed(DrainReport::default(), |report| report.leased = 9);
        let line = parsed(&queue().render_drain(&broken_off, &figures(0), false, UNIX_EPOCH));
        assert_eq!(
            (&line["Drains"], &line["DrainsFailed"]),
            (&json!(0), &json!(1))
        );
        assert_eq!(
            line["ReportBroken"], 0,
            "what was in hand is missing from its counts"
        );
        assert!(line.get("Backlog").is_none() && line.get("HandlerLatencyMs").is_none());
    }

    #[test]
    fn a_cleanup_is_one_line_that_says_whether_it_succeeded() {
        for (succeeded, value) in [(true, 1), (false, 0)] {
            let line = parsed(&queue().of_cleanup(succeeded, UNIX_EPOCH));
            assert_eq!(
                (&line["Cleanups"], &line["Queue"]),
                (&json!(value), &json!("orders"))
            );
        }
    }

    #[test]
    fn an_idle_queue_has_the_metrics_that_alarms_watch_without_a_break_and_no_other() {
        let declared = |report| {
            let line = parsed(&queue().render_drain(&report, &figures(0), true, UNIX_EPOCH));
            assert_eq!(
                (&line["Failed"], &line["StillRunning"]),
                (&json!(0), &json!(report.still_running))
            );
            let metrics = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].clone();
            let metrics = metrics.as_array().unwrap().iter();
            metrics
                .map(|one| one["Name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let idle = changed(DrainReport::default(), |report| {
            (report.backlog, report.oldest_ready_ms) = (Some(0), Some(0));
        });
        let watched = ["Drains", "ServicesDown", "OldestReadyMs"];
        assert_eq!(declared(idle.clone()), watched);
        let spoiled = changed(idle, |report| {
            (report.still_running, report.starts_failed) = (2, 1);
        });
        assert_eq!(declared(spoiled)[..2], ["StartsFailed", "StillRunning"]);
    }

    #[test]
    fn a_report_that_does_not_add_up_is_told() {
        let unbalanced = changed(report(), |report| report.leased = 9);
        let line = parsed(&queue().render_drain(&unbalanced, &figures(1), true, UNIX_EPOCH));
        assert_eq!(line["ReportBroken"], 1);
    }

    #[test]
    fn services_that_do_not_answer_are_counted_and_paused_ones_are_not() {
        let named = |state| {
            let text = json!({"service": "post", "state": state, "since": "", "failures": 5, "kinds": [], "places": 0, "waiting": 1});
            serde_json::from_value(text).unwrap()
        };
        let met = changed(report(), |report| {
            report.services_down = ["open", "probing", "paused"].map(named).into();
        });
        let line = parsed(&queue().render_drain(&met, &figures(0), true, UNIX_EPOCH));
        assert_eq!(line["ServicesDown"], 2);
    }

    #[test]
    fn services_are_in_the_line() {
        let calls = json!({"calls": 9, "failed": 1, "bad_answer": 2, "throttled": 3, "unavailable": 0, "took_ms": 40, "longest_ms": 7});
        let made = changed(report(), |report| {
            report.services = serde_json::from_value(json!({"ship": calls})).unwrap();
        });
        let line = parsed(&queue().render_drain(&made, &figures(0), true, UNIX_EPOCH));
        assert_eq!(line["Services"]["ship"], calls);
    }

    #[test]
    fn settings_are_off_by_default_and_refused_by_name() {
        let with = |value: &'static str| {
            move |name: &str| (name == "TIDEGATE_METRICS").then(|| value.to_owned())
        };
        assert_eq!(Metrics::from_settings(&|_| None).unwrap(), None);
        assert_eq!(
            Metrics::from_settings(&with("emf")).unwrap().unwrap().queue,
            "tidegate"
        );
        let error = Metrics::from_settings(&with("statsd"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("TIDEGATE_METRICS")
                && error.contains("off or emf")
                && error.contains("statsd"),
            "{error}"
        );
    }
}
