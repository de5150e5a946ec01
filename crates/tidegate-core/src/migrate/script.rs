//! Owns what a migration does as SQL text, which a program runs, or an administrator. The history is that of
//! Refinery, which reads the names, versions and checksums of the files.

use refinery_core::Migration;

use super::{
    MAKE_SCHEMA, Migrate, MigrateReport, Migrations, QUEUE, ROLES, UNFIT, applied, first_row,
    roles_are_in_use,
};
use crate::connect::{Client, Schema};
use crate::error::{Error, Result};
use crate::queue;
use crate::queue::retention::MAKE_PARTITIONS;
use crate::queue::statement::literal;

/// SQL that may run again and again, and a condition that holds where it has nothing to do.
pub(super) struct Declaration(pub String, pub String);

impl Migrate<'_> {
    /// Returns a report with the SQL of this migration, which makes one transaction: for a new queue in this
    /// schema, or what the queue of `client` lacks. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Migrate`] when the database is newer than this program, or when its login may not look.
    pub async fn print(&self, schema: &Schema, client: Option<&Client>) -> Result<MigrateReport> {
        // A database without a queue is as none.
        let found = applied(client, &schema.written(QUEUE.history)).await?;
        let client = client.filter(|_| found.is_some());
        let mut sql = String::new();
        for tables in self.histories() {
            let lacking = lacking(tables, schema, client).await?;
            sql.extend(lacking.into_iter().map(|(_, sql)| sql));
        }
        let is_current = client.filter(|_| sql.is_empty());
        for Declaration(step, is_done) in self.steps()? {
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
            let changes = queue::changed_schedules(schema, keeper, &stored, declared).await?;
            sql.extend(changes.into_iter().map(|(_, sql)| sql));
        }
        let in_use = match client {
            Some(client) => roles_are_in_use(client).await?,
            None => false,
        };
        if self.roles && !in_use || in_use && is_current.is_none() {
            sql += &schema.written(&format!("RESET ROLE;\n{ROLES}"));
            for tables in self.histories() {
                sql += &schema.written(&tables.all_grants());
            }
        }
        if !sql.is_empty() {
            sql = format!(
                "{}\n{sql}{};\n\nCOMMIT;\n",
                begin(schema),
                schema.written(MAKE_PARTITIONS.text)
            );
        }
        Ok(MigrateReport {
            script: Some(sql),
            ..self.planned(self.roles || in_use, None)?
        })
    }
}

/// Returns those of the files that this database lacks: for each its name, and its SQL behind its entry in
/// the history.
///
/// # Errors
/// [`Error::Migrate`] when the database is newer than this program, which must not touch a schema that it
/// does not know (during a deployment, the old and the new program both run), or when it has another file.
pub(super) async fn lacking(
    tables: &Migrations,
    schema: &Schema,
    client: Option<&Client>,
) -> Result<Vec<(String, String)>> {
    let history = schema.written(tables.history);
    let (version, checksums) = applied(client, &history).await?.unwrap_or_default();
    let known = tables.version()?;
    if version > known {
        return Err(Error::Migrate(format!(
            "the database has version {version} of {history}, newer than this program's {known}; use a newer program"
        )));
    }
    let mut files = tables.parsed(schema)?;
    files.sort();
    let is_other =
        |(file, checksum): &(&Migration, &String)| file.checksum().to_string() != **checksum;
    if let Some((file, _)) = files.iter().zip(&checksums).find(is_other) {
        return Err(Error::Migrate(format!(
            "{history}: {file} was applied with another text"
        )));
    }
    let lacking = files.iter().enumerate().skip(checksums.len());
    let lacking = lacking.map(|(at, file)| (file.to_string(), entered(file, &history, at)));
    Ok(lacking.collect())
}

/// Returns the SQL of a file behind its entry in the history, which the first file makes as Refinery does.
fn entered(file: &Migration, history: &str, at: usize) -> String {
    let columns = "version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), checksum varchar(255)";
    let made = format!("CREATE TABLE IF NOT EXISTS {history} ({columns});\n");
    let made = if at == 0 { &*made } else { "" };
    let (version, name, checksum) = (file.version(), literal(file.name()), file.checksum());
    let now = "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let text = file.sql().unwrap_or_default();
    format!(
        "{made}\nINSERT INTO {history} VALUES ({version}, {name}, {now}, '{checksum}');\n{text}\n"
    )
}

/// Begins the transaction as a migration does, and makes the schema. What is made belongs to the owner of
/// what is there already, whoever runs it.
fn begin(schema: &Schema) -> String {
    let (name, version) = (schema.name(), env!("CARGO_PKG_VERSION"));
    let unfit = schema.written(UNFIT);
    format!(
        "-- The queue {name} as Tidegate {version} needs it: what `migrate --print` has printed, in one transaction.
BEGIN;
SET LOCAL lock_timeout = '2s'; SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on; SET LOCAL quote_all_identifiers = off;
SELECT pg_advisory_xact_lock(1414087749, hashtext('{name}') & 2147483647);
DO $$
BEGIN
    IF ({unfit}) IS NOT NULL THEN
        RAISE EXCEPTION '%', {unfit};
    END IF;
END $$;
{}SELECT set_config('role', pg_get_userbyid(c.relowner), true) FROM pg_class AS c WHERE c.oid = to_regclass('{name}.queue_migrations');
",
        schema.written(MAKE_SCHEMA)
    )
}
