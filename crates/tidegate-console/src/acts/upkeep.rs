//! The actions on what is stored for long: the retention of kinds, and a cleanup.

use std::time::Duration;

use tidegate::invocation::RetentionRequest;
use tidegate::program::Retention;
use tidegate::retention::{CleanupHooks, CleanupOptions, CleanupStop};

use super::reason;
use crate::desk::Desk;
use crate::form::Fields;
use crate::html::number;
use crate::problem::Problem;

/// Shorter than the time limit of a request. Repeating the request does the rest.
const APPLYING: Duration = Duration::from_secs(10);

pub(super) async fn retention(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let asked = RetentionRequest {
        kind: Some(sent.needed("kind")?.to_owned()),
        completed: sent.duration("completed")?,
        failed: sent.duration("failed")?,
        apply: sent.is_set("apply"),
        budget: Some(APPLYING),
        reason: Some(reason(sent)?),
        actor: Some(desk.actor()),
    };
    match desk.service().retention(&asked, None).await? {
        Retention::Kept(_) => Err(Problem::invalid(
            "completed: must be given, or failed, or that it is applied",
        )),
        Retention::Changed(report) => {
            let redated = report.redated.map(|redated| {
                format!(
                    " {} finished events got a new expiry.",
                    number(redated.rows)
                )
            });
            let kind = asked.kind.unwrap_or_default();
            Ok(format!(
                "The retention of {kind} is changed.{}",
                redated.unwrap_or_default()
            ))
        }
    }
}

pub(super) async fn cleanup(desk: &Desk, sent: &Fields) -> Result<String, Problem> {
    let options = CleanupOptions {
        dry_run: sent.is_set("dry_run"),
        budget: APPLYING,
        older_than: sent.duration("older_than")?.unwrap_or_default(),
        actor: Some(desk.actor()),
        ..CleanupOptions::default()
    };
    let hooks = CleanupHooks::default();
    let report = desk.service().cleanup(&options, hooks).await?;
    let (ended, removed, other, made) = (
        number(report.expired + report.abandoned),
        number(report.rows_dropped + report.rows_deleted),
        number(report.records.values().sum::<u64>() + report.messages_forgotten),
        number(report.partitions_made),
    );
    let told = if report.dry_run {
        format!(
            "Dry run: {ended} live events would end, {removed} finished events and {other} other rows would be removed, {made} partitions created."
        )
    } else {
        format!(
            "{ended} live events have ended, {removed} finished events and {other} other rows were removed, {made} partitions created."
        )
    };
    let is_done = report.skipped == 0 && report.stop_reason == CleanupStop::Done;
    let more = if is_done {
        ""
    } else {
        " More is left to do: repeat the action."
    };
    Ok(format!("{told}{more}"))
}
