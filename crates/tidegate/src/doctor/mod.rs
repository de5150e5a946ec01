//! Owns the examination of a database: a list of checks, each of which looks at one thing and says
//! what it found and how to mend it. It changes nothing.
//!
//! `CHECKS` is the list. A check that cannot be made, for want of a permission, says so and does not
//! keep the others from being made.

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
use crate::connect::Database;
use crate::drain::DrainOptions;
use crate::error::Error;
use crate::migrate::Migrations;
use crate::queue::{query, sql};

/// What a program must say of itself to be examined together with its database.
pub struct Patient<'a> {
    /// Where the queue is.
    pub database: &'a Database,
    /// Kinds of events that the program handles.
    pub kinds: &'a [&'a str],
    /// What its drains do.
    pub options: &'a DrainOptions,
    /// Its own migrations beside the queue's.
    pub tables: &'a [Migrations],
}

/// What a check looks with: the patient, and a connection that may be a new one for each check.
struct Examination<'a> {
    patient: &'a Patient<'a>,
    client: Client,
}

type Look = for<'a> fn(&'a Examination<'_>) -> BoxFuture<'a, Result<Finding, Error>>;

/// One thing to look at.
struct Check {
    name: &'static str,
    /// Whether there is nothing to look at before the first migration.
    needs_schema: bool,
    look: Look,
}

/// Every check, in the order of the report: the ground first, then what stands on it.
static CHECKS: &[Check] = &[
    of_server("server version", |on| server::version(on).boxed()),
    of_server("writable", |on| server::writable(on).boxed()),
    of_server("durability", |on| server::durability(on).boxed()),
    of_server("settings", |on| server::settings(on).boxed()),
    of_server("schema version", |on| schema::version(on).boxed()),
    of_queue("schema drift", |on| schema::drift(on).boxed()),
    of_queue("kinds", |on| schema::kinds(on).boxed()),
    of_queue("log partitions", |on| log::missing_partitions(on).boxed()),
    of_queue("log expiry", |on| log::expired_partitions(on).boxed()),
    of_queue("log default", |on| log::stray_rows(on).boxed()),
    of_queue("leases", |on| flow::leases(on).boxed()),
    of_queue("order of groups", |on| flow::order(on).boxed()),
    of_queue("drains", |on| flow::drains(on).boxed()),
    of_queue("groups", |on| flow::groups(on).boxed()),
    of_queue("paused kinds", |on| flow::paused(on).boxed()),
    of_queue("bloat", |on| upkeep::bloat(on).boxed()),
    of_queue("autovacuum", |on| upkeep::autovacuum(on).boxed()),
    of_server("vacuum horizon", |on| upkeep::horizon(on).boxed()),
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

/// Makes every check there is something to look at for: before the first migration, those of the
/// server alone.
///
/// # Errors
/// When the database cannot be reached. A check that fails for another reason says so in its report.
pub async fn examine(patient: &Patient<'_>) -> Result<DoctorReport, Error> {
    let mut on = Examination {
        patient,
        client: patient.database.connect().await?,
    };
    let rows = query(&on.client, &sql::doctor::IS_MIGRATED, &[]).await?;
    let is_migrated = rows.first().is_some_and(|row| row.get(0));
    let mut checks = Vec::with_capacity(CHECKS.len());
    for check in CHECKS
        .iter()
        .filter(|check| is_migrated || !check.needs_schema)
    {
        let finding = (check.look)(&on).await;
        if finding.as_ref().is_err_and(Error::is_connection_lost) {
            on.client = patient.database.connect().await?;
        }
        let finding = finding.unwrap_or_else(|error| Finding::unchecked(&error));
        checks.push(CheckReport::new(check.name, finding));
    }
    Ok(DoctorReport::new(checks))
}
