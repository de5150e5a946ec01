//! Owns what operators ask of a program: the verbs, one file each, and what a shell (a function, a command
//! line, a console) needs to pass them on.
//!
//! A verb is a request that implements [`Verb`]: its fields are the fields of an invocation and the flags of
//! the command line, and its documentation is the command line's help. The list `verbs!` names every verb.
//! The function's dispatch, the subcommands, the JSON Schemas and the statements come from it.

#![expect(
    clippy::doc_markdown,
    reason = "the comments of requests are the command line's help, which is read as it is"
)]

mod invocation;
pub mod program;
mod publish;
pub mod schema;
mod selection;
pub mod views;

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use clap::Args;
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tidegate::drain::Hooks;
use tidegate_core::config::parse_duration;
use tidegate_core::error::{Error, Result};
use tidegate_core::json::Json;
pub use tidegate_core::queue::CatchUp;
use tidegate_core::queue::{self, Queryable, Statement};
pub use tidegate_core::status::{ExpiringKind, ServiceState, ServiceStatus};
use tokio_postgres::types::ToSql;

pub use self::invocation::*;
use self::program::{Failure, Runtime, within};
pub use self::selection::{Changed, Selection};
use self::views::LIMIT;
use crate::numbers::prometheus;
pub use crate::time_arg::{TimeArg, parse_time, parse_time_arg};

/// Names the fields of a request that are its parts and, after `;`, its audit: as [`Verb::parts`] and
/// [`Verb::audit`] do.
macro_rules! parts {
    ($($part:ident),*; $audit:ident) => {
        fn parts(&mut self) -> Vec<&mut dyn Part> {
            vec![$(&mut self.$part),*]
        }

        fn audit(&mut self) -> Option<&mut Audit> {
            Some(&mut self.$audit)
        }
    };
}

/// What an operator may ask: the request itself. [`Runtime::run`] answers it.
pub trait Verb: DeserializeOwned + Clone + Send + Sync {
    /// Its name in invocations.
    const NAME: &'static str;
    /// The values of `action` in its report.
    const ACTIONS: &'static [&'static str] = &[Self::NAME];
    /// The fields of its report that the log may have, because they name no person (I9). `None` means all.
    const LOGGED: Option<&'static [&'static str]> = None;

    /// Its report, which is printed and returned as JSON.
    type Report: Serialize + JsonSchema + Send;

    /// Returns the parts of the request that other verbs have too. In JSON, their fields are beside its own.
    fn parts(&mut self) -> Vec<&mut dyn Part> {
        Vec::new()
    }

    /// Returns its reason and actor, if it has both. In JSON, they are fields beside its own.
    fn audit(&mut self) -> Option<&mut Audit> {
        None
    }

    /// Returns where the request has the operator's name for the audit. If it has none there, the name of the
    /// settings is filled in before the verb runs.
    fn actor(&mut self) -> Option<&mut Option<String>> {
        self.audit().map(|audit| &mut audit.actor)
    }

    /// Checks what the types of the fields cannot say.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the fields and what is allowed.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the exit code of the command line: 0; 1 if nothing was done of what the request asks, or if a
    /// `forget` is incomplete; 3 if the doctor found something.
    fn code(&self, _report: &Self::Report) -> u8 {
        0
    }

    /// Does what is asked over this connection. Most verbs need no more; the others implement [`Verb::run`].
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
    fn on(&self, _client: &impl Queryable) -> impl Future<Output = Result<Self::Report>> + Send {
        let needs = format!("action: {} needs more than a connection", Self::NAME);
        std::future::ready(Err(Error::Invalid(needs)))
    }

    /// Does what is asked. By default it opens a session for [`Verb::on`].
    ///
    /// # Errors
    /// As [`Verb::on`].
    fn run(&self, runtime: &Runtime) -> impl Future<Output = Result<Self::Report>> + Send {
        async { self.on(&runtime.database.session().await?).await }
    }

    /// Does what is asked, for a caller who has this time and is gone afterwards. A verb with a budget
    /// watches the time itself; any other is cut off.
    ///
    /// # Errors
    /// As [`Verb::run`].
    fn answer(
        &self,
        runtime: &Runtime,
        time: Option<Duration>,
        _hooks: Hooks,
    ) -> impl Future<Output = Result<Json, Failure>> + Send {
        async move { answer::<Self>(time, self.run(runtime)).await }
    }
}

