//! Owns what a run tells others than its caller: its progress, its figures by kind, its spans, and the log
//! lines about single events.

use std::time::Duration;

use tidegate_core::error::Error;
use tokio::sync::{oneshot, watch};

use super::figures::Figures;
use super::lines::EventLines;
use super::report::DrainReport;
use super::settle::AttemptResult;
use super::spans::Spans;
use crate::context::Context;
use crate::outcome::{HandlerEnd, is_put_off};

#[derive(Default)]
pub(super) struct Observers {
    progress: Option<watch::Sender<DrainReport>>,
    figures_to: Option<oneshot::Sender<Figures>>,
    /// Kept only if a receiver wants them.
    figures: Option<Figures>,
    pub(super) spans: Option<Spans>,
    /// The log lines about single events.
    pub(super) lines: EventLines,
}

impl Observers {
    pub(super) fn new(
        progress: Option<watch::Sender<DrainReport>>,
        figures_to: Option<oneshot::Sender<Figures>>,
        spans: Option<Spans>,
    ) -> Self {
        Self {
            progress,
            figures: figures_to.is_some().then(Figures::default),
            figures_to,
            spans,
            lines: EventLines::default(),
        }
    }

    pub(super) fn attempted(
        &mut self,
        ctx: &Context,
        settled: &AttemptResult,
        ends: &[HandlerEnd],
        took: Duration,
    ) {
        if let Some(figures) = &mut self.figures {
            let kind = &ctx.event().kind;
            let snoozed = settled.is_snoozed() || is_put_off(ends);
            figures.note(kind, settled.status(), snoozed, took);
        }
        if let Some(spans) = &mut self.spans {
            spans.attempted(ctx, settled, ends, took);
        }
    }

    /// Called after each write.
    pub(super) fn progress(&self, report: &DrainReport, elapsed_ms: u64) {
        if let Some(progress) = &self.progress {
            progress.send_replace(DrainReport {
                elapsed_ms,
                ..report.clone()
            });
        }
    }

    pub(super) fn ended(&mut self, report: &DrainReport, failed: Option<&Error>) {
        if let Some(spans) = self.spans.take() {
            spans.ended(report, failed);
        }
        if let (Some(receiver), Some(figures)) = (self.figures_to.take(), self.figures.take()) {
            // The receiver may be gone.
            let _ = receiver.send(figures);
        }
    }
}
