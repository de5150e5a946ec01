//! Owns the examination of a database: a list of checks. Each looks at one thing, and reports what it found
//! and how to repair it. The doctor changes nothing.
//!
//! What a database knows of itself is examined there, by `tidegate.doctor()` (`V0018__doctor.sql`), which
//! anybody may call in psql. What the program alone knows stands in `program.rs`. A check that cannot run,
//! for example because a permission is missing, reports that and does not stop the other checks.

mod catalog;
mod finding;
mod program;

use tidegate::drain::DrainOptions;
use tidegate_core::connect::Database;
use tidegate_core::error::{Error, Result};
use tidegate_core::migrate::Migrations;
use tidegate_core::queue::{Statement, all, documents, first};
use tidegate_core::statements;

pub use self::catalog::catalog;
pub use self::finding::{DoctorReport, Finding, State};
pub(crate) use self::program::refuse_foreign;

/// The statements of all checks.
pub(crate) static STATEMENTS: [&[&Statement]; 3] = [ALL, catalog::ALL, program::ALL];

statements! {
    /// Whether the queue's schema exists.
    IS_MIGRATED: "is_migrated" [] = "SELECT to_regclass('@tidegate.event_queue') IS NOT NULL";

    /// The names of the checks of the database.
    CHECKS: "doctor_checks" [] = "SELECT c.name FROM @tidegate.doctor_checks() AS c";

    /// What a program of the kinds `$1` finds by the check `$2`.
    DOCTOR: "doctor" [TEXT_ARRAY, TEXT] = "SELECT to_jsonb(d)::text FROM @tidegate.doctor($1, $2) AS d";
}

/// What to examine: a database, and what the doctor must know about the program.
pub struct DoctorTarget<'a> {
    /// The database with the queue.
    pub database: &'a Database,
    /// The kinds of events that the program handles.
    pub kinds: &'a [&'a str],
    /// The options of its drains.
    pub options: &'a DrainOptions,
    /// The migrations of the program's own tables.
    pub tables: &'a [Migrations],
    /// What the program's settings give up: [`Dispatch::warnings`](tidegate::Dispatch::warnings). Each is a
    /// finding.
    pub warnings: Vec<&'static str>,
    /// What is wrong with what the handlers call: [`Dispatch::examine`](tidegate::Dispatch::examine). Each is
    /// a finding.
    pub uncalled: Vec<String>,
}

/// Runs all checks. Before the first migration, only those of what the program knows.
///
/// # Errors
/// When the database cannot be reached. A check that fails for another reason says so in its report.
pub async fn examine(target: &DoctorTarget<'_>) -> Result<DoctorReport> {
    let client = target.database.connect().await?;
    let is_migrated = first(&client, &IS_MIGRATED, &[]).await?.unwrap_or_default();
    let mut checks = vec![
        Finding::of("server version", program::server(&client).await),
        Finding::of(
            "settings",
            program::settings(target, &client, is_migrated).await,
        ),
        Finding::of("schema version", program::version(target, &client).await),
    ];
    if is_migrated {
        checks.push(Finding::of("schema drift", program::drift(target).await));
        checks.extend(of_database(target).await?);
    }
    let warning = |text: &str| Ok(Finding::warning(text, ""));
    let warnings = target.warnings.iter();
    checks.extend(warnings.map(|text| Finding::of("program", warning(text))));
    let uncalled = target.uncalled.iter();
    checks.extend(uncalled.map(|text| Finding::of("targets", warning(text))));
    Ok(DoctorReport {
        ok: checks.iter().all(|check| check.state == State::Ok),
        checks,
    })
}

/// Runs the checks of the database, each in a statement of its own: one that takes too long stops no other.
async fn of_database(target: &DoctorTarget<'_>) -> Result<Vec<Finding>> {
    let mut client = target.database.connect().await?;
    let names: Vec<String> = match all(&client, &CHECKS, &[]).await {
        Ok(names) => names,
        Err(error) => return Ok(vec![Finding::of("queue", Err(error))]),
    };
    let mut checks = Vec::with_capacity(names.len());
    for name in names {
        let found = documents(&client, &DOCTOR, &[&target.kinds, &name]).await;
        if found.as_ref().is_err_and(Error::is_connection_lost) {
            client = target.database.connect().await?;
        }
        match found {
            Ok(found) => checks.extend::<Vec<Finding>>(found),
            Err(error) => checks.push(Finding::of(&name, Err(error))),
        }
    }
    Ok(checks)
}
