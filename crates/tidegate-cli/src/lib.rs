//! Runs a [`Program`] as a command line: reads flags, asks the program, and prints text for people or, with
//! `--json`, one JSON document on stdout.
//!
//! It owns the arguments that no request of `tidegate_admin` has (`args`), the verbs that only a command line
//! has or that show a bar (`verbs`), how a report reads (`text`), the JSON that terminals and pipes get
//! (`answer`), and the project that `tidegate new` writes (`starter`). It knows no SQL, and nothing of what a
//! request does: `tidegate_admin` does that.
//!
//! [`CommandLine::run`] finds the verb (`own`), starts the program with the settings, and runs the request
//! over the database. The report becomes an [`Answer`], of which the document or the text goes to stdout.
//! Logs, bars and errors go to stderr. `publish` puts an event into the queue; `drain` runs its handlers in
//! this process. Exit codes: 0 done, 1 failed or nothing done, 2 wrong usage, 3 the doctor found something.
//!
//! A complete `main`:
//!
//! ```no_run
//! # use tidegate::{Context, Dispatch, Done, Handlers};
//! # use tidegate_admin::Program;
//! # tidegate::events! { pub enum Shop { Opened(()) = "opened" } }
//! # struct Handling;
//! # impl Dispatch for Handling {
//! #     type Event = Shop;
//! #     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
//! #         match event {
//! #             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
//! #         }
//! #     }
//! # }
//! fn main() -> std::process::ExitCode {
//!     tidegate_cli::run(Program::new(|_settings| Ok(Handling)))
//! }
//! ```

mod answer;
mod args;
mod colour;
mod own;
mod report;
mod starter;
mod text;
mod verbs;

pub use clap;

pub use self::answer::{Answer, json_argument};
pub use self::own::{Ask, CommandLine};
pub use self::text::{pretty, quoted};
pub use self::verbs::listed as answer;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate::config::environment;
use tidegate::{DrainReport, Error};
use tidegate_admin::Program;
use tidegate_admin::logs::{FlushAtExit, details_of_ours_alone, log_filter, log_writer};
use tidegate_admin::program::{Failure, log_panics};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::answer::{print, print_document, print_error};

/// Runs the program as a command line with every verb, and returns the exit code.
#[must_use]
pub fn run(program: Program) -> ExitCode {
    CommandLine::new(program).run()
}

fn give(answer: &Answer, as_json: bool) -> ExitCode {
    let written = if as_json {
        print_document(&answer.document)
    } else if answer.text.is_empty() {
        ExitCode::SUCCESS
    } else {
        print(answer.text.trim_end())
    };
    if answer.code == 0 {
        written
    } else {
        ExitCode::from(answer.code)
    }
}

/// Starts the logs, and runs the future of a verb on a runtime of its own.
fn block_on(
    origin: &'static str,
    answer: impl Future<Output = Result<Answer, Failure>>,
) -> Result<Answer, Failure> {
    // Before the answer is printed, even if something panics.
    let _flush = FlushAtExit;
    let levels = log_filter(&environment, LevelFilter::WARN)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(log_writer(verbs::bar::BesideBar)?)
        .with_ansi(colour::is_wanted(std::io::stderr().is_terminal()))
        .with_filter(levels.clone().and(details_of_ours_alone(origin)));
    let logs = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otel")]
    let logs = {
        let (traces, read) = tidegate_otel::install(&environment, origin, levels);
        read?;
        logs.with(traces)
    };
    logs.init();
    log_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Config(format!("threads: {error}")))?;
    #[cfg(feature = "otel")]
    let answer = tidegate_otel::recorded(answer, || None);
    let answered = runtime.block_on(answer);
    // A handler that blocks its thread must not keep the process alive.
    runtime.shutdown_background();
    answered
}

/// Prints the help, or the error in the arguments. A parser that has failed does not know whether `--json`
/// was given.
fn misused(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let reason = text.split("\n\n").next().unwrap_or_default();
        let reason = reason.trim_start_matches("error: ");
        let _ = print_document(&json!({"error": reason, "report": null}).into());
    }
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let is_terminal = if error.use_stderr() {
        err.is_terminal()
    } else {
        out.is_terminal()
    };
    let mut text = match error.render() {
        styled if colour::is_wanted(is_terminal) => styled.ansi().to_string(),
        styled => styled.to_string(),
    };
    if let Some(width) = text::width() {
        text = text::wrapped(&text, width);
    }
    let _ = if error.use_stderr() {
        (&err).write_all(text.as_bytes())
    } else {
        (&out).write_all(text.as_bytes())
    };
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn fail(failure: &Failure, verb: &clap::Command, as_json: bool) -> ExitCode {
    let (source, report) = match failure {
        Failure::Drain(drain) => (&drain.source, Some(&*drain.report)),
        Failure::Other(error) => (error, None),
    };
    let error = source.to_string();
    let error = match source {
        Error::Invalid(_) => with_flags(&error, verb),
        _ => error,
    };
    if as_json {
        let report = report.map(counts);
        let _ = print_document(&json!({"error": error, "report": report}).into());
    } else if let Some(report) = report.filter(|report| *report != &untouched(report)) {
        let _ = print(&text::broken_off(report));
    }
    print_error(&format!(
        "{}: {}",
        answer::program_name(),
        text::shown(&error)
    ));
    match source {
        Error::Config(_) | Error::Invalid(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Replaces the fields of the request, with which an error begins, by the flags and arguments of the verb.
fn with_flags(error: &str, verb: &clap::Command) -> String {
    let Some((fields, why)) = error.split_once(": ") else {
        return error.to_owned();
    };
    let named = fields.split(", ").map(|field| {
        // So the database calls this field.
        let id = if field == "group_key" { "group" } else { field };
        let argument = verb.get_arguments().find(|arg| arg.get_id() == id)?;
        Some(match (argument.get_long(), argument.get_value_names()) {
            (Some(flag), _) => format!("--{flag}"),
            (None, Some([value, ..])) => format!("<{value}>"),
            (None, _) => format!("<{}>", field.to_uppercase()),
        })
    });
    let named: Option<Vec<String>> = named.collect();
    let named = named.map_or(fields.to_owned(), |named| named.join(", "));
    format!("{named}: {why}")
}

/// The counts of a failed drain, which has no stop reason.
fn counts(report: &DrainReport) -> Value {
    let mut counts = json!(report);
    if let Some(fields) = counts.as_object_mut() {
        fields.remove("stop_reason");
    }
    counts
}

/// The report of a run of the same length that did nothing.
fn untouched(report: &DrainReport) -> DrainReport {
    let mut idle = DrainReport::default();
    idle.elapsed_ms = report.elapsed_ms;
    idle.budget_ms = report.budget_ms;
    idle.stop_reason = report.stop_reason;
    idle
}
