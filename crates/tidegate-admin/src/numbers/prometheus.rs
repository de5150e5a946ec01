//! Owns the metrics of a queue for Prometheus, in the text format 0.0.4 or as `OpenMetrics`. All figures come
//! from the database. Therefore any process can answer, and repeated scrapes give the same answer.
//!
//! No metric has a label per event, group or worker. Kinds that no program has registered share the name
//! `other`, so publishers cannot create time series without bound.
//!
//! ```no_run
//! # async fn scrape(database: &tidegate::Database) -> Result<(), tidegate::Error> {
//! use tidegate_admin::prometheus::{Format, metrics};
//!
//! print!("{}", metrics(database, Format::Text).await?);
//! # Ok(())
//! # }
//! ```

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Number;
use tidegate_core::connect::Database;
use tidegate_core::error::Result;
use tidegate_core::queue::documents;
use tidegate_core::statements;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The format of the answer to a scrape.
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
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(types) if types.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// The `Content-Type` header of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Every metric: its name, its type and its help. For a database that does not answer, only the first one is
/// written.
const METRICS: [&str; 14] = [
    "tidegate_up gauge Whether the database has answered with the figures of its queue.",
    "tidegate_schema_info gauge The version of the queue's schema, as a label; always 1.",
    "tidegate_events gauge Live events by kind and state, of the 100,000 with the lowest ids.",
    "tidegate_events_truncated gauge 1 when there may be more live events than tidegate_events counts.",
    "tidegate_oldest_ready_seconds gauge How long the oldest ready event has been ready; 0 when none is.",
    "tidegate_finished_total counter Events that have ended, by kind and status.",
    "tidegate_attempts_total counter Attempts of events that have ended, by kind.",
    "tidegate_latency_seconds histogram Time from the publish of an event to its end, by kind.",
    "tidegate_stuck_events gauge Events in the hands of workers that have not renewed their leases, 10,000 at most.",
    "tidegate_blocked_groups gauge Groups whose first event waits for its time or a service while others wait behind it, sought among 10,000 events.",
    "tidegate_expiring_events gauge Events that have not started and whose deadline comes within this time, 10,000 at most.",
    "tidegate_service_open gauge 1 when an outside service is not called: it does not answer, or is paused.",
    "tidegate_last_drain_timestamp_seconds gauge When the last drain came to its end, within a week. Missing when none did.",
    "tidegate_drains_running gauge Drains that are at work.",
];

/// A sample, as the statements in this file return it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Sample {
    /// The name of its metric.
    metric: String,
    /// What is added to the name, in a histogram.
    #[serde(default)]
    suffix: String,
    /// Names and values in turn.
    labels: Vec<String>,
    value: Number,
}

/// The most live events that are counted. Counting this many takes a twentieth of a second.
const MOST_EVENTS: i64 = 100_000;

/// The most rows that are read for groups, for deadlines and for stuck events.
const MOST_LOOKED_AT: i64 = 10_000;

/// One snapshot for all samples. The database cancels a statement after five seconds.
const SETTINGS: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL statement_timeout = 5000";

