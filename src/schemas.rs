//! JSON Schemas of what this program's own verbs print with `--json`. Those of all other verbs are the
//! command line's.

use serde_json::{Value, json};
use utoipa::PartialSchema;

use crate::app::checks::ReceiveIssuingReport;
use crate::app::forms::SubmitReport;

/// Each verb of the program's own, with the schema of its document.
#[must_use]
pub fn of_own_verbs() -> [(&'static str, Value); 6] {
    let served = json!({"url": {"type": "string", "format": "uri", "description": "The URL of the HTTP interface."}});
    let rotated = json!({
        "id": {"type": "integer", "format": "int64", "description": "The id of the new key."},
        "forgotten": {"type": "integer", "minimum": 0, "description": "The number of earlier keys that were forgotten."},
    });
    [
        (
            "receive-issuing",
            report::<ReceiveIssuingReport>("ReceiveIssuing", "receive_issuing"),
        ),
        ("submit", report::<SubmitReport>("Submit", "submit")),
        ("serve", document("Serve", "serve", served)),
        ("console", console()),
        ("api-key", api_key()),
        (
            "link-key",
            document("RotateLinkKey", "rotate_link_key", rotated),
        ),
    ]
}

/// A document with these fields and `action`.
fn document(title: &str, action: &str, mut fields: Value) -> Value {
    fields["action"] = json!({"const": action});
    let mut schema = object(&fields);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema
}

/// An object with these fields, all of which are there.
fn object(fields: &Value) -> Value {
    let names = fields.as_object().into_iter().flatten();
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    json!({"type": "object", "required": names, "properties": fields})
}

/// The document of a report, whose comments are its descriptions.
fn report<T: PartialSchema>(title: &str, action: &str) -> Value {
    let mut schema = json!(T::schema());
    document(title, action, schema["properties"].take())
}

fn console() -> Value {
    let served = json!({"url": {"type": "string", "format": "uri", "description": "The URL of the console."}});
    let hashed = json!({"hash": {"type": "string", "description": "The hash of the password, for the file of users."}});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Console",
        "oneOf": [document("Served", "console", served), document("HashPassword", "hash_password", hashed)],
    })
}

fn api_key() -> Value {
    let time_or_null = json!({"type": ["string", "null"], "format": "date-time"});
    let mut key = json!({
        "id": {"type": "integer", "format": "int64"},
        "label": {"type": "string"},
        "client_id": {"type": "string", "format": "uuid"},
        "user_id": {"type": ["string", "null"], "format": "uuid"},
        "scopes": {"type": "array", "items": {"type": "string"}},
        "created_at": {"type": "string", "format": "date-time"},
        "expires_at": time_or_null,
    });
    let mut made = key.clone();
    made["key"] =
        json!({"type": "string", "description": "The key itself. It is not shown again."});
    key["revoked_at"] = time_or_null;
    key["valid"] = json!({"type": "boolean", "description": "Whether the key is neither revoked nor expired."});
    let list = json!({"keys": {"type": "array", "items": object(&key)}});
    let revoked = json!({
        "id": {"type": "integer", "format": "int64"},
        "changed": {"type": "boolean", "description": "False if the key was already revoked."},
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ApiKey",
        "oneOf": [
            document("ApiKeyCreated", "create_api_key", made),
            document("ApiKeys", "list_api_keys", list),
            document("ApiKeyRevoked", "revoke_api_key", revoked),
        ],
    })
}
