//! Owns the schema's way forward: applies migrations under a lock, refuses a database that is newer
//! than this program, registers the kinds. Applying is refinery's work; the lock is ours, because two
//! functions deployed at once migrate at once.

use std::time::Duration;

use refinery_core::{Migration, Runner};
use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};

use crate::connect::Database;
use crate::error::{Error, describe, of_pooler};
use crate::policy::Policy;
#[cfg(feature = "schedules")]
use crate::schedule;
use crate::{queue, retention};

/// The queue's own schema.
const QUEUE: Migrations = crate::migrations!("queue":
    "sql/V0001__tables.sql",
    "sql/V0002__publish.sql",
    "sql/V0003__lease.sql",
    "sql/V0004__finalize.sql",
    "sql/V0005__log.sql",
    "sql/V0006__operate.sql",
    "sql/V0007__service.sql",
    "sql/V0008__views.sql",
    "sql/V0009__forget.sql",
    "sql/V0010__change.sql",
    "sql/V0011__schedule.sql",
    "sql/V0012__policy.sql",
    "sql/V0013__slot.sql",
    "sql/V0014__fan_in.sql",
    "sql/V0015__figures.sql",
    "sql/V0016__rights.sql",
);

/// The oldest Postgres that leases can be made on: it brought `range_agg` over multiranges.
const OLDEST_SERVER: u32 = 15;

/// How long a migration waits for another one to end.
const LOCK_WAIT: Duration = Duration::from_mins(1);

/// SQL files that make tables, applied in the order of their versions, each once; made by [`migrations!`](crate::migrations!).
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// The table that remembers what was applied.
    history: &'static str,
    files: &'static [(&'static str, &'static str)],
    grants: &'static str,
}

/// Names the [`Migrations`] of a program's own tables: what they are called, and the files, as paths from the folder of the
/// program's `Cargo.toml`. A file is called `V1__what_it_does.sql`, with its version as the number. The files are part of the
/// program; `tidegate.shop_migrations` remembers which of these were applied:
///
/// ```ignore
/// const TABLES: Migrations = tidegate::migrations!("shop": "migrations/V1__orders.sql", "migrations/V2__parcels.sql");
/// ```
#[macro_export]
macro_rules! migrations {
    ($name:literal: $($file:literal),+ $(,)?) => {
        $crate::migrate::Migrations::of_files(
            concat!("tidegate.", $name, "_migrations"),
            &[$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)))),+],
        )
    };
}

impl Migrations {
    /// What [`migrations!`](crate::migrations!) expands to.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_files(
        history: &'static str,
        files: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            history,
            files,
            grants: "",
        }
    }

    /// With SQL that gives the queue's roles (`tidegate_drain` and the others) what they need of these tables. It runs
    /// where the roles are in use, after each migration.
    #[must_use]
    pub const fn grants(mut self, sql: &'static str) -> Self {
        self.grants = sql;
        self
    }

    fn parsed(&self) -> Result<Vec<Migration>, Error> {
        let parsed = self.files.iter().map(|(path, sql)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            let name = name.strip_suffix(".sql").unwrap_or(name);
            Migration::unapplied(name, sql).map_err(|_| {
                let wanted = "must be called V, a number, __ and words, such as V1__orders.sql";
                Error::Migrate(format!("{path}: a migration {wanted}"))
            })
        });
        parsed.collect()
    }

    /// Its own, and what tells an operator the version.
    fn all_grants(&self) -> String {
        let Self {
            history, grants, ..
        } = self;
        format!("GRANT SELECT ON {history} TO tidegate_read, tidegate_operate; {grants}")
    }

    /// The version it leads to.
    fn version(&self) -> Result<i32, Error> {
        let parsed = self.parsed()?;
        Ok(parsed.iter().map(Migration::version).max().unwrap_or(0))
    }
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MigrateReport {
    /// Names of the migrations that were applied now, in order; empty when all were there.
    pub applied: Vec<String>,
    /// The queue's schema version.
    pub version: i32,
    /// Kinds of events that this program handles, all registered now.
    pub kinds: usize,
    /// Whether the roles have what `sql/roles.sql` gives them: it was asked for, now or before.
    pub roles: bool,
}