// Each reads a bounded number of rows of the queue, whatever its size, and none reads the log.
// `tidegate_read` may run all of them. Kinds that no program has registered share the name `other`. Every
// registered kind has its samples: a counter that begins at 0 misses nothing.
statements! {
    /// Live events by kind and state, among the first `$1` by id, and how long the oldest ready one has been
    /// ready.
    EVENTS: "prometheus_events" [INT8] = "\
WITH counted AS MATERIALIZED (SELECT * FROM @tidegate.depths($1))
SELECT jsonb_build_object('metric', 'tidegate_events_truncated', 'labels', '{}'::text[], 'value', (coalesce(sum(c.events), 0) >= $1)::int)::text
  FROM counted AS c
UNION ALL
(SELECT m.document
   FROM (SELECT e.kind FROM @tidegate.event_kind AS e UNION SELECT c.kind FROM counted AS c) AS k
   LEFT JOIN counted AS c USING (kind)
  CROSS JOIN LATERAL (
      SELECT s.place, jsonb_build_object('metric', 'tidegate_events', 'value', coalesce(s.events, 0),
                               'labels', ARRAY['kind', CASE k.kind WHEN '(unregistered)' THEN 'other' ELSE k.kind END, 'state', s.state])::text
        FROM (VALUES (1, 'ready', c.ready), (2, 'planned', c.planned), (3, 'retrying', c.retrying), (4, 'running', c.running),
                     (5, 'paused', c.paused), (6, 'waiting_for_service', c.waiting_for_service)) AS s(place, state, events)
      UNION ALL
      SELECT 1, jsonb_build_object('metric', 'tidegate_oldest_ready_seconds',
                    'labels', ARRAY['kind', CASE k.kind WHEN '(unregistered)' THEN 'other' ELSE k.kind END],
                    'value', coalesce(trim_scale(greatest(0, extract(epoch FROM statement_timestamp() - c.ready_since))), 0))::text) AS m(place, document)
  ORDER BY k.kind COLLATE \"C\", m.place)";

    /// All events that have ever ended by being handled, by kind and status, their attempts, and the
    /// histogram of their latency. Its buckets are those of `tidegate.minute_stats`.
    ENDED: "prometheus_ended" [] = "\
WITH ended AS (
    SELECT coalesce(k.kind, 'other') AS kind, m.status, m.within_ms, least(sum(m.events), 1e17) AS events,
           least(sum(m.attempts), 1e17) AS attempts, sum(m.latency_ms) AS latency_ms
      FROM @tidegate.ended('-infinity') AS m LEFT JOIN @tidegate.event_kind AS k ON k.kind = m.kind
     GROUP BY coalesce(k.kind, 'other'), m.status, m.within_ms
    UNION ALL
    SELECT k.kind, NULL, NULL, 0, 0, 0 FROM @tidegate.event_kind AS k)
SELECT jsonb_build_object('metric', s.metric, 'suffix', s.suffix, 'labels', array_remove(ARRAY['kind', e.kind, s.label, s.of], NULL),
                          'value', trim_scale(sum(s.value)))::text
  FROM ended AS e
 CROSS JOIN LATERAL (
       SELECT 1, 'tidegate_finished_total', '', 'status', lower(status), CASE WHEN e.status = status THEN e.events ELSE 0 END
         FROM unnest('{COMPLETED,COMPLETED_WITH_ERRORS,FAILED}'::text[]) AS status
       UNION ALL SELECT 2, 'tidegate_attempts_total', '', NULL, NULL, e.attempts
       UNION ALL SELECT 3, 'tidegate_latency_seconds', '_bucket', 'le', b.le, CASE WHEN e.within_ms <= b.ms OR b.ms IS NULL THEN e.events ELSE 0 END
         FROM (VALUES (50, '0.05'), (250, '0.25'), (1000, '1.0'), (5000, '5.0'), (30000, '30.0'), (120000, '120.0'), (600000, '600.0'),
                      (3600000, '3600.0'), (NULL, '+Inf')) AS b(ms, le)
       UNION ALL SELECT 4, 'tidegate_latency_seconds', '_sum', NULL, NULL, e.latency_ms / 1000.0
       UNION ALL SELECT 5, 'tidegate_latency_seconds', '_count', NULL, NULL, e.events) AS s(place, metric, suffix, label, of, value)
 GROUP BY e.kind, s.place, s.metric, s.suffix, s.label, s.of
 ORDER BY e.kind COLLATE \"C\", s.place, CASE WHEN s.label = 'le' THEN s.of::float8 END, s.of";

    /// Figures that belong to no kind, from at most `$1` events for each figure.
    STATE: "prometheus_state" [INT8] = "\
SELECT jsonb_build_object('metric', s.metric, 'labels', s.labels, 'value', trim_scale(s.value))::text
  FROM (VALUES
       ('tidegate_schema_info', ARRAY['version', (SELECT coalesce(max(m.version), 0)::text FROM @tidegate.queue_migrations AS m)], 1::numeric),
       ('tidegate_stuck_events', '{}', (SELECT count(*) FROM (SELECT FROM @tidegate.stuck_events LIMIT $1) AS stuck)),
       ('tidegate_blocked_groups', '{}', (SELECT count(*) FROM @tidegate.blocked($1))),
       ('tidegate_expiring_events', '{within,1h}',
        (SELECT count(*)
           FROM (SELECT q.id FROM @tidegate.event_queue AS q
                  WHERE q.expires_at > statement_timestamp() AND q.expires_at <= statement_timestamp() + interval '1 hour'
                  ORDER BY q.expires_at LIMIT $1) AS soon
          WHERE NOT soon.id <@ (SELECT h.started FROM @tidegate.held AS h))),
       ('tidegate_last_drain_timestamp_seconds', '{}',
        (SELECT extract(epoch FROM r.ended_at) FROM @tidegate.drain_run AS r ORDER BY r.ended_at DESC LIMIT 1)),
       ('tidegate_drains_running', '{}',
        (SELECT count(*) FROM @tidegate.drain_slot AS s WHERE s.worker IS NOT NULL AND s.until > statement_timestamp())))
       AS s(metric, labels, value)
 WHERE s.value IS NOT NULL";

    /// Outside services, and whether each one is unavailable.
    SERVICES: "prometheus_services" [] = "\
SELECT jsonb_build_object('metric', 'tidegate_service_open', 'labels', ARRAY['service', s.service], 'value', (s.state <> 'closed')::int)::text
  FROM @tidegate.service AS s ORDER BY s.service LIMIT 1000";
}

