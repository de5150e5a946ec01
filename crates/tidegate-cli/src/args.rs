//! The arguments: verbs, flags and their help. The help of every verb contains an example.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tidegate::config::parse_duration;
use tidegate::look::{LIMIT, LISTED};
use tidegate::operate::{
    CatchUp, Moment, Subject, parse_catch_up, parse_moment, parse_subject, parse_time,
};
use tidegate::retention::CleanupOptions;
use tidegate::{DrainOptions, NewEvent};

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
}

#[derive(Subcommand)]
pub enum Verb {
    /// Bring the schema up to date and register this program's kinds of events.
    #[command(after_help = "Example:\n  tidegate migrate --roles")]
    Migrate {
        /// Also create the roles tidegate_publish, tidegate_drain, tidegate_operate, tidegate_read and
        /// tidegate_jobs, and grant their privileges.
        #[arg(long)]
        roles: bool,
        /// Migrate even if only other programs have registered kinds in this queue; the programs then share
        /// it.
        #[arg(long)]
        share: bool,
    },
    /// Publish one event.
    #[command(
        after_help = "Example:\n  tidegate publish order_placed --payload '{\"order_id\": 7}' --dedup-key order-7"
    )]
    Publish(PublishArgs),
    /// Lease and handle events until the queue is empty or the budget is spent.
    #[command(after_help = "Example:\n  tidegate drain --budget 50s --concurrency 16")]
    Drain(DrainArgs),
    /// Remove finished events whose retention has ended, and end live ones that nobody will handle.
    #[command(after_help = "Example:\n  tidegate cleanup --dry-run")]
    Cleanup(CleanupArgs),
    /// Show how long finished events of each kind are kept, or change it for one kind.
    #[command(
        after_help = "Example:\n  tidegate retention order_placed --completed 7d --failed 30d --apply --reason 'the disk is full'"
    )]
    Retention(RetentionArgs),
    /// Show the size, age, throughput and failures of the queue, by kind.
    #[command(
        after_help = "Example:\n  tidegate status --watch --interval 10s\n  tidegate status --format prometheus --output /var/lib/prometheus/node-exporter/tidegate.prom"
    )]
    Status(StatusArgs),
    /// Show everything stored about one event, live or finished, with the events it came from and led to.
    #[command(after_help = "Example:\n  tidegate show 42")]
    Show {
        /// Id of the event.
        #[arg(value_parser = event_id)]
        id: i64,
    },
    /// List events, newest first, live and finished.
    #[command(after_help = "Example:\n  tidegate list --status FAILED --since 2h --limit 20")]
    List(ListArgs),
    /// List the groups whose first event waits for another attempt.
    #[command(after_help = "Example:\n  tidegate blocked-groups --limit 20")]
    BlockedGroups {
        /// Maximum number of groups to list, 1 to 10000, oldest first.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// List the leases: which worker holds how many events, and since when.
    #[command(after_help = "Example:\n  tidegate leases --limit 20")]
    Leases {
        /// Maximum number of leases to list, 1 to 10000, oldest first.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// Check the database, the schema and the queue, and say how to fix each problem.
    ///
    /// The exit code is 0 if all checks pass, and 3 if a check gives a warning, finds a problem or cannot be
    /// made.
    #[command(after_help = "Example:\n  tidegate doctor --json")]
    Doctor,
    /// Publish finished events again as new events, selected by id or by filter.
    #[command(
        after_help = "Example:\n  tidegate replay --kind order_placed --status FAILED --since 2h --reason 'the carrier was down' --dry-run"
    )]
    Replay(ReplayArgs),
    /// Take live events from their workers, and run them again at the next drain.
    #[command(after_help = "Example:\n  tidegate requeue --id 42 --reason 'its worker hangs'")]
    Requeue(RequeueArgs),
    /// End live events, including those that a worker holds.
    ///
    /// The events end FAILED with code cancelled. Their follow-ups are not published, and their groups go on.
    /// A handler that is running is notified when its drain next renews its leases. Events are cancelled in
    /// steps of a thousand.
    #[command(
        after_help = "Example:\n  tidegate cancel --kind order_placed --until 2h --reason 'sent twice' --dry-run\n  tidegate cancel --id 42 --reason 'the order was withdrawn'"
    )]
    Cancel(Box<CancelArgs>),
    /// Change when waiting events start, or their deadline.
    ///
    /// Events that a worker holds are not changed; the report counts them.
    #[command(
        after_help = "Example:\n  tidegate reschedule --kind order_placed --now --reason 'the carrier is back'\n  tidegate reschedule --id 42 --delay 2h --no-deadline --reason 'after the move'"
    )]
    Reschedule(Box<RescheduleArgs>),
    /// Stop drains from taking events of a kind; events that are being handled end normally.
    #[command(
        after_help = "Example:\n  tidegate pause order_placed --reason 'the carrier is down'"
    )]
    Pause(PauseArgs),
    /// Let drains take events of a paused kind again.
    #[command(after_help = "Example:\n  tidegate resume order_placed")]
    Resume(PauseArgs),
    /// List the outside services that failed, are paused or are limited, and how many events wait for them.
    #[command(after_help = "Example:\n  tidegate services --json")]
    Services,
    /// Pause or resume all calls of an outside service, or limit them.
    #[command(
        after_help = "Example:\n  tidegate service carrier --pause --reason 'maintenance until six'\n  tidegate service carrier --limit 4 --per-second 20 --reason 'our contract allows no more'"
    )]
    Service(ServiceArgs),
    /// Remove a kind that no program handles any more, so that it can no longer be published.
    #[command(
        after_help = "Example:\n  tidegate retire order_placed --reason 'orders have a service of their own'"
    )]
    Retire(RetireArgs),
    /// Show or change how events of a kind are handled: attempts, time limit, backoff, concurrency and
    /// batches.
    #[command(
        after_help = "Example:\n  tidegate policy order_placed\n  tidegate policy order_placed --handler-timeout 5s --attempts 3 --reason 'the carrier is slow'\n  tidegate policy order_placed --reset attempts --reason 'it is quick again'"
    )]
    Policy(PolicyArgs),
    /// Retry, skip or cancel the first event of a group, which holds back the others.
    #[command(
        after_help = "Example:\n  tidegate unblock customer-3 --skip --reason 'a document is missing'"
    )]
    Unblock(UnblockArgs),
    /// Remove the data about a person from the queue, its log and the program's own tables.
    ///
    /// Live events are cancelled. Payloads, results, progress, error texts, groups and keys are removed.
    /// Kinds, times, states and codes stay.
    #[command(
        after_help = "Example:\n  tidegate forget --group customer-3 --reason 'request 2031-17' --dry-run\n  tidegate forget --subject customer=3 --reason 'request 2031-17'"
    )]
    Forget(ForgetArgs),
    /// List the periodic events, with the last and the next slot of each.
    #[command(after_help = "Example:\n  tidegate schedules --limit 20")]
    Schedules {
        /// Maximum number of schedules to list, 1 to 10000: stopped ones first, then by next slot.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// Create, change, pause, resume or remove a periodic event, or publish it now.
    #[command(
        after_help = "Example:\n  tidegate schedule nightly-report --kind night_fell --cron '30 2 * * *' --time-zone Europe/Kyiv --reason 'the office asks for it'\n  tidegate schedule nightly-report --pause --reason 'the office is closed'"
    )]
    Schedule(Box<ScheduleArgs>),
    /// Print the script that lets a shell complete verbs and flags.
    #[command(
        after_help = "Example:\n  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate"
    )]
    Completions {
        /// The shell to print the script for.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all verbs into a folder.
    #[command(after_help = "Example:\n  tidegate man --dir ~/.local/share/man/man1")]
    Man {
        /// Write one page for each verb into this folder; it is created if it does not exist.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print the JSON Schema of what a verb prints with --json, or the schemas of all verbs.
    #[command(after_help = "Example:\n  tidegate schema list")]
    Schema {
        /// The verb, or error for the document that a failed verb prints; without it, all schemas are
        /// printed.
        verb: Option<String>,
    },
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

#[derive(Args)]
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
    #[arg(long, value_parser = clap::value_parser!(u16).range(bounds(&NewEvent::MAX_ATTEMPTS)))]
    pub max_attempts: Option<u16>,
}

#[derive(Args)]
pub struct DrainArgs {
    /// Time limit of the whole run, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Maximum number of events in one lease, 1 to 10000 [env: TIDEGATE_BATCH] [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&DrainOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Maximum number of handlers that run at once, 1 to 1000; with 1 the queue is strictly first in, first
    /// out [env: TIDEGATE_CONCURRENCY] [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(bounds(&DrainOptions::CONCURRENCY)))]
    pub concurrency: Option<u16>,
    /// Keep polling an empty queue for this long, such as 10s [env: TIDEGATE_LINGER] [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Maximum number of events to lease in the whole run, at least 1 [default: no limit].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,
    /// Continue after the budget is spent, as long as events are ready and the drain makes progress.
    #[arg(long, conflicts_with = "max_events")]
    pub until_empty: bool,
}

#[derive(Args)]
pub struct CleanupArgs {
    /// Change nothing; only report what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Time limit of the whole run, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// End live events only if they were published at least this long ago, such as 1h [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Number of rows to examine or delete in one step, 1 to 100000 [default: 10000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&CleanupOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct RetentionArgs {
    /// The kind; without it, all kinds are shown.
    pub kind: Option<String>,
    /// Keep COMPLETED events of this kind for this time, 0s to 3660d, such as 7d.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    pub completed: Option<Duration>,
    /// Keep FAILED and COMPLETED_WITH_ERRORS events of this kind for this time, 0s to 3660d, such as 30d.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    pub failed: Option<Duration>,
    /// Apply the new times also to events of this kind that have already finished.
    #[arg(long, requires_all = ["kind", "reason"])]
    pub apply: bool,
    /// Time limit for --apply, such as 30s [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, requires = "apply", value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Reason for the change, recorded in the audit.
    #[arg(long, requires = "kind")]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long, requires = "kind")]
    pub actor: Option<String>,
}

#[derive(Args)]
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

#[derive(Args)]
pub struct ListArgs {
    /// Only events in this state: PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = ["PENDING", "PROCESSING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED"], ignore_case = true)]
    pub status: Option<String>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation: Option<String>,
    /// Only events created at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Only events created before this time, written like --since.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// Only events with an id lower than this: the next page of a list that ended with this id.
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub before: Option<i64>,
    /// Maximum number of events to list, 1 to 10000.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
    pub limit: u32,
}

/// Converts a range of the library to the type that the parser takes.
fn bounds<T: Copy + TryInto<i64>>(range: &RangeInclusive<T>) -> RangeInclusive<i64> {
    let bound = |value: T| value.try_into().unwrap_or(i64::MAX);
    bound(*range.start())..=bound(*range.end())
}

fn event_id(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| "must be the id of an event, a whole number".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_hours(1)).contains(&interval) {
        Ok(interval)
    } else {
        Err("must be 100ms to 1h".to_owned())
    }
}

