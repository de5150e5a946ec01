//! Read-only verbs: status, one event, lists, blocked groups.

use std::fmt::Write;

use tidegate::look::{FirstRequest, ListRequest, ShowRequest};
use tidegate::program::Service;

use crate::answer::{Answer, Failed, document};
use crate::args::ListArgs;
use crate::text;

pub async fn status(service: &Service) -> Result<Answer, Failed> {
    let stats = service.stats().await?;
    let text = text::status(&stats);
    Ok(Answer::new(document(&stats)?, text))
}

pub async fn show(service: &Service, id: i64) -> Result<Answer, Failed> {
    let report = service.show(ShowRequest { id }).await?;
    let mut text = text::event(&report.event);
    if let Some(lineage) = &report.lineage {
        text.push_str(&text::lineage(lineage, id));
    }
    Ok(Answer::new(document(&report)?, text))
}

pub async fn list(service: &Service, args: ListArgs) -> Result<Answer, Failed> {
    let report = service
        .list(&ListRequest {
            status: args.status,
            kind: args.kind,
            group: args.group,
            correlation: args.correlation,
            since: args.since,
            until: args.until,
            before: args.before,
            limit: Some(args.limit),
        })
        .await?;
    let text = text::list(&report.events, report.next.map(next_page).as_deref());
    Ok(Answer::new(document(&report)?, text))
}

/// Returns the command line of the next page, after this id. A relative time such as "2h" stays relative.
/// Therefore the page may lose events that have become too old in the meantime.
fn next_page(last: i64) -> String {
    let mut command = "tidegate".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--before" {
            arguments.next();
        } else if !argument.starts_with("--before=") {
            // Writing to a string does not fail.
            let _ = write!(command, " {}", quoted(&argument));
        }
    }
    format!("{command} --before {last}")
}

/// Quotes an argument for a shell.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:.,/+@".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

pub async fn blocked_groups(service: &Service, limit: u32) -> Result<Answer, Failed> {
    let asked = FirstRequest { limit: Some(limit) };
    let report = service.blocked_groups(asked).await?;
    let text = text::blocked_groups(&report.groups);
    Ok(Answer::new(document(&report)?, text))
}

pub async fn services(service: &Service) -> Result<Answer, Failed> {
    let report = service.services().await?;
    let text = text::services(&report.services);
    Ok(Answer::new(document(&report)?, text))
}

pub async fn leases(service: &Service, limit: u32) -> Result<Answer, Failed> {
    let asked = FirstRequest { limit: Some(limit) };
    let report = service.leases(asked).await?;
    let text = text::leases(&report.leases);
    Ok(Answer::new(document(&report)?, text))
}

pub async fn schedules(service: &Service, limit: u32) -> Result<Answer, Failed> {
    let asked = FirstRequest { limit: Some(limit) };
    let report = service.schedules(asked).await?;
    let text = text::schedules(&report.schedules);
    Ok(Answer::new(document(&report)?, text))
}
