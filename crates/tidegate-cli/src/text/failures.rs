//! What people read of the dead letters.

use tidegate::admin::FailuresRequest;

use super::{Text, shown, table, time_of};

/// One line for each cause, and what to do about it.
impl Text for FailuresRequest {
    fn text(&self, report: &Self::Report) -> String {
        let since = time_of(Some(&report.since));
        if report.failures.is_empty() {
            return format!("no event has failed or was rejected since {since}");
        }
        let table = table(
            &report.failures,
            &[
                ("events", |cause| cause.events.to_string()),
                ("status", |cause| cause.status.clone()),
                ("code", |cause| shown(&cause.code)),
                ("kind", |cause| shown(&cause.kind)),
                ("example", |cause| {
                    cause.example.map(|id| id.to_string()).unwrap_or_default()
                }),
                ("first", |cause| time_of(Some(&cause.first))),
                ("last", |cause| time_of(Some(&cause.last))),
                ("message", |cause| {
                    shown(cause.message.as_deref().unwrap_or_default())
                }),
            ],
        );
        let more = if report.limit_reached {
            "\nthere are more causes: --limit lists more"
        } else {
            ""
        };
        let since = report.since.replace("+00:00", "Z");
        format!(
            "{} failed, {} were rejected since {}\n{table}{more}\n\
             look at the example: tidegate show ID\n\
             list the events: tidegate list --kind KIND --status STATUS --code CODE --since {since}\n\
             replay them: tidegate replay --kind KIND --status STATUS --code CODE --since {since} --reason TEXT",
            report.failed,
            report.rejected,
            time_of(Some(&report.since))
        )
    }
}
