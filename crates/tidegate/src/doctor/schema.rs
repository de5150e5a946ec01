//! Checks of the schema: its version, changes by hand, and the kinds.

use tokio_postgres::Row;

use super::catalog::{self, Drift, EXPECTED};
use super::{Finding, Probe};
use crate::connect::Database;
use crate::error::{Error, describe};
use crate::migrate;
use crate::queue::{self, query, sql};

/// Further differences are counted, not listed: an operator repairs the first ones and checks again.
const MOST_DIFFERENCES: usize = 20;

pub(super) async fn version(probe: &Probe<'_>) -> Result<Finding, Error> {
    let versions = migrate::versions(&probe.client, probe.target.tables).await?;
    if versions.iter().all(|version| version.found == 0) {
        let text = "the database has no queue: it was never migrated";
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    let Some(other) = versions
        .iter()
        .find(|version| version.found != version.known)
    else {
        let known: Vec<String> = versions
            .iter()
            .map(|version| format!("{} {}", version.history, version.known))
            .collect();
        return Ok(Finding::ok(known.join(", ")));
    };
    let text = other.to_string();
    let registered = queue::registered(&probe.client).await?;
    Ok(if foreign(&registered, probe.target.kinds).is_some() {
        Finding::problem(
            text,
            "run doctor with the program that the queue belongs to",
        )
    } else if other.found < other.known {
        Finding::problem(text, "tidegate migrate")
    } else {
        Finding::beyond_us(format!("{text}; use a newer program"))
    })
}

/// Checks who may create functions in a schema where other logins look up names. Such a function can make
/// other logins run it.
pub(super) async fn rights(probe: &Probe<'_>) -> Result<Finding, Error> {
    let open = query(&probe.client, &sql::doctor::OPEN_SCHEMAS, &[]).await?;
    let open: Vec<String> = open.iter().map(|row| row.get(0)).collect();
    if open.is_empty() {
        return Ok(Finding::ok("nobody makes things in a schema of others"));
    }
    let text = format!(
        "every login may make functions in {}, which others then run as their own",
        open.join(", ")
    );
    let remedies = open.iter();
    let remedies = remedies.map(|schema| format!("REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC;"));
    Ok(Finding::warning(
        text,
        remedies.collect::<Vec<_>>().join("\n"),
    ))
}

/// Checks the sequence of ids. A copy of a database may contain the events, but not the current value of the
/// sequence.
pub(super) async fn ids(probe: &Probe<'_>) -> Result<Finding, Error> {
    let rows = query(&probe.client, &sql::doctor::IDS, &[]).await?;
    let Some((last, highest)) = rows.first().map(|row| (row.get(0), row.get(1))) else {
        return Err(Error::Unreadable("ids: nothing".to_owned()));
    };
    let (last, highest): (i64, i64) = (last, highest);
    if last < highest {
        let text = format!(
            "new events get ids that older events already have: {last} was drawn last, and {highest} is stored"
        );
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    Ok(Finding::ok(format!(
        "no event has an id above {last}, the last one drawn"
    )))
}

pub(super) async fn drift(probe: &Probe<'_>) -> Result<Finding, Error> {
    let mut client = probe.target.database.connect().await?;
    let found = catalog::catalog(&mut client).await?;
    let drift = catalog::drift(EXPECTED, &found);
    if drift.is_empty() {
        let text = format!("all {} parts are as the migrations made them", found.len());
        return Ok(Finding::ok(text));
    }
    let mut texts: Vec<String> = drift.iter().map(Drift::text).collect();
    if texts.len() > MOST_DIFFERENCES {
        let more = texts.len() - MOST_DIFFERENCES;
        texts.truncate(MOST_DIFFERENCES);
        texts.push(format!("and {more} more"));
    }
    let mut remedies: Vec<String> = drift.iter().filter_map(Drift::remedy).collect();
    remedies.truncate(MOST_DIFFERENCES);
    let is_harmful = drift.iter().any(Drift::is_harmful);
    let (text, remedy) = (texts.join("; "), remedies.join("\n"));
    let finding = if is_harmful {
        Finding::problem(text, remedy)
    } else {
        Finding::warning(text, remedy)
    };
    Ok(Finding {
        remedy: finding.remedy.filter(|remedy| !remedy.is_empty()),
        ..finding
    })
}

pub(super) async fn kinds(probe: &Probe<'_>) -> Result<Finding, Error> {
    let kinds = probe.target.kinds;
    if let Some(theirs) = foreign(&queue::registered(&probe.client).await?, kinds) {
        let text = format!("this queue belongs to another program, with the kinds {theirs}");
        let remedy = "run doctor with that program; `migrate --share` lets both use the queue";
        return Ok(Finding::problem(text, remedy));
    }
    let unregistered = queue::unregistered(&probe.client, kinds).await?;
    if !unregistered.is_empty() {
        let text = format!(
            "this program's kinds are not registered: {}",
            unregistered.join(", ")
        );
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    let strange = query(&probe.client, &sql::doctor::STRANGE_KINDS, &[&kinds]).await?;
    let (foreign, nobodys): (Vec<&Row>, Vec<&Row>) = strange.iter().partition(|row| row.get(1));
    if !nobodys.is_empty() {
        let text = format!(
            "the next drain fails events of kinds that nobody registered: {}",
            listed(&nobodys)
        );
        return Ok(Finding::problem(text, registrations(&nobodys)));
    }
    if !foreign.is_empty() {
        let text = format!(
            "events of kinds that only another program handles: {}",
            listed(&foreign)
        );
        let first: String = foreign[0].get(0);
        return Ok(Finding::warning(
            text,
            format!("tidegate list --kind {first}"),
        ));
    }
    Ok(Finding::ok(format!(
        "{} kinds are registered, no event has another",
        kinds.len()
    )))
}

fn listed(rows: &[&Row]) -> String {
    let counted = |row: &&Row| format!("{} ({})", row.get::<_, String>(0), row.get::<_, i64>(2));
    rows.iter().map(counted).collect::<Vec<_>>().join(", ")
}

/// Describes the registrations. Events of a registered kind that this program does not know wait for the
/// program that does.
fn registrations(rows: &[&Row]) -> String {
    let insert = |row: &&Row| {
        let kind = row.get::<_, String>(0).replace('\'', "''");
        format!("INSERT INTO tidegate.event_kind (kind) VALUES ('{kind}');")
    };
    rows.iter().map(insert).collect::<Vec<_>>().join("\n")
}

/// Refuses a queue in which only other programs have registered kinds. This program's kinds and tables do not
/// belong there.
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
            "this queue belongs to another program, with the kinds {theirs}; `migrate --share`, or \"share\": true in an invocation, lets both use it"
        ))),
    }
}

/// Returns another program's kinds, if only other programs have registered any.
fn foreign(registered: &[String], kinds: &[&str]) -> Option<String> {
    const TOLD: usize = 5;
    let is_ours = |kind: &String| kinds.contains(&kind.as_str());
    if registered.is_empty() || registered.iter().any(is_ours) {
        return None;
    }
    let more = if registered.len() > TOLD { ", …" } else { "" };
    Some(registered[..registered.len().min(TOLD)].join(", ") + more)
}
