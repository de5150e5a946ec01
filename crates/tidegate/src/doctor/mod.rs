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
use tokio_postgres::Client;

pub use self::catalog::{EXPECTED, catalog};
pub use self::finding::{CheckReport, DoctorReport, Finding, State};
pub(crate) use self::schema::refuse_foreign;
use crate::connect::Database;
use crate::drain::DrainOptions;
use crate::error::Error;
use crate::migrate::Migrations;
use crate::queue::{query, sql};

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
}

/// What a check works with: the target and a connection, which may be a new one for each check.
struct Probe<'a> {
    target: &'a Target<'a>,
    client: Client,
}

type Look = for<'a> fn(&'a Probe<'_>) -> BoxFuture<'a, Result<Finding, Error>>;

/// One check.
struct Check {
    name: &'static str,
    /// Whether the check has nothing to look at before the first migration.
    needs_schema: bool,
    look: Look,
}

/// All checks, in the order of the report: first the basis, then what depends on it.
static CHECKS: &[Check] = &[
    of_server("server version", |probe| server::version(probe).boxed()),
    of_server("writable", |probe| server::writable(probe).boxed()),
    of_server("isolation", |probe| server::isolation(probe).boxed()),
    of_server("durability", |probe| server::durability(probe).boxed()),
    of_server("settings", |probe| server::settings(probe).boxed()),
    of_server("schema version", |probe| schema::version(probe).boxed()),
    of_server("rights", |probe| schema::rights(probe).boxed()),
    of_queue("ids", |probe| schema::ids(probe).boxed()),
    of_queue("schema drift", |probe| schema::drift(probe).boxed()),
    of_queue("kinds", |probe| schema::kinds(probe).boxed()),
    of_queue("log partitions", |probe| {
        log::missing_partitions(probe).boxed()
    }),
    of_queue("log expiry", |probe| log::expired_partitions(probe).boxed()),
    of_queue("log default", |probe| log::stray_rows(probe).boxed()),
    of_queue("locks", |probe| log::locks(probe).boxed()),
    of_queue("leases", |probe| flow::leases(probe).boxed()),
    of_queue("order of groups", |probe| flow::order(probe).boxed()),
    of_queue("drains", |probe| flow::drains(probe).boxed()),
    of_queue("deadlines", |probe| flow::deadlines(probe).boxed()),
    of_queue("groups", |probe| flow::groups(probe).boxed()),
    of_queue("paused kinds", |probe| flow::paused(probe).boxed()),
    of_queue("services", |probe| flow::services(probe).boxed()),
    of_queue("schedules", |probe| flow::schedules(probe).boxed()),
    of_queue("bloat", |probe| upkeep::bloat(probe).boxed()),
    of_queue("autovacuum", |probe| upkeep::autovacuum(probe).boxed()),
    of_server("vacuum horizon", |probe| upkeep::horizon(probe).boxed()),
];

const fn of_server(name: &'static str, look: Look) -> Check {
    Check {
        name,
        needs_schema: false,
        look,
    }
}

const fn of_queue(name: &'static str, look: Look) -> Check {
    Check {
        name,
        needs_schema: true,
        look,
    }
}

/// Runs every check that has something to look at. Before the first migration, these are only the checks of
/// the server.
///
/// # Errors
/// When the database cannot be reached. A check that fails for another reason says so in its report.
pub async fn examine(target: &Target<'_>) -> Result<DoctorReport, Error> {
    let mut probe = Probe {
        target,
        client: target.database.connect().await?,
    };
    let rows = query(&probe.client, &sql::doctor::IS_MIGRATED, &[]).await?;
    let is_migrated = rows.first().is_some_and(|row| row.get(0));
    let mut checks = Vec::with_capacity(CHECKS.len());
    for check in CHECKS
        .iter()
        .filter(|check| is_migrated || !check.needs_schema)
    {
        let finding = (check.look)(&probe).await;
        if finding.as_ref().is_err_and(Error::is_connection_lost) {
            probe.client = target.database.connect().await?;
        }
        let finding = finding.unwrap_or_else(|error| Finding::unchecked(&error));
        checks.push(CheckReport::new(check.name, finding));
    }
    Ok(DoctorReport::new(checks))
}
