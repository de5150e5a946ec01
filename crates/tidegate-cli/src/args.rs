//! The arguments of the verbs that only the command line has, and of those to which it adds flags. The help
//! of every verb contains an example. The arguments of all other verbs are the requests of `tidegate_admin`.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tidegate::NewEvent;
use tidegate::config::parse_duration;
use tidegate_admin::{DrainRequest, Request};

/// A durable, at-least-once event queue in Postgres.
///
/// Set DATABASE_URL or DATABASE_SECRET_ID to choose the database. Other settings are variables named
/// TIDEGATE_…; a flag overrides its variable.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = "Example:\n  DATABASE_URL=postgres://… tidegate drain --budget 30s"
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    /// Print one JSON document on stdout, and text for people on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// The schema of the queue. It overrides TIDEGATE_SCHEMA; the default is tidegate.
    #[arg(long, global = true, value_name = "NAME")]
    pub schema: Option<String>,
}

/// The verbs. `display_order` is their place in the help, where the verbs of [`Request`] stand ten apart.
#[derive(Clone, Subcommand)]
pub enum Verb {
    #[command(flatten)]
    Listed(Request),
    /// Publish one event.
    #[command(
        display_order = 1,
        after_help = "Example:\n  tidegate publish order_placed --payload '{\"order_id\": 7}' --dedup-key order-7"
    )]
    Publish(PublishArgs),
    /// Lease and handle events until the queue is empty or the budget is spent.
    #[command(
        display_order = 2,
        after_help = "Example:\n  tidegate drain --budget 50s --concurrency 16"
    )]
    Drain(DrainArgs),
    /// Show the size, age, throughput and failures of the queue, by kind.
    #[command(
        display_order = 21,
        after_help = "Example:\n  tidegate status --watch --interval 10s\n  tidegate status --format prometheus --output /var/lib/prometheus/node-exporter/tidegate.prom"
    )]
    Status(StatusArgs),
    /// Print the script that lets a shell complete verbs and flags.
    #[command(
        display_order = 1001,
        after_help = "Example:\n  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate"
    )]
    Completions {
        /// The shell to print the script for.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all verbs into a folder.
    #[command(
        display_order = 1002,
        after_help = "Example:\n  tidegate man --dir ~/.local/share/man/man1"
    )]
    Man {
        /// Write one page for each verb into this folder; it is created if it does not exist.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print the JSON Schema of what a verb prints with --json, or the schemas of all verbs.
    #[command(display_order = 1003, after_help = "Example:\n  tidegate schema list")]
    Schema {
        /// The verb, or error for the document that a failed verb prints; without it, all schemas are
        /// printed.
        verb: Option<String>,
    },
}

/// The command line that every program has.
pub fn command() -> Command {
    let listed = Request::augment_subcommands(Command::new("tidegate"));
    let names = listed.get_subcommands().map(Command::get_name);
    let all = names.enumerate().fold(Cli::command(), |all, (at, name)| {
        all.mut_subcommand(name, |verb| verb.display_order(10 * at))
    });
    let verbs = all.get_subcommands();
    let mut verbs: Vec<_> = verbs
        .map(|verb| (verb.get_display_order(), verb.get_name().to_owned()))
        .collect();
    verbs.sort_unstable();
    // Clap numbers what is added later, such as `help`, from the count on.
    let verbs = verbs.into_iter().enumerate();
    verbs.fold(all, |all, (at, (_, name))| {
        all.mut_subcommand(name, |verb| verb.display_order(at))
    })
}

/// Create a new project with two kinds of events, their handlers, tests and deployment.
///
/// This needs no database. The README.md of the new project describes the next steps.
#[derive(Parser)]
#[command(name = "new", after_help = "Example:\n  tidegate new shop-queue")]
pub struct New {
    /// The folder to create, such as shop-queue or ../shop-queue; its last part is the name of the new crate.
    pub name: PathBuf,
    /// A checkout of Tidegate; the new project depends on its crates instead of the released ones.
    #[arg(long, value_name = "CHECKOUT")]
    pub tidegate: Option<PathBuf>,
}

#[derive(Clone, Args)]
pub struct PublishArgs {
    /// Kind of the event; it must be registered.
    pub kind: String,
    /// Payload: JSON text, @FILE to read a file, or - to read stdin.
    #[arg(long)]
    pub payload: Option<String>,
    /// Group of the event; events of one group are handled one at a time, in order.
    #[arg(long)]
    pub group: Option<String>,
    /// Deduplication key: nothing is published while a live event of this kind has the same key.
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// Replace the live event with the same key if it still waits for its first attempt.
    #[arg(long, requires = "dedup_key")]
    pub replace: bool,
    /// Correlation id: the business object that the event belongs to.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Do not start the event before this time has passed, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// Start the event within this time or never, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// W3C trace context to publish the event under; its handlers continue that trace.
    #[arg(long, env = "TRACEPARENT")]
    pub traceparent: Option<String>,
    /// Maximum number of attempts, 1 to 1000 [env: TIDEGATE_MAX_ATTEMPTS].
    #[arg(long, value_parser = clap::value_parser!(u16).range(attempts()))]
    pub max_attempts: Option<u16>,
}

#[derive(Clone, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub request: DrainRequest,
    /// Continue after the budget is spent, as long as events are ready and the drain makes progress.
    #[arg(long, conflicts_with = "max_events")]
    pub until_empty: bool,
}

#[derive(Clone, Args)]
pub struct StatusArgs {
    /// Show the figures again and again, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Time between two looks, 100ms to 1h.
    #[arg(long, requires = "watch", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// Output format: text for people, or metrics for Prometheus.
    #[arg(long, value_enum, default_value = "text", conflicts_with = "watch")]
    pub format: StatusFormat,
    /// Write metrics to this file for node_exporter's textfile collector; its name must end in .prom.
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub output: Option<PathBuf>,
}

/// The output format of the status.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    Text,
    Prometheus,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_hours(1)).contains(&interval) {
        Ok(interval)
    } else {
        Err("must be 100ms to 1h".to_owned())
    }
}

fn attempts() -> std::ops::RangeInclusive<i64> {
    i64::from(*NewEvent::MAX_ATTEMPTS.start())..=i64::from(*NewEvent::MAX_ATTEMPTS.end())
}
