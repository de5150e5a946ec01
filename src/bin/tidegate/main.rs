//! The command line: parses flags, calls the library, prints for people or, with `--json`, one JSON
//! document on stdout. No logic of its own: [`args`] says what may be asked, [`verbs`] ask the library,
//! [`text`] is how answers look to people. Exit codes: 0 done, 1 failed, 2 wrong usage,
//! 3 the doctor found something.

mod args;
mod screen;

mod text;
mod verbs;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};
use tidegate::Error;
use tidegate::config::{details_of_ours_alone, environment, log_filter};
use tidegate::drain::DrainError;
use tidegate::drain::DrainReport;
use tidegate::program::log_panics;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::args::{Cli, Verb};

/// What a verb has to say: one document for programs, a text for people.
struct Answer {
    document: Value,
    text: String,
    /// The process's exit code.
    code: u8,
}

impl Answer {
    /// Of a verb that is done.
    fn new(document: Value, text: impl Into<String>) -> Self {
        Self {
            document,
            text: text.into(),
            code: 0,
        }
    }
}

/// Why a verb failed, with the counts of a drain that came some way.
struct Failed {
    error: Error,
    report: Option<Box<DrainReport>>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            report: None,
        }
    }
}

impl From<DrainError> for Failed {
    fn from(error: DrainError) -> Self {
        Self {
            error: error.source,
            report: Some(error.report),
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    match run(cli.verb, cli.json) {
        Ok(answer) => give(&answer, cli.json),
        Err(failed) => fail(&failed, cli.json),
    }
}

fn give(answer: &Answer, as_json: bool) -> ExitCode {
    let written = if as_json {
        print(&answer.document.to_string())
    } else {
        print(answer.text.trim_end())
    };
    if answer.code == 0 {
        written
    } else {
        ExitCode::from(answer.code)
    }
}

fn run(verb: Verb, json: bool) -> Result<Answer, Failed> {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish()
        .with(log_filter(&environment, LevelFilter::WARN)?)
        .with(details_of_ours_alone())
        .init();
    log_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Config(format!("threads: {error}")))?;
    let answered = runtime.block_on(answer(verb, json));
    // A handler that blocks its thread must not keep the process.
    runtime.shutdown_background();
    answered
}

/// Help, or what is wrong with the arguments. Whether `--json` is among them is not known to a
/// parser that has failed.
fn misused(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let reason = text.split("\n\n").next().unwrap_or_default();
        let reason = reason.trim_start_matches("error: ");
        let _ = print(&json!({"error": reason, "report": null}).to_string());
    }
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Writes to stdout; a closed pipe (`tidegate list | head`) is no failure of ours.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn fail(failed: &Failed, as_json: bool) -> ExitCode {
    let report = failed.report.as_deref();
    if as_json {
        let report = report.map(counts);
        let _ = print(&json!({"error": failed.error.to_string(), "report": report}).to_string());
    } else if let Some(report) = report.filter(|report| **report != untouched(report)) {
        let _ = print(&text::broken_off(report));
    }
    eprintln!("tidegate: {}", failed.error);
    match failed.error {
        Error::Config(_) | Error::Invalid(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// A drain that failed has no reason to stop of its own, and has not looked what it leaves behind.
fn counts(report: &DrainReport) -> Value {
    let mut counts = json!(report);
    if let Some(fields) = counts.as_object_mut() {
        for unknown in ["stop_reason", "backlog", "oldest_age_ms"] {
            fields.remove(unknown);
        }
    }
    counts
}

/// The report of a run of the same length that did nothing.
fn untouched(report: &DrainReport) -> DrainReport {
    DrainReport {
        elapsed_ms: report.elapsed_ms,
        budget_ms: report.budget_ms,
        stop_reason: report.stop_reason,
        ..DrainReport::default()
    }
}

async fn answer(verb: Verb, json: bool) -> Result<Answer, Failed> {
    let service = tidegate::app::program().start(&environment)?;
    match verb {
        Verb::Migrate { roles } => verbs::migrate::migrate(&service, roles).await,
        Verb::Publish(args) => verbs::publish::publish(&service, args).await,
        Verb::ReceiveIssuing { message } => {
            verbs::publish::receive_issuing(&service, &message).await
        }
        Verb::Drain(args) => verbs::drain::drain(&service, &args, json).await,
        Verb::Cleanup(args) => verbs::cleanup::cleanup(&service, args, json).await,
        Verb::Retention(args) => verbs::cleanup::retention(&service, args).await,
        Verb::Serve { listen } => verbs::serve::serve(&service, listen, json).await,
        Verb::Status(args) if args.watch => {
            verbs::watch::watch(&service, args.interval, json).await
        }
        Verb::Status(_) => verbs::look::status(&service).await,
        Verb::Show { id } => verbs::look::show(&service, id).await,
        Verb::List(args) => verbs::look::list(&service, &args).await,
        Verb::BlockedGroups { limit } => verbs::look::blocked_groups(&service, limit).await,
        Verb::Leases { limit } => verbs::look::leases(&service, limit).await,
        Verb::Doctor => verbs::doctor::doctor(&service).await,
        Verb::Replay(args) => verbs::operate::replay(&service, args).await,
        Verb::Requeue(args) => verbs::operate::requeue(&service, args).await,
        Verb::Pause(args) => verbs::operate::pause(&service, args).await,
        Verb::Resume(args) => verbs::operate::resume(&service, args).await,
        Verb::Unblock(args) => verbs::operate::unblock(&service, args).await,
    }
}

fn document(report: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(report).map_err(|error| Error::Invalid(format!("report: {error}")))
}