#[derive(Args)]
pub struct ReplayArgs {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events that ended in this state: COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long)]
    pub status: Option<String>,
    /// Only events whose last error has this code.
    #[arg(long)]
    pub code: Option<String>,
    /// Only events that ended at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Only events that ended before this time, written like --since.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// Maximum number of events to replay, 1 to 100000, lowest ids first [default: 10000].
    #[arg(long)]
    pub limit: Option<i64>,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// With a filter: include events that were replayed before, are replays themselves, or were cancelled.
    #[arg(long)]
    pub again: bool,
    /// Run only handlers that failed or did not finish, and keep the results of the others.
    #[arg(long)]
    pub failed_handlers_only: bool,
    /// New deadline, counted from now, for events whose old one has passed, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// Digest from a dry run with --json: replay only if exactly the events of that dry run would be
    /// replayed.
    #[arg(long)]
    pub digest: Option<String>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct RequeueArgs {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1.., required = true)]
    pub ids: Vec<i64>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct CancelArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct RescheduleArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub start: StartArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// When events start, and their deadline.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct StartArgs {
    /// Start the events at the next drain.
    #[arg(long, conflicts_with_all = ["delay", "at"])]
    pub now: bool,
    /// Start the events this long from now, such as 30s or 2h.
    #[arg(long, value_parser = parse_duration, conflicts_with = "at")]
    pub delay: Option<Duration>,
    /// Start the events at this time, such as 2027-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub at: Option<SystemTime>,
    /// Set the deadline this long from now, such as 1h; events that have not started by then never start.
    #[arg(long, value_parser = parse_duration, conflicts_with_all = ["expires_at", "no_deadline"])]
    pub expires_in: Option<Duration>,
    /// Set the deadline to this time, such as 2027-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_deadline")]
    pub expires_at: Option<SystemTime>,
    /// Remove the deadline.
    #[arg(long)]
    pub no_deadline: bool,
}

