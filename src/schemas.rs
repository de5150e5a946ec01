//! JSON Schemas of what this program's own verbs print with `--json`. Those of all other verbs are the
//! command line's.

use serde_json::{Value, json};
use utoipa::PartialSchema;

use crate::app::checks::ReceiveIssuingReport;
use crate::app::forms::SubmitReport;

/// The schemas of documents that are not of one Rust type, by verb.
const BY_HAND: &str = include_str!("schemas.json");

/// Each verb of the program's own, with the schema of its document.
#[must_use]
pub fn of_own_verbs() -> [(&'static str, Value); 6] {
    // A test compares them with what the verbs print.
    let mut by_hand: Value = serde_json::from_str(BY_HAND).unwrap_or_default();
    let mut verb = |name: &'static str| (name, by_hand[name].take());
    let received = report::<ReceiveIssuingReport>("ReceiveIssuing", "receive_issuing");
    [
        ("receive-issuing", received),
        ("submit", report::<SubmitReport>("Submit", "submit")),
        verb("serve"),
        verb("console"),
        verb("api-key"),
        verb("link-key"),
    ]
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
