//! Owns the examination of a database: a list of checks. Each looks at one thing, and reports what it found
//! and how to repair it. The doctor changes nothing.
//!
//! `CHECKS` is the list. A check that cannot run, for example because a permission is missing, reports that
//! and does not stop the other checks.

mod catalog;
mod finding;
mod flow;
mod log;
mod schema;
mod server;
mod upkeep;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub use self::catalog::catalog;
use self::finding::Wrong;
pub use self::finding::{DoctorReport, Finding, State};
pub(crate) use self::schema::refuse_foreign;
use crate::connect::{Client, Database};
use crate::drain::DrainOptions;
use crate::error::{Error, Result};
use crate::migrate::Migrations;
use crate::queue::query;
use crate::queue::statement::{Statement, statements};

/// The statements of all checks.
pub(crate) static STATEMENTS: [&[&Statement]; 7] = [
    ALL,
    catalog::ALL,
    flow::ALL,
    log::ALL,
    schema::ALL,
    server::ALL,
    upkeep::ALL,
];

statements! {
    /// Whether a queue exists.
    IS_MIGRATED: "is_migrated" [] = "SELECT to_regclass('tidegate.event_queue') IS NOT NULL";

    /// Settings `$1`, each with its value and the beginning of the statement that changes it where it is set.
    SETTINGS: "settings" [TEXT_ARRAY] = "\
SELECT s.name, s.setting,
       CASE s.source WHEN 'database' THEN format('ALTER DATABASE %I SET ', current_database())
                     WHEN 'user' THEN format('ALTER ROLE %I SET ', current_user)
                     WHEN 'database user' THEN format('ALTER ROLE %I IN DATABASE %I SET ', current_user, current_database())
                     ELSE 'ALTER SYSTEM SET ' END || s.name || ' = '
  FROM pg_catalog.pg_settings AS s
 WHERE s.name = ANY ($1)
 ORDER BY s.name";
}

/// What to examine: a database, and what the doctor must know about the program.
pub struct Target<'a> {
    /// The database with the queue.
    pub database: &'a Database,
    /// The kinds of events that the program handles.
    pub kinds: &'a [&'a str],
    /// The options of its drains.
    pub options: &'a DrainOptions,
    /// The program's own migrations, which are applied besides the queue's.
    pub tables: &'a [Migrations],
    /// What the program's settings give up. Each is a finding of its own.
    pub warnings: Vec<&'static str>,
    /// What is wrong with what the handlers call. Each is a finding of its own.
    pub uncalled: Vec<String>,
}

/// What a check works with: the target and a connection, which may be a new one for each check.
struct Probe<'a> {
    target: &'a Target<'a>,
    client: Client,
}

type Look = for<'a> fn(&'a Probe<'_>) -> BoxFuture<'a, Result<Finding>>;

/// One check.
struct Check {
    name: &'static str,
    /// Whether the check has nothing to look at before the first migration.
    needs_schema: bool,
    look: Look,
}

macro_rules! checks {
    ($($of:ident($name:literal, $module:ident::$check:ident $($listed:tt)*);)*) => {
        &[$(Check {
            name: $name,
            needs_schema: checks!($of),
            look: |probe| checks!(look probe $module::$check $($listed)*).boxed(),
        }),*]
    };
    (look $probe:ident $module:ident::$check:ident) => { $module::$check($probe) };
    (look $probe:ident $module:ident::$check:ident, $ok:literal, $state:ident $wrong:literal, $separator:literal) => {
        $probe.listed(&$module::$check, $ok, (Finding::$state, $wrong), $separator)
    };
    (of_server) => { false };
    (of_queue) => { true };
}

