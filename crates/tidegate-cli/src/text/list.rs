//! What people read of a list of events.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate_admin::ListRequest;

use super::{Column, Text, cell, instant, short, table};

/// One line for each event, and the command for the next page if there may be one.
impl Text for ListRequest {
    fn text(&self, report: &Self::Report) -> String {
        let id: Column<Value> = ("id", |event| cell(&event["id"]));
        let group: Column<Value> = ("group", |event| cell(&event["group_key"]));
        let columns: &[Column<Value>] = if self.waiting {
            let why: Column<Value> = ("why", |event| cell(&event["why"]));
            &[id, ("kind", kind_of), group, why]
        } else {
            &[
                id,
                ("status", |event| cell(&event["status"])),
                ("kind", kind_of),
                ("attempts", |event| cell(&event["attempts"])),
                group,
                ("created", |event| instant(&event["created_at"])),
                ("ended", |event| instant(&event["finished_at"])),
                ("last error", |event| short(&event["last_error"])),
            ]
        };
        let mut text = table(&report.events, columns);
        if report.events.iter().any(is_foreign) {
            text.push_str("\n* this program does not handle this kind");
        }
        if let Some(searched) = &report.searched {
            let (events, back_to) = (searched.events, instant(&json!(searched.back_to)));
            let _ = write!(
                text,
                "\nsearched {events} live and {events} finished events at most, back to {back_to}"
            );
        }
        if let Some(next) = report.next.map(next_page) {
            // Writing to a string does not fail.
            let _ = write!(text, "\nnext page: {next}");
        }
        text
    }
}

/// An event's kind, with a mark if the program does not have it.
fn kind_of(event: &Value) -> String {
    let mark = if is_foreign(event) { "*" } else { "" };
    format!("{}{mark}", cell(&event["kind"]))
}

fn is_foreign(event: &Value) -> bool {
    event["handled"] == false
}

/// The command for the next page, after this id. A relative time such as `2h` stays relative, so the page may
/// lack events that have become too old in the meantime.
fn next_page(last: i64) -> String {
    let mut command = "tidegate".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--before" {
            arguments.next();
        } else if !argument.starts_with("--before=") {
            // Writing to a string does not fail.
            let _ = write!(command, " {}", quoted(&argument));
        }
    }
    format!("{command} --before {last}")
}

/// Quotes an argument for a shell.
#[must_use]
pub fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:.,/+@".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}
