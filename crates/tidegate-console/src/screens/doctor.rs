//! The checks of `tidegate doctor`: the result of the last run, with its age.

use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use tidegate_admin::DoctorRequest;
use tidegate_admin::doctor::{DoctorReport, State as Judged};

use crate::checkup::{PATIENCE, PATIENCE_IF_FROZEN, Seen};
use crate::context::PageContext;
use crate::html::{chip, instant, table};
use crate::page::Page;
use crate::problem::Answered;

pub(super) async fn show(ctx: PageContext) -> Answered {
    let seen = look(&ctx, false).await;
    let body = html! {
        (progress(&ctx, &seen))
        @if let Some(last) = &seen.last {
            @match &last.result {
                Ok(report) => (checks(report)),
                Err(problem) => p.problem { (problem.title) ": " bdi { (problem.text) } },
            }
        }
    };
    let said = if seen.is_running {
        "The checks are running."
    } else {
        "The checks have ended."
    };
    Page::new("/doctor", "Doctor", "tidegate doctor", body)
        .renewing(said)
        .answer(&ctx)
}

/// Starts another run. The checks only read, so everybody may start them.
pub(super) async fn run(ctx: PageContext) -> Response {
    look(&ctx, true).await;
    Redirect::to(ctx.base().to("/doctor").as_str()).into_response()
}

async fn look(ctx: &PageContext, is_requested: bool) -> Seen {
    let shared = ctx.shared.clone();
    let patience = if shared.settings.is_frozen_between {
        PATIENCE_IF_FROZEN
    } else {
        PATIENCE
    };
    let examine = async move { shared.runtime.run(&DoctorRequest {}).await };
    ctx.shared
        .checkup
        .look(is_requested, patience, examine)
        .await
}

fn progress(ctx: &PageContext, seen: &Seen) -> Markup {
    let page = ctx.base().to("/doctor");
    html! {
        p.note {
            @if let Some(last) = &seen.last { "Checked " (instant(last.at)) ". " }
            @if seen.is_running {
                "The checks are running. " a href=(page) { "Show the result" }
            } @else {
                a href=(ctx.base().to("/doctor/run")) { "Run again" }
            }
        }
    }
}

fn checks(report: &DoctorReport) -> Markup {
    let mut checks: Vec<_> = report.checks.iter().collect();
    checks.sort_by_key(|check| match check.state {
        Judged::Problem => 0,
        Judged::Warning => 1,
        Judged::Ok => 2,
    });
    let table = table! { "Checks"; check in &checks;
        th "Check" { (check.name) }
        td "State" { @match check.state {
            Judged::Ok => (chip("good", "✓", "ok")),
            Judged::Warning => (chip("warn", "!", "warning")),
            Judged::Problem => (chip("bad", "✕", "problem")),
        } }
        td "Found" { bdi { (check.finding) } }
        td "Remedy" { @if let Some(remedy) = &check.remedy { pre { code { (remedy) } } } }
    };
    html! {
        @if report.ok { p { (chip("good", "✓", "ok")) " All checks passed." } }
        (table)
    }
}
