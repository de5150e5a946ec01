//! Owns the views for operators who watch a queue of any size: rights, depths, figures over time, what needs
//! attention, one event, the audit. A row is a JSON document that is read into its type. Every view reads a
//! bounded number of rows. If it reaches its bound, the answer says so. Nothing here changes anything.

mod event;
mod finished;
pub(crate) mod rows;

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidegate_core::config::in_range;
use tidegate_core::connect::Client;
use tidegate_core::error::{Error, Result};
use tidegate_core::queue::{Statement, backlog, document, documents, services};
use tidegate_core::statements;
use tidegate_core::status::{ServiceState, ServiceStatus};
use tokio_postgres::types::ToSql;

pub use self::event::{Columns, Content, Dossier, place, show, show_bare};
pub use self::finished::{KindTotals, Span, Step};
use super::program::Runtime;

/// The statements of all views.
pub(super) static STATEMENTS: [&[&Statement]; 3] = [ALL, event::ALL, finished::ALL];

/// The allowed lengths of a list.
pub const LIMIT: RangeInclusive<u32> = 1..=10_000;

/// The length of a list if the request does not set one.
pub const LISTED: u32 = 50;

/// The length of a list: the requested one, or [`LISTED`].
///
/// # Errors
/// [`Error::Invalid`] if the length is not in [`LIMIT`].
pub(super) fn limit(limit: Option<u32>) -> Result<i64> {
    let limit = limit.unwrap_or(LISTED);
    in_range("limit", limit, &LIMIT).map_err(Error::Invalid)?;
    Ok(limit.into())
}

/// The most live events that are counted. Above this, their number is an estimate.
pub const COUNTED: u32 = 100_000;

/// The most drains in an overview.
const DRAINS_SHOWN: i64 = 8;

statements! {
    /// The rights of this login: to read payloads, and to act.
    RIGHTS: "rights" [] = "\
SELECT jsonb_build_object(
           'content', has_column_privilege('@tidegate.event_queue', 'payload', 'SELECT')
               AND has_column_privilege('@tidegate.event_log', 'payload', 'SELECT'),
           'act', NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'
               AND EXISTS (SELECT FROM pg_proc AS p
                            WHERE p.pronamespace = '@tidegate'::regnamespace AND p.proname = 'replay'
                              AND has_function_privilege(p.oid, 'EXECUTE')),
           'user', current_user, 'database', current_database())::text";

    /// Live events by kind, among the first `$1`.
    DEPTHS: "depths" [INT8] = "SELECT to_jsonb(d)::text FROM @tidegate.depths($1) AS d ORDER BY d.kind";

    /// How many groups wait for their first event.
    BLOCKED: "blocked" [] = "SELECT count(*)::text FROM @tidegate.blocked()";

    /// The live events of a group in order, at most `$2`, with what each waits for.
    GROUP: "group_events" [TEXT, INT8] = "\
WITH held AS MATERIALIZED (SELECT ids, started FROM @tidegate.held)
SELECT (to_jsonb(g) || jsonb_build_object('why', @tidegate.why(g.id)))::text
  FROM (SELECT q.id, q.kind, CASE WHEN q.id <@ held.ids THEN 'PROCESSING' ELSE 'PENDING' END AS status,
               q.attempts + (q.id <@ held.started AND q.attempts < q.max_attempts)::int AS attempts, q.max_attempts,
               q.group_key, q.correlation_id, q.created_at, q.available_at, q.delayed, NULL::timestamptz AS finished_at, q.last_error
          FROM @tidegate.event_queue AS q, held
         WHERE q.group_key = $1 ORDER BY q.id LIMIT $2) AS g";

    /// Audit entries, latest first: below the id `$1`, of the operator `$2` and the action `$3`, at most
    /// `$4`. An entry can name a hundred thousand events; the first ten are returned.
    AUDIT: "audit" [INT8, TEXT, TEXT, INT8] = "\
SELECT to_jsonb(a)::text
  FROM (SELECT id, at, session_user_name, actor, action, filter - 'ids' AS filter, ids[1:10] AS ids, count, reason
          FROM @tidegate.audit
         WHERE ($1::bigint IS NULL OR id < $1) AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3)
         ORDER BY id DESC LIMIT $4) AS a";

    /// The targets that are declared, with their kinds and the state of their service.
    TARGETS: "target_states" [] = "\
SELECT jsonb_build_object('target', t.target, 'since', t.since, 'state', coalesce(s.state, 'closed'), 'last_error', s.last_error,
           'way', (SELECT w FROM unnest(ARRAY['lambda', 'https', 'sqs', 'eventbridge']) AS w WHERE t.address ? w LIMIT 1),
           'kinds', ARRAY(SELECT k.kind FROM @tidegate.event_kind AS k WHERE t.target = ANY (k.targets) ORDER BY k.kind))::text
  FROM @tidegate.target AS t LEFT JOIN @tidegate.service AS s ON s.service = t.target
 ORDER BY coalesce(s.state, 'closed') = 'closed', t.target LIMIT 1000";

    /// Registered kinds with policy and retention.
    KINDS: "kinds" [] = "SELECT to_jsonb(k)::text FROM @tidegate.event_kind AS k ORDER BY k.kind LIMIT 1000";

    /// The log's partitions with the planner's estimates, the first to expire first.
    LOG_PARTITIONS: "partition_sizes" [] = "\
SELECT jsonb_build_object('partition', c.relname, 'holds', pg_get_expr(c.relpartbound, c.oid),
           'rows', nullif(greatest(c.reltuples, -1), -1)::bigint, 'bytes', pg_total_relation_size(c.oid))::text
  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = '@tidegate.event_log'::regclass ORDER BY c.relname LIMIT 500";

    /// The latest finished drains, at most `$1`.
    DRAINS: "drains" [INT8] =
        "SELECT to_jsonb(r)::text FROM @tidegate.drain_run AS r ORDER BY r.ended_at DESC LIMIT $1";
}

