//! The arguments: verbs, flags and their help. Every verb's help holds an example.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Parser, Subcommand, ValueEnum};
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
        /// Also create the roles tidegate_publish, _drain, _operate, _read and _jobs, and grant their rights.
        #[arg(long)]
        roles: bool,
        /// Also where only other programs' kinds are registered: both use the queue from then on.
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
    /// Show how long finished events are kept, by kind, or set it for one.
    #[command(
        after_help = "Example:\n  tidegate retention order_placed --completed 7d --failed 30d --apply --reason 'the disk is full'"
    )]
    Retention(RetentionArgs),
    /// Show what is in the queue and how it is doing, by kind.
    #[command(
        after_help = "Example:\n  tidegate status --watch --interval 2s\n  tidegate status --format prometheus --output /var/lib/prometheus/node-exporter/tidegate.prom"
    )]
    Status(StatusArgs),
    /// Show everything stored about one event, live or finished, where it comes from and what came of it.
    #[command(after_help = "Example:\n  tidegate show 42")]
    Show {
        /// The event's id.
        #[arg(value_parser = event_id)]
        id: i64,
    },
    /// List events, newest first, live and finished.
    #[command(after_help = "Example:\n  tidegate list --status FAILED --since 2h --limit 20")]
    List(ListArgs),
    /// List the groups that wait for their first event to be tried again.
    #[command(after_help = "Example:\n  tidegate blocked-groups --limit 20")]
    BlockedGroups {
        /// At most this many, the oldest first.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// List the leases: which worker holds how many events since when.
    #[command(after_help = "Example:\n  tidegate leases --limit 20")]
    Leases {
        /// At most this many, the oldest first.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// Examine database, schema and queue, and say how to mend what is wrong.
    ///
    /// Exit code 0 when all is well, 3 when a check has a warning or a problem or could not be made.
    #[command(after_help = "Example:\n  tidegate doctor --json")]
    Doctor,
    /// Put finished events back as new ones, by id or by when they ended.
    #[command(
        after_help = "Example:\n  tidegate replay --kind order_placed --status FAILED --since 2h --reason 'the carrier was down' --dry-run"
    )]
    Replay(ReplayArgs),
    /// End the leases of live events, so that they run again at the next drain.
    #[command(after_help = "Example:\n  tidegate requeue --id 42 --reason 'its worker hangs'")]
    Requeue(RequeueArgs),
    /// End live events, also those in a worker's hands, whose handlers are told; many of them a thousand at a time.
    ///
    /// They end FAILED with code cancelled. Their follow-ups are not published, and their groups go on.
    #[command(
        after_help = "Example:\n  tidegate cancel --kind order_placed --until 2h --reason 'sent twice' --dry-run\n  tidegate cancel --id 42 --reason 'the order was withdrawn'"
    )]
    Cancel(Box<CancelArgs>),
    /// Have waiting events start at another time, or at once, or before another deadline.
    ///
    /// Events in a worker's hands are left alone, and told.
    #[command(
        after_help = "Example:\n  tidegate reschedule --kind order_placed --now --reason 'the carrier is back'\n  tidegate reschedule --id 42 --delay 2h --no-deadline --reason 'after the move'"
    )]
    Reschedule(Box<RescheduleArgs>),
    /// Keep a kind of events from being taken; those being handled end as ever.
    #[command(
        after_help = "Example:\n  tidegate pause order_placed --reason 'the carrier is down'"
    )]
    Pause(PauseArgs),
    /// Let a paused kind of events be taken again.
    #[command(after_help = "Example:\n  tidegate resume order_placed")]
    Resume(PauseArgs),
    /// List the outside services that have failed, and what waits for those that are not called.
    #[command(after_help = "Example:\n  tidegate services --json")]
    Services,
    /// Keep an outside service from being called, let it be called again, or limit how often it is.
    #[command(
        after_help = "Example:\n  tidegate service carrier --pause --reason 'it moves house until six'\n  tidegate service carrier --limit 4 --per-second 20 --reason 'what our contract allows'"
    )]
    Service(ServiceArgs),
    /// Take a kind that no program handles any more off the list of those that can be published.
    #[command(
        after_help = "Example:\n  tidegate retire order_placed --reason 'orders have a service of their own'"
    )]
    Retire(RetireArgs),
    /// Say how events of a kind are handled, or tell it: attempts, time limit, backoff, how many at once.
    #[command(
        after_help = "Example:\n  tidegate policy order_placed\n  tidegate policy order_placed --handler-timeout 5s --attempts 3 --reason 'the carrier is slow'\n  tidegate policy order_placed --reset attempts --reason 'it is quick again'"
    )]
    Policy(PolicyArgs),
    /// Act on the first event of a group, which holds back the others.
    #[command(
        after_help = "Example:\n  tidegate unblock customer-3 --skip --reason 'waits for a paper'"
    )]
    Unblock(UnblockArgs),
    /// Take away what the queue, its log and the program's own tables hold of a person; what happened stays.
    ///
    /// Live events are cancelled. Payloads, results, progress, the words of errors, groups and keys are gone afterwards;
    /// kinds, times, states and codes stay.
    #[command(
        after_help = "Example:\n  tidegate forget --group customer-3 --reason 'request 2031-17' --dry-run\n  tidegate forget --subject customer=3 --reason 'request 2031-17'"
    )]
    Forget(ForgetArgs),
    /// Seal all payloads of queue and log with the current key: those with another one, and those without any.
    #[command(
        after_help = "Example:\n  tidegate rewrap --reason 'the key of 2030 retires' --dry-run"
    )]
    Rewrap(RewrapArgs),
    /// List the periodic events: when each was published last, and when it is next.
    #[command(after_help = "Example:\n  tidegate schedules --limit 20")]
    Schedules {
        /// At most this many; those that stand still first, then by their next slot.
        #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
        limit: u32,
    },
    /// Make, change, pause, resume or remove a periodic event, or publish it now.
    #[command(
        after_help = "Example:\n  tidegate schedule nightly-report --kind night_fell --cron '30 2 * * *' --time-zone Europe/Kyiv --reason 'the office asks for it'\n  tidegate schedule nightly-report --pause --reason 'the office is closed'"
    )]
    Schedule(Box<ScheduleArgs>),
    /// Print the script by which a shell completes verbs and flags.
    #[command(
        after_help = "Example:\n  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all verbs into a folder.
    #[command(after_help = "Example:\n  tidegate man --dir ~/.local/share/man/man1")]
    Man {
        /// Write one page for each verb into this folder, which is created if it is missing.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Print the JSON Schema of what a verb prints with --json, or the schemas of all verbs.
    #[command(after_help = "Example:\n  tidegate schema list")]
    Schema {
        /// The verb, or `error` for what is printed when a verb fails.
        verb: Option<String>,
    },
}

