//! Forgets a person or thing: dry run, then a confirmation for which its key must be typed. Both steps post a
//! form, so that the key never appears in an address. The digest is computed from the numbers of the dry run.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::action_forms::Confirmation;
use crate::actions::{Action, Field, Intent};
use crate::context::PageContext;
use crate::form::Form;
use crate::link::Link;
use crate::page::Page;
use crate::problem::{Answered, Problem};
use crate::report;

pub(super) const VERB: &str = "forget";

fn action() -> Result<Action, Problem> {
    Action::named(VERB).ok_or_else(Problem::not_found)
}

/// The fields that say whom to forget.
fn whom(action: Action) -> impl Iterator<Item = Field> {
    action.fields().filter(|field| !field.is_id())
}

pub(super) fn show(ctx: &PageContext) -> Answered {
    page(ctx, &Form::default(), html! {})
}

fn address(ctx: &PageContext) -> Link {
    ctx.base().of("/actions", VERB)
}

fn page(ctx: &PageContext, sent: &Form, body: Markup) -> Answered {
    let action = action()?;
    let form = html! {
        p { (action.explains(None)) " Choose one of these." }
        form.filters method="post" action=(address(ctx)) {
            @for field in whom(action) { (field.input(sent)) }
            button.primary { "Dry run" }
        }
    };
    let command = "tidegate forget --dry-run --reason 'a look' --group KEY";
    Page::new("/events", action.title(), command, body)
        .fixed(form)
        .answer(ctx)
}

/// Does the dry run or, with a digest, forgets.
pub(super) async fn send(ctx: PageContext, sent: Form) -> Answered {
    let action = action()?;
    let names: Vec<String> = whom(action).map(Field::name).collect();
    let keys: Vec<&str> = names.iter().filter_map(|name| sent.text(name)).collect();
    let [key] = keys[..] else {
        return Err(Problem::invalid(format!(
            "{}: exactly one of them must be given",
            names.join(", ")
        )));
    };
    if sent.is_set("id") {
        return Err(Problem::invalid("id: must not be given"));
    }
    let dry = action.request(&ctx, &sent, Intent::DryRun)?;
    let Some(digest) = sent.text("digest") else {
        let tried = tidegate_cli::answer(ctx.runtime(), &dry).await?;
        let further = html! {
            label.wide { span { "Type the key to confirm: " bdi { (key) } } input name="typed" required autocomplete="off"; }
        };
        let report = tried.document();
        let confirmation = Confirmation {
            to: address(&ctx),
            what: "Forget all of it".to_owned(),
            fields: names.iter().flat_map(|name| sent.pairs(name)).collect(),
            digest: &digest_of(&report),
            further,
            note: "This cannot be undone. If a dry run would find something else by then, nothing is forgotten.",
        };
        let body = html! {
            (report::shown(ctx.base(), &report))
            @if tried.is_done() { (confirmation.form()) } @else { p.empty { "There is nothing to forget." } }
        };
        return page(&ctx, &sent, body);
    };
    let request = action.request(&ctx, &sent, Intent::Confirmed)?;
    if sent.text("typed") != Some(key) {
        return Err(Problem::invalid("typed: must be exactly the key to forget"));
    }
    let tried = tidegate_cli::answer(ctx.runtime(), &dry).await?;
    if digest_of(&tried.document()) != digest {
        return Err(Problem::conflict(
            "digest: must match what a dry run finds, and this has changed. Run another dry run.",
        ));
    }
    // An incomplete forget is an answer, too: it says so.
    let answer = tidegate_cli::answer(ctx.runtime(), &request).await?;
    let to = address(&ctx);
    ctx.lead(to.as_str(), answer.text())
}

/// The digest of what a dry run has found.
fn digest_of(report: &Value) -> String {
    let found = ["forgotten", "cancelled", "before", "tables"];
    let found = found.map(|name| report[name].to_string());
    URL_SAFE_NO_PAD.encode(Sha256::digest(found.join(",")))
}
