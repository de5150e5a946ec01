//! Runs a cleanup, with a progress line on a terminal, and shows or changes the retention of kinds.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use tidegate::invocation::{CleanupRequest, RetentionRequest};
use tidegate::program::{Retention, Service, stopped_by_signal};
use tidegate::retention::CleanupHooks;
use tokio::sync::watch;

use crate::answer::{Answer, Failed, document};
use crate::args::{CleanupArgs, RetentionArgs};
use crate::text;

pub async fn cleanup(service: &Service, args: CleanupArgs, json: bool) -> Result<Answer, Failed> {
    let asked = CleanupRequest {
        dry_run: args.dry_run,
        budget: args.budget,
        older_than: args.older_than,
        batch: args.batch,
        actor: args.actor,
    };
    let options = asked.over(service.options.budget, service.actor.clone());
    let mut hooks = CleanupHooks {
        stop: Some(stopped_by_signal()),
        ..CleanupHooks::default()
    };
    let bar = (std::io::stderr().is_terminal() && !json).then(|| follow(&mut hooks));
    let report = service.cleanup(&options, hooks).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report?;
    let text = text::cleanup::cleaned(&report);
    Ok(Answer::new(document(&report)?, text))
}

/// Shows a spinner without an end, because the number of rows to remove is only known when they are removed.
fn follow(hooks: &mut CleanupHooks) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{elapsed} {pos} rows removed, {msg}") {
        bar.set_style(style);
    }
    let (sender, mut progress) = watch::channel(tidegate::retention::CleanupReport::default());
    hooks.progress = Some(sender);
    let shown = bar.clone();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let report = progress.borrow_and_update();
            shown.set_position(report.rows_dropped + report.rows_deleted);
            shown.set_message(format!(
                "{} partitions dropped, {} live events ended",
                report.partitions_dropped,
                report.expired + report.abandoned
            ));
        }
    });
    bar
}

pub async fn retention(service: &Service, args: RetentionArgs) -> Result<Answer, Failed> {
    let asked = RetentionRequest {
        kind: args.kind,
        completed: args.completed,
        failed: args.failed,
        apply: args.apply,
        budget: args.budget,
        reason: args.reason,
        actor: args.actor,
    };
    let report = service.retention(&asked, None).await?;
    let text = match &report {
        Retention::Kept(report) => text::cleanup::kinds(&report.kinds),
        Retention::Changed(report) => text::cleanup::changed(report),
    };
    Ok(Answer::new(document(&report)?, text))
}