/// Write a project of your own to begin with: two kinds of events, their handlers, tests and deployment.
///
/// It needs no database. Its README.md says how to go on.
#[derive(Parser)]
#[command(name = "new", after_help = "Example:\n  tidegate new shop-queue")]
pub struct New {
    /// The folder to make; its last part is the new crate's name, such as shop-queue or ../shop-queue.
    pub name: PathBuf,
    /// A checkout of Tidegate, whose crates it depends on instead of this version's released ones.
    #[arg(long, value_name = "CHECKOUT")]
    pub tidegate: Option<PathBuf>,
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
    /// Take the place of that event while it waits for its first attempt.
    #[arg(long, requires = "dedup_key")]
    pub replace: bool,
    /// The business object it belongs to.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Begins when these events have ended: their ids, such as 7,8,9.
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        conflicts_with = "replace"
    )]
    pub after: Vec<i64>,
    /// Not handled before this time has passed, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// Started within this time or never, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// The W3C trace context to publish it under; its handlers continue that trace.
    #[arg(long, env = "TRACEPARENT")]
    pub traceparent: Option<String>,
    /// Attempts before it is given up [env: TIDEGATE_MAX_ATTEMPTS].
    #[arg(long, value_parser = clap::value_parser!(u16).range(bounds(&NewEvent::MAX_ATTEMPTS)))]
    pub max_attempts: Option<u16>,
}