/// Makes what every verb needs, from the list of the verbs.
macro_rules! verbs {
    ($($file:ident: $($(#[$of_command:meta])* $name:ident($request:ident)),+;)*) => {
        $(
            mod $file;
            pub use self::$file::*;
        )*

        /// A request, by its `action`.
        #[derive(Debug, Clone, PartialEq, clap::Subcommand)]
        pub enum Request {
            $($(
                #[doc = concat!("See [`", stringify!($request), "`].")]
                $(#[$of_command])*
                $name($request),
            )+)*
            /// An action that the program adds.
            #[command(skip)]
            Further {
                /// Its name.
                action: String,
                /// All fields of the request except `action`.
                fields: Value,
            },
        }

        /// The actions of every program.
        pub(crate) const ACTIONS: &[&str] = &[$($($request::NAME,)+)*];

        /// The statements of the verbs and views, for tests.
        pub fn statements() -> impl Iterator<Item = &'static Statement> {
            static OF_VERBS: &[&[&Statement]] = &[$($file::ALL,)* publish::ALL];
            let all = OF_VERBS.iter().chain(&views::STATEMENTS);
            let all = all.chain(&crate::doctor::STATEMENTS).chain([&prometheus::ALL]);
            all.copied().flatten().copied()
        }

        impl Request {
            /// Reads the fields of an action, as an invocation has them.
            ///
            /// # Errors
            /// [`Error::Invalid`] names the field and what it must be.
            pub fn read(action: &str, fields: Map<String, Value>) -> Result<Self> {
                $($(if action == $request::NAME {
                    return invocation::read(fields).map(Self::$name);
                })+)*
                let (action, fields) = (action.to_owned(), Value::Object(fields));
                Ok(Self::Further { action, fields })
            }

            /// Does what is asked, without a time limit.
            ///
            /// # Errors
            /// As [`Runtime::run`]; [`Error::Invalid`] if only the program knows the action.
            pub async fn report(&self, runtime: &Runtime) -> Result<Reported> {
                match self {
                    $($(Self::$name(request) => {
                        Reported::of(request, &runtime.run(request).await?)
                    })+)*
                    Self::Further { action, .. } => {
                        Err(Error::Invalid(format!("action: {action:?} is the program's own")))
                    }
                }
            }

            async fn answer(
                &self,
                runtime: &Runtime,
                time: Option<Duration>,
                hooks: Hooks,
            ) -> Result<Json, Failure> {
                match self {
                    $($(Self::$name(request) => {
                        let request = runtime.checked(request)?;
                        Ok(invocation::within_limit(request.answer(runtime, time, hooks).await?)?)
                    })+)*
                    // The program itself limits the content and the length of this answer.
                    Self::Further { action, fields } => {
                        Ok(within(time, runtime.further(action, fields.clone())).await?.into())
                    }
                }
            }
        }

        /// Returns the fields that the log may have of the report of an action: [`Verb::LOGGED`].
        pub fn logged(action: &str) -> Option<&'static [&'static str]> {
            $($(if action == $request::NAME {
                return $request::LOGGED;
            })+)*
            None
        }

        fn schema_of(action: &str) -> Option<Value> {
            $($(if action == $request::NAME {
                return Some(schema::one_of::<<$request as Verb>::Report>($request::ACTIONS));
            })+)*
            None
        }
    };
}

// The verbs, in the order of the command line's help: the file of each, its name in Rust and its request.
// Attributes are for the command line, which has its own form of the verbs that it skips. The list also
// declares the modules, so `cargo fmt` does not find their files; `make fmt` does.
verbs! {
    migrate: Migrate(MigrateRequest);
    drain: #[command(skip)] Drain(DrainRequest);
    cleanup: Cleanup(CleanupRequest);
    retention: Retention(RetentionRequest);
    stats: #[command(skip)] Stats(StatsRequest);
    show: Show(ShowRequest);
    list: List(ListRequest);
    failures: Failures(FailuresRequest);
    blocked_groups: BlockedGroups(BlockedGroupsRequest);
    leases: Leases(LeasesRequest);
    doctor: Doctor(DoctorRequest);
    replay: Replay(ReplayRequest);
    requeue: Requeue(RequeueRequest);
    cancel: Cancel(CancelRequest);
    reschedule: Reschedule(RescheduleRequest);
    pause: Pause(PauseRequest), Resume(ResumeRequest);
    services: Services(ServicesRequest);
    service: Service(ServiceRequest);
    retire: Retire(RetireRequest);
    unblock: Unblock(UnblockRequest);
    note: Note(NoteRequest);
    forget: Forget(ForgetRequest);
    schedules: Schedules(SchedulesRequest);
    schedule: Schedule(ScheduleRequest);
}

/// What nearly every verb needs.
mod prelude {
    pub(super) use std::time::Duration;

    pub(super) use clap::Args;
    pub(super) use schemars::JsonSchema;
    pub(super) use serde::{Deserialize, Serialize};
    pub(super) use tokio_postgres::types::ToSql;

    pub(super) use super::program::Runtime;
    pub(super) use super::{Audit, Part, Verb, given, report, written};
    pub(super) use tidegate_core::config::parse_duration;
    pub(super) use tidegate_core::error::{Error, Result};
    pub(super) use tidegate_core::json::Json;
    pub(super) use tidegate_core::queue::Queryable;
    pub(super) use tidegate_core::statements;
}

/// A part of a request that several verbs have.
pub trait Part {
    /// Reads the part from its fields of an invocation, and removes these fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and what it must be.
    fn read(&mut self, fields: &mut Fields) -> Result<()>;
}

impl<T: DeserializeOwned> Part for T {
    fn read(&mut self, fields: &mut Fields) -> Result<()> {
        *self = fields.take()?;
        Ok(())
    }
}

/// Reason and actor that the audit records with every action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Args)]
pub struct Audit {
    /// Reason for the change, recorded in the audit.
    #[arg(long)]
    pub reason: String,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    pub actor: Option<String>,
}

impl Audit {
    /// Sets the reason, which must not be blank and has at most 1,000 characters. The operator's name is that
    /// of the settings, unless [`Audit::by`] sets another.
    pub fn of(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            actor: None,
        }
    }

    /// Sets the operator's name; 1 to 200 characters. It is not verified.
    #[must_use]
    pub fn by(self, actor: impl Into<String>) -> Self {
        Self {
            actor: Some(actor.into()),
            ..self
        }
    }
}

/// An event that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// The event's id.
    pub id: i64,
    /// Why it was left out.
    pub reason: String,
    /// The event that stands in the way.
    #[schemars(title = "in the way")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<i64>,
}

