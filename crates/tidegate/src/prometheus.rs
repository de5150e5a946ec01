//! Owns the metrics of a queue for Prometheus, in the text format 0.0.4 or as `OpenMetrics`. All figures come
//! from the database. Therefore any process can answer, and repeated scrapes give the same answer.
//!
//! No metric has a label per event, group or worker. Kinds that no program has registered share the name
//! `other`, so publishers cannot create time series without bound.
//!
//! ```no_run
//! # async fn told(database: &tidegate::Database) -> Result<(), tidegate::Error> {
//! use tidegate::prometheus::{Format, metrics};
//!
//! print!("{}", metrics(database, Format::Text).await?);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::connect::Database;
use crate::error::Error;
use crate::queue::prometheus::{Ended, Figures, MOST_EVENTS, figures};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format, 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a request's `Accept` header asks for: `OpenMetrics` if the header names it,
    /// otherwise the text format.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(types) if types.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Returns the `Content-Type` header of an answer.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Bounds of the latency buckets, as in `tidegate.minute_stats`: in milliseconds, and as the text of `le`.
const BOUNDS: [(i64, &str); 8] = [
    (50, "0.05"),
    (250, "0.25"),
    (1000, "1.0"),
    (5000, "5.0"),
    (30_000, "30.0"),
    (120_000, "120.0"),
    (600_000, "600.0"),
    (3_600_000, "3600.0"),
];

const STATES: [&str; 6] = [
    "ready",
    "planned",
    "retrying",
    "running",
    "paused",
    "waiting_for_service",
];

const STATUSES: [(&str, &str); 3] = [
    ("COMPLETED", "completed"),
    ("COMPLETED_WITH_ERRORS", "completed_with_errors"),
    ("FAILED", "failed"),
];

/// Returns the metrics of the queue in this database.
///
/// # Errors
/// If the database cannot be reached, fails, or takes too long.
pub async fn metrics(database: &Database, format: Format) -> Result<String, Error> {
    Ok(written(&read(database).await?, format))
}

/// Returns the metrics for a database that does not answer: `tidegate_up 0`.
#[must_use]
pub fn down(format: Format) -> String {
    let mut page = Page::new(format);
    up(&mut page, false);
    page.ended()
}

async fn read(database: &Database) -> Result<Figures, Error> {
    // Uses its own connection. A pooled connection may be dead, and an abandoned scrape must leave nothing
    // behind in the pool.
    let mut client = database.connect().await?;
    figures(&mut client).await
}

/// Answers scrapes. Scrapes within ten seconds share one query of the database. If the database does not
/// answer, they get `tidegate_up 0`.
pub struct Exporter {
    database: Database,
    /// The last figures and the time when they were read. The figures are `None` if the database did not
    /// answer.
    last: Mutex<Option<(Instant, Option<Figures>)>>,
}

/// How long scrapes share an answer.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// The longest time that one query of the database may take. Prometheus itself waits ten seconds by default.
const LIMIT: Duration = Duration::from_secs(8);

impl Exporter {
    /// Creates an exporter of the queue in this database.
    #[must_use]
    pub fn new(database: Database) -> Self {
        let last = Mutex::new(None);
        Self { database, last }
    }

    /// Returns the current metrics.
    pub async fn answer(&self, format: Format) -> String {
        // A scrape that arrives while another one queries the database waits for that answer.
        let mut last = self.last.lock().await;
        if let Some((at, figures)) = &*last
            && at.elapsed() < GOOD_FOR
        {
            return told(figures.as_ref(), format);
        }
        let figures = match timeout(LIMIT, read(&self.database)).await {
            Ok(Ok(figures)) => Some(figures),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the metrics could not be read; tidegate_up is 0");
                None
            }
            Err(_) => {
                tracing::warn!("the metrics took too long to read; tidegate_up is 0");
                None
            }
        };
        let text = told(figures.as_ref(), format);
        *last = Some((Instant::now(), figures));
        text
    }
}

fn told(figures: Option<&Figures>, format: Format) -> String {
    figures.map_or_else(|| down(format), |figures| written(figures, format))
}

/// A page of metrics that is being written.
struct Page {
    format: Format,
    text: String,
}

impl Page {
    fn new(format: Format) -> Self {
        let text = String::new();
        Self { format, text }
    }

    /// Begins a metric. `OpenMetrics` names a counter without `_total`, but its samples have that suffix.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let name = match self.format {
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Format::Text => name,
        };
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            let before = if n == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// Writes a gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn ended(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"");
    value.replace('\n', r"\n")
}

