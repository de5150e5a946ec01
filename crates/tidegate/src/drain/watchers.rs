//! Owns who is told of a run beside its caller: of its progress, its figures by kind, and each attempt as a segment of a trace.

use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::report::DrainReport;
use super::settle::Settled;
use crate::context::Context;
use crate::figures::Figures;
use crate::xray::{Exporter, Segment};

pub(super) struct Watchers {
    progress: Option<watch::Sender<DrainReport>>,
    /// Kept only if somebody asked for them.
    figures: Option<(oneshot::Sender<Figures>, Figures)>,
    /// Open only if traces are exported.
    xray: Option<Exporter>,
}

impl Watchers {
    pub(super) fn new(
        progress: Option<watch::Sender<DrainReport>>,
        figures: Option<oneshot::Sender<Figures>>,
        xray: Option<Exporter>,
    ) -> Self {
        Self {
            progress,
            figures: figures.map(|asked| (asked, Figures::default())),
            xray,
        }
    }

    /// An attempt has ended.
    pub(super) fn attempted(&mut self, ctx: &Context, settled: &Settled, took: Duration) {
        let (event, status) = (ctx.event(), settled.status());
        if let Some((_, figures)) = &mut self.figures {
            figures.note(&event.kind, status, settled.is_snoozed(), took);
        }
        if let (Some(xray), Some(position)) = (&self.xray, ctx.trace()) {
            let segment = Segment {
                event,
                status,
                snoozed: settled.is_snoozed(),
                code: settled.code(),
                took,
            };
            xray.send(position, &segment);
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

    /// The run is over.
    pub(super) fn ended(&mut self) {
        if let Some((asked, figures)) = self.figures.take() {
            // Who asked may have gone.
            let _ = asked.send(figures);
        }
    }
}
