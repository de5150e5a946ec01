//! Owns the receivers of a run's reports other than its caller: its progress, its figures by kind, and its
//! OpenTelemetry records.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::recording::Recording;
use super::report::DrainReport;
use super::settle::Settled;
use crate::context::Context;
use crate::error::Error;
use crate::figures::Figures;
use crate::outcome::HandlerEnd;

pub(super) struct Watchers {
    progress: Option<watch::Sender<DrainReport>>,
    asked: Option<oneshot::Sender<Figures>>,
    /// Kept only if a receiver wants them.
    figures: Option<Figures>,
    pub(super) recording: Option<Recording>,
}

impl Watchers {
    pub(super) fn new(
        progress: Option<watch::Sender<DrainReport>>,
        asked: Option<oneshot::Sender<Figures>>,
        recording: Option<Recording>,
    ) -> Self {
        let takes_metrics = recording.as_ref().is_some_and(Recording::takes_metrics);
        Self {
            progress,
            figures: (asked.is_some() || takes_metrics).then(Figures::default),
            asked,
            recording,
        }
    }

    /// Records the end of an attempt.
    pub(super) fn attempted(
        &mut self,
        ctx: &Context,
        settled: &Settled,
        ends: &[HandlerEnd],
        took: Duration,
    ) {
        if let Some(figures) = &mut self.figures {
            let kind = &ctx.event().kind;
            figures.note(kind, settled.status(), settled.is_snoozed(), took);
        }
        if let Some(recording) = &self.recording {
            recording.attempted(ctx, settled, ends, took);
        }
    }

    /// Reports the progress after a write.
    pub(super) fn progress(&self, report: &DrainReport, elapsed_ms: u64) {
        if let Some(progress) = &self.progress {
            progress.send_replace(DrainReport {
                elapsed_ms,
                ..report.clone()
            });
        }
    }

    /// Returns the part of the run's time that is reserved for reports at its end.
    pub(super) fn reserve(&self) -> Duration {
        let recording = self.recording.as_ref();
        recording.map_or(Duration::ZERO, |_| Recording::reserve())
    }

    /// Ends the reports of a run. Sends its records, within `left` at most.
    pub(super) async fn ended(
        &mut self,
        report: &DrainReport,
        failed: Option<&Error>,
        left: Duration,
    ) {
        let mut figures = self.figures.take().unwrap_or_default();
        if let Some(recording) = self.recording.take() {
            let lost = recording.ended(report, failed, &figures, left).await;
            figures.note_dropped_spans(lost);
        }
        if let Some(asked) = self.asked.take() {
            // The receiver may be gone.
            let _ = asked.send(figures);
        }
    }
}