/// Selects live events: by id, or by at least one of kind, correlation id and group.
#[derive(Args)]
#[command(group(ArgGroup::new("which").args(["ids", "kind", "correlation_id", "group"]).required(true).multiple(true)))]
pub struct SelectArgs {
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Only events of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only the event with this deduplication key; needs --kind.
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Only events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only events in this state: PENDING or PROCESSING.
    #[arg(long)]
    pub status: Option<String>,
    /// Only events published at this time or later: an RFC 3339 time, or a duration such as 2h for two hours
    /// ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Only events published before this time, written like --since.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// Maximum number of events to change, 1 to 1000000, lowest ids first [default: 10000]. With --digest at
    /// most 10000.
    #[arg(long)]
    pub limit: Option<u32>,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Digest from a dry run with --json: change the events only if exactly those of that dry run would be
    /// changed.
    #[arg(long, conflicts_with = "dry_run")]
    pub digest: Option<String>,
}

#[derive(Args)]
pub struct PauseArgs {
    /// The kind of events; it must be registered.
    pub kind: String,
    /// Reason for the change, recorded in the audit.
    #[arg(long)]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct ServiceArgs {
    /// Name of the service, exactly as the handlers use it.
    pub service: String,
    #[command(flatten)]
    pub change: ServiceChangeArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ServiceChangeArgs {
    /// Stop all calls of the service; events that need it wait.
    #[arg(long, conflicts_with_all = ["resume", "limit", "per_second"])]
    pub pause: bool,
    /// Allow calls of the service again, even if it did not answer before.
    #[arg(long, conflicts_with_all = ["limit", "per_second"])]
    pub resume: bool,
    /// Maximum number of events that call the service at once, over all drains, 1 to 10000; 0 removes the
    /// limit.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub limit: Option<u32>,
    /// Maximum number of events that start per second and call the service, over all drains, 0.0001 to 10000;
    /// 0 removes the limit.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub per_second: Option<f64>,
}

#[derive(Args)]
pub struct PolicyArgs {
    /// The kind of events.
    pub kind: String,
    /// Maximum number of attempts of events published from now on, 1 to 1000.
    #[arg(long, allow_negative_numbers = true)]
    pub attempts: Option<u16>,
    /// Time limit of a handler, such as 5s; at most 15m, and at most nine tenths of a lease.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub handler_timeout: Option<Duration>,
    /// Delay after the first attempt, such as 10s, at most 24h; it doubles with each further attempt.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub backoff: Option<Duration>,
    /// Maximum delay between two attempts, such as 10m; at most 24h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub backoff_max: Option<Duration>,
    /// Maximum number of events of this kind that run at once, over all drains, 1 to 10000.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub concurrency: Option<u32>,
    /// Maximum number of events in one batch, 1 to 1000; only for kinds whose handler takes batches.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub batch: Option<u16>,
    /// Maximum time that the first event of a batch waits for more events, such as 200ms; at most 1m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub batch_within: Option<Duration>,
    /// Return this field to the program's own value: attempts, handler-timeout, backoff, backoff-max,
    /// concurrency, batch or batch-within; may be given several times.
    #[arg(long, value_name = "FIELD")]
    pub reset: Vec<String>,
    /// Reason for the change, recorded in the audit; required if anything changes.
    #[arg(long)]
    pub reason: Option<String>,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct RetireArgs {
    /// The kind of events; it must have no live events, and this program must not handle it.
    pub kind: String,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct UnblockArgs {
    /// The group whose first event to act on.
    pub group: String,
    #[command(flatten)]
    pub how: UnblockActionArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct UnblockActionArgs {
    /// Run the event at the next drain.
    #[arg(long)]
    pub retry: bool,
    /// End the event with code skipped, and publish its unfinished handlers again at the end of the group.
    #[arg(long)]
    pub skip: bool,
    /// End the event FAILED with code cancelled.
    #[arg(long)]
    pub cancel: bool,
}

#[derive(Args)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub whom: ForgetWhomArgs,
    /// Change nothing; only report what would be done.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ForgetWhomArgs {
    /// Forget all events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Forget all events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Ids of events, up to 10000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Forget this person in the program's own tables, with all their events: NAME=ID, such as customer=3.
    #[arg(long, value_parser = parse_subject)]
    pub subject: Option<Subject>,
}

#[derive(Args)]
pub struct ScheduleArgs {
    /// Name of the schedule: 1 to 100 letters, digits, '.', '_' and '-'.
    pub name: String,
    #[command(flatten)]
    pub change: ScheduleChangeArgs,
    /// Payload of its events: JSON text, @FILE to read a file, or - to read stdin; at most 64 KiB.
    #[arg(long, requires = "kind")]
    pub payload: Option<String>,
    /// Publish at these times: minute, hour, day of the month, month and day of the week, such as '30 2 * *
    /// MON-FRI', or a name such as @daily.
    #[arg(long, requires = "kind", conflicts_with = "every")]
    pub cron: Option<String>,
    /// Publish at every multiple of this time since 1970, in UTC, such as 15m; whole seconds, 1s to 366d.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// Time zone of --cron, such as Europe/Kyiv [default: UTC].
    #[arg(long, requires = "cron")]
    pub time_zone: Option<String>,
    /// Group of its events.
    #[arg(long, requires = "kind")]
    pub group: Option<String>,
    /// Start each event within this time after its slot or never, 1s to 366d, such as 1h.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    pub start_within: Option<Duration>,
    /// Which missed slots a drain publishes later: none, last or all [default: last].
    #[arg(long, requires = "kind", value_parser = parse_catch_up)]
    pub catch_up: Option<CatchUp>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ScheduleChangeArgs {
    /// Create or replace the schedule, with events of this kind; the kind must be registered.
    #[arg(long)]
    pub kind: Option<String>,
    /// Stop publishing; slots that pass meanwhile are skipped.
    #[arg(long)]
    pub pause: bool,
    /// Publish again, from the next slot on.
    #[arg(long)]
    pub resume: bool,
    /// Remove the schedule; one that a program declares cannot be removed.
    #[arg(long)]
    pub remove: bool,
    /// Publish its event now, in addition to its slots.
    #[arg(long)]
    pub run: bool,
}

/// Reason and actor that the audit records with every action.
#[derive(Args)]
pub struct AuditArgs {
    /// Reason for the change, recorded in the audit.
    #[arg(long)]
    pub reason: String,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}
