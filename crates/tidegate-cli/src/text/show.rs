//! What people read of one event.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate::admin::ShowRequest;

use super::{Text, cell, instant, shown};

impl Text for ShowRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut fields = json!(report);
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("action");
        }
        event(&fields)
    }
}

/// The fields in the order of a person's questions: what is it, why is it so, since when, what went wrong,
/// what belongs to it. Then come all others, and the payload.
const ORDER: &str = "id kind status why created_at available_at deadline processing_started_at lease_expires_at \
    finished_at kept_until attempts max_attempts last_error errors notes reported group_key correlation_id dedup_key \
    parent_id replay_of progress result";

/// Describes everything that is stored about an event, one line for each field with a value.
fn event(event: &Value) -> String {
    let mut text = String::new();
    let place = |name: &str| {
        let place = ORDER.split(' ').position(|known| known == name);
        place.unwrap_or(ORDER.len() + usize::from(name == "payload"))
    };
    let mut fields: Vec<_> = event.as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(name, _)| place(name));
    for (name, value) in fields {
        let value = match value {
            Value::Null => continue,
            Value::Array(lines) if lines.is_empty() => continue,
            Value::Array(errors) if name == "errors" => {
                errors.iter().map(error).collect::<Vec<_>>().join("\n")
            }
            Value::String(_) if is_time(name) => instant(value),
            Value::String(text) => shown(text),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let value = value.replace('\n', "\n                       ");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:22} {value}");
    }
    text
}

fn is_time(name: &str) -> bool {
    name.ends_with("_at") || ["deadline", "kept_until"].contains(&name)
}

/// Describes an error in one line: when, in which attempt, of which handler, what.
fn error(error: &Value) -> String {
    let attempt = match &error["attempt"] {
        Value::Null => String::new(),
        attempt => format!("attempt {attempt}"),
    };
    let what = ["handler", "code", "message", "details"].map(|name| cell(&error[name]));
    let parts = [instant(&error["at"]), attempt].into_iter().chain(what);
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}
