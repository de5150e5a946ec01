//! Renders the forms of actions. A form is collapsed at first, has a field for the reason, and works without
//! scripts and by keyboard. People without the right to act get no forms.

use maud::{Markup, html};

use crate::acts::Action;
use crate::desk::Desk;
use crate::form::Fields;

/// An action that a page offers.
pub(crate) struct Offer<'a> {
    /// The verb.
    pub verb: &'a str,
    /// What the button says.
    pub label: &'a str,
    /// Hidden fields that name the target, and `do`, what to do with it.
    pub of: &'a [(&'a str, &'a str)],
    /// The fields to fill in.
    pub asks: &'a [&'a str],
    /// Whether it cannot be undone.
    pub is_grave: bool,
}

impl Offer<'_> {
    /// The form, if this person may act.
    pub(crate) fn form(&self, desk: &Desk) -> Markup {
        self.with(desk, &html! {})
    }

    /// The form with fields of its own.
    pub(crate) fn with(&self, desk: &Desk, further: &Markup) -> Markup {
        let Some(action) = Action::named(self.verb).filter(|_| desk.may_act()) else {
            return html! {};
        };
        let flag = self.of.iter().find(|(name, _)| *name == "do");
        let asks = self.asks.iter().filter_map(|name| action.field(name));
        html! {
            details.act {
                summary class=[self.is_grave.then_some("grave")] { (self.label) }
                form method="post" action=(desk.base().of("/act", self.verb)) {
                    p { (action.explains(flag.map(|(_, flag)| *flag))) }
                    @for (name, value) in self.of { input type="hidden" name=(name) value=(value); }
                    input type="hidden" name="back" value=(desk.address);
                    @for field in asks { (field.input(&Fields::default())) }
                    (further)
                    @if action.has("reason") { (reason()) }
                    button class=(if self.is_grave { "grave" } else { "primary" }) { (self.label) }
                }
            }
        }
    }
}

/// The field for the reason.
pub(crate) fn reason() -> Markup {
    html! {
        label.wide { span { "Reason" } input name="reason" required maxlength="1000" autocomplete="off" placeholder="for the audit"; }
    }
}

/// A field with its name and an example.
pub(crate) fn input(label: &str, name: &str, value: &str, example: &str) -> Markup {
    html! { label { span { (label) } input name=(name) value=(value) placeholder=(example) autocomplete="off"; } }
}

/// A checkbox.
pub(crate) fn tick(label: &str, name: &str, is_set: bool) -> Markup {
    html! { label.tick { input type="checkbox" name=(name) value="on" checked[is_set]; span { (label) } } }
}

/// A selection. The first part of each pair is the value.
pub(crate) fn select(label: &str, name: &str, chosen: &str, choices: &[(&str, &str)]) -> Markup {
    html! {
        label { span { (label) }
            select name=(name) {
                @for (value, told) in choices { option value=(value) selected[*value == chosen] { (told) } }
            }
        }
    }
}
