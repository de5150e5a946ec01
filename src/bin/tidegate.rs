//! The command line: parses flags, calls the library, prints for people or, with `--json`, one JSON
//! document on stdout. No logic of its own; how answers look to people is [`text`]'s. Exit codes: 0 done, 1 failed, 2 wrong usage.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

#[path = "tidegate/text.rs"]
mod text;

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate::config::{environment, log_filter, parse_duration};
use tidegate::drain::{DrainError, DrainOptions, Hooks};
use tidegate::invocation::DrainReport;
use tidegate::service::{Migrated, Service, log_panics, stop_signal};
use tidegate::{Error, NewEvent, queue};
use tokio::sync::watch;

/// A durable, at-least-once event queue in Postgres.
///
/// The database is found by DATABASE_URL. Every setting has a variable TIDEGATE_…; flags win.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = "Example:\n  DATABASE_URL=postgres://… tidegate drain --budget 30s"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print one JSON document on stdout; text for people goes to stderr.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Bring the schema up to date and register this program's kinds of events.
    #[command(after_help = "Example:\n  tidegate migrate")]
    Migrate,
    /// Publish one event.
    #[command(
        after_help = "Example:\n  tidegate publish grant_letter_viewed --payload '{\"grant_number\": \"G-1\"}' --dedup-key view-1"
    )]
    Publish(PublishArgs),
    /// Receive a message of the bus: store its AI check if it asks for one, else nothing.
    #[command(
        after_help = "Example:\n  tidegate receive-issuing --message '{\"kind\": \"issuing\", \"stage\": \"ai-check\", \"triggerId\": \"T1\", \"applicationId\": \"A1\"}'"
    )]
    ReceiveIssuing {
        /// JSON, or @FILE, or - for stdin.
        #[arg(long)]
        message: String,
    },
    /// Lease and handle events until the queue is empty or the budget is spent.
    #[command(after_help = "Example:\n  tidegate drain --budget 50s --concurrency 16")]
    Drain(DrainArgs),
    /// Serve the HTTP interface of the medical jobs until SIGTERM or Ctrl-C.
    #[command(after_help = "Example:\n  tidegate serve --listen 127.0.0.1:8080")]
    Serve {
        /// Where to listen; port 0 is any free one.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: std::net::SocketAddr,
    },
    /// Show what is in the queue and how it is doing, by kind.
    #[command(after_help = "Example:\n  tidegate status --json")]
    Status,
    /// Show everything stored about one event, live or finished.
    #[command(after_help = "Example:\n  tidegate show 42")]
    Show {
        /// The event's id.
        id: i64,
    },
    /// List events, newest first, live and finished.
    #[command(after_help = "Example:\n  tidegate list --status FAILED --limit 20")]
    List {
        /// PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
        #[arg(long, value_parser = ["PENDING", "PROCESSING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED"], ignore_case = true)]
        status: Option<String>,
        /// Only this kind.
        #[arg(long)]
        kind: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
}

#[derive(Args)]
struct PublishArgs {
    /// The event's kind; it must be registered.
    kind: String,
    /// JSON, or @FILE, or - for stdin.
    #[arg(long)]
    payload: Option<String>,
    /// Events of one group are handled one at a time, in order.
    #[arg(long)]
    group: Option<String>,
    /// While a live event has this key, no second one is made.
    #[arg(long)]
    dedup_key: Option<String>,
    /// The business object it belongs to.
    #[arg(long)]
    correlation_id: Option<String>,
    /// Not handled before this time has passed, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Started within this time or never, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    expires_in: Option<Duration>,
    /// Attempts before it is given up [env: TIDEGATE_MAX_ATTEMPTS].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_attempts: Option<u16>,
}

#[derive(Args)]
struct DrainArgs {
    /// The whole run's time [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    budget: Option<Duration>,
    /// Most events leased at once [env: TIDEGATE_BATCH] [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: Option<u32>,
    /// Handlers at once; 1 is strictly first in, first out [env: TIDEGATE_CONCURRENCY] [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: Option<u16>,
    /// Keep polling an empty queue for this long [env: TIDEGATE_LINGER] [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    linger: Option<Duration>,
    /// Lease at most this many.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    max_events: Option<u64>,
}

/// What a verb has to say: one document for programs, a text for people.
struct Answer {
    document: Value,
    text: String,
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
        Ok(answer) if cli.json => print(&answer.document.to_string()),
        Ok(answer) => print(answer.text.trim_end()),
        Err(failed) => fail(&failed, cli.json),
    }
}

fn run(verb: Verb, json: bool) -> Result<Answer, Failed> {
    tracing_subscriber::fmt()
        .with_env_filter(log_filter(&environment, "warn")?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
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
        ..DrainReport::default()
    }
}

async fn answer(verb: Verb, json: bool) -> Result<Answer, Failed> {
    let service = Service::new(&environment)?;
    match verb {
        Verb::Migrate => migrate(&service).await,
        Verb::Publish(args) => publish(&service, args).await,
        Verb::ReceiveIssuing { message } => receive_issuing(&service, &message).await,
        Verb::Drain(args) => drain(&service, &args, json).await,
        Verb::Serve { listen } => serve(&service, listen, json).await,
        Verb::Status => status(&service).await,
        Verb::Show { id } => show(&service, id).await,
        Verb::List {
            status,
            kind,
            limit,
        } => {
            let status = status.map(|status| status.to_uppercase());
            let client = service.database.connect().await?;
            let events = queue::list(&client, status.as_deref(), kind.as_deref(), limit).await?;
            Ok(Answer {
                text: text::list(&events),
                document: Value::Array(events),
            })
        }
    }
}

