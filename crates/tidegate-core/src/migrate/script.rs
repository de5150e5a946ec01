//! Owns what a migration does as SQL text, for administrators who run it themselves. It knows no database but
//! the one that it is asked to compare with.

use std::fmt::Write;

use super::{
    Migrate, MigrateReport, Migrations, QUEUE, ROLES, UNFIT, applied_version, first_row,
    known_version, roles_are_in_use,
};
use crate::connect::{Client, Schema};
use crate::error::Result;
use crate::queue::retention::MAKE_PARTITIONS;
use crate::queue::statement::literal;
use crate::queue::{self, DROP_SCHEDULE, PUT_SCHEDULE, text};

/// SQL that may run again and again, and a condition that holds where it has nothing to do.
pub(super) struct Step(pub String, pub String);

impl Migrate<'_> {
    /// Returns a report with the SQL of this migration, which makes one transaction: for a new queue in this
    /// schema, or what the queue of `client` lacks. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Migrate`](crate::Error::Migrate) when the database is newer than this program, or when its
    /// login may not look.
    pub async fn print(&self, schema: &Schema, client: Option<&Client>) -> Result<MigrateReport> {
        let queue = schema.written(QUEUE.history);
        let client = match client {
            Some(client) if applied_version(client, &queue).await?.is_some() => Some(client),
            _ => None,
        };
        let mut sql = String::new();
        for tables in self.histories() {
            sql += &missing(tables, schema, client).await?;
        }
        let is_current = client.filter(|_| sql.is_empty());
        for Step(step, is_done) in self.steps()? {
            let is_done = match is_current {
                Some(client) => first_row(client, &format!("SELECT {is_done}"), &[]).await?,
                None => None,
            };
            if !is_done.is_some_and(|row| row.get(0)) {
                sql += &schema.written(&format!("{step};\n"));
            }
        }
        if let Some((keeper, declared)) = &self.schedules {
            let stored = match is_current {
                Some(client) => queue::declared_schedules(client, keeper).await?,
                None => Vec::new(),
            };
            for (name, now) in queue::changes(&stored, declared).await? {
                sql += &match now {
                    Some(now) => PUT_SCHEDULE.with(schema, &[&text("schedule", &now)?, keeper]),
                    None => DROP_SCHEDULE.with(schema, &[keeper, &name]),
                };
            }
        }
        let in_use = match client {
            Some(client) => roles_are_in_use(client).await?,
            None => false,
        };
        if self.roles && !in_use || in_use && is_current.is_none() {
            sql += &schema.written(ROLES);
            sql.extend(
                self.histories()
                    .map(|tables| schema.written(&tables.all_grants())),
            );
        }
        if !sql.is_empty() {
            sql = format!(
                "{}\n{sql}{}\nCOMMIT;\n",
                begin(schema),
                MAKE_PARTITIONS.with(schema, &[])
            );
        }
        Ok(MigrateReport {
            script: Some(sql),
            ..self.planned(self.roles || in_use, None)?
        })
    }
}

/// Returns those of the files that this database lacks, each after its entry in the history.
async fn missing(tables: &Migrations, schema: &Schema, client: Option<&Client>) -> Result<String> {
    let history = schema.written(tables.history);
    let found = match client {
        Some(client) => known_version(client, &history, tables.version()?).await?,
        None => 0,
    };
    let mut sql = String::new();
    if found == 0 {
        // As Refinery makes it.
        let columns = "version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), checksum varchar(255)";
        let _ = writeln!(sql, "CREATE TABLE IF NOT EXISTS {history} ({columns});");
    }
    for file in tables
        .parsed(schema)?
        .into_iter()
        .filter(|file| file.version() > found)
    {
        let (version, name, checksum) = (file.version(), literal(file.name()), file.checksum());
        let now = "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
        let text = file.sql().unwrap_or_default();
        let _ = writeln!(
            sql,
            "\nINSERT INTO {history} VALUES ({version}, {name}, {now}, '{checksum}');\n{text}"
        );
    }
    Ok(sql)
}

/// Begins the transaction as a migration does, and makes the schema.
fn begin(schema: &Schema) -> String {
    let (name, version) = (schema.name(), env!("CARGO_PKG_VERSION"));
    format!(
        "-- The queue {name} as Tidegate {version} needs it: what `migrate --print` has printed, in one transaction.
BEGIN;
SET LOCAL lock_timeout = '2s';
SET LOCAL standard_conforming_strings = on;
SET LOCAL quote_all_identifiers = off;
SET LOCAL client_min_messages = warning;
SELECT pg_advisory_xact_lock(1414087749, hashtext('{name}') & 2147483647);
DO $$
BEGIN
    IF ({UNFIT}) IS NOT NULL THEN
        RAISE EXCEPTION '%', {UNFIT};
    END IF;
    IF to_regnamespace('{name}') IS NULL THEN
        CREATE SCHEMA {name};
    END IF;
END $$;
"
    )
}