/// The rights of the database login.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[non_exhaustive]
pub struct Rights {
    /// Whether it may read payloads, results, progress and the details of errors.
    pub content: bool,
    /// Whether it may act on events. False on a read-only database.
    pub act: bool,
    /// The database's user.
    pub user: String,
    /// The database's name.
    pub database: String,
}

/// The live events of one kind, among those that were counted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Depth {
    /// The kind.
    pub kind: String,
    /// All events of this kind.
    pub events: u64,
    /// Leased events.
    pub running: u64,
    /// Events that wait for a planned time or for another attempt.
    pub delayed: u64,
    /// Events leased by workers that have stopped responding.
    pub stuck: u64,
    /// The time when the oldest of them was published, RFC 3339.
    pub oldest: Option<String>,
}

/// How full the queue is and what needs attention, for a queue of any size.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Overview {
    /// Live events; exact below [`COUNTED`], else an estimate.
    pub events: u64,
    /// Whether `events` is an estimate and `depths` covers only the first [`COUNTED`] events.
    pub is_estimate: bool,
    /// Age of the live event with the lowest id.
    pub oldest_age_ms: u64,
    /// By kind.
    pub depths: Vec<Depth>,
    /// Blocked groups.
    pub blocked: u64,
    /// Services; unavailable ones first.
    pub services: Vec<ServiceStatus>,
    /// The latest drains.
    pub drains: Vec<DrainRun>,
}

/// A finished drain.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DrainRun {
    /// The worker's id.
    pub worker: String,
    /// The start, RFC 3339.
    pub started_at: String,
    /// The end.
    pub ended_at: String,
    /// Why it ended; `failed` if it failed.
    pub stop_reason: String,
    /// Its report; of a failed one with the `error`.
    pub report: Value,
}

/// A registered kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Kind {
    /// Its name.
    pub kind: String,
    /// Whether it is paused.
    pub paused: bool,
    /// The time of its registration, RFC 3339.
    pub registered_at: String,
    /// The retention of COMPLETED events, as the database writes intervals.
    pub retention_completed: String,
    /// The retention of other events.
    pub retention_failed: String,
    /// The policy that its program has declared, as stored.
    pub policy: Map<String, Value>,
}

