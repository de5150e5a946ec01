//! Owns the upgrade of the schema: applies migrations under a lock, refuses a database that is newer than
//! this program, and registers the kinds. The lock is our own, because two functions that are deployed at
//! once migrate at once.

mod patience;
mod script;
mod stored;

use std::collections::BTreeMap;
use std::time::Duration;

use refinery_core::Migration;
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

pub use self::stored::{Payloads, StoredSettings};
use crate::connect::{BEGIN, Client, Conn, Database, Schema, Transaction};
use crate::error::{Error, Result, describe};
use crate::policy::Policy;
use crate::queue;
use crate::queue::retention::{in_days, make_partitions};
use crate::queue::statement::literal;
use crate::queue::{Queryable, Redeclared, Targets};
use patience::{PAUSE, Patient, SESSION, TRIES};
use script::{Declaration, lacking};

/// The queue's own schema.
pub const QUEUE: Migrations = crate::migrations!("queue":
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
    "sql/V0014__figures.sql",
    "sql/V0015__pull.sql",
    "sql/V0016__target.sql",
    "sql/V0017__rights.sql",
    "sql/V0018__doctor.sql",
)
.with_grants_within();

/// What is wrong with the server, the database or the schema's name, as an expression of SQL; null if nothing
/// is. 15 is the oldest Postgres on which leases work, because it introduced `range_agg` over multiranges.
/// What the database stores must be text here.
const UNFIT: &str = "CASE WHEN current_setting('server_version_num')::int < 150000
              THEN format('Postgres %s is too old: upgrade to 15 or newer', current_setting('server_version'))
         WHEN current_setting('server_encoding') <> 'UTF8'
              THEN format('the database must be in UTF8, got %s', current_setting('server_encoding'))
         WHEN EXISTS (SELECT FROM pg_get_keywords() AS k WHERE k.word = '@tidegate' AND k.catcode <> 'U')
              THEN 'TIDEGATE_SCHEMA: must be another name than \"@tidegate\", which is a word of SQL'
         WHEN to_regnamespace('@tidegate') IS NULL AND NOT has_database_privilege(current_database(), 'CREATE')
              THEN format('this login may make no schema in this database: let an administrator run CREATE SCHEMA @tidegate AUTHORIZATION %I', current_user) END";

/// Makes the schema, unless it is there already. (`CREATE SCHEMA IF NOT EXISTS` would fail for a login that
/// may make none, even if an administrator has made it.)
const MAKE_SCHEMA: &str = "DO $$
BEGIN
    IF to_regnamespace('@tidegate') IS NULL THEN
        CREATE SCHEMA @tidegate;
    END IF;
END $$;
";

/// How long a migration waits for another one to end.
const LOCK_WAIT: Duration = Duration::from_mins(1);

/// SQL files that create tables. Each is applied once, in the order of their versions. Created by
/// [`migrations!`](crate::migrations!).
#[derive(Debug, Clone, Copy)]
pub struct Migrations {
    /// The table that records which migrations were applied.
    history: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// `None`: the grants are in the files.
    grants: Option<&'static str>,
}

/// Creates the [`Migrations`] of a program's own tables from a name and the files. The paths are relative to
/// the folder of the program's `Cargo.toml`. A file is named `V1__what_it_does.sql`, where the number is its
/// version. The files become part of the program. In them, `@tidegate` stands for the queue's schema. In this
/// example, the schema's table `shop_migrations` records which of the files were applied:
///
/// ```ignore
/// const TABLES: Migrations =
///     tidegate::migrations!("shop": "migrations/V1__orders.sql", "migrations/V2__parcels.sql");
/// ```
#[macro_export]
macro_rules! migrations {
    ($name:literal: $($file:literal),+ $(,)?) => {
        $crate::migrate::Migrations::of_files(
            concat!("@tidegate.", $name, "_migrations"),
            &[$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)))),+],
        )
    };
}

/// A line for each object of a schema that only migrations have changed, by which the doctor notices other
/// changes. `make schema` writes it anew.
pub const CATALOG: &str = include_str!("../sql/catalog.txt");

