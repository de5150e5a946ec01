//! All actions, and the page of each. An action on all events of a filter is tried before: a dry run, then a
//! confirmation with a reason. With the digest of the dry run, exactly its events are changed, or none if the
//! filter selects others by then.

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::Map;
use tidegate_admin::TimeArg;
use tidegate_cli::Answer;

use super::forget;
use crate::action_forms;
use crate::actions::{Action, Intent, done};
use crate::context::PageContext;
use crate::form::{Form, Params, Posted};
use crate::page::Page;
use crate::problem::{Answered, Problem};
use crate::report;

pub(super) async fn index(ctx: PageContext) -> Answered {
    ctx.permitted()?;
    let body = html! {
        dl.facts { @for action in Action::all() {
            div { dt { a href=(ctx.base().of("/actions", action.name())) { (action.title()) } } dd { (action.explains(None)) } }
        } }
    };
    Page::new("/events", "Actions", "tidegate help", body).answer(&ctx)
}

pub(super) async fn show(
    ctx: PageContext,
    Path(verb): Path<String>,
    Params(query): Params,
) -> Answered {
    ctx.permitted()?;
    if verb == forget::VERB {
        return forget::show(&ctx);
    }
    let action = Action::named(&verb).ok_or_else(Problem::not_found)?;
    if !action.is_tried_before() {
        let fields = html! { @for field in action.fields() { (field.input(&query)) } };
        let body = action_forms::form(&ctx, &verb, &action.title(), &[], &fields);
        let command = action.command(&query, "");
        let page = Page::new("/events", action.title(), command, body);
        return page.fixed(ctx.kinds().await?).answer(&ctx);
    }
    let is_filled = action.fields().any(|field| query.is_set(&field.name()));
    let body = match dry_run(&ctx, action, &query).await {
        Ok(body) => body,
        Err(problem) if problem.is_invalid() && is_filled => {
            html! { p.problem { bdi { (problem.text) } } }
        }
        Err(problem) if problem.is_invalid() => {
            html! { p.note { "Choose the events, and what is to be done with them." } }
        }
        Err(problem) => return Err(problem),
    };
    let kinds = ctx.kinds().await?;
    let command = action.command(&query, " --dry-run --reason 'a look'");
    Page::new("/events", action.title(), command, body)
        .fixed(html! { (filters(&ctx, action, &query)) (kinds) })
        .answer(&ctx)
}

fn filters(ctx: &PageContext, action: Action, query: &Form) -> Markup {
    html! {
        p { (action.explains(None)) }
        search { form.filters method="get" action=(ctx.base().of("/actions", action.name())) {
            @for field in action.fields().filter(|field| !field.is_id()) { (field.input(query)) }
            button.primary { "Dry run" }
        } }
    }
}

/// Turns "ago" into fixed times, so that the dry run and the confirmation use the same ones.
fn fixed(action: Action, query: &Form) -> Result<Form, Problem> {
    let mut fixed = query.clone();
    for field in action.fields().filter(|field| field.is_moment()) {
        let name = field.name();
        if let Some(TimeArg::Ago(ago)) = query.moment(&name)?
            && let Some(at) = std::time::SystemTime::now().checked_sub(ago)
        {
            let at = humantime::format_rfc3339_nanos(at);
            fixed.set(&name, &at.to_string());
        }
    }
    Ok(fixed)
}

async fn dry_run(ctx: &PageContext, action: Action, query: &Form) -> Result<Markup, Problem> {
    let query = fixed(action, query)?;
    let request = action.request(ctx, &query, Intent::DryRun)?;
    let tried = tidegate_cli::answer(ctx.runtime(), &request).await?;
    Ok(html! {
        (report::shown(ctx.base(), &tried.document()))
        (confirmation(ctx, action, &query, &tried))
    })
}

fn confirmation(ctx: &PageContext, action: Action, fields: &Form, tried: &Answer) -> Markup {
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
    action_forms::Confirmation {
        to: ctx.base().of("/actions", action.name()),
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
    ctx: PageContext,
    Path(verb): Path<String>,
    Posted(sent): Posted,
) -> Answered {
    ctx.permitted()?;
    if verb == forget::VERB {
        return forget::send(ctx, sent).await;
    }
    let action = Action::named(&verb).filter(|action| action.is_tried_before());
    let action = action.ok_or_else(Problem::not_found)?;
    let intent = Intent::As(sent.needed("digest")?);
    let answer = done(&ctx, &action.request(&ctx, &sent, intent)?).await?;
    let kind = sent.text("kind").unwrap_or_default();
    let to = ctx.base().to("/events").with("kind", kind);
    ctx.lead(to.as_str(), answer.text())
}

/// Runs an action on what the form names.
pub(super) async fn act(
    ctx: PageContext,
    Path(verb): Path<String>,
    Posted(sent): Posted,
) -> Answered {
    ctx.permitted()?;
    let action = Action::named(&verb).filter(|action| action.name() != forget::VERB);
    let action = action.ok_or_else(Problem::not_found)?;
    let answer = done(&ctx, &action.request(&ctx, &sent, Intent::Direct)?).await?;
    let to = sent.back(ctx.base(), "/");
    ctx.lead(&to, answer.text())
}
