//! The arguments: verbs, flags and their help. Every verb's help holds an example.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tidegate::config::parse_duration;

/// A durable, at-least-once event queue in Postgres.
///
/// The database is found by DATABASE_URL or DATABASE_SECRET_ID. Every setting has a variable TIDEGATE_…; flags win.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = "Example:\n  DATABASE_URL=postgres://… tidegate drain --budget 30s"
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    /// Print one JSON document on stdout; text for people goes to stderr.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Bring the schema up to date and register this program's kinds of events.
    #[command(after_help = "Example:\n  tidegate migrate --roles")]
    Migrate {
        /// Also create the roles tidegate_publish, _drain, _operate and _read, and grant them what is theirs.
        #[arg(long)]
        roles: bool,
    },
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
    List(ListArgs),
}

#[derive(Args)]
pub struct PublishArgs {
    /// The event's kind; it must be registered.
    pub kind: String,
    /// JSON, or @FILE, or - for stdin.
    #[arg(long)]
    pub payload: Option<String>,
    /// Events of one group are handled one at a time, in order.
    #[arg(long)]
    pub group: Option<String>,
    /// While a live event has this key, no second one is made.
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// The business object it belongs to.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Not handled before this time has passed, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// Started within this time or never, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// Attempts before it is given up [env: TIDEGATE_MAX_ATTEMPTS].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_attempts: Option<u16>,
}

#[derive(Args)]
pub struct DrainArgs {
    /// The whole run's time [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Most events leased at once [env: TIDEGATE_BATCH] [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: Option<u32>,
    /// Handlers at once; 1 is strictly first in, first out [env: TIDEGATE_CONCURRENCY] [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub concurrency: Option<u16>,
    /// Keep polling an empty queue for this long [env: TIDEGATE_LINGER] [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Lease at most this many.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,
}

#[derive(Args)]
pub struct ListArgs {
    /// PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = ["PENDING", "PROCESSING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED"], ignore_case = true)]
    pub status: Option<String>,
    /// Only this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// At most this many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}
