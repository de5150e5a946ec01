//! What people read of the figures of the queue.

use tidegate_admin::{ExpiringKind, KindStats, StatsReport, StatsRequest};

use super::{Text, coarse, down, in_seconds, percent, shown, table, time};

/// The figures of the whole queue, then a line for each kind that has any.
impl Text for StatsRequest {
    fn text(&self, report: &Self::Report) -> String {
        let (busy, quiet): (Vec<&KindStats>, Vec<&KindStats>) =
            report.kinds.iter().partition(|kind| says_something(kind));
        let quiet = match quiet.len() {
            0 => String::new(),
            1 => "\n… and 1 kind without events".to_owned(),
            kinds => format!("\n… and {kinds} kinds without events"),
        };
        let table = table(
            &busy,
            &[
                ("kind", |kind| shown(&kind.kind)),
                ("pending", |kind| kind.pending.to_string()),
                ("running", |kind| kind.processing.to_string()),
                ("delayed", |kind| kind.delayed.to_string()),
                ("completed", |kind| kind.completed.to_string()),
                ("rejected", |kind| kind.completed_with_errors.to_string()),
                ("failed", |kind| kind.failed.to_string()),
                ("oldest", |kind| time(kind.oldest_age_ms)),
                ("attempts", |kind| kind.max_attempts_used.to_string()),
                ("failure rate", |kind| percent(kind.failure_rate.as_ref())),
                ("p50", |kind| time(kind.latency_p50_ms)),
                ("p95", |kind| time(kind.latency_p95_ms)),
                ("p99", |kind| time(kind.latency_p99_ms)),
                ("", |kind| {
                    let word = if kind.paused { "paused" } else { "" };
                    word.to_owned()
                }),
            ],
        );
        let depth = depth(report);
        let whole = overall(report);
        let expiring = expiring(&report.expiring);
        let down = down(&report.services_down);
        format!(
            "{depth}\n{whole}{expiring}{down}\nby kind (finished events are those of the last hour):\n{table}{quiet}"
        )
    }
}

/// Whether a kind has live events, or some that have ended, or is paused.
fn says_something(kind: &KindStats) -> bool {
    kind.paused || kind.events + kind.completed + kind.completed_with_errors + kind.failed > 0
}

/// A line for each kind with events that will miss their deadline.
fn expiring(kinds: &[ExpiringKind]) -> String {
    let lines = kinds.iter().map(|kind| {
        format!(
            "\n{} {} will pass their deadline before they are started, the first at {}",
            kind.events,
            shown(&kind.kind),
            in_seconds(&kind.first_deadline)
        )
    });
    lines.collect()
}

/// The number of live events and the age of the oldest.
fn depth(stats: &StatsReport) -> String {
    match stats.backlog {
        events if stats.is_estimate => format!(
            "about {events} events in the queue, the oldest {} old; what follows counts the first 100000 of them",
            coarse(stats.oldest_age_ms)
        ),
        0 => "the queue is empty".to_owned(),
        1 => format!("1 event in the queue, {} old", coarse(stats.oldest_age_ms)),
        events => format!(
            "{events} events in the queue, the oldest {} old",
            coarse(stats.oldest_age_ms)
        ),
    }
}

/// The other figures of the whole queue, in one line.
fn overall(stats: &StatsReport) -> String {
    format!(
        "in flight {}, stuck {}, delayed {}, blocked groups {}; dead letters of the last day {} failed, {} rejected; \
         finished in the last hour {}, now {:.1}/s",
        stats.in_flight,
        stats.stuck,
        stats.delayed,
        stats.blocked_groups,
        stats.failed_last_day,
        stats.rejected_last_day,
        stats.finished_last_hour,
        stats.throughput_per_second,
    )
}