fn written(figures: &Figures, format: Format) -> String {
    let mut page = Page::new(format);
    up(&mut page, true);
    let version = figures.version.to_string();
    let name = "tidegate_schema_info";
    page.metric(
        name,
        "gauge",
        "The version of the queue's schema, as a label; always 1.",
    );
    page.sample(name, &[("version", &version)], 1);
    live(&mut page, figures);
    ended(&mut page, figures);
    latency(&mut page, figures);
    whole(&mut page, figures);
    page.ended()
}

fn up(page: &mut Page, is_up: bool) {
    let help = "Whether the database has answered with the figures of its queue.";
    page.gauge("tidegate_up", help, u8::from(is_up));
}

fn live(page: &mut Page, figures: &Figures) {
    let met = figures.live.keys().map(|(kind, _)| kind);
    let kinds: BTreeSet<&String> = figures.kinds.iter().chain(met).collect();
    let of = |kind: &str, state: &str| {
        let key = (kind.to_owned(), state.to_owned());
        figures.live.get(&key).copied()
    };
    let name = "tidegate_events";
    page.metric(
        name,
        "gauge",
        "Live events by kind and state, of the 100,000 with the lowest ids.",
    );
    for kind in &kinds {
        for state in STATES {
            let events = of(kind, state).map_or(0, |(events, _)| events);
            page.sample(name, &[("kind", kind), ("state", state)], events);
        }
    }
    let looked_at: u64 = figures.live.values().map(|(events, _)| events).sum();
    let is_truncated = looked_at >= MOST_EVENTS.unsigned_abs();
    let help = "1 when there may be more live events than tidegate_events counts.";
    page.gauge("tidegate_events_truncated", help, u8::from(is_truncated));
    let name = "tidegate_oldest_ready_seconds";
    page.metric(
        name,
        "gauge",
        "How long the oldest ready event has been ready; 0 when none is.",
    );
    for kind in &kinds {
        let age = of(kind, "ready").map_or(0.0, |(_, age)| age);
        page.sample(name, &[("kind", kind)], age);
    }
}

/// Returns the finished events of each kind, including kinds without any. A counter that begins at 0 misses
/// nothing.
fn by_kind(figures: &Figures) -> BTreeMap<&str, Vec<&Ended>> {
    let kinds = figures.kinds.iter();
    let mut all: BTreeMap<&str, Vec<&Ended>> =
        kinds.map(|kind| (kind.as_str(), Vec::new())).collect();
    for ended in &figures.ended {
        all.entry(&ended.kind).or_default().push(ended);
    }
    all
}

fn ended(page: &mut Page, figures: &Figures) {
    let all = by_kind(figures);
    let name = "tidegate_finished_total";
    page.metric(
        name,
        "counter",
        "Events that have ended, by kind and status.",
    );
    for (kind, ended) in &all {
        for (status, label) in STATUSES {
            let of_status = ended.iter().filter(|one| one.status == status);
            let events: u64 = of_status.map(|one| one.events).sum();
            page.sample(name, &[("kind", kind), ("status", label)], events);
        }
    }
    let name = "tidegate_attempts_total";
    page.metric(
        name,
        "counter",
        "Attempts of events that have ended, by kind.",
    );
    for (kind, ended) in &all {
        let attempts: u64 = ended.iter().map(|one| one.attempts).sum();
        page.sample(name, &[("kind", kind)], attempts);
    }
}

fn latency(page: &mut Page, figures: &Figures) {
    let name = "tidegate_latency_seconds";
    page.metric(
        name,
        "histogram",
        "Time from the publish of an event to its end, by kind.",
    );
    for (kind, ended) in by_kind(figures) {
        let within = |bound: i64| {
            let all = ended
                .iter()
                .filter(|one| one.within_ms.is_some_and(|ms| ms <= bound));
            all.map(|one| one.events).sum::<u64>()
        };
        let bucket = format!("{name}_bucket");
        for (bound, le) in BOUNDS {
            page.sample(&bucket, &[("kind", kind), ("le", le)], within(bound));
        }
        let all: u64 = ended.iter().map(|one| one.events).sum();
        let total: f64 = ended.iter().map(|one| one.latency_ms).sum();
        page.sample(&bucket, &[("kind", kind), ("le", "+Inf")], all);
        page.sample(&format!("{name}_sum"), &[("kind", kind)], total / 1000.0);
        page.sample(&format!("{name}_count"), &[("kind", kind)], all);
    }
}

