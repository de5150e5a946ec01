//! Runs a cleanup, with a line of its progress on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use tidegate_admin::program::{Failure, Runtime, stopped_by_signal};
use tidegate_admin::retention::{CleanupHooks, CleanupReport};
use tidegate_admin::{CleanupRequest, Reported};
use tokio::sync::watch;

use super::answered;
use crate::answer::Answer;

pub async fn cleanup(
    runtime: &Runtime,
    request: &CleanupRequest,
    json: bool,
) -> Result<Answer, Failure> {
    let options = request.over(runtime.options.budget, runtime.actor.clone());
    let mut hooks = CleanupHooks {
        stop: Some(stopped_by_signal()),
        ..CleanupHooks::default()
    };
    let bar = (std::io::stderr().is_terminal() && !json).then(|| follow(&mut hooks));
    let report = runtime.cleanup(&options, hooks).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(answered(Reported::of(request, &report?)?))
}

/// Shows counts without a total: how many rows there are to remove is only known when they are removed.
fn follow(hooks: &mut CleanupHooks) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{elapsed} {pos} rows removed, {msg}") {
        bar.set_style(style);
    }
    let (sender, mut progress) = watch::channel(CleanupReport::default());
    hooks.progress = Some(sender);
    let shown = bar.clone();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let report = progress.borrow_and_update();
            shown.set_position(report.rows_dropped + report.rows_deleted);
            shown.set_message(format!(
                "{} partitions dropped, {} live events ended",
                report.partitions_dropped,
                report.expired + report.abandoned + report.given_up
            ));
        }
    });
    bar
}