/// The roles and their grants; may run again and again.
const ROLES: &str = include_str!("../sql/roles.sql");

/// Brings a queue's schema up to date, registers a program's kinds and makes the log's partitions of the days to come. Safe
/// to run twice, also at once.
///
/// ```no_run
/// # async fn migrated(database: &tidegate::Database) -> Result<(), tidegate::Error> {
/// use tidegate::migrate::Migrate;
///
/// Migrate::new(database, &["order_placed"]).run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is changed before it is run"]
pub struct Migrate<'a> {
    database: &'a Database,
    kinds: &'a [&'a str],
    tables: Vec<Migrations>,
    max_attempts: Option<u16>,
    max_group_delay: Option<Duration>,
    takes_plaintext: Option<bool>,
    policies: &'a [(&'a str, Policy)],
    #[cfg(feature = "schedules")]
    schedules: Option<(&'a str, Vec<queue::Declared>)>,
    roles: bool,
}

impl<'a> Migrate<'a> {
    /// Of the queue in this database, for a program that handles these kinds ([`KINDS`](crate::Event::KINDS)).
    pub fn new(database: &'a Database, kinds: &'a [&'a str]) -> Self {
        Self {
            database,
            kinds,
            tables: Vec::new(),
            max_attempts: None,
            max_group_delay: None,
            takes_plaintext: None,
            policies: &[],
            #[cfg(feature = "schedules")]
            schedules: None,
            roles: false,
        }
    }

    /// With tables of the program's own, after the queue's.
    pub fn tables(mut self, tables: &[Migrations]) -> Self {
        self.tables.extend(tables);
        self
    }

    /// With this global attempt limit for events published from now on (B6); without it, that stays as it is.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// With this limit on how far ahead an event of a group may be planned by who publishes it, from now on; without it, that
    /// stays as it is. At first it is 30 days: until then the event holds up what is published to its group.
    pub fn max_group_delay(mut self, delay: Duration) -> Self {
        self.max_group_delay = Some(delay);
        self
    }

    /// With this answer to whether payloads may be stored as they are; `false` has every publish of one that is not sealed
    /// refused from now on. Without it, that stays as it is; at first it is `true`.
    pub fn takes_plaintext(mut self, takes: bool) -> Self {
        self.takes_plaintext = Some(takes);
        self
    }

    /// With these policies of the program's kinds. A kind that is not among them is handled as usual, but for what an
    /// operator says.
    pub fn policies(mut self, policies: &'a [(&'a str, Policy)]) -> Self {
        self.policies = policies;
        self
    }

    /// With what this program publishes again and again; what it has declared before and does not now is removed.
    #[cfg(feature = "schedules")]
    pub(crate) fn schedules(mut self, keeper: &'a str, declared: Vec<queue::Declared>) -> Self {
        self.schedules = Some((keeper, declared));
        self
    }

    /// Creates the database roles and grants them what is theirs. Where they are in use already, their grants follow the
    /// schema without being asked.
    pub fn with_roles(mut self) -> Self {
        self.roles = true;
        self
    }

    /// Does it.
    ///
    /// # Errors
    /// [`Error::Migrate`] when a migration fails, when the server is too old or the database newer than this program, or
    /// when another migration holds the lock for longer than a minute.
    pub async fn run(self) -> Result<MigrateReport, Error> {
        // The lock lives in a transaction of a second connection, so that it also holds through a pooler,
        // and ends with that connection whatever happens to this process.
        let guard = self.database.connect().await?;
        check_server(&guard).await?;
        lock(&guard).await?;
        let mut client = self.database.connect().await?;
        batch(&client, "CREATE SCHEMA IF NOT EXISTS tidegate").await?;
        let mut applied = apply(&mut client, &QUEUE).await?;
        for tables in &self.tables {
            applied.extend(apply(&mut client, tables).await?);
        }
        if let Some(attempts) = self.max_attempts {
            batch(&client, &default_max_attempts(attempts)).await?;
        }
        if let Some(delay) = self.max_group_delay {
            batch(&client, &max_group_delay(delay)).await?;
        }
        if let Some(takes) = self.takes_plaintext {
            batch(&client, &takes_plaintext(takes)).await?;
        }
        batch(&client, CATCH_UP).await?;
        queue::register_kinds(&client, self.kinds).await?;
        self.declare_policies(&client).await?;
        retention::make_partitions(&client).await?;
        let roles = self.roles || roles_are_in_use(&client).await?;
        if roles {
            batch(&client, ROLES).await?;
            for tables in &self.tables {
                batch(&client, &tables.all_grants()).await?;
            }
        }
        // Last: a name that somebody else has concerns nothing but schedules.
        #[cfg(feature = "schedules")]
        if let Some((keeper, declared)) = &self.schedules {
            schedule::sync(&client, keeper, declared).await?;
        }
        Ok(MigrateReport {
            applied,
            version: QUEUE.version()?,
            kinds: self.kinds.len(),
            roles,
        })
    }
}