/// Writes the metrics that belong to no kind.
fn whole(page: &mut Page, figures: &Figures) {
    let help = "Events in the hands of workers that have not renewed their leases, 10,000 at most.";
    page.gauge("tidegate_stuck_events", help, figures.stuck);
    let help = "Groups whose first event waits for its time while others wait behind it, of the 10,000 delayed events that are due first.";
    page.gauge("tidegate_blocked_groups", help, figures.blocked_groups);
    let name = "tidegate_expiring_events";
    page.metric(
        name,
        "gauge",
        "Events that have not started and whose deadline comes within this time, 10,000 at most.",
    );
    page.sample(name, &[("within", "1h")], figures.expiring);
    let name = "tidegate_service_open";
    page.metric(
        name,
        "gauge",
        "1 when an outside service is not called: it does not answer, or is paused.",
    );
    for (service, is_open) in &figures.services {
        page.sample(name, &[("service", service)], u8::from(*is_open));
    }
    let name = "tidegate_last_drain_timestamp_seconds";
    page.metric(
        name,
        "gauge",
        "When the last drain came to its end, within a week. Missing when none did.",
    );
    if let Some(at) = figures.last_drain {
        page.sample(name, &[], at);
    }
    let help = "Drains that are at work.";
    page.gauge("tidegate_drains_running", help, figures.drains);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(kind: &str, within_ms: Option<i64>, events: u64) -> Ended {
        Ended {
            kind: kind.to_owned(),
            status: "COMPLETED".to_owned(),
            within_ms,
            events,
            attempts: 2 * events,
            latency_ms: 100.0 * f64::from(u32::try_from(events).unwrap()),
        }
    }

    fn some() -> Figures {
        let live = |kind: &str, state: &str| (kind.to_owned(), state.to_owned());
        Figures {
            kinds: vec!["a\"b\\c\nd".to_owned(), "idle".to_owned()],
            live: BTreeMap::from([
                (live("a\"b\\c\nd", "ready"), (3, 1.5)),
                (live("other", "running"), (2, 0.0)),
            ]),
            ended: vec![
                ended("idle", Some(250), 3),
                ended("idle", None, 1),
                ended("other", Some(50), 7),
            ],
            last_drain: Some(1_900_000_000.25),
            version: 16,
            services: vec![("carrier".to_owned(), true)],
            ..Figures::default()
        }
    }

    #[test]
    fn labels_are_escaped_and_a_histogram_accumulates() {
        let text = written(&some(), Format::Text);
        for line in [
            r#"tidegate_events{kind="a\"b\\c\nd",state="ready"} 3"#,
            r#"tidegate_events{kind="other",state="running"} 2"#,
            r#"tidegate_oldest_ready_seconds{kind="a\"b\\c\nd"} 1.5"#,
            r#"tidegate_finished_total{kind="idle",status="completed"} 4"#,
            r#"tidegate_finished_total{kind="idle",status="failed"} 0"#,
            r#"tidegate_attempts_total{kind="other"} 14"#,
            r#"tidegate_latency_seconds_bucket{kind="idle",le="0.05"} 0"#,
            r#"tidegate_latency_seconds_bucket{kind="idle",le="0.25"} 3"#,
            r#"tidegate_latency_seconds_bucket{kind="idle",le="3600.0"} 3"#,
            r#"tidegate_latency_seconds_bucket{kind="idle",le="+Inf"} 4"#,
            r#"tidegate_latency_seconds_sum{kind="idle"} 0.4"#,
            r#"tidegate_service_open{service="carrier"} 1"#,
            "tidegate_last_drain_timestamp_seconds 1900000000.25",
            r#"tidegate_schema_info{version="16"} 1"#,
            "tidegate_events_truncated 0",
            "tidegate_up 1",
            "# TYPE tidegate_finished_total counter",
        ] {
            assert!(
                text.lines().any(|told| told == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.ends_with('\n') && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn open_metrics_names_counters_without_total_and_has_an_end() {
        let text = written(&some(), Format::OpenMetrics);
        assert!(
            text.contains("# TYPE tidegate_finished counter\n"),
            "{text}"
        );
        assert!(text.contains("\ntidegate_finished_total{"), "{text}");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(Format::accepted(Some(accept)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("text/plain")), Format::Text);
        assert_eq!(Format::accepted(None), Format::Text);
    }

    #[test]
    fn of_a_database_that_is_away_only_that_is_told() {
        let text = down(Format::Text);
        assert!(
            text.ends_with("tidegate_up 0\n") && text.lines().count() == 3,
            "{text}"
        );
    }
}
