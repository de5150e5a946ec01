//! Looking without touching: status, one event, lists, blocked groups.

use std::fmt::Write;

use serde_json::json;
use tidegate::program::Service;
use tidegate::queue::ListFilter;
use tidegate::{Error, queue, retention};

use crate::answer::{Answer, Failed, document};
use crate::args::ListArgs;
use crate::text;

pub async fn status(service: &Service) -> Result<Answer, Failed> {
    let stats = service.stats().await?;
    let text = text::status(&stats);
    Ok(Answer::new(document(&stats)?, text))
}

pub async fn show(service: &Service, id: i64) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let mut event = queue::show(&client, id)
        .await?
        .ok_or(Error::UnknownEvent(id))?;
    let mut text = text::event(&event);
    // `None` if it has just ended and been cleaned up.
    if let Some(lineage) = queue::lineage(&client, id).await? {
        text.push_str(&text::lineage(&lineage, id));
        event["lineage"] = json!(lineage);
    }
    Ok(Answer::new(event, text))
}

pub async fn list(service: &Service, args: &ListArgs) -> Result<Answer, Failed> {
    let status = args.status.as_deref().map(str::to_uppercase);
    let filter = ListFilter {
        status: status.as_deref(),
        kind: args.kind.as_deref(),
        group: args.group.as_deref(),
        correlation: args.correlation.as_deref(),
        since: args.since,
        until: args.until,
        before: args.before,
    };
    let client = service.database.connect().await?;
    let events = queue::list(&client, &filter, args.limit).await?;
    let is_full = events.len() >= args.limit as usize;
    let last = events.last().and_then(|event| event["id"].as_i64());
    let next = last.filter(|_| is_full);
    if let (true, Some(kind)) = (events.is_empty(), &args.kind) {
        // Nothing of a kind that nobody has registered is a slip of the pen.
        retention::kinds(&service.database, Some(kind)).await?;
    }
    let text = text::list(&events, next.map(next_page).as_deref());
    let document = json!({"action": "list", "events": events, "next": next});
    Ok(Answer::new(document, text))
}

/// The command as it was given, for what follows this id. A time ago stays a time ago: the page may
/// lose events that have meanwhile become too old.
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

/// As a shell reads it back.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:.,/+@".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

pub async fn blocked_groups(service: &Service, limit: u32) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let groups = queue::blocked_groups(&client, limit).await?;
    let text = text::blocked_groups(&groups);
    let document = json!({"action": "blocked_groups", "groups": groups});
    Ok(Answer::new(document, text))
}

pub async fn services(service: &Service) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let services = queue::services(&client).await?;
    let text = text::services(&services);
    let document = json!({"action": "services", "services": services});
    Ok(Answer::new(document, text))
}

pub async fn leases(service: &Service, limit: u32) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let leases = queue::leases(&client, limit).await?;
    let text = text::leases(&leases);
    let document = json!({"action": "leases", "leases": leases});
    Ok(Answer::new(document, text))
}