impl Migrate<'_> {
    async fn declare_policies(&self, client: &Client) -> Result<(), Error> {
        let unknown = |(kind, _): &&(&str, Policy)| !self.kinds.contains(kind);
        if let Some((kind, _)) = self.policies.iter().find(unknown) {
            return Err(Error::Config(format!(
                "policy: must be of one of the program's kinds, got {kind:?}"
            )));
        }
        queue::declare_policies(client, self.kinds, self.policies).await
    }
}

/// Before anything is changed: half a schema on a server that cannot take the other half helps nobody.
async fn check_server(client: &Client) -> Result<(), Error> {
    let sql =
        "SELECT current_setting('server_version'), current_setting('server_version_num')::int";
    let rows = client.query_typed(sql, &[]).await;
    let rows = rows.map_err(|error| Error::Migrate(describe(&error)))?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let number: i32 = row.get(1);
    refuse_old_server(row.get(0), number.unsigned_abs()).map_err(Error::Migrate)
}

/// Says what is wrong with a server of this version, if anything is. The number is as `server_version_num` has it.
pub(crate) fn refuse_old_server(version: &str, number: u32) -> Result<(), String> {
    if number / 10_000 >= OLDEST_SERVER {
        return Ok(());
    }
    Err(format!(
        "Postgres {version} is too old: upgrade to {OLDEST_SERVER} or newer"
    ))
}

/// Roles belong to the whole server: that they exist does not say that this database uses them.
async fn roles_are_in_use(client: &Client) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_roles AS r
                WHERE r.rolname = 'tidegate_publish'
                  AND has_schema_privilege(r.oid, 'tidegate', 'USAGE') AND NOT r.rolsuper)";
    let rows = client.query_typed(sql, &[]).await;
    let rows = rows.map_err(|error| Error::Migrate(describe(&error)))?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// An advisory lock, for there may be no table yet. Any login of the database can take it and so keep migrations from
/// running, nothing else: whoever has it is named.
async fn lock(guard: &Client) -> Result<(), Error> {
    let failed = |error: tokio_postgres::Error| Error::Migrate(describe(&error));
    guard.batch_execute("BEGIN").await.map_err(failed)?;
    let sql = "SELECT CASE WHEN pg_try_advisory_xact_lock(1414087749, 0) THEN '' ELSE coalesce((
                      SELECT format('pid %s, login %s, application %s', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'unnamed'))
                        FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
                       WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1414087749 AND l.objid = 0 AND l.objsubid = 2
                         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1),
                      'a session that has just ended') END";
    let rows = guard.query_typed(sql, &[]).await.map_err(failed)?;
    let holder: String = rows.first().map_or_else(String::new, |row| row.get(0));
    if holder.is_empty() {
        return Ok(());
    }
    tracing::warn!(holder, "another session holds the lock of migrations");
    let locked = guard.batch_execute("SELECT pg_advisory_xact_lock(1414087749, 0)");
    match tokio::time::timeout(LOCK_WAIT, locked).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::Migrate(format!(
            "another session still holds the lock of migrations after {LOCK_WAIT:?}: {holder}"
        ))),
    }
}

