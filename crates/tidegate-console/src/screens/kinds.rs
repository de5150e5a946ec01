//! Kinds of events: figures, state, policy and retention.

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::Value;
use tidegate_admin::views::Kind;
use tidegate_cli::quoted;

use super::overview::{figures, spans, state};
use super::span;
use crate::action_forms::offer;
use crate::actions::title;
use crate::chart;
use crate::context::PageContext;
use crate::form::Params;
use crate::html::{empty, field, millis, number, short, table, time_of};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext, Params(request): Params) -> Answered {
    let span = span(&request);
    let service = ctx.runtime();
    let (kinds, overview, ended) =
        tokio::try_join!(service.kinds(), service.overview(), service.ended(span))?;
    let base = ctx.base();
    let names = kinds.iter().map(|kind| kind.kind.as_str());
    let depths = Some(overview.depths.as_slice());
    let table = figures(base, "Kinds", names, depths, &ended, &kinds);
    let body = html! {
        @if kinds.is_empty() { (empty("No kind is registered yet: run `tidegate migrate`.")) } @else { (table) }
        @if overview.is_estimate { p.note { "Live events are counted among the first 100,000." } }
    };
    let paused = kinds.iter().filter(|kind| kind.paused).count();
    Page::new("/kinds", "Kinds", "tidegate status", body)
        .renewing(format!("{paused} kinds are paused."))
        .answer(&ctx)
}

pub(super) async fn one(
    ctx: PageContext,
    Path(name): Path<String>,
    Params(request): Params,
) -> Answered {
    let span = span(&request);
    let service = ctx.runtime();
    let (kinds, course, ended) = tokio::try_join!(
        service.kinds(),
        service.course(span, Some(&name)),
        service.ended(span)
    )?;
    let kind = kinds.into_iter().find(|kind| kind.kind == name);
    let base = ctx.base();
    let steps = chart::complete(span, &course, std::time::SystemTime::now());
    let has_figures = ended.iter().any(|figures| figures.kind == name);
    let body = html! {
        @match &kind {
            Some(kind) => { div.lead { (state(kind)) " registered " (time_of(Some(&kind.registered_at))) (actions(&ctx, kind)) } }
            None => { p.empty { "This kind is not registered, or it was retired." } }
        }
        (spans(&base.of("/kinds", &name), span))
        @if has_figures { (figures(base, "Figures", std::iter::once(&*name), None, &ended, &[])) }
        div.charts { (chart::ended(span, &steps)) (chart::failures(span, &steps)) }
        @if let Some(kind) = &kind { (policy(kind)) (kept(&ctx, kind)) }
        p { a href=(base.to("/events").with("kind", &name)) { "Its events" } " · " a href=(base.to("/dead").with("kind", &name)) { "Its dead letters" } }
    };
    let command = format!("tidegate list --kind {}", quoted(&name));
    Page::new("/kinds", format!("Kind {name}"), command, body)
        .renewing("")
        .answer(&ctx)
}

fn actions(ctx: &PageContext, kind: &Kind) -> Markup {
    let of: &[(&str, &str)] = &[("kind", &kind.kind)];
    html! {
        div.actions {
            @if kind.paused { (offer(ctx, "resume", "Resume", of, &[])) } @else { (offer(ctx, "pause", "Pause", of, &[])) }
            (offer(ctx, "retire", "Retire", of, &[]))
        }
    }
}

/// What the program declares of how events of the kind are handled.
fn policy(kind: &Kind) -> Markup {
    let shown = |field: &str, value: &Value| match value.as_u64().unwrap_or_default() {
        time if field.ends_with("_ms") => millis(time),
        other => number(other),
    };
    let table = table! { "Policy"; (field, value) in &kind.policy;
        th "Setting" { (title(field.trim_end_matches("_ms"))) }
        n "Declared by the program" { (shown(field, value)) }
    };
    html! { section { h2 { "Policy" } @if kind.policy.is_empty() { (empty("The defaults apply.")) } @else { (table) } } }
}

/// The retention of a kind, with a form to change it.
pub(super) fn kept(ctx: &PageContext, kind: &Kind) -> Markup {
    html! {
        section {
            h2 { "Retention" }
            p { "Completed events are kept for " strong { (short(&kind.retention_completed)) } ", failed and rejected ones for " strong { (field(&Value::from(kind.retention_failed.as_str()))) } "." }
            div.actions { (retention(ctx, &kind.kind)) }
        }
    }
}

/// The form that changes the retention of a kind.
pub(super) fn retention(ctx: &PageContext, kind: &str) -> Markup {
    let inputs = &["completed", "failed"];
    offer(
        ctx,
        "retention",
        "Change the retention",
        &[("kind", kind)],
        inputs,
    )
}