/// Reads the metrics of the queue. No other scrape shares the answer: see [`Exporter`].
///
/// # Errors
/// If the database cannot be reached, fails, or takes longer than five seconds for a statement.
pub async fn metrics(database: &Database, format: Format) -> Result<String> {
    Ok(written(Some(&read(database).await?), format))
}

/// Returns the metrics for a database that does not answer: `tidegate_up 0`.
pub fn down(format: Format) -> String {
    written(None, format)
}

async fn read(database: &Database) -> Result<Vec<Sample>> {
    // Uses its own connection. A pooled connection may be dead, and an abandoned scrape must leave nothing
    // behind in the pool.
    let client = database.connect().await?;
    client.begin_look(SETTINGS).await?;
    let mut samples: Vec<Sample> = documents(&client, &ENDED, &[]).await?;
    samples.extend(documents(&client, &STATE, &[&MOST_LOOKED_AT]).await?);
    samples.extend(documents(&client, &SERVICES, &[]).await?);
    samples.extend(documents(&client, &EVENTS, &[&MOST_EVENTS]).await?);
    client.end_look().await?;
    Ok(samples)
}

/// Answers scrapes. Scrapes within ten seconds share one query of the database. If the database does not
/// answer, they get `tidegate_up 0`.
pub struct Exporter {
    database: Database,
    /// When the last samples were read, and the samples: `None` if the database did not answer.
    last: Mutex<Option<(Instant, Option<Vec<Sample>>)>>,
}

/// How long scrapes share an answer.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// The longest time that one query of the database may take. Prometheus itself waits ten seconds by default.
const LIMIT: Duration = Duration::from_secs(8);

impl Exporter {
    /// Creates an exporter. The first scrape queries the database.
    pub fn new(database: Database) -> Self {
        let last = Mutex::new(None);
        Self { database, last }
    }