impl Migrations {
    /// Builds the value that [`migrations!`](crate::migrations!) expands to.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_files(
        history: &'static str,
        files: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            history,
            files,
            grants: Some(""),
        }
    }

    /// Adds SQL that grants the queue's roles (`tidegate_drain` and the others) what they need on these
    /// tables. It runs after each migration where the roles are in use.
    #[must_use]
    pub const fn grants(mut self, sql: &'static str) -> Self {
        self.grants = Some(sql);
        self
    }

    /// Takes the grants from the files, at whose ends they stand (see [`parts`]).
    const fn with_grants_within(mut self) -> Self {
        self.grants = None;
        self
    }

    /// Returns the paths and texts of the files, with `\n` at the ends of lines: a checkout that has other
    /// ones has the same migrations.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let texts = self.files.iter();
        texts.map(|(path, sql)| (*path, sql.replace("\r\n", "\n")))
    }

    fn parsed(&self, schema: &Schema) -> Result<Vec<Migration>> {
        let parsed = self.texts().map(|(path, sql)| {
            let name = path.rsplit('/').next().unwrap_or(path);
            let name = name.strip_suffix(".sql").unwrap_or(name);
            let tables = if self.grants.is_none() {
                &parts(&sql).0
            } else {
                &sql
            };
            Migration::unapplied(name, &schema.written(tables)).map_err(|_| {
                let form = "must be called V, a number, __ and words, such as V1__orders.sql";
                Error::Migrate(format!("{path}: a migration {form}"))
            })
        });
        parsed.collect()
    }

    /// Returns the grants of these tables, and one that lets operators read the version.
    fn all_grants(&self) -> String {
        let history = self.history;
        let grants = self.grants.map_or_else(
            || self.files.iter().map(|(_, sql)| parts(sql).1).collect(),
            str::to_owned,
        );
        format!("GRANT SELECT ON {history} TO @tidegate_read, @tidegate_operate; {grants}")
    }

    /// Returns the version of the last file; 0 without files.
    fn version(&self) -> Result<i32> {
        let parsed = self.parsed(&Schema::default())?;
        Ok(parsed.iter().map(Migration::version).max().unwrap_or(0))
    }
}

/// Splits a file into the text of its migration and its grants. A grant begins a line, and ends a line with
/// its semicolon. It is no part of the migration, because the roles are optional: all grants are made after
/// each migration where the roles are in use. So a grant can be changed where it stands, also after a
/// release.
fn parts(sql: &str) -> (String, String) {
    let (mut tables, mut grants, mut granting) = (String::new(), String::new(), false);
    for line in sql.lines() {
        granting |= line.starts_with("GRANT ");
        let part = if granting { &mut grants } else { &mut tables };
        part.push_str(line);
        part.push('\n');
        granting &= !line.ends_with(';');
    }
    (tables, grants)
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct MigrateReport {
    /// Whether this was a dry run, which changes nothing. Missing if it was none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The names of the migrations that were applied now, in order. Empty when all of them had been applied
    /// before.
    pub applied: Vec<String>,
    /// The queue's schema version.
    pub version: i32,
    /// How many kinds of events this program handles. A migration registers them.
    pub kinds: usize,
    /// Whether the roles have their grants, because that was requested now or before.
    pub roles: bool,
    /// What differs from the targets and kinds that were declared before, such as `targets.ship`, in a
    /// program whose handlers are stored in the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<BTreeMap<String, Redeclared>>,
    /// With `print`: what the migration would do, as SQL; empty if nothing is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
}

/// Can run repeatedly.
const ROLES: &str = include_str!("../sql/roles.sql");

/// What differs from the targets that were declared before.
type Difference = Option<BTreeMap<String, Redeclared>>;

/// Brings a queue's schema up to date, registers a program's kinds, and creates the log's partitions for the
/// coming days. It is safe to run it twice, even at the same time.
///
/// ```no_run
/// # use tidegate_core as tidegate;
/// # async fn migrated(database: &tidegate::connect::Database) -> Result<(), tidegate::Error> {
/// use tidegate::migrate::Migrate;
///
/// Migrate::new(&["order_placed"]).run(database).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is changed before it is run"]
pub struct Migrate<'a> {
    kinds: &'a [&'a str],
    tables: Vec<Migrations>,
    stored: StoredSettings,
    policies: Option<&'a [(&'a str, Policy)]>,
    retentions: &'a [(&'a str, Option<Duration>)],
    schedules: Option<(&'a str, Vec<queue::Declared>)>,
    targets: Option<(&'a Targets, Option<&'a str>)>,
    roles: bool,
}

