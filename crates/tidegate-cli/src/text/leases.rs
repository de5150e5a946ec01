//! What people read of the leases.

use tidegate::admin::{LeasesRequest, RequeueRequest, Verb};

use super::{Text, cell, instant, plain_table};

/// One line for each lease.
impl Text for LeasesRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.leases.is_empty() {
            return "nothing is leased".to_owned();
        }
        let mut table = plain_table(&[
            "worker", "events", "started", "first", "last", "since", "renewed", "expires", "",
        ]);
        for lease in &report.leases {
            let expired = if lease["expired"] == true {
                "expired"
            } else {
                ""
            };
            table.add_row(vec![
                cell(&lease["worker"]),
                cell(&lease["events"]),
                cell(&lease["started"]),
                cell(&lease["first_id"]),
                cell(&lease["last_id"]),
                instant(&lease["taken_at"]),
                instant(&lease["renewed_at"]),
                instant(&lease["expires_at"]),
                expired.to_owned(),
            ]);
        }
        let take = RequeueRequest::NAME;
        format!("{table}\ntake an event from its worker: tidegate {take} --id ID --reason TEXT")
    }
}
