//! Checks of what the program alone knows: the versions that it needs, its settings, the schema that its
//! migrations make, and whose queue it is.

use std::time::Duration;

use tidegate::budget::Budget;
use tidegate_core::connect::{Client, Database};
use tidegate_core::error::{Error, Result};
use tidegate_core::queue::{self, query};
use tidegate_core::{migrate, statements};
use tokio_postgres::Row;

use super::catalog::{self, Drift};
use super::{DoctorTarget, Finding};

/// Further differences are counted, not listed: an operator repairs the first ones and checks again.
const MOST_DIFFERENCES: usize = 20;

statements! {
    /// Those of the kinds `$2` whose policy allows a handler more than `$1` milliseconds, with that limit.
    LONG_HANDLERS: "long_handlers" [INT8, TEXT_ARRAY] = "\
SELECT k.kind, (k.policy->>'handler_timeout_ms')::bigint
  FROM @tidegate.event_kind AS k
 WHERE k.kind = ANY ($2) AND (k.policy->>'handler_timeout_ms')::bigint > $1
 ORDER BY k.kind";
}

pub(super) async fn server(client: &Client) -> Result<Finding> {
    Ok(match migrate::server(client).await? {
        Ok(version) => Finding::ok(format!("Postgres {version}")),
        Err(why) => Finding::problem(why, ""),
    })
}

pub(super) async fn version(target: &DoctorTarget<'_>, client: &Client) -> Result<Finding> {
    let versions = migrate::versions(client, target.tables).await?;
    if versions.iter().all(|version| version.found == 0) {
        let text = "the database has no queue: it was never migrated";
        return Ok(Finding::problem(text, "tidegate migrate"));
    }
    let Some(other) = versions.iter().find(|version| version.differs()) else {
        let known = versions
            .iter()
            .map(|one| format!("{} {}", one.history, one.known));
        return Ok(Finding::ok(known.collect::<Vec<_>>().join(", ")));
    };
    let text = other.to_string();
    let registered = queue::registered(client).await?;
    Ok(if foreign(&registered, target.kinds).is_some() {
        let remedy = "run doctor with the program that the queue belongs to";
        Finding::problem(text, remedy)
    } else if other.found < other.known {
        Finding::problem(text, "tidegate migrate")
    } else {
        Finding::problem(format!("{text}; use a newer program"), "")
    })
}

/// Checks the settings of drains. [`Program::start`](crate::Program::start) refuses wrong ones, but a program
/// without it may examine any. `is_migrated` says whether policies are stored.
pub(super) async fn settings(
    target: &DoctorTarget<'_>,
    client: &Client,
    is_migrated: bool,
) -> Result<Finding> {
    let options = target.options;
    let (lease, budget) = (options.lease_timeout.mul_f64(0.9), options.budget);
    if let Err(error) = options.check() {
        let remedy = format!("export TIDEGATE_HANDLER_TIMEOUT={}ms", lease.as_millis());
        return Ok(Finding::problem(error.to_string(), remedy));
    }
    let most = lease.min(Budget::for_handlers(budget));
    let mut longer = Vec::new();
    if is_migrated {
        let limit = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        longer = query(client, &LONG_HANDLERS, &[&limit, &target.kinds]).await?;
    }
    let limit = |row: &Row| Duration::from_millis(row.get::<_, i64>(1).unsigned_abs());
    let Some(longest) = longer.iter().map(limit).max() else {
        return Ok(Finding::ok(format!(
            "a handler's limit of {:?} fits into a lease of {:?}",
            options.handler_timeout, options.lease_timeout
        )));
    };
    let kinds = longer
        .iter()
        .map(|row| format!("{} may take {:?}", row.get::<_, &str>(0), limit(row)));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let text = format!("{kinds}, but a drain cuts a handler after {most:?}");
    Ok(Finding::warning(text, room_for(longest, lease, budget)))
}

/// What to set for handlers that run this long: the lease, the budget or both.
fn room_for(longest: Duration, lease: Duration, budget: Duration) -> String {
    let longer = |setting, time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        format!("export {setting}={seconds}s")
    };
    let larger = longest.mul_f64(1.0 / 0.9);
    let mut remedies = Vec::new();
    if lease < longest {
        remedies.push(longer("TIDEGATE_LEASE_TIMEOUT", larger));
    }
    if Budget::for_handlers(budget) < longest {
        remedies.push(longer("TIDEGATE_BUDGET", larger));
    }
    remedies.join("\n")
}

pub(super) async fn drift(target: &DoctorTarget<'_>) -> Result<Finding> {
    let mut client = target.database.connect().await?;
    let found = catalog::catalog(&mut client).await?;
    let schema = target.database.schema();
    let drift = catalog::drift(&schema.written(migrate::CATALOG), &found);
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
    let (text, remedy) = (texts.join("; "), schema.written(&remedies.join("\n")));
    Ok(if drift.iter().any(Drift::is_harmful) {
        Finding::problem(text, remedy)
    } else {
        Finding::warning(text, remedy)
    })
}

/// Refuses a queue in which only other programs have registered kinds. This program's kinds and tables do not
/// belong there.
pub(crate) async fn refuse_foreign(database: &Database, kinds: &[&str]) -> Result<()> {
    let client = database.connect().await?;
    let sql = "SELECT to_regclass('@tidegate.event_kind') IS NOT NULL";
    let found = migrate::first_row(&client, sql, &[]).await?;
    if !found.is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    match foreign(&queue::registered(&client).await?, kinds) {
        None => Ok(()),
        Some(theirs) => Err(Error::Migrate(format!(
            "this queue belongs to another program, with the kinds {theirs}; `migrate --share`, or \"share\": true in an invocation, lets both use it"
        ))),
    }
}

/// Names up to five kinds of other programs, if only these have registered any.
fn foreign(registered: &[String], kinds: &[&str]) -> Option<String> {
    const NAMED: usize = 5;
    let is_ours = |kind: &String| kinds.contains(&kind.as_str());
    if registered.is_empty() || kinds.is_empty() || registered.iter().any(is_ours) {
        return None;
    }
    let more = if registered.len() > NAMED {
        ", …"
    } else {
        ""
    };
    Some(registered[..registered.len().min(NAMED)].join(", ") + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_short_for_a_handler_is_named_with_what_fits() {
        let seconds = Duration::from_secs;
        let longest = seconds(120);
        assert_eq!(
            room_for(longest, seconds(54), seconds(50)),
            "export TIDEGATE_LEASE_TIMEOUT=134s\nexport TIDEGATE_BUDGET=134s"
        );
        let (lease, budget) = (seconds(120), seconds(122));
        assert_eq!(room_for(longest, lease, budget), "");
        assert_eq!(
            room_for(longest, lease, seconds(121)),
            "export TIDEGATE_BUDGET=134s"
        );
    }
}
