//! Renders the forms of actions. A form is collapsed at first, has a field for the reason, and works without
//! scripts and by keyboard. People without the right to act get no forms.

use maud::{Markup, html};

use crate::actions::Action;
use crate::context::PageContext;
use crate::form::Form;
use crate::html::reason;
use crate::link::Link;

/// What cannot be undone: verbs, and flags of verbs that do one of several things.
const GRAVE: [&str; 3] = ["cancel", "cleanup", "retire"];

/// An action that a page offers, if this person may act: its verb, what the button says, hidden fields that
/// name the target and, as `do`, what to do with it, and the fields to fill in.
pub(crate) fn offer(
    ctx: &PageContext,
    verb: &str,
    label: &str,
    of: &[(&str, &str)],
    inputs: &[&str],
) -> Markup {
    let action = Action::named(verb);
    let fields = inputs.iter().filter_map(|name| action?.field(name));
    let fields = html! { @for field in fields { (field.input(&Form::default())) } };
    form(ctx, verb, label, of, &fields)
}

/// As [`offer`], with fields that are rendered already.
pub(crate) fn form(
    ctx: &PageContext,
    verb: &str,
    label: &str,
    of: &[(&str, &str)],
    fields: &Markup,
) -> Markup {
    let Some(action) = Action::named(verb).filter(|_| ctx.may_act()) else {
        return html! {};
    };
    let flag = of.iter().find(|(name, _)| *name == "do");
    let flag = flag.map(|(_, flag)| *flag);
    let is_grave = GRAVE.contains(&flag.unwrap_or(verb));
    html! {
        details.act {
            summary class=[is_grave.then_some("grave")] { (label) }
            form method="post" action=(ctx.base().of("/act", verb)) {
                p { (action.explains(flag)) }
                @for (name, value) in of { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="back" value=(ctx.address);
                (fields)
                @if action.has("reason") { (reason()) }
                button class=(if is_grave { "grave" } else { "primary" }) { (label) }
            }
        }
    }
}

/// The confirmation of an action, which carries the digest of what a dry run has found.
pub(crate) struct Confirmation<'a> {
    /// Where the form is sent to.
    pub to: Link,
    /// What is done, as on the button.
    pub what: String,
    /// The fields of the dry run.
    pub fields: Vec<(String, String)>,
    /// The digest of the dry run.
    pub digest: &'a str,
    /// Further fields to fill in.
    pub further: Markup,
    /// What happens if the events have changed since the dry run.
    pub note: &'a str,
}

impl Confirmation<'_> {
    pub(crate) fn form(&self) -> Markup {
        html! {
            section.confirm {
                h2 { (self.what) }
                form method="post" action=(self.to) {
                    @for (name, value) in &self.fields { input type="hidden" name=(name) value=(value); }
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
