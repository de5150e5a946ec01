//! Forgets a person or thing: dry run, then a confirmation for which its key must be typed. Both steps post a
//! form, so that the key never appears in an address. The digest is computed from the numbers of the dry run.

use axum::response::Response;
use maud::{Markup, html};
use sha2::{Digest, Sha256};
use tidegate::admin::{Audit, ForgetReport, ForgetRequest, Whom, parse_subject};

use super::confirm::{Confirmation, Tile, permitted, refused, tiles};
use crate::desk::Desk;
use crate::flash;
use crate::form::{Fields, Sent};
use crate::html::{number, short, table};
use crate::offer::input;
use crate::page::{Page, Place};
use crate::problem::Problem;

/// The fields that say whom to forget.
const FIELDS: [&str; 3] = ["group", "correlation", "subject"];

pub(super) async fn show(desk: Desk) -> Result<Response, Problem> {
    permitted(&desk)?;
    let body = html! { p.note { "Choose whom to forget: all events of a group, all events with a correlation id, or a subject of the program's own tables with its events." } };
    Ok(page(&desk, &Fields::default(), body))
}

fn page(desk: &Desk, sent: &Fields, body: Markup) -> Response {
    let command = "tidegate forget --dry-run --reason 'a look' --group KEY";
    Page::new(Place::Events, "Forget", command, body)
        .fixed(whom(desk, sent))
        .answer(desk)
}

fn whom(desk: &Desk, sent: &Fields) -> Markup {
    let given = |name| sent.text(name).unwrap_or_default();
    html! {
        form.filters method="post" action=(desk.base().to("/forget")) {
            label { span { "Group" } input #filter name="group" value=(given("group")) autocomplete="off"; }
            (input("Correlation id", "correlation", given("correlation"), ""))
            (input("Subject", "subject", given("subject"), "customer=42"))
            button.primary { "Dry run" }
        }
    }
}

fn request(
    desk: &Desk,
    sent: &Fields,
    reason: &str,
    dry_run: bool,
) -> Result<ForgetRequest, Problem> {
    let subject = sent.text("subject").map(parse_subject).transpose();
    Ok(ForgetRequest {
        whom: Whom {
            group: sent.owned("group"),
            correlation_id: sent.owned("correlation"),
            subject: subject.map_err(|why| Problem::invalid(format!("subject: {why}")))?,
            ids: None,
        },
        dry_run,
        audit: Audit::of(reason).by(desk.actor()),
    })
}

/// Does the dry run or, with a digest, forgets.
pub(super) async fn send(desk: Desk, Sent(sent): Sent) -> Result<Response, Problem> {
    permitted(&desk)?;
    let dry = request(&desk, &sent, "a dry run", true)?;
    let keys: Vec<&str> = FIELDS.iter().filter_map(|name| sent.text(name)).collect();
    let [key] = keys[..] else {
        return Err(Problem::invalid(
            "group: must be given, or correlation or subject, and only one of them",
        ));
    };
    let Some(digest) = sent.text("digest") else {
        let report = desk.service().run(&dry).await?;
        let body = found(&desk, &sent, key, &report);
        return Ok(page(&desk, &sent, body));
    };
    let reason = sent.needed("reason")?;
    if sent.text("typed") != Some(key) {
        return Err(Problem::invalid("typed: must be exactly the key to forget"));
    }
    let report = desk.service().run(&dry).await?;
    if digest_of(&report) != digest {
        return Err(refused(
            "digest: must match what a dry run finds, and this has changed",
        ));
    }
    let report = desk
        .service()
        .run(&request(&desk, &sent, reason, false)?)
        .await?;
    let again = if report.incomplete || report.in_hand > 0 {
        " Handlers may still be working on some of it, or new events have appeared: repeat it in a while."
    } else {
        ""
    };
    let told = format!("Forgot {} events.{again}", number(report.forgotten));
    let settings = &desk.shared.settings;
    Ok(flash::leading(
        settings,
        settings.base.to("/forget").as_str(),
        &told,
    ))
}

/// The digest of what a dry run has found.
fn digest_of(report: &ForgetReport) -> String {
    let told = (
        report.forgotten,
        report.cancelled,
        report.before,
        report.schedules,
        &report.tables,
    );
    let digest = Sha256::digest(format!("{told:?}"));
    let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.concat()
}

fn found(desk: &Desk, sent: &Fields, key: &str, report: &ForgetReport) -> Markup {
    let rows = report.tables.values().sum::<u64>();
    let head = html! { th { "Table" } th.n { "Rows" } };
    let tables = html! { @for (name, count) in &report.tables { tr { th scope="row" { (short(name)) } td.n { (number(*count)) } } } };
    let further = html! {
        label.wide { span { "Type the key to confirm: " bdi { (key) } } input name="typed" required autocomplete="off"; }
    };
    html! {
        section {
            h2 { "What it would do" }
            (tiles(&[
                Tile("Events forgotten", report.forgotten, "payload, results, errors, keys"),
                Tile("Live events cancelled", report.cancelled, "they end as FAILED"),
                Tile("Handlers at work", report.in_hand, "what they do is not undone"),
                Tile("Schedules removed", report.schedules, "that publish to the group"),
                Tile("Forgotten before", report.before, "nothing is left to remove"),
            ]))
            @if !report.tables.is_empty() { (table("Tables of the program", &head, &tables)) }
        }
        @if report.forgotten + report.schedules + rows == 0 {
            p.empty { "There is nothing to forget." }
        } @else {
            (Confirmation {
                path: "/forget",
                what: format!("Forget {} events", number(report.forgotten)),
                fields: FIELDS.iter().map(|name| (*name, sent.text(name).unwrap_or_default().to_owned())).collect(),
                digest: &digest_of(report),
                further,
                note: "This cannot be undone. If a dry run would find something else by then, nothing is forgotten.",
            }.show(desk))
        }
    }
}
