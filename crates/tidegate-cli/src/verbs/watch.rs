//! Reprints the status at intervals. A database that does not answer is reported in its place, and asked
//! again.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tidegate::Error;
use tidegate::program::{Service, stop_signal};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::look;
use crate::answer::{Answer, Failed, printable};

/// A database that takes longer counts as unavailable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Moves a terminal's cursor to its first place and clears all that follows.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints the status until Ctrl-C, SIGTERM, or the end of the pipe that it writes to.
pub async fn watch(service: &Service, every: Duration, json: bool) -> Result<Answer, Failed> {
    if json {
        return Err(Error::Invalid("--watch: cannot be used with --json".to_owned()).into());
    }
    let clear = if std::io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    let stopped = stop_signal();
    tokio::pin!(stopped);
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let status = tokio::select! {
            status = next(service, &mut ticks) => status,
            () = &mut stopped => break,
        };
        let text = printable(&status);
        if writeln!(std::io::stdout(), "{clear}{text}\n").is_err() {
            break;
        }
    }
    Ok(Answer::new(Value::Null, ""))
}

async fn next(service: &Service, ticks: &mut tokio::time::Interval) -> String {
    ticks.tick().await;
    match timeout(PATIENCE, look::status(service)).await {
        Ok(Ok(answer)) => answer.text.trim_end().to_owned(),
        Ok(Err(failed)) => failed.error.to_string(),
        Err(_) => format!("the database has not answered within {PATIENCE:?}"),
    }
}
