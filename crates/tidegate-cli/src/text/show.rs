//! What people read of one event.

use std::fmt::Write;

use tidegate::Json;
use tidegate_admin::ShowRequest;
use tidegate_admin::views::{self, Columns};

use std::collections::BTreeMap;

use super::{Text, instant, pretty, shown};

impl Text for ShowRequest {
    fn text(&self, report: &Self::Report) -> String {
        let mut fields = report.event.clone();
        if let Ok(notes) = Json::of(&report.notes) {
            fields.insert("notes".to_owned(), notes);
        }
        event(&fields)
    }
}

/// One line for each field with a value, in the order of [`views::place`].
fn event(event: &Columns) -> String {
    let mut text = String::new();
    let mut fields: Vec<_> = event.iter().collect();
    fields.sort_by_key(|(name, _)| views::place(name));
    for (name, value) in fields {
        let of_errors = |errors: Vec<BTreeMap<String, Json>>| {
            let lines: Vec<String> = errors.iter().map(error).collect();
            lines.join("\n")
        };
        let value = match (value.get(), value.read::<String>()) {
            ("null" | "[]", _) => continue,
            (_, Ok(text)) if is_time(name) => instant(&text.into()),
            (_, Ok(text)) if name != "payload" => shown(&text),
            (text, _) if name == "errors" => value.read().map_or_else(|_| pretty(text), of_errors),
            (text, _) => pretty(text),
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
fn error(error: &BTreeMap<String, Json>) -> String {
    let field = |name: &str| match error.get(name) {
        // A text without its quotation marks, and anything else as it is stored.
        Some(json) => json.read::<Option<String>>().map_or_else(
            |_| shown(json.get()),
            |text| text.as_deref().map(shown).unwrap_or_default(),
        ),
        None => String::new(),
    };
    let attempt = match field("attempt") {
        none if none.is_empty() => none,
        attempt => format!("attempt {attempt}"),
    };
    let what = ["handler", "code", "message", "details"].map(field);
    let parts = [instant(&field("at").into()), attempt]
        .into_iter()
        .chain(what);
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}
