//! Renders action forms. A form is collapsed at first, has a field for the reason, and works without scripts
//! and by keyboard. People without the right to act get no forms.

use maud::{Markup, html};

use crate::desk::Desk;

/// An action that a page offers.
pub(crate) struct Offer<'a> {
    /// The path of the action, below `/act/`.
    pub verb: &'a str,
    /// What the button says.
    pub label: &'a str,
    /// What it does, in a sentence.
    pub explains: &'a str,
    /// Hidden fields that name the target.
    pub of: &'a [(&'a str, &'a str)],
    /// Whether it cannot be undone.
    pub is_grave: bool,
}

impl Offer<'_> {
    /// The action with fields to fill in, if this person may act.
    pub(crate) fn with(&self, desk: &Desk, fields: &Markup) -> Markup {
        self.form(desk, &html! { (fields) (reason()) })
    }

    /// The action with fields to fill in, but without a reason, because the audit stores none for it.
    pub(crate) fn without_reason(&self, desk: &Desk, fields: &Markup) -> Markup {
        self.form(desk, fields)
    }

    fn form(&self, desk: &Desk, fields: &Markup) -> Markup {
        if !desk.may_act() {
            return html! {};
        }
        let action = desk.base().of("/act", self.verb);
        html! {
            details.act {
                summary class=[self.is_grave.then_some("grave")] { (self.label) }
                form method="post" action=(action) {
                    p { (self.explains) }
                    @for (name, value) in self.of { input type="hidden" name=(name) value=(value); }
                    input type="hidden" name="back" value=(desk.address);
                    (fields)
                    button class=(if self.is_grave { "grave" } else { "primary" }) { (self.label) }
                }
            }
        }
    }

    /// The action without further fields.
    pub(crate) fn plain(&self, desk: &Desk) -> Markup {
        self.with(desk, &html! {})
    }
}

/// The field for the reason.
pub(crate) fn reason() -> Markup {
    html! {
        label.wide { span { "Reason" } input name="reason" required maxlength="1000" autocomplete="off" placeholder="for the audit"; }
    }
}

/// A field with its name.
pub(crate) fn input(label: &str, name: &str, value: &str, placeholder: &str) -> Markup {
    html! { label { span { (label) } input name=(name) value=(value) placeholder=(placeholder) autocomplete="off"; } }
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