#[derive(Args)]
pub struct DrainArgs {
    /// The whole run's time [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Most events leased at once [env: TIDEGATE_BATCH] [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&DrainOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Handlers at once; 1 is strictly first in, first out [env: TIDEGATE_CONCURRENCY] [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(bounds(&DrainOptions::CONCURRENCY)))]
    pub concurrency: Option<u16>,
    /// Keep polling an empty queue for this long [env: TIDEGATE_LINGER] [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Lease at most this many.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,
    /// Go on when the budget is spent, while something is left that can be done now and is getting done.
    #[arg(long, conflicts_with = "max_events")]
    pub until_empty: bool,
}

#[derive(Args)]
pub struct CleanupArgs {
    /// Change nothing, and tell what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// The whole run's time [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// End live events only if they were published at least this long ago [default: 0s].
    #[arg(long, value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Rows looked at or deleted in one step [default: 10000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(bounds(&CleanupOptions::BATCH)))]
    pub batch: Option<u32>,
    /// Who you are, for the audit [env: TIDEGATE_ACTOR] [default: USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct RetentionArgs {
    /// The kind; without it, all are shown.
    pub kind: Option<String>,
    /// Keep COMPLETED events of this kind for so long, such as 7d.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    pub completed: Option<Duration>,
    /// Keep FAILED and COMPLETED_WITH_ERRORS events of this kind for so long.
    #[arg(long, value_parser = parse_duration, requires_all = ["kind", "reason"])]
    pub failed: Option<Duration>,
    /// Also for events of this kind that have finished already.
    #[arg(long, requires_all = ["kind", "reason"])]
    pub apply: bool,
    /// How long applying may take [env: TIDEGATE_BUDGET] [default: 50s].
    #[arg(long, requires = "apply", value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Why, for the audit.
    #[arg(long, requires = "kind")]
    pub reason: Option<String>,
    /// Who you are, for the audit [env: TIDEGATE_ACTOR] [default: USER].
    #[arg(long, requires = "kind")]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct StatusArgs {
    /// Follow it live on the terminal, open kinds and events, and act on them; ? lists the keys, q and Ctrl-C end it.
    #[arg(long)]
    pub watch: bool,
    /// How often to look, 100ms to 1h.
    #[arg(long, requires = "watch", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// As text for people, or as metrics for Prometheus.
    #[arg(long, value_enum, default_value = "text", conflicts_with = "watch")]
    pub format: StatusFormat,
    /// Write the metrics to this file, which must end in .prom, for node_exporter's textfile collector.
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub output: Option<PathBuf>,
}

/// How the status is told.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    Text,
    Prometheus,
}

#[derive(Args)]
pub struct ListArgs {
    /// PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long, value_parser = ["PENDING", "PROCESSING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED"], ignore_case = true)]
    pub status: Option<String>,
    /// Only this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only what belongs to this business object.
    #[arg(long)]
    pub correlation: Option<String>,
    /// Created at this time or later: 2027-01-31T12:00:00Z, or 2h for two hours ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Created before this time, written like --since.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// Only lower ids: the next page of a list that ended there.
    #[arg(long, value_name = "ID", value_parser = event_id)]
    pub before: Option<i64>,
    /// At most this many.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(bounds(&LIMIT)))]
    pub limit: u32,
}

/// A range of the library's as the parser takes one.
fn bounds<T: Copy + TryInto<i64>>(range: &RangeInclusive<T>) -> RangeInclusive<i64> {
    let bound = |value: T| value.try_into().unwrap_or(i64::MAX);
    bound(*range.start())..=bound(*range.end())
}

