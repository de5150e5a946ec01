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
        let expired = |lease: &Value| {
            let word = if lease["expired"] == true {
                "expired"
            } else {
                ""
            };
            word.to_owned()
        };
        let table = table(
            &report.leases,
            &[
                ("worker", |lease| cell(&lease["worker"])),
                ("events", |lease| cell(&lease["events"])),
                ("started", |lease| cell(&lease["started"])),
                ("first", |lease| cell(&lease["first_id"])),
                ("last", |lease| cell(&lease["last_id"])),
                ("since", |lease| instant(&lease["taken_at"])),
                ("renewed", |lease| instant(&lease["renewed_at"])),
                ("expires", |lease| instant(&lease["expires_at"])),
                ("", expired),
            ],
        );
        let take = RequeueRequest::NAME;
        format!("{table}\ntake an event from its worker: tidegate {take} --id ID --reason TEXT")
    }
}
