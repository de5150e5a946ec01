//! What people read of the leases.

use serde_json::Value;
use tidegate::admin::{LeasesRequest, RequeueRequest, Verb};

use super::{Text, cell, instant, table};

/// One line for each lease.
impl Text for LeasesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.leases.is_empty() {
            return "nothing is leased".to_owned();
        }
        let is_expired = |lease: &Value| lease["expired"] == true;
        let table = table(
            &report.leases,
            &[
                ("state", |lease| {
                    let is_expired = lease["expired"] == true;
                    if is_expired { "expired" } else { "live" }.to_owned()
                }),
                ("events", |lease| cell(&lease["events"])),
                ("started", |lease| cell(&lease["started"])),
                ("first", |lease| cell(&lease["first_id"])),
                ("last", |lease| cell(&lease["last_id"])),
                ("since", |lease| instant(&lease["taken_at"])),
                ("renewed", |lease| instant(&lease["renewed_at"])),
                ("expires", |lease| instant(&lease["expires_at"])),
                ("worker", |lease| cell(&lease["name"])),
                ("worker id", |lease| cell(&lease["worker"])),
            ],
        );
        let take = RequeueRequest::NAME;
        let expired = if report.leases.iter().any(is_expired) {
            "\nexpired: the worker has stopped responding, and the next drain takes its events back: tidegate drain"
        } else {
            ""
        };
        format!(
            "{table}{expired}\ntake an event from its worker: tidegate {take} --id ID --reason TEXT"
        )
    }
}