async fn migrate(service: &Service) -> Result<Answer, Failed> {
    let report = service.migrate().await?;
    let applied = if report.applied.is_empty() {
        "nothing to apply".to_owned()
    } else {
        report.applied.join("\n")
    };
    let text = format!(
        "{applied}\nschema version {}, {} kinds registered",
        report.version, report.kinds
    );
    Ok(Answer {
        document: document(&Migrated {
            action: "migrate",
            report,
        })?,
        text,
    })
}

async fn publish(service: &Service, args: PublishArgs) -> Result<Answer, Failed> {
    let mut event = NewEvent::raw(
        args.kind,
        args.payload
            .map(|text| json_argument("--payload", &text))
            .transpose()?,
    );
    if let Some(key) = args.group {
        event = event.group(key);
    }
    if let Some(key) = args.dedup_key {
        event = event.dedup(key);
    }
    if let Some(id) = args.correlation_id {
        event = event.correlation(id);
    }
    if let Some(delay) = args.delay {
        event = event.delay(delay);
    }
    if let Some(time) = args.expires_in {
        event = event.start_within(time);
    }
    if let Some(attempts) = args.max_attempts.or(service.max_attempts) {
        event = event.max_attempts(attempts);
    }
    event.check()?;
    let client = service.database.connect().await?;
    let published = queue::publish(&client, &event).await?;
    let text = if published.created {
        format!("published event {}", published.id)
    } else {
        format!(
            "event {} is live with this deduplication key; nothing was published",
            published.id
        )
    };
    let document = json!({"action": "publish", "id": published.id, "created": published.created});
    Ok(Answer { document, text })
}

async fn receive_issuing(service: &Service, message: &str) -> Result<Answer, Failed> {
    let message: Box<RawValue> = json_argument("--message", message)?;
    let message = serde_json::from_str(message.get())
        .map_err(|error| Error::Invalid(format!("--message: {error}")))?;
    let report = service.receive_issuing(&message).await?;
    let text = match report.id {
        None => "the message asks for no check; nothing was stored".to_owned(),
        Some(id) if report.created => format!("published event {id}"),
        Some(id) => format!("event {id} is to make this check already; nothing was stored"),
    };
    Ok(Answer {
        document: document(&report)?,
        text,
    })
}

/// Reads a flag's JSON: as it stands, or @FILE, or - for stdin.
fn json_argument(flag: &str, argument: &str) -> Result<Box<RawValue>, Error> {
    let unreadable = |error: std::io::Error| Error::Invalid(format!("{flag}: {argument}: {error}"));
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        text
    } else if let Some(file) = argument.strip_prefix('@') {
        std::fs::read_to_string(file).map_err(unreadable)?
    } else {
        argument.to_owned()
    };
    serde_json::from_str(text.trim())
        .map_err(|error| Error::Invalid(format!("{flag}: JSON, @FILE or - is allowed: {error}")))
}

async fn drain(service: &Service, args: &DrainArgs, json: bool) -> Result<Answer, Failed> {
    let configured = service.options.clone();
    let options = DrainOptions {
        budget: args.budget.unwrap_or(configured.budget),
        batch: args.batch.unwrap_or(configured.batch),
        concurrency: args.concurrency.map_or(configured.concurrency, usize::from),
        linger: args.linger.unwrap_or(configured.linger),
        max_events: args.max_events,
        ..configured
    };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        stop_signal().await;
        let _ = stop.send(true);
    });
    let mut hooks = Hooks {
        stop: Some(stopped),
        progress: None,
    };
    let bar = if std::io::stderr().is_terminal() && !json {
        Some(progress_bar(service, &mut hooks).await?)
    } else {
        None
    };
    log_panics();
    let report = service.drain(&options, hooks).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report?;
    Ok(Answer {
        text: text::drained(&report),
        document: document(&report)?,
    })
}

/// A bar that follows the run's counts: done of what is there, rate, time left.
async fn progress_bar(service: &Service, hooks: &mut Hooks) -> Result<ProgressBar, Failed> {
    let backlog = service.stats().await?.backlog;
    let bar = ProgressBar::new(backlog);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} events, {per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    let (told, mut progress) = watch::channel(DrainReport::default());
    hooks.progress = Some(told);
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

async fn serve(
    service: &Service,
    listen: std::net::SocketAddr,
    json: bool,
) -> Result<Answer, Failed> {
    let failed = |error| Error::Config(format!("--listen {listen}: {error}"));
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener.map_err(failed)?;
    let url = format!("http://{}", listener.local_addr().map_err(failed)?);
    let listening = format!("listening on {url}");
    if json {
        eprintln!("{listening}");
    } else {
        let _ = print(&listening);
    }
    log_panics();
    let router = tidegate::http::router(service.database.clone());
    let served = tidegate::http::serve(listener, router, stop_signal()).await;
    served.map_err(failed)?;
    Ok(Answer {
        document: json!({"action": "serve", "url": url}),
        text: "stopped".to_owned(),
    })
}

async fn status(service: &Service) -> Result<Answer, Failed> {
    let stats = service.stats().await?;
    Ok(Answer {
        text: text::status(&stats),
        document: document(&stats)?,
    })
}

async fn show(service: &Service, id: i64) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let event = queue::show(&client, id)
        .await?
        .ok_or(Error::UnknownEvent(id))?;
    Ok(Answer {
        text: text::event(&event),
        document: event,
    })
}

fn document(report: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(report).map_err(|error| Error::Invalid(format!("report: {error}")))
}
