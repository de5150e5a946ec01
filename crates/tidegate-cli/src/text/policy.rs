//! What people read of the policy of a kind.

use std::time::Duration;

use tidegate::admin::PolicyRequest;

use super::{Text, plain_table};

impl Text for PolicyRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.policy.is_empty() {
            return format!("{} is handled with the default policy", report.kind);
        }
        let mut table = plain_table(&["what", "value", "set by"]);
        for (field, value) in &report.policy {
            let (field, value) = match (field.strip_suffix("_ms"), value.as_u64()) {
                (Some(field), Some(millis)) => {
                    let time = humantime::format_duration(Duration::from_millis(millis));
                    (field, time.to_string())
                }
                _ => (field.as_str(), value.to_string()),
            };
            let stored = |fields: &serde_json::Map<String, serde_json::Value>| {
                fields.contains_key(field) || fields.contains_key(&format!("{field}_ms"))
            };
            let by = if stored(&report.overridden) {
                "an operator"
            } else {
                "the program"
            };
            table.add_row(vec![field.to_owned(), value, by.to_owned()]);
        }
        format!("{}\n{table}", report.kind)
    }
}