fn event_id(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| "must be an event's id, a whole number".to_owned())
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
    /// These events; at most 10,000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Only this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only events that ended COMPLETED, COMPLETED_WITH_ERRORS or FAILED.
    #[arg(long)]
    pub status: Option<String>,
    /// Only events whose last error has this code.
    #[arg(long)]
    pub code: Option<String>,
    /// Only events that ended then or later: an RFC 3339 time, or a duration such as 2h for that long ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Only events that ended before.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// At most this many, lowest ids first [default: 10000].
    #[arg(long)]
    pub limit: Option<i64>,
    /// Tell what would be done, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// With a filter: also events that were replayed before, are replays themselves, or were cancelled.
    #[arg(long)]
    pub again: bool,
    /// Run only handlers that failed or never finished; the others' results are kept.
    #[arg(long)]
    pub failed_handlers_only: bool,
    /// New deadline of events whose old one has passed, such as 1h.
    #[arg(long, value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// Replay nothing unless exactly the events of the dry run that told this digest would be replayed.
    #[arg(long)]
    pub digest: Option<String>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

impl ReplayArgs {
    /// One event, whatever came of it before.
    pub fn of_one(id: i64, audit: AuditArgs) -> Self {
        Self {
            ids: vec![id],
            kind: None,
            status: None,
            code: None,
            since: None,
            until: None,
            limit: None,
            dry_run: false,
            again: false,
            failed_handlers_only: false,
            expires_in: None,
            digest: None,
            audit,
        }
    }
}

#[derive(Args)]
pub struct RequeueArgs {
    /// These events; at most 10,000.
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

/// When events are to start.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct StartArgs {
    /// At the next drain.
    #[arg(long, conflicts_with_all = ["delay", "at"])]
    pub now: bool,
    /// So long from now, such as 30s or 2h.
    #[arg(long, value_parser = parse_duration, conflicts_with = "at")]
    pub delay: Option<Duration>,
    /// Then: an RFC 3339 time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub at: Option<SystemTime>,
    /// Within so long from now, or never.
    #[arg(long, value_parser = parse_duration, conflicts_with_all = ["expires_at", "no_deadline"])]
    pub expires_in: Option<Duration>,
    /// Before that, or never: an RFC 3339 time.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_deadline")]
    pub expires_at: Option<SystemTime>,
    /// Whenever it is: they have no deadline any more.
    #[arg(long)]
    pub no_deadline: bool,
}

