//! Shows the report of an action, as a dry run returns it. The schema of the report says what each field
//! means, as on the command line, so this module knows no action by name.

use maud::{Markup, html};
use serde_json::{Map, Value};
use tidegate_admin::schema::{self, Words};

use crate::actions::title;
use crate::html::{event, field, named, number, short, table, text, time};
use crate::link::Base;

/// The most ids of a list.
const IDS: usize = 10;

/// The fields that are no result, or are shown apart.
const REQUESTED: [&str; 4] = ["action", "digest", "dry_run", "refused"];

/// Shows what a dry run would do.
pub(crate) fn shown(base: &Base, report: &Value) -> Markup {
    let action = report["action"].as_str().unwrap_or_default();
    let schema = schema::of_action(action).unwrap_or_default();
    html! {
        section {
            h2 { "What it would do" }
            (fields(base, &schema, report))
            @if let Some(refused) = report["refused"].as_str() { p.problem { (text(refused)) } }
        }
    }
}

/// Shows the fields of a report or of a part of it: the numbers first.
fn fields(base: &Base, schema: &Value, part: &Value) -> Markup {
    let empty = Map::new();
    let all = part.as_object().unwrap_or(&empty).iter();
    let all = all.filter(|(name, _)| !REQUESTED.contains(&name.as_str()));
    let (numbers, others): (Vec<_>, Vec<_>) = all.partition(|(_, value)| value.is_u64());
    let means = |name: &str| &schema["properties"][name];
    html! {
        dl.tiles {
            @for (name, value) in numbers {
                div { dt { (title(name)) } dd { strong { (number(value.as_u64().unwrap_or_default())) } span { (Words(means(name)).about()) } } }
            }
        }
        @for (name, value) in others { (other(base, name, means(name), value)) }
    }
}

/// Shows a field that is no number.
fn other(base: &Base, name: &str, schema: &Value, value: &Value) -> Markup {
    let label = title(name);
    match value {
        Value::Bool(is_true) => {
            html! { @if let Some(sentence) = Words(schema).sentence(*is_true) { p.note { (sentence) } } }
        }
        Value::Array(list) if list.first().is_some_and(Value::is_object) => html! {
            details id=(name) { summary { (label) ": " (Words(schema).about()) } (rows(base, &label, list)) }
        },
        Value::Array(list) if !list.is_empty() => html! {
            p { (label) ": " @for id in list.iter().take(IDS) { (event(base, id)) " " } }
        },
        Value::Object(counts) if counts.values().all(Value::is_u64) && !counts.is_empty() => {
            let table = table! { &label; (name, count) in counts;
                th "Which" { (short(name)) }
                n "Count" { (number(count.as_u64().unwrap_or_default())) }
            };
            html! { h3 { (label) } (table) }
        }
        Value::Object(part) if !part.is_empty() => {
            html! { h3 { (label) } p.note { (Words(schema).about()) } (fields(base, schema, value)) }
        }
        _ => html! {},
    }
}

/// A table of rows that have the same fields.
fn rows(base: &Base, label: &str, list: &[Value]) -> Markup {
    let mut names: Vec<&String> = list
        .iter()
        .flat_map(|row| row.as_object().into_iter().flatten())
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    names.dedup();
    html! {
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table {
                thead { tr { @for name in &names { th { (title(name)) } } } }
                tbody { @for row in list { tr { @for name in &names { td { (cell(base, name, &row[name.as_str()])) } } } } }
            }
        }
    }
}

/// Shows a field in the form that its name tells: an event, a group, a time.
pub(crate) fn cell(base: &Base, name: &str, value: &Value) -> Markup {
    match name {
        "id" | "by" | "last_id" | "parent_id" | "replay_of" => event(base, value),
        "group_key" => named(value, |key| base.of("/groups", key)),
        "correlation_id" => named(value, |id| base.to("/events").with("correlation_id", id)),
        "deadline" | "kept_until" => time(value),
        name if name.ends_with("_at") => time(value),
        _ => field(value),
    }
}
