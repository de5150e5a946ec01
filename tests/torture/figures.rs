//! Owns the figures of a run besides its verdict: how much happened, and how long the events of a
//! killed worker waited.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::checker::{History, Start, starts};
use crate::journal::{Record, Verdict};

/// Counts of one or more runs.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub rounds: u64,
    pub events: u64,
    pub starts: u64,
    /// Starts after an event's first one that no retry requested.
    pub duplicates: u64,
    pub kills: u64,
    pub freezes: u64,
    pub server_crashes: u64,
    pub lease_lost: u64,
    /// Attempts charged because a worker died.
    pub lapses: u64,
    /// Checks for violations under load.
    pub looks: u64,
    pub unknown_publishes: u64,
    /// For each kill that interrupted handlers, the time until the last of their events was started
    /// again.
    pub recoveries: Vec<Duration>,
}

impl Figures {
    /// Returns the figures of one run.
    pub fn of(history: &History) -> Self {
        let starts = starts(&history.journals);
        let mut figures = Self {
            rounds: 1,
            events: history.rows.len() as u64,
            lapses: history
                .charges
                .iter()
                .filter(|charge| charge.is_lapse())
                .count() as u64,
            looks: history.looks,
            ..Self::default()
        };
        for of_event in starts.values() {
            figures.starts += of_event.len() as u64;
            for pair in of_event.windows(2) {
                let retried = matches!(
                    pair[0].end,
                    Some((_, Verdict::Retry | Verdict::Unavailable))
                );
                figures.duplicates += u64::from(!retried);
            }
        }
        for line in history.journals.iter().flat_map(|journal| &journal.lines) {
            match &line.record {
                Record::Killed { process } => {
                    figures.kills += 1;
                    figures
                        .recoveries
                        .extend(recovery(&starts, process, line.at));
                }
                Record::Froze { .. } => figures.freezes += 1,
                Record::ServerCrashed => figures.server_crashes += 1,
                Record::Unknown { .. } => figures.unknown_publishes += 1,
                Record::Reported { report } => figures.lease_lost += report.lease_lost,
                _ => {}
            }
        }
        figures
    }

    /// Adds the figures of another run.
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.events += other.events;
        self.starts += other.starts;
        self.duplicates += other.duplicates;
        self.kills += other.kills;
        self.freezes += other.freezes;
        self.server_crashes += other.server_crashes;
        self.lease_lost += other.lease_lost;
        self.lapses += other.lapses;
        self.looks += other.looks;
        self.unknown_publishes += other.unknown_publishes;
        self.recoveries.extend(other.recoveries);
    }
}

/// Returns how long the events waited that the process had in hand when it was killed.
fn recovery(
    starts: &BTreeMap<i64, Vec<Start<'_>>>,
    process: &str,
    killed: u64,
) -> Option<Duration> {
    let waits = starts.values().filter_map(|of_event| {
        let cut = of_event
            .iter()
            .any(|start| start.process == process && start.end.is_none() && start.at <= killed);
        let again = of_event.iter().find(|start| start.at > killed);
        again.filter(|_| cut).map(|start| start.at - killed)
    });
    waits.max().map(Duration::from_nanos)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_million = self.duplicates * 1_000_000 / self.starts.max(1);
        let mut recoveries = self.recoveries.clone();
        recoveries.sort_unstable();
        let middle = recoveries.get(recoveries.len() / 2).copied();
        let worst = recoveries.last().copied();
        write!(
            f,
            "rounds {}, events {}, handler starts {}, duplicate starts {} ({per_million} per million), \
             kills {}, freezes {}, server crashes {}, leases lost {}, lapses {}, looks {}, publishes of unknown outcome {}, \
             recovery after a kill p50 {:.2?} max {:.2?}",
            self.rounds,
            self.events,
            self.starts,
            self.duplicates,
            self.kills,
            self.freezes,
            self.server_crashes,
            self.lease_lost,
            self.lapses,
            self.looks,
            self.unknown_publishes,
            middle.unwrap_or_default(),
            worst.unwrap_or_default(),
        )
    }
}