impl<'a> Migrate<'a> {
    /// Creates a migration for a program that handles these kinds ([`KINDS`](crate::Event::KINDS)).
    pub fn new(kinds: &'a [&'a str]) -> Self {
        Self {
            kinds,
            tables: Vec::new(),
            stored: StoredSettings::default(),
            policies: None,
            retentions: &[],
            schedules: None,
            targets: None,
            roles: false,
        }
    }

    /// Adds tables of the program's own, which are created after the queue's.
    pub fn tables(mut self, tables: &[Migrations]) -> Self {
        self.tables.extend(tables);
        self
    }

    /// Sets what the database stores for all producers and drains.
    pub fn stored(mut self, settings: StoredSettings) -> Self {
        self.stored = settings;
        self
    }

    /// Sets the policies of the program's kinds. A kind without a policy is handled with the defaults, except
    /// for what an operator has set. Without this call, the kinds keep the policies that are stored.
    pub fn policies(mut self, policies: &'a [(&'a str, Policy)]) -> Self {
        self.policies = Some(policies);
        self
    }

    /// Sets how long rows of the program's own tables are kept, `None` for ever, by the SQL function that
    /// removes them (`tidegate.declare_retention`).
    pub fn retentions(mut self, retentions: &'a [(&'a str, Option<Duration>)]) -> Self {
        self.retentions = retentions;
        self
    }

    /// Sets this program's periodic events. Those that it declared before and does not declare now are
    /// removed.
    pub fn schedules(mut self, keeper: &'a str, declared: Vec<queue::Declared>) -> Self {
        self.schedules = Some((keeper, declared));
        self
    }

    /// Replaces the targets that are declared in the database, with the operator's name for the audit.
    pub fn targets(mut self, targets: &'a Targets, actor: Option<&'a str>) -> Self {
        self.targets = Some((targets, actor));
        self
    }

    /// Creates the database roles and grants their privileges. Where the roles are already in use, the grants
    /// follow the schema without this call.
    pub fn with_roles(mut self) -> Self {
        self.roles = true;
        self
    }

    /// Brings the database up to date. Publishers wait for a migration for two seconds at a time at most.
    ///
    /// # Errors
    /// [`Error::Migrate`] when a migration fails, when the server is too old, when the database is newer than
    /// this program, when another migration holds the lock for longer than a minute, or when other sessions
    /// hold locks on the tables. The text then names these sessions.
    pub async fn run(self, database: &Database) -> Result<MigrateReport> {
        // Checked before anything is changed.
        let steps = self.steps()?.into_iter().map(|Declaration(sql, _)| sql);
        let steps = steps.collect::<Vec<_>>().join(";\n");
        // The lock is held by a transaction on a second connection. So it also works through a pooler, and it
        // ends with that connection whatever happens to this process.
        let guard = database.connect().await?;
        server(&guard).await?.map_err(Error::Migrate)?;
        lock(&guard, database.schema()).await?;
        let mut client = database.session().await?;
        let mut client = Patient::new(&mut client, &guard);
        let mut applied = Vec::new();
        let mut tries = 1;
        let (roles, difference) = loop {
            let done = Box::pin(self.bring_up(&mut client, &steps, &mut applied)).await;
            match (done, client.gave_up_on()) {
                (Err(error), Some(who)) if tries == TRIES => {
                    return Err(patience::gave_up(&error, &who));
                }
                (Err(_), Some(who)) => {
                    tracing::warn!(who, tries, "another session holds a lock; trying again");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                (done, _) => break done?,
            }
        };
        // Schedules come last: a conflict over a name must not stop the rest of the migration.
        if let Some((keeper, declared)) = &self.schedules {
            queue::sync_schedules(client.client(), keeper, declared).await?;
        }
        self.report(applied, roles, difference)
    }

    /// Returns what a migration of the targets would change, and changes nothing.
    ///
    /// # Errors
    /// [`Error::Migrate`] when the schema is not up to date; otherwise as [`Migrate::run`].
    pub async fn compare(self, database: &Database) -> Result<MigrateReport> {
        let mut client = database.connect().await?;
        check(&client, &[], &self.tables).await?;
        let roles = roles_are_in_use(&client).await?;
        let failed = Error::at("migrate");
        let transaction = client.transaction().await.map_err(&failed)?;
        let mut difference = None;
        if let Some((targets, actor)) = self.targets {
            difference = Some(queue::declare_targets(&transaction, targets, actor).await?);
        }
        transaction.rollback().await.map_err(&failed)?;
        self.planned(roles, difference)
    }

    /// Returns the report of a run that changes nothing.
    fn planned(&self, roles: bool, targets: Difference) -> Result<MigrateReport> {
        Ok(MigrateReport {
            dry_run: true,
            ..self.report(Vec::new(), roles, targets)?
        })
    }

    fn report(
        &self,
        applied: Vec<String>,
        roles: bool,
        targets: Difference,
    ) -> Result<MigrateReport> {
        let of_targets = self.targets.map(|(targets, _)| targets.kinds.len());
        Ok(MigrateReport {
            dry_run: false,
            applied,
            version: QUEUE.version()?,
            kinds: of_targets.unwrap_or(self.kinds.len()),
            roles,
            targets,
            script: None,
        })
    }

    /// Does everything but the schedules, and can be repeated. Returns whether the roles are in use, and what
    /// differs from the targets that were declared before.
    async fn bring_up(
        &self,
        client: &mut Patient<'_>,
        steps: &str,
        applied: &mut Vec<String>,
    ) -> Result<(bool, Difference)> {
        client.batch("schema", MAKE_SCHEMA).await?;
        let schema = client.client().conn().schema.clone();
        for tables in self.histories() {
            for (name, sql) in lacking(tables, &schema, Some(client.client())).await? {
                client.batch(&name, &sql).await?;
                applied.push(name);
            }
        }
        client.batch("declarations", steps).await?;
        let mut difference = None;
        if let Some((targets, actor)) = self.targets {
            let declare = async |transaction: &Transaction<'_>| {
                queue::declare_targets(transaction, targets, actor).await
            };
            difference = Some(client.within(declare).await?);
        }
        make_partitions(client.client()).await?;
        let roles = self.roles || roles_are_in_use(client.client()).await?;
        if roles {
            client.batch("roles", ROLES).await?;
            if !roles_are_in_use(client.client()).await? {
                let grant = ROLES.lines().rfind(|line| line.starts_with("GRANT"));
                let schema = &client.client().conn().schema;
                let grant = schema.written(grant.unwrap_or_default());
                return Err(Error::Migrate(format!(
                    "the schema belongs to another login, which must let the roles use it: {grant}"
                )));
            }
            for tables in self.histories() {
                client.batch("grants", &tables.all_grants()).await?;
            }
        }
        Ok((roles, difference))
    }

    /// Returns what follows the files, except for targets, schedules and partitions.
    fn steps(&self) -> Result<Vec<Declaration>> {
        self.stored.check_ranges()?;
        let unknown = |(kind, _): &&(&str, Policy)| !self.kinds.contains(kind);
        let policies = self.policies.unwrap_or_default();
        if let Some((kind, _)) = policies.iter().find(unknown) {
            return Err(Error::Config(format!(
                "policy: must be of one of the program's kinds, got {kind:?}"
            )));
        }
        let moved = format!("SELECT @tidegate.move_in();{CATCH_UP}");
        let mut steps = vec![Declaration(moved, "NOT @tidegate.is_copy()".to_owned())];
        steps.extend(self.stored.steps());
        let other = self.policies.map_or("NULL", |_| "'{}'");
        for kind in self.kinds {
            let policy = match policies.iter().find(|(of, _)| of == kind) {
                Some((_, policy)) => literal(&queue::text("policy", policy)?),
                None => other.to_owned(),
            };
            let kind = literal(kind);
            let is_done = format!(
                "EXISTS (SELECT FROM @tidegate.event_kind AS k WHERE k.kind = {kind} AND coalesce(k.policy = jsonb_strip_nulls({policy}), true))"
            );
            let sql = format!("SELECT @tidegate.register_kind({kind}, {policy}, false)");
            steps.push(Declaration(sql, is_done));
        }
        for (expire, kept) in self.retentions {
            let expire = literal(expire);
            let kept = kept.map(in_days).map_or("NULL".to_owned(), |(days, rest)| {
                format!("make_interval(days => {days}, secs => {rest})")
            });
            let is_done = format!(
                "(SELECT min(r.kept) FROM @tidegate.records AS r WHERE r.expire = {expire}) IS NOT DISTINCT FROM {kept}::interval"
            );
            let sql = format!("SELECT @tidegate.declare_retention({expire}, {kept})");
            steps.push(Declaration(sql, is_done));
        }
        Ok(steps)
    }

    /// The queue's own files, and the program's.
    fn histories(&self) -> impl Iterator<Item = &Migrations> {
        std::iter::once(&QUEUE).chain(&self.tables)
    }
}

