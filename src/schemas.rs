//! JSON Schemas of what this program's own verbs print with `--json`. `tidegate_cli` has those of all other
//! verbs.

use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use crate::app::checks::ReceiveIssuingReport;
use crate::app::forms::SubmitReport;

/// The schemas of documents that are not of one Rust type, by verb.
const BY_HAND: &str = include_str!("schemas.json");

/// The verbs of the application, each with the schema of its document.
#[must_use]
pub fn of_application() -> Map<String, Value> {
    let received = report::<ReceiveIssuingReport>("ReceiveIssuing", "receive_issuing");
    let submitted = report::<SubmitReport>("Submit", "submit");
    [("receive-issuing", received), ("submit", submitted)]
        .map(|(verb, schema)| (verb.to_owned(), schema))
        .into_iter()
        .collect()
}

/// The verbs that serve the HTTP interface and the console, and those that make keys for them, each with the
/// schema of its document.
#[must_use]
pub fn of_servers() -> Map<String, Value> {
    // A test compares them with what the verbs print.
    serde_json::from_str(BY_HAND).unwrap_or_default()
}

/// The document of a report, whose comments are its descriptions.
fn report<T: PartialSchema>(title: &str, action: &str) -> Value {
    let mut fields = json!(T::schema())["properties"].take();
    fields["action"] = json!({ "const": action });
    let names = fields.as_object().into_iter().flatten();
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "required": names,
        "properties": fields,
    })
}