/// All checks, in the order of the report: first the basis, then what depends on it.
static CHECKS: &[Check] = checks! {
    of_server("server version", server::version);
    of_server("writable", server::writable);
    of_server("isolation", server::isolation);
    of_server("durability", server::durability);
    of_server("settings", server::settings);
    of_server("schema version", schema::version);
    of_server("rights", schema::OPEN_SCHEMAS, "nobody makes things in a schema of others",
        warning "every login may make functions in {}, which others then run as their own", ", ");
    of_queue("roles", schema::SHARED_ROLES, "nobody from another database of this server has them here",
        warning "who has one of these roles for another database may connect here, and has it here, too: {}", "; ");
    of_queue("place", schema::place);
    of_queue("ids", schema::ids);
    of_queue("schema drift", schema::drift);
    of_queue("kinds", schema::kinds);
    of_queue("log partitions", log::MISSING_PARTITIONS, "there for today's events and those of the next 2 days",
        warning "no partition for rows that expire on {}; they go to the default one, which cannot be dropped", ", ");
    of_queue("log expiry", log::EXPIRED_PARTITIONS, "no partition is left that should be gone",
        warning "all rows expired more than 2 days ago, so no cleanup has run since: {}", ", ");
    of_queue("log default", log::STRAY_ROWS, "no row is in the default partition",
        warning "{} in the default partition, where each is deleted by itself when it expires", "");
    of_queue("locks", log::locks);
    of_queue("leases", flow::leases);
    of_queue("order of groups", flow::DISORDER, "every group is leased in its order",
        problem "out of the order of its group: {}", ", ");
    of_queue("drains", flow::drains);
    of_queue("failures", flow::failures);
    of_queue("pulled kinds", flow::pulled);
    of_queue("deadlines", flow::deadlines);
    of_queue("groups", flow::LONG_BLOCKED, "none has been blocked for 1h", warning "{}", "");
    of_queue("paused kinds", flow::PAUSED, "none has events waiting", warning "events wait: {}", ", ");
    of_queue("services", flow::services);
    of_queue("limits of pulls", flow::LIMITED_PULLS, "none has a limit",
        warning "programs poll for kinds with limits, which only drains keep: {}", ", ");
    of_queue("schedules", flow::TROUBLED_SCHEDULES, "none is stopped or late", warning "{}", "; ");
    of_queue("bloat", upkeep::bloat);
    of_queue("autovacuum", upkeep::autovacuum);
    of_server("sessions", upkeep::SESSIONS, "none has been idle in a transaction or waited for a lock for 1m", warning "{}", "; ");
    of_server("vacuum horizon", upkeep::horizon);
};

impl Probe<'_> {
    /// Runs a check, in a transaction of its own: after one that fails, the others still run.
    async fn found(&self, check: &Check) -> Result<Finding> {
        let failed = Error::at(check.name);
        self.client.begin_look("").await.map_err(&failed)?;
        let finding = (check.look)(self).await;
        let ended = self.client.batch_execute("ROLLBACK").await;
        let finding = finding?;
        ended.map_err(&failed)?;
        Ok(finding)
    }

    async fn rows(
        &self,
        statement: &'static Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        query(&self.client, statement, values).await
    }

    /// Returns the only row of a statement's answer.
    async fn row(&self, statement: &'static Statement) -> Result<Row> {
        let row = self.rows(statement, &[]).await?.into_iter().next();
        row.ok_or_else(|| Error::Unreadable(format!("{}: no figures", statement.name)))
    }

    /// Returns what a statement found wrong. Its rows are a text and a remedy.
    async fn wrong(
        &self,
        statement: &'static Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Wrong> {
        let rows = self.rows(statement, values).await?;
        Ok(Wrong::of(&rows, |row| (row.get(0), row.get(1))))
    }

    /// Reports what a statement lists, with `{}` for the list.
    async fn listed(
        &self,
        statement: &'static Statement,
        ok: &str,
        (finding, wrong): (fn(String, String) -> Finding, &str),
        separator: &str,
    ) -> Result<Finding> {
        let found = self.wrong(statement, &[]).await?;
        Ok(found.or_ok(ok, separator, |list, remedy| {
            finding(wrong.replace("{}", &list), remedy)
        }))
    }

    /// Returns the settings of these names whose value is like this, as [`SETTINGS`] does.
    async fn settings(&self, names: &[&str], is_like: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
        let mut settings = self.rows(&SETTINGS, &[&names]).await?;
        settings.retain(|row| is_like(row.get(1)));
        Ok(settings)
    }
}

/// Runs every check that has something to look at. Before the first migration, these are only the checks of
/// the server.
///
/// # Errors
/// When the database cannot be reached. A check that fails for another reason says so in its report.
pub async fn examine(target: &Target<'_>) -> Result<DoctorReport> {
    let mut probe = Probe {
        target,
        client: target.database.connect().await?,
    };
    let is_migrated = probe.row(&IS_MIGRATED).await?.get(0);
    let mut checks = Vec::with_capacity(CHECKS.len());
    for check in CHECKS
        .iter()
        .filter(|check| is_migrated || !check.needs_schema)
    {
        let finding = probe.found(check).await;
        if finding.as_ref().is_err_and(Error::is_connection_lost) {
            probe.client = target.database.connect().await?;
        }
        let finding = finding.unwrap_or_else(|error| Finding::unchecked(&error));
        let remedy = finding
            .remedy
            .map(|remedy| target.database.schema().written(&remedy));
        checks.push(Finding {
            name: check.name,
            remedy,
            ..finding
        });
    }
    let warnings = target.warnings.iter();
    checks.extend(warnings.map(|warning| Finding::told("program", warning)));
    let uncalled = target.uncalled.iter();
    checks.extend(uncalled.map(|wrong| Finding::told("targets", wrong)));
    Ok(DoctorReport {
        ok: checks.iter().all(|check| check.state == State::Ok),
        checks,
    })
}