/// Sends SQL of a migration or a check for the queue's schema, and returns the first row of the answer.
///
/// # Errors
/// When the database fails.
pub async fn first_row(
    client: &impl Queryable,
    sql: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Option<Row>> {
    let Conn { client, schema, .. } = client.conn();
    let rows = client.query_typed(&schema.written(sql), values).await;
    let rows = rows.map_err(|error| Error::Migrate(describe(&error)))?;
    Ok(rows.into_iter().next())
}

/// Returns the server's version, or what is wrong with it. Checked before anything is changed: half a schema
/// is useless on a server that cannot run the other half.
///
/// # Errors
/// When the database fails.
pub async fn server(client: &Client) -> Result<Result<String, String>> {
    let sql = format!("SELECT current_setting('server_version'), {UNFIT}");
    let Some(row) = first_row(client, &sql, &[]).await? else {
        return Err(Error::Unreadable("server: no version".to_owned()));
    };
    Ok(row.get::<_, Option<String>>(1).map_or(Ok(row.get(0)), Err))
}

/// Roles belong to the whole server, so their existence does not mean that this database uses them.
async fn roles_are_in_use(client: &Client) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM pg_roles AS r
                WHERE r.rolname = '@tidegate_publish'
                  AND has_schema_privilege(r.oid, '@tidegate', 'USAGE') AND NOT r.rolsuper)";
    let row = first_row(client, sql, &[]).await?;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// Takes an advisory lock of this schema, because there may be no table yet. Any login of the database can