async fn apply(client: &mut Client, tables: &Migrations) -> Result<Vec<String>, Error> {
    let mut runner = Runner::new(&tables.parsed()?)
        .set_abort_divergent(true)
        .set_abort_missing(true);
    runner.set_migration_table_name(tables.history);
    refuse_newer(client, tables.history, tables.version()?).await?;
    let report = runner
        .run_async(client)
        .await
        .map_err(|error| Error::Migrate(with_causes(&error)))?;
    Ok(report
        .applied_migrations()
        .iter()
        .map(ToString::to_string)
        .collect())
}

/// An older program must not touch a schema it does not know: while a new one is deployed, both run.
async fn refuse_newer(client: &Client, history: &str, known: i32) -> Result<(), Error> {
    match applied_version(client, history).await? {
        Some(version) if version > known => Err(Error::Migrate(format!(
            "the database has version {version} of {history}, newer than this program's {known}; use a newer program"
        ))),
        _ => Ok(()),
    }
}

/// The version a history has come to; `None` when it has not begun.
async fn applied_version(
    client: &(impl GenericClient + Sync),
    history: &str,
) -> Result<Option<i32>, Error> {
    let failed = |error: tokio_postgres::Error| Error::Migrate(describe(&error));
    let exists = client
        .query_typed("SELECT to_regclass($1)::text", &[(&history, Type::TEXT)])
        .await
        .map_err(failed)?;
    if exists
        .first()
        .and_then(|row| row.get::<_, Option<String>>(0))
        .is_none()
    {
        return Ok(None);
    }
    let rows = client
        .query_typed(&format!("SELECT max(version)::int FROM {history}"), &[])
        .await
        .map_err(failed)?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Tells whether the database is exactly what this program knows: every history at this program's
/// version, every one of `kinds` registered. Changes nothing and takes no lock.
///
/// # Errors
/// [`Error::Migrate`] says what is missing or newer.
pub async fn check(
    client: &(impl GenericClient + Sync),
    kinds: &[&str],
    tables: &[Migrations],
) -> Result<(), Error> {
    let versions = versions(client, tables).await?;
    if let Some(other) = versions
        .iter()
        .find(|version| version.found != version.known)
    {
        return Err(Error::Migrate(other.to_string()));
    }
    let unknown = queue::unregistered(client, kinds).await?;
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::Migrate(format!(
        "kinds not registered: {}",
        unknown.join(", ")
    )))
}

/// A queue that only other programs have registered kinds of is theirs: this one's kinds and tables do not belong there.
pub(crate) async fn refuse_foreign(database: &Database, kinds: &[&str]) -> Result<(), Error> {
    let client = database.connect().await?;
    let found = client
        .query_typed("SELECT to_regclass('tidegate.event_kind') IS NOT NULL", &[])
        .await;
    let found = found.map_err(|error| Error::Migrate(describe(&error)))?;
    if !found.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    match foreign(&queue::registered(&client).await?, kinds) {
        None => Ok(()),
        Some(theirs) => Err(Error::Migrate(format!(
            "this queue is another program's, with the kinds {theirs}; `migrate --share`, or \"share\": true in an invocation, lets both use it"
        ))),
    }
}