/// A target that `tidegate-relay` calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TargetState {
    /// Its name, and that of its service.
    pub target: String,
    /// How it is called: `lambda`, `https`, `sqs` or `eventbridge`.
    pub way: Option<String>,
    /// The kinds of events that go to it.
    pub kinds: Vec<String>,
    /// The state of its service.
    pub state: ServiceState,
    /// The code of its last failure.
    pub last_error: Option<String>,
    /// The time when it was last declared otherwise than before, RFC 3339.
    pub since: String,
}

/// Which audit entries to show, latest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditRequest {
    /// Only entries with lower ids, for the next page.
    pub before: Option<i64>,
    /// Only of this operator.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// The most entries.
    pub limit: u32,
}

impl Runtime {
    /// Opens a connection for one view, in a transaction that changes nothing. The statement timeout is that
    /// of `looks_within`, if it is set.
    pub(super) async fn looking(&self) -> Result<Client> {
        self.looking_with("").await
    }

    /// As [`Runtime::looking`], with these settings for the transaction.
    pub(super) async fn looking_with(&self, settings: &str) -> Result<Client> {
        let client = self.database.connect().await?;
        let limit = self.looks_within.map(|limit| {
            let millis = limit.as_millis().clamp(1, 600_000);
            format!("SET LOCAL statement_timeout = {millis}; ")
        });
        let settings = limit.unwrap_or_default() + settings;
        client.begin_look(&settings).await?;
        Ok(client)
    }

    async fn view<T: DeserializeOwned>(
        &self,
        statement: &'static Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>> {
        documents(&self.looking().await?, statement, values).await
    }

    /// Returns what the login of this process may do.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rights(&self) -> Result<Rights> {
        let rights = self.view(&RIGHTS, &[]).await?;
        Ok(rights.into_iter().next().unwrap_or_default())
    }

    /// Returns how full the queue is and what needs attention. Counts at most [`COUNTED`] events.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn overview(&self) -> Result<Overview> {
        let client = self.looking().await?;
        let backlog = backlog(&client).await?;
        let depths = documents(&client, &DEPTHS, &[&i64::from(COUNTED)]).await?;
        Ok(Overview {
            events: backlog.events,
            is_estimate: backlog.is_estimate(),
            oldest_age_ms: backlog.oldest_age_ms,
            depths,
            blocked: document(&client, &BLOCKED, &[]).await?.unwrap_or_default(),
            services: services(&client).await?,
            drains: documents(&client, &DRAINS, &[&DRAINS_SHOWN]).await?,
        })
    }

    /// Returns the latest finished drains, the last one first.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn drains(&self, most: u32) -> Result<Vec<DrainRun>> {
        self.view(&DRAINS, &[&limit(Some(most))?]).await
    }

    /// Returns the registered kinds by name, at most 1,000.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn kinds(&self) -> Result<Vec<Kind>> {
        self.view(&KINDS, &[]).await
    }

    /// Returns the declared targets, at most 1,000; first those that are not called.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn targets(&self) -> Result<Vec<TargetState>> {
        self.view(&TARGETS, &[]).await
    }

    /// Returns the first `most` live events of a group, in their order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn group(&self, key: &str, most: u32) -> Result<Vec<Value>> {
        self.view(&GROUP, &[&key, &limit(Some(most))?]).await
    }

    /// Returns audit entries, latest first, each with the first ten events that it names.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the limit is out of range; when the database fails.
    pub async fn audit(&self, request: &AuditRequest) -> Result<Vec<Value>> {
        let limit = limit(Some(request.limit))?;
        let values: &[&(dyn ToSql + Sync)] =
            &[&request.before, &request.actor, &request.action, &limit];
        self.view(&AUDIT, values).await
    }

    /// Returns the partitions of the log with the planner's estimates of their rows, at most 500.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn log_partitions(&self) -> Result<Vec<Value>> {
        self.view(&LOG_PARTITIONS, &[]).await
    }
}