/// take this lock. It can keep migrations from running, but nothing else, and the error names the session
/// that holds it.
async fn lock(guard: &Client, schema: &Schema) -> Result<()> {
    let failed = |error: tokio_postgres::Error| Error::Migrate(describe(&error));
    guard.batch_execute(BEGIN).await.map_err(failed)?;
    let key = format!("hashtext('{}') & 2147483647", schema.name());
    let sql = format!("SELECT CASE WHEN pg_try_advisory_xact_lock(1414087749, {key}) THEN '' ELSE coalesce((
                      SELECT {SESSION}
                        FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
                       WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1414087749 AND l.objid = ({key})::oid AND l.objsubid = 2
                         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1),
                      'a session that has just ended') END");
    let holder = first_row(guard, &sql, &[]).await?;
    let holder: String = holder.map_or_else(String::new, |row| row.get(0));
    if holder.is_empty() {
        return Ok(());
    }
    tracing::warn!(holder, "another session holds the lock of migrations");
    let locked = format!("SELECT pg_advisory_xact_lock(1414087749, {key})");
    let locked = guard.batch_execute(&locked);
    match tokio::time::timeout(LOCK_WAIT, locked).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::Migrate(format!(
            "another session still holds the lock of migrations after {LOCK_WAIT:?}: {holder}"
        ))),
    }
}

/// A version, and checksums.
type Applied = Option<(i32, Vec<String>)>;

/// Returns the version that a history has reached, and the checksums of its files in order; `None` before its
/// first migration, and without a database.
async fn applied(client: Option<&impl Queryable>, history: &str) -> Result<Applied> {
    let Some(client) = client else {
        return Ok(None);
    };
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let exists = first_row(client, exists, &[(&history, Type::TEXT)]).await?;
    if !exists.is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT max(version)::int, array_agg(checksum::text ORDER BY version) FROM {history} HAVING count(*) > 0"
    );
    let row = first_row(client, &sql, &[]).await?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}

/// Checks that the database has what this program needs: every history has this program's version or a newer
/// one, on which it works too, and every kind of `kinds` is registered. Changes nothing and takes no lock.
///
/// # Errors
/// [`Error::Migrate`] says what is missing.
pub async fn check(client: &impl Queryable, kinds: &[&str], tables: &[Migrations]) -> Result<()> {
    let versions = versions(client, tables).await?;
    let is_behind = |version: &&SchemaVersion| version.found < version.known;
    if let Some(behind) = versions.iter().find(is_behind) {
        return Err(Error::Migrate(behind.to_string()));
    }
    let known = queue::registered(client).await?;
    let is_known = |kind: &&str| known.iter().any(|known| known == kind);
    let unknown: Vec<&str> = kinds
        .iter()
        .copied()
        .filter(|kind| !is_known(kind))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::Migrate(format!(
        "kinds not registered: {}",
        unknown.join(", ")
    )))
}

