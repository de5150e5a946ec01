//! The parts of an action on many events: what a dry run has found, and the confirmation, which carries the
//! digest of it.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tidegate::admin::{Moment, Skipped};

use crate::desk::Desk;
use crate::form::Fields;
use crate::html::{event, number, short, table};
use crate::link::Base;
use crate::offer::reason;
use crate::problem::Problem;

/// A number with its name and what it means.
pub(super) struct Tile<'a>(pub &'a str, pub u64, pub &'a str);

/// The numbers of a dry run.
pub(super) fn tiles(tiles: &[Tile<'_>]) -> Markup {
    html! {
        dl.tiles {
            @for Tile(name, count, told) in tiles {
                div { dt { (name) } dd { strong { (number(*count)) } span { (told) } } }
            }
        }
    }
}

/// How many events there are of each kind.
pub(super) fn kinds(kinds: &BTreeMap<String, u64>) -> Markup {
    counts("Kinds", "Kind", kinds)
}

fn counts(label: &str, head: &str, counts: &BTreeMap<String, u64>) -> Markup {
    if counts.is_empty() {
        return html! {};
    }
    let head = html! { th { (head) } th.n { "Events" } };
    let rows = html! { @for (name, count) in counts { tr { th scope="row" { (short(name)) } td.n { (number(*count)) } } } };
    table(label, &head, &rows)
}

/// Which events are left out, and why.
pub(super) fn skipped(base: &Base, reasons: &BTreeMap<String, u64>, skipped: &[Skipped]) -> Markup {
    if skipped.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Skipped" }
        (counts("Left out", "Why", reasons))
        details #skipped { summary { "The first of them" } ul.plain { @for one in skipped { li { (event(base, &one.id.into())) " " (short(&one.reason)) @if let Some(by) = one.by { " by " (event(base, &by.into())) } } } } }
    }
}

/// The confirmation of an action.
pub(super) struct Confirmation<'a> {
    /// The path that the form is sent to.
    pub path: &'a str,
    /// What is done, as on the button.
    pub what: String,
    /// The fields of the dry run.
    pub fields: Vec<(&'a str, String)>,
    /// The digest of the dry run.
    pub digest: &'a str,
    /// Further fields to fill in.
    pub further: Markup,
    /// What happens if something has changed.
    pub note: &'a str,
}

impl Confirmation<'_> {
    pub(super) fn show(&self, desk: &Desk) -> Markup {
        html! {
            section.confirm {
                h2 { (self.what) }
                form method="post" action=(desk.base().to(self.path)) {
                    @for (name, value) in &self.fields {
                        @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                    }
                    input type="hidden" name="digest" value=(self.digest);
                    (self.further)
                    (reason())
                    button.grave { (self.what) }
                    p.note { (self.note) }
                }
            }
        }
    }
}

/// The fields of a dry run for its confirmation. "Ago" becomes the time that the dry run has used.
pub(super) fn carried<'a>(
    asked: &Fields,
    names: &[&'a str],
    since: Option<Moment>,
    until: Option<Moment>,
) -> Vec<(&'a str, String)> {
    let at = |moment: Option<Moment>| match moment {
        Some(Moment::At(time)) => humantime::format_rfc3339_nanos(time).to_string(),
        _ => String::new(),
    };
    let value = |name: &str| match name {
        "since" => at(since),
        "until" => at(until),
        _ => asked.text(name).unwrap_or_default().to_owned(),
    };
    names.iter().map(|name| (*name, value(name))).collect()
}

/// Turns "ago" into a fixed time, so that the dry run and the confirmation use the same one.
pub(super) fn fixed(moment: Option<Moment>) -> Option<Moment> {
    match moment {
        Some(Moment::Ago(time)) => std::time::SystemTime::now()
            .checked_sub(time)
            .map(Moment::At),
        other => other,
    }
}

/// Refuses people who may not act.
pub(super) fn permitted(desk: &Desk) -> Result<(), Problem> {
    if desk.may_act() {
        return Ok(());
    }
    Err(Problem::forbidden("You have read-only access."))
}

/// The answer if the digest does not match.
pub(super) fn refused(why: &str) -> Problem {
    Problem::conflict(format!("{why}. Run another dry run."))
}
