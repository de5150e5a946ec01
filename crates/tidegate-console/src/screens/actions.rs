//! All actions, and the page of each. An action on all events of a filter is tried before: a dry run, a
//! reason, a confirmation. With the digest of the dry run, the program changes exactly its events, or none if
//! they have changed.

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::Map;
use tidegate::admin::Moment;
use tidegate_cli::Answer;

use super::forget;
use crate::acts::{Action, Intent, done};
use crate::desk::Desk;
use crate::form::{FormBody, FormFields, Params};
use crate::offer;
use crate::page::Page;
use crate::problem::{Answered, Problem};
use crate::report;

pub(super) async fn index(desk: Desk) -> Answered {
    desk.permitted()?;
    let body = html! {
        dl.facts { @for action in Action::all() {
            div { dt { a href=(desk.base().of("/actions", action.name())) { (action.title()) } } dd { (action.explains(None)) } }
        } }
    };
    Page::new("/events", "Actions", "tidegate help", body).answer(&desk)
}

pub(super) async fn show(desk: Desk, Path(verb): Path<String>, Params(query): Params) -> Answered {
    desk.permitted()?;
    if verb == forget::VERB {
        return forget::show(&desk);
    }
    let action = Action::named(&verb).ok_or_else(Problem::not_found)?;
    if !action.is_tried_before() {
        let fields = html! { @for field in action.fields() { (field.input(&query)) } };
        let body = offer::form(&desk, &verb, &action.title(), &[], &fields);
        let command = action.command(&query, "");
        let page = Page::new("/events", action.title(), command, body);
        return page.fixed(desk.kinds().await?).answer(&desk);
    }
    let is_filled = action.fields().any(|field| query.is_set(&field.name()));
    let body = match dry_run(&desk, action, &query).await {
        Ok(body) => body,
        Err(problem) if problem.is_invalid() && is_filled => {
            html! { p.problem { bdi { (problem.text) } } }
        }
        Err(problem) if problem.is_invalid() => {
            html! { p.note { "Choose the events, and what is to be done with them." } }
        }
        Err(problem) => return Err(problem),
    };
    let kinds = desk.kinds().await?;
    let command = action.command(&query, " --dry-run --reason 'a look'");
    Page::new("/events", action.title(), command, body)
        .fixed(html! { (filters(&desk, action, &query)) (kinds) })
        .answer(&desk)
}

fn filters(desk: &Desk, action: Action, query: &FormFields) -> Markup {
    html! {
        p { (action.explains(None)) }
        search { form.filters method="get" action=(desk.base().of("/actions", action.name())) {
            @for field in action.fields().filter(|field| !field.is_id()) { (field.input(query)) }
            button.primary { "Dry run" }
        } }
    }
}

/// Turns "ago" into fixed times, so that the dry run and the confirmation use the same ones.
fn fixed(action: Action, query: &FormFields) -> Result<FormFields, Problem> {
    let mut fixed = query.clone();
    for field in action.fields().filter(|field| field.is_moment()) {
        let name = field.name();
        if let Some(Moment::Ago(ago)) = query.moment(&name)?
            && let Some(at) = std::time::SystemTime::now().checked_sub(ago)
        {
            let at = humantime::format_rfc3339_nanos(at);
            fixed.set(&name, &at.to_string());
        }
    }
    Ok(fixed)
}

async fn dry_run(desk: &Desk, action: Action, query: &FormFields) -> Result<Markup, Problem> {
    let query = fixed(action, query)?;
    let request = action.request(desk, &query, Intent::DryRun)?;
    let tried = tidegate_cli::answer(desk.service(), &request).await?;
    Ok(html! {
        (report::shown(desk.base(), &tried.document()))
        (confirmation(desk, action, &query, &tried))
    })
}

fn confirmation(desk: &Desk, action: Action, fields: &FormFields, tried: &Answer) -> Markup {
    let report = tried.document();
    let kinds = report["kinds"].as_object();
    if kinds.is_none_or(Map::is_empty) || report["refused"].is_string() {
        return html! { p.empty { "There is nothing to change." } };
    }
    let Some(digest) = report["digest"].as_str() else {
        return html! { p.problem { "Choose a limit of at most 10,000." } };
    };
    let carried = action
        .fields()
        .flat_map(|field| fields.pairs(&field.name()));
    offer::Confirmation {
        to: desk.base().of("/actions", action.name()),
        what: format!("{} these events", action.title()),
        fields: carried.collect(),
        digest,
        further: html! {},
        note: "Exactly these events are changed. If the set has changed by then, for example because drains are working on it, \
               nothing is changed. Pause the kind to keep the set as it is.",
    }
    .form()
}

/// Does what the dry run has shown, or nothing.
pub(super) async fn confirm(
    desk: Desk,
    Path(verb): Path<String>,
    FormBody(sent): FormBody,
) -> Answered {
    desk.permitted()?;
    if verb == forget::VERB {
        return forget::send(desk, sent).await;
    }
    let action = Action::named(&verb).filter(|action| action.is_tried_before());
    let action = action.ok_or_else(Problem::not_found)?;
    let intent = Intent::As(sent.needed("digest")?);
    let answer = done(&desk, &action.request(&desk, &sent, intent)?).await?;
    let kind = sent.text("kind").unwrap_or_default();
    let to = desk.base().to("/events").with("kind", kind);
    desk.lead(to.as_str(), answer.text())
}

/// Does something with what the form names.
pub(super) async fn act(
    desk: Desk,
    Path(verb): Path<String>,
    FormBody(sent): FormBody,
) -> Answered {
    desk.permitted()?;
    let action = Action::named(&verb).filter(|action| action.name() != forget::VERB);
    let action = action.ok_or_else(Problem::not_found)?;
    let answer = done(&desk, &action.request(&desk, &sent, Intent::Direct)?).await?;
    let to = sent.back(desk.base(), "/");
    desk.lead(&to, answer.text())
}
