//! A drain, with a bar that follows it on a terminal.

use std::fmt::Write;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tidegate::invocation::DrainRequest;
use tidegate::program::{Service, stopped_by_signal};
use tidegate::{DrainReport, Error, Hooks, queue};
use tokio::sync::watch;

use crate::answer::{Answer, Failed, document};
use crate::args::DrainArgs;
use crate::text;

pub async fn drain(service: &Service, args: &DrainArgs, json: bool) -> Result<Answer, Failed> {
    let asked = DrainRequest {
        budget: args.budget,
        batch: args.batch,
        concurrency: args.concurrency.map(usize::from),
        linger: args.linger,
        max_events: args.max_events,
        chain: None,
    };
    let options = asked.over(&service.options);
    // A runtime of their own: handlers that block all of its threads keep nobody from stopping this.
    let handlers = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Config(format!("no threads for handlers: {error}")))?;
    let mut hooks = Hooks {
        stop: Some(stopped_by_signal()),
        handlers: Some(handlers.handle().clone()),
        ..Hooks::default()
    };
    let bar = if std::io::stderr().is_terminal() && !json {
        Some(progress_bar(service, &mut hooks).await?)
    } else {
        None
    };
    let report = service.drain(&options, hooks).await;
    handlers.shutdown_background();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report?;
    let text = text::drained(&report);
    Ok(Answer::new(document(&report)?, text))
}

/// A bar that follows the run's counts: done of what is there, rate, time left.
async fn progress_bar(service: &Service, hooks: &mut Hooks) -> Result<ProgressBar, Failed> {
    let client = service.database.connect().await?;
    let backlog = queue::backlog(&client).await?.events;
    let bar = ProgressBar::new(backlog);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} events, {rate}/s, {eta} left")
    {
        // Of its own rate the bar tells four digits behind the point.
        bar.set_style(
            style.with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
                let _ = write!(text, "{:.0}", state.per_sec());
            }),
        );
    }
    let (sender, mut progress) = watch::channel(DrainReport::default());
    hooks.progress = Some(sender);
    let shown = bar.clone();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let report = progress.borrow_and_update();
            let done =
                report.completed + report.completed_with_errors + report.failed + report.retried;
            shown.set_length((backlog + report.published).max(done));
            shown.set_position(done);
        }
    });
    Ok(bar)
}
