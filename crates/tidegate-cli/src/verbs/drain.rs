//! Runs a drain, with a progress bar on a terminal.

use std::fmt::Write;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tidegate::{DrainReport, Error, Hooks};
use tidegate_admin::program::{Failure, Runtime, stopped_by_signal};
use tidegate_core::queue;
use tokio::sync::watch;

use super::{bar, written};
use crate::answer::Answer;
use crate::args::DrainArgs;

pub async fn drain(runtime: &Runtime, args: &DrainArgs, json: bool) -> Result<Answer, Failure> {
    let options = args.request.over(&runtime.options);
    // Handlers have their own runtime. If they block all its threads, this process can still be stopped.
    let handlers = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Config(format!("no threads for handlers: {error}")))?;
    let (bar, progress) = if std::io::stderr().is_terminal() && !json {
        let (bar, progress) = progress_bar(runtime).await?;
        (Some(bar), Some(progress))
    } else {
        (None, None)
    };
    let stop = stopped_by_signal();
    let hooks = || Hooks {
        stop: Some(stop.clone()),
        handlers: Some(handlers.handle().clone()),
        progress: progress.clone(),
        ..Hooks::default()
    };
    let mut drained = runtime.drain(&options, hooks()).await;
    while let Ok(report) = &drained {
        if !args.until_empty || *stop.borrow() || !report.goes_on() {
            break;
        }
        let before = report.clone();
        let next = runtime.drain(&options, hooks()).await;
        let gets_on = next.as_ref().is_ok_and(DrainReport::goes_on);
        drained = next.map(|next| before.followed_by(next));
        if !gets_on {
            break;
        }
    }
    handlers.shutdown_background();
    if let Some(bar) = bar {
        bar::show(None);
        bar.finish_and_clear();
    }
    Ok(written(&args.request, &drained?)?)
}

/// Shows a bar that follows the run's counts: finished events out of all events, the rate, the time left.
async fn progress_bar(
    runtime: &Runtime,
) -> Result<(ProgressBar, watch::Sender<DrainReport>), Failure> {
    let client = runtime.database.connect().await?;
    let backlog = queue::backlog(&client).await?.events;
    let bar = ProgressBar::new(backlog);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} events, {rate}/s, {eta} left")
    {
        // The bar's own rate would have four decimal places.
        bar.set_style(
            style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
                let _ = write!(text, "{:.0}", state.per_sec());
            }),
        );
    }
    let (sender, mut progress) = watch::channel(DrainReport::default());
    bar::show(Some(bar.clone()));
    let shown = bar.clone();
    tokio::spawn(async move {
        // The sum of the runs that have ended, when one follows the other.
        let mut before = DrainReport::default();
        let mut last = DrainReport::default();
        while progress.changed().await.is_ok() {
            let report = progress.borrow_and_update().clone();
            if report.ended() < last.ended() {
                before = before.followed_by(last);
            }
            last = report;
            let done = before.ended() + before.retried + last.ended() + last.retried;
            shown.set_length((backlog + before.published + last.published).max(done));
            shown.set_position(done);
        }
    });
    Ok((bar, sender))
}