/// A value that invocations have as text, in the format of the command line.
trait Written: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

macro_rules! written {
    ($($value:ty: $parse:ident),*) => {
        $(impl Written for $value {
            fn parse(text: &str) -> Result<Self, String> {
                $parse(text)
            }
        })*
    };
}

written!(Duration: parse_duration, SystemTime: parse_time, Subject: parse_subject);

/// Reads a [`Written`] field.
fn written<'de, T: Written, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let value = text.map(|text| T::parse(&text)).transpose();
    value.map_err(D::Error::custom)
}

/// The range in the type that clap's parsers take.
fn bounds<T: Copy + TryInto<i64>>(range: &RangeInclusive<T>) -> RangeInclusive<i64> {
    let bound = |value: T| value.try_into().unwrap_or(i64::MAX);
    bound(*range.start())..=bound(*range.end())
}

fn length() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(bounds(&LIMIT))
}

fn given(flags: &[bool]) -> usize {
    flags.iter().filter(|given| **given).count()
}

/// The status in upper case, as the database has it.
fn one_of(status: Option<&String>, known: &[&'static str]) -> Result<Option<&'static str>> {
    let Some(given) = status else {
        return Ok(None);
    };
    let found = known.iter().find(|one| one.eq_ignore_ascii_case(given));
    found.copied().map(Some).ok_or_else(|| {
        let list = known.join(", ");
        Error::Invalid(format!("status: must be one of {list}, got {given:?}"))
    })
}

fn event_id(text: &str) -> Result<i64, String> {
    let id = text.parse();
    id.map_err(|_| "must be the id of an event, a whole number".to_owned())
}

/// Runs a statement that answers with one document, and reads the report from it.
async fn report<R: DeserializeOwned>(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<R> {
    let answer = queue::document(client, statement, values).await;
    let report = answer.map_err(queue::refused)?;
    report.ok_or_else(|| Error::Unreadable(format!("{}: no row", statement.name)))
}

/// Answers with a report, within `time` if the caller has a limit.
async fn answer<V: Verb>(
    time: Option<Duration>,
    work: impl Future<Output = Result<V::Report>>,
) -> Result<Json, Failure> {
    Ok(document::<V>(&within(time, work).await?)?)
}

/// The report of any verb, for shells, which print it.
#[derive(Debug, Clone)]
pub struct Reported {
    /// The verb's name. [`schema::of_action`] has the schema of the document.
    pub verb: &'static str,
    /// Whether the verb is an action: the audit names an operator for it, or it has a dry run.
    pub acts: bool,
    /// The report as a JSON object, with the action's name.
    pub document: Json,
    /// The exit code of the command line.
    pub code: u8,
}

impl Reported {
    /// Writes the report of this request as JSON, and takes the verb's exit code.
    ///
    /// # Errors
    /// [`Error::Unreadable`] when it cannot be written as JSON.
    pub fn of<V: Verb>(verb: &V, report: &V::Report) -> Result<Self> {
        let document = document::<V>(report)?;
        let is_tried = document.members().iter().any(|(name, _)| name == "dry_run");
        Ok(Self {
            verb: V::NAME,
            acts: is_tried || verb.clone().actor().is_some(),
            document,
            code: verb.code(report),
        })
    }
}

/// Writes the report of a verb as a JSON object, with the action's name.
fn document<V: Verb>(report: &V::Report) -> Result<Json> {
    #[derive(Serialize)]
    struct Told<'a, R> {
        #[serde(skip_serializing_if = "Option::is_none")]
        action: Option<&'static str>,
        #[serde(flatten)]
        report: &'a R,
    }
    // A verb of several actions says itself which one it was.
    let action = (V::ACTIONS == [V::NAME]).then_some(V::NAME);
    Json::of(&Told { action, report })
        .map_err(|error| Error::Unreadable(format!("report: {error}")))
}