/// Which live events are meant: ids, or at least one of kind, correlation id and group.
#[derive(Args)]
pub struct SelectArgs {
    /// These events; at most 10,000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Only this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only the one with this deduplication key, of the kind.
    #[arg(long)]
    pub dedup_key: Option<String>,
    /// Only events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// Only this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only PENDING, or only PROCESSING.
    #[arg(long)]
    pub status: Option<String>,
    /// Only events published then or later: an RFC 3339 time, or a duration such as 2h for that long ago.
    #[arg(long, value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Only events published before.
    #[arg(long, value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// At most this many, lowest ids first [default: 10000].
    #[arg(long)]
    pub limit: Option<u32>,
    /// Tell what would be done, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct PauseArgs {
    /// The kind; it must be registered.
    pub kind: String,
    /// Why, for the audit.
    #[arg(long)]
    pub reason: Option<String>,
    /// Who you are, for the audit [env: TIDEGATE_ACTOR] [default: USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct ServiceArgs {
    /// Its name, as handlers give it.
    pub service: String,
    #[command(flatten)]
    pub change: ServiceChangeArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ServiceChangeArgs {
    /// No handler calls it, and events that need it wait.
    #[arg(long, conflicts_with_all = ["resume", "limit", "per_second"])]
    pub pause: bool,
    /// It is called again, also when it has not answered.
    #[arg(long, conflicts_with_all = ["limit", "per_second"])]
    pub resume: bool,
    /// So many events that call it run at once, over all drains; 0 for any number.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub limit: Option<u32>,
    /// So many of them start in a second, over all drains; 0 for any number.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub per_second: Option<f64>,
}

#[derive(Args)]
pub struct PolicyArgs {
    /// The kind.
    pub kind: String,
    /// Attempts before an event is given up, of those published from now on, 1 to 1,000.
    #[arg(long, allow_negative_numbers = true)]
    pub attempts: Option<u16>,
    /// How long a handler may take, such as 5s; 15m at most, and nine tenths of a lease.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub handler_timeout: Option<Duration>,
    /// The delay after the first attempt, which doubles with each; 24h at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub backoff: Option<Duration>,
    /// The longest delay; 24h at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub backoff_max: Option<Duration>,
    /// So many events run at once, over all drains, 1 to 10,000.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub concurrency: Option<u32>,
    /// So many events share one call of a batch, 1 to 1,000.
    #[arg(long, value_name = "EVENTS", allow_negative_numbers = true)]
    pub batch: Option<u16>,
    /// The first of them waits for the others no longer than this, such as 200ms; 1m at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub batch_within: Option<Duration>,
    /// This is again as the program declares it: attempts, handler-timeout, backoff, backoff-max, concurrency, batch or
    /// batch-within. May be given several times.
    #[arg(long, value_name = "FIELD")]
    pub reset: Vec<String>,
    /// Why, for the audit; must be given when anything is to change.
    #[arg(long)]
    pub reason: Option<String>,
    /// Who you are, for the audit [env: TIDEGATE_ACTOR] [default: USER].
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(Args)]
pub struct RetireArgs {
    /// The kind; it must have no live events, and this program must not handle it.
    pub kind: String,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct UnblockArgs {
    /// The group.
    pub group: String,
    #[command(flatten)]
    pub how: UnblockActionArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct UnblockActionArgs {
    /// Run it at the next drain.
    #[arg(long)]
    pub retry: bool,
    /// End it, and put what is left to do of it behind the group's other events.
    #[arg(long)]
    pub skip: bool,
    /// End it.
    #[arg(long)]
    pub cancel: bool,
}

#[derive(Args)]
pub struct RewrapArgs {
    /// Change nothing, and tell what would be done.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub whom: ForgetWhomArgs,
    /// Change nothing, and tell what would be done.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ForgetWhomArgs {
    /// All events of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// All events with this correlation id.
    #[arg(long)]
    pub correlation_id: Option<String>,
    /// These events; at most 10,000.
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<i64>,
    /// Somebody whom the program's own tables are about, with all events: NAME=ID.
    #[arg(long, value_parser = parse_subject)]
    pub subject: Option<Subject>,
}

#[derive(Args)]
pub struct ScheduleArgs {
    /// 1 to 100 letters, digits, '.', '_' and '-'.
    pub name: String,
    #[command(flatten)]
    pub change: ScheduleChangeArgs,
    /// JSON, or @FILE, or - for stdin; at most 64 KiB.
    #[arg(long, requires = "kind")]
    pub payload: Option<String>,
    /// Minute, hour, day of the month, month, day of the week, such as '30 2 * * MON-FRI'; or @daily.
    #[arg(long, requires = "kind", conflicts_with = "every")]
    pub cron: Option<String>,
    /// Due at every multiple of this time since 1970, in UTC, such as 15m.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// By which zone's clock the expression is read, such as Europe/Kyiv [default: UTC].
    #[arg(long, requires = "cron")]
    pub time_zone: Option<String>,
    /// The group of its events.
    #[arg(long, requires = "kind")]
    pub group: Option<String>,
    /// Started so long after its slot or never, such as 1h.
    #[arg(long, requires = "kind", value_parser = parse_duration)]
    pub start_within: Option<Duration>,
    /// What becomes of slots that no drain was there for: none, last or all [default: last].
    #[arg(long, requires = "kind", value_parser = parse_catch_up)]
    pub catch_up: Option<CatchUp>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ScheduleChangeArgs {
    /// Make it, or change all of it: the kind of its events, which must be registered.
    #[arg(long)]
    pub kind: Option<String>,
    /// It publishes nothing; slots that pass meanwhile are passed over.
    #[arg(long)]
    pub pause: bool,
    /// It publishes again, from its next slot on.
    #[arg(long)]
    pub resume: bool,
    /// Remove it; what a program declares is that program's.
    #[arg(long)]
    pub remove: bool,
    /// Publish its event now, beside its slots.
    #[arg(long)]
    pub run: bool,
}

/// What every action is recorded with.
#[derive(Args)]
pub struct AuditArgs {
    /// Why, for the audit.
    #[arg(long)]
    pub reason: String,
    /// Who you are, for the audit [env: TIDEGATE_ACTOR] [default: USER].
    #[arg(long)]
    pub actor: Option<String>,
}
