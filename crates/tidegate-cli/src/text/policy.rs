//! What people read of the policy of a kind.

use std::time::Duration;

use tidegate::admin::PolicyRequest;

use super::{Text, table};

impl Text for PolicyRequest {
    fn text(&self, report: &Self::Report) -> String {
        if report.policy.is_empty() {
            return format!("{} is handled with the default policy", report.kind);
        }
        let rows = report.policy.iter().map(|(field, value)| {
            let (name, value) = match (field.strip_suffix("_ms"), value.as_u64()) {
                (Some(name), Some(millis)) => {
                    let time = humantime::format_duration(Duration::from_millis(millis));
                    (name, time.to_string())
                }
                _ => (field.as_str(), value.to_string()),
            };
            let by = if report.overridden.contains_key(field) {
                "an operator"
            } else {
                "the program"
            };
            [name.to_owned(), value, by.to_owned()]
        });
        let table = table(
            &rows.collect::<Vec<_>>(),
            &[
                ("what", |row| row[0].clone()),
                ("value", |row| row[1].clone()),
                ("set by", |row| row[2].clone()),
            ],
        );
        format!("{}\n{table}", report.kind)
    }
}