/// Another program's kinds, if only it has registered any.
pub(crate) fn foreign(registered: &[String], kinds: &[&str]) -> Option<String> {
    const TOLD: usize = 5;
    let is_ours = |kind: &String| kinds.contains(&kind.as_str());
    if registered.is_empty() || registered.iter().any(is_ours) {
        return None;
    }
    let more = if registered.len() > TOLD { ", …" } else { "" };
    Some(registered[..registered.len().min(TOLD)].join(", ") + more)
}

/// How far a history has come, and how far this program would bring it.
pub(crate) struct Version {
    pub history: &'static str,
    pub found: i32,
    pub known: i32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            history,
            found,
            known,
        } = self;
        write!(
            f,
            "the database has version {found} of {history}, this program knows {known}"
        )
    }
}

/// The versions of the queue's history and of those of `tables`.
pub(crate) async fn versions(
    client: &(impl GenericClient + Sync),
    tables: &[Migrations],
) -> Result<Vec<Version>, Error> {
    let mut versions = Vec::new();
    for one in std::iter::once(&QUEUE).chain(tables) {
        versions.push(Version {
            history: one.history,
            found: applied_version(client, one.history).await?.unwrap_or(0),
            known: one.version()?,
        });
    }
    Ok(versions)
}

/// A database that was copied row by row has the events, and their ids may be drawn from the start again: an event would have
/// the id of another one in the log.
const CATCH_UP: &str = "
    SELECT setval('tidegate.event_queue_id_seq', stored.highest)
      FROM (SELECT greatest((SELECT max(id) FROM tidegate.event_queue), (SELECT max(id) FROM tidegate.event_log)) AS highest) AS stored
     WHERE stored.highest > (SELECT last_value FROM tidegate.event_queue_id_seq)";

fn default_max_attempts(attempts: u16) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION tidegate.default_max_attempts() RETURNS integer
         LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT {attempts} $$"
    )
}

fn max_group_delay(delay: Duration) -> String {
    let seconds = delay.as_secs_f64();
    format!(
        "CREATE OR REPLACE FUNCTION tidegate.max_group_delay() RETURNS interval
         LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '{seconds} s' $$"
    )
}

fn takes_plaintext(takes: bool) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION tidegate.takes_plaintext() RETURNS boolean
         LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT {takes} $$"
    )
}

async fn batch(client: &Client, sql: &str) -> Result<(), Error> {
    client
        .batch_execute(sql)
        .await
        .map_err(|error| Error::Migrate(describe(&error)))
}

/// refinery's own text stops at "error applying migration"; the reason is in its causes.
fn with_causes(error: &refinery_core::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        let reason = source.downcast_ref::<tokio_postgres::Error>().map_or_else(
            || source.to_string(),
            |error| describe(error) + of_pooler(error),
        );
        text = format!("{text}: {reason}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_called_as_a_migration_is_refused_by_its_path() {
        let wrong = Migrations::of_files("tidegate.x_migrations", &[("sql/orders.sql", "")]);
        let told = wrong.parsed().unwrap_err().to_string();
        assert!(
            told.contains("sql/orders.sql: a migration must be called V"),
            "{told}"
        );
    }

    #[test]
    fn every_file_of_the_queues_schema_is_among_its_migrations() {
        let there = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/sql")).unwrap();
        let names = there.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut there: Vec<String> = names.filter(|name| name.starts_with('V')).collect();
        there.sort_unstable();
        let known: Vec<&str> = QUEUE
            .files
            .iter()
            .map(|(path, _)| &path["sql/".len()..])
            .collect();
        assert_eq!(known, there);
    }

    #[test]
    fn a_server_before_15_is_refused_with_its_version_and_what_is_needed() {
        let told = refuse_old_server("14.19", 140_019).unwrap_err();
        assert_eq!(told, "Postgres 14.19 is too old: upgrade to 15 or newer");
        for (version, number) in [("15.0", 150_000), ("18.6", 180_006)] {
            assert_eq!(refuse_old_server(version, number), Ok(()));
        }
    }
}
