//! Owns who is told of a run beside its caller: of its progress, its figures by kind, and what it records for OpenTelemetry.

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
    /// Kept only if somebody takes them.
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

    /// An attempt has ended.
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

    /// Something was written.
    pub(super) fn progress(&self, report: &DrainReport, elapsed_ms: u64) {
        if let Some(progress) = &self.progress {
            progress.send_replace(DrainReport {
                elapsed_ms,
                ..report.clone()
            });
        }
    }

    /// Kept of the run's time for what is told at its end.
    pub(super) fn reserve(&self) -> Duration {
        let recording = self.recording.as_ref();
        recording.map_or(Duration::ZERO, |_| Recording::reserve())
    }

    /// The run is over. What it has recorded is sent, within `left` at most.
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
            // Who asked may have gone.
            let _ = asked.send(figures);
        }
    }
}