/// The version that a history has reached, and the version to which this program would bring it.
pub struct SchemaVersion {
    /// The table of the history.
    pub history: String,
    /// The version that it has reached; 0 for none.
    pub found: i32,
    /// The version that this program knows.
    pub known: i32,
}

impl SchemaVersion {
    /// Whether the database needs a migration, or a newer program.
    pub fn differs(&self) -> bool {
        self.found != self.known
    }
}

impl std::fmt::Display for SchemaVersion {
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

/// Returns the versions of the queue's history and of those of `tables`.
///
/// # Errors
/// When the database fails.
pub async fn versions(
    client: &impl Queryable,
    tables: &[Migrations],
) -> Result<Vec<SchemaVersion>> {
    let mut versions = Vec::new();
    for one in std::iter::once(&QUEUE).chain(tables) {
        let history = client.conn().schema.written(one.history);
        versions.push(SchemaVersion {
            found: applied(Some(client), &history).await?.unwrap_or_default().0,
            history,
            known: one.version()?,
        });
    }
    Ok(versions)
}

/// Moves the sequence of ids forward. A database that was copied row by row has the events, but its sequence
/// may start again: a new event would get the id of another one in the log.
const CATCH_UP: &str = "
    SELECT setval('@tidegate.event_queue_id_seq', stored.highest)
      FROM (SELECT greatest((SELECT max(id) FROM @tidegate.event_queue), (SELECT max(id) FROM @tidegate.event_log)) AS highest) AS stored
     WHERE stored.highest > (SELECT last_value FROM @tidegate.event_queue_id_seq)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_called_as_a_migration_is_refused_by_its_path() {
        let wrong = Migrations::of_files("@tidegate.x_migrations", &[("sql/orders.sql", "")]);
        let message = wrong.parsed(&Schema::default()).unwrap_err().to_string();
        assert!(
            message.contains("sql/orders.sql: a migration must be called V"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn files_are_applied_in_the_order_of_their_versions() {
        let files = &[("V10__c.sql", ""), ("V2__b.sql", ""), ("V1__a.sql", "")];
        let tables = Migrations::of_files("@tidegate.x_migrations", files);
        let lacking = lacking(&tables, &Schema::default(), None).await.unwrap();
        let names: Vec<&str> = lacking.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["V1__a", "V2__b", "V10__c"]);
        assert!(lacking[0].1.contains("CREATE TABLE") && !lacking[1].1.contains("CREATE TABLE"));
    }

    #[test]
    fn a_grant_is_no_part_of_a_migration() {
        let sql =
            "CREATE TABLE t ();\nGRANT SELECT\n    ON t TO r;\n-- GRANT\nGRANT DELETE ON t TO r;\n";
        let (tables, grants) = parts(sql);
        assert_eq!(tables, "CREATE TABLE t ();\n-- GRANT\n");
        assert_eq!(
            grants,
            "GRANT SELECT\n    ON t TO r;\nGRANT DELETE ON t TO r;\n"
        );
    }

    #[test]
    fn a_file_with_other_ends_of_lines_is_the_same_migration() {
        let parsed = |sql: &'static str, grants: bool| {
            let files: &[(&str, &str)] = Box::leak(Box::new([("V1__a.sql", sql)]));
            let tables = Migrations::of_files("@tidegate.a_migrations", files);
            let tables = if grants {
                tables.with_grants_within()
            } else {
                tables
            };
            let migrations = tables.parsed(&Schema::default()).unwrap();
            (
                migrations[0].checksum(),
                tables.all_grants().replace('\r', ""),
            )
        };
        for grants in [false, true] {
            let unix = parsed(
                "CREATE TABLE t (\n    a text);\nGRANT SELECT\n  ON t TO r;\n",
                grants,
            );
            let windows = parsed(
                "CREATE TABLE t (\r\n    a text);\r\nGRANT SELECT\r\n  ON t TO r;\r\n",
                grants,
            );
            assert_eq!(unix, windows, "{grants}");
        }
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
}
