//! Prints the status, as text or for Prometheus, once or at intervals. With `--watch`, the error of a
//! database that does not answer is printed in place of the status, and the database is asked again.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tidegate::Error;
use tidegate_admin::StatsRequest;
use tidegate_admin::program::{Failure, Runtime, stop_signal};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{prometheus, run};
use crate::answer::{Answer, printable};
use crate::args::{StatusArgs, StatusFormat};
use crate::colour;

/// With `--watch`, a database that takes longer counts as unavailable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Moves a terminal's cursor to its first place and clears all that follows.
const CLEAR: &str = "\x1b[H\x1b[J";

pub async fn status(runtime: &Runtime, args: &StatusArgs, json: bool) -> Result<Answer, Failure> {
    let refused = |text: &str| Err(Error::Invalid(text.to_owned()).into());
    match args.format {
        _ if args.watch => watch(runtime, args.interval, json).await,
        StatusFormat::Prometheus if json => {
            refused("--format prometheus: cannot be used with --json")
        }
        StatusFormat::Prometheus => prometheus::status(runtime, args.output.as_deref()).await,
        StatusFormat::Text if args.output.is_some() => {
            refused("--output: needs --format prometheus")
        }
        StatusFormat::Text => Ok(run(runtime, &StatsRequest {}).await?),
    }
}

/// Prints the status until Ctrl-C, SIGTERM, or the end of the pipe that it writes to.
async fn watch(runtime: &Runtime, every: Duration, json: bool) -> Result<Answer, Failure> {
    if json {
        return Err(Error::Invalid("--watch: cannot be used with --json".to_owned()).into());
    }
    let is_terminal = std::io::stdout().is_terminal();
    let clear = if is_terminal { CLEAR } else { "" };
    let stopped = stop_signal();
    tokio::pin!(stopped);
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let status = tokio::select! {
            status = next(runtime, &mut ticks) => status,
            () = &mut stopped => break,
        };
        let mut text = printable(&status);
        if colour::is_wanted(is_terminal) {
            text = colour::painted(&text);
        }
        if writeln!(std::io::stdout(), "{clear}{text}\n").is_err() {
            break;
        }
    }
    Ok(Answer::new(Value::Null, ""))
}

async fn next(runtime: &Runtime, ticks: &mut tokio::time::Interval) -> String {
    ticks.tick().await;
    match timeout(PATIENCE, run(runtime, &StatsRequest {})).await {
        Ok(Ok(answer)) => answer.text.trim_end().to_owned(),
        Ok(Err(failed)) => failed.to_string(),
        Err(_) => format!("the database has not answered within {PATIENCE:?}"),
    }
}
