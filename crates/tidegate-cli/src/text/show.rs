//! What people read of one event.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate::admin::ShowRequest;
use tidegate::admin::views::{Lineage, RelatedEvent, Relation};

use super::{Text, cell, in_seconds, instant, shown};

impl Text for ShowRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut fields = json!(report);
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|name, _| !["action", "lineage"].contains(&name.as_str()));
        }
        let mut text = event(&fields);
        if let Some(lineage) = &report.lineage {
            text.push_str(&tree(lineage, self.id));
        }
        text
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

/// Draws the ancestors and descendants of an event as a tree.
fn tree(lineage: &Lineage, id: i64) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(lineage.events.len());
    // Whether, at each depth, another branch follows below the line that is being drawn.
    let mut more: Vec<bool> = Vec::new();
    for event in lineage.events.iter().rev() {
        let depth = event.depth as usize;
        more.resize(depth + 1, false);
        let mut line = String::from("  ");
        for more in more.iter().take(depth).skip(1) {
            line.push_str(if *more { "│  " } else { "   " });
        }
        if depth > 0 {
            line.push_str(if more[depth] { "├─ " } else { "└─ " });
        }
        more[depth] = true;
        line.push_str(&related_line(event));
        if event.id == id {
            line.push_str("  ← this event");
        }
        lines.push(line);
    }
    lines.reverse();
    if let Some(gone) = lineage.events.first().and_then(RelatedEvent::origin) {
        let why = if lineage.truncated {
            "is not shown"
        } else {
            "is no longer stored"
        };
        lines.insert(0, format!("  (event {gone}, from which it came, {why})"));
    }
    if lineage.truncated {
        lines.push(format!(
            "  (only the nearest {} are shown)",
            lineage.events.len()
        ));
    }
    format!("lineage\n{}\n", lines.join("\n"))
}

fn related_line(event: &RelatedEvent) -> String {
    let replay = if event.relation == Relation::Replay {
        "replay "
    } else {
        ""
    };
    let when = event.finished_at.as_ref().map_or_else(
        || format!("created {}", in_seconds(&event.created_at)),
        |at| format!("ended {}", in_seconds(at)),
    );
    let attempts = match event.attempts {
        1 => "1 attempt".to_owned(),
        more => format!("{more} attempts"),
    };
    format!(
        "{replay}{} {} {}, {attempts}, {when}",
        event.id,
        shown(&event.kind),
        event.status
    )
}