    /// Returns metrics that are at most ten seconds old.
    pub async fn answer(&self, format: Format) -> String {
        // A scrape that arrives while another one queries the database waits for that answer.
        let mut last = self.last.lock().await;
        if let Some((at, samples)) = &*last
            && at.elapsed() < GOOD_FOR
        {
            return written(samples.as_deref(), format);
        }
        let samples = match timeout(LIMIT, read(&self.database)).await {
            Ok(Ok(samples)) => Some(samples),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the metrics could not be read; tidegate_up is 0");
                None
            }
            Err(_) => {
                tracing::warn!("the metrics took too long to read; tidegate_up is 0");
                None
            }
        };
        let text = written(samples.as_deref(), format);
        *last = Some((Instant::now(), samples));
        text
    }
}

/// Writes samples, or that there are none because the database has not answered.
fn written(samples: Option<&[Sample]>, format: Format) -> String {
    let up = Sample {
        metric: "tidegate_up".to_owned(),
        suffix: String::new(),
        labels: Vec::new(),
        value: u8::from(samples.is_some()).into(),
    };
    let metrics = if samples.is_some() {
        &METRICS[..]
    } else {
        &METRICS[..1]
    };
    let mut text = String::new();
    for [name, kind, help] in metrics.iter().filter_map(|metric| words(metric)) {
        // `OpenMetrics` names a counter without `_total`, but its samples have that suffix.
        let family = match format {
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Format::Text => name,
        };
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP {family} {help}\n# TYPE {family} {kind}\n");
        let samples = samples.unwrap_or_default().iter().chain([&up]);
        for sample in samples.filter(|sample| sample.metric == name) {
            let _ = writeln!(
                text,
                "{name}{}{} {}",
                sample.suffix,
                labels(sample),
                sample.value
            );
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Splits one of [`METRICS`] into its name, its type and its help.
fn words(metric: &str) -> Option<[&str; 3]> {
    let (name, rest) = metric.split_once(' ')?;
    let (kind, help) = rest.split_once(' ')?;
    Some([name, kind, help])
}

fn labels(sample: &Sample) -> String {
    let escaped = |value: &str| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"");
        value.replace('\n', r"\n")
    };
    let pairs = sample.labels.chunks_exact(2);
    let pairs = pairs.map(|pair| format!("{}=\"{}\"", pair[0], escaped(&pair[1])));
    match pairs.collect::<Vec<_>>().join(",") {
        none if none.is_empty() => none,
        pairs => format!("{{{pairs}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Sample> {
        let rows = r#"[
            {"metric": "tidegate_events", "labels": ["kind", "a\"b\\c\nd", "state", "ready"], "value": 3},
            {"metric": "tidegate_oldest_ready_seconds", "labels": ["kind", "idle"], "value": 1.5},
            {"metric": "tidegate_finished_total", "labels": ["kind", "idle", "status", "failed"], "value": 0},
            {"metric": "tidegate_latency_seconds", "suffix": "_sum", "labels": ["kind", "idle"], "value": 0.4},
            {"metric": "tidegate_last_drain_timestamp_seconds", "labels": [], "value": 1900000000.25}]"#;
        serde_json::from_str(rows).unwrap()
    }

    #[test]
    fn labels_are_escaped_and_every_metric_has_its_head() {
        let text = written(Some(&some()), Format::Text);
        for line in [
            r#"tidegate_events{kind="a\"b\\c\nd",state="ready"} 3"#,
            r#"tidegate_oldest_ready_seconds{kind="idle"} 1.5"#,
            r#"tidegate_finished_total{kind="idle",status="failed"} 0"#,
            r#"tidegate_latency_seconds_sum{kind="idle"} 0.4"#,
            "tidegate_last_drain_timestamp_seconds 1900000000.25",
            "tidegate_up 1",
            "# TYPE tidegate_finished_total counter",
            "# TYPE tidegate_service_open gauge",
        ] {
            assert!(
                text.lines().any(|shown| shown == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.ends_with('\n') && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn open_metrics_names_counters_without_total_and_has_an_end() {
        let text = written(Some(&some()), Format::OpenMetrics);
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
