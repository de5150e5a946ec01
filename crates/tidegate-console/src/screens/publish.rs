//! Publishes one event by hand, for example to test a handler.

use maud::{Markup, html};
use serde_json::value::RawValue;
use tidegate::NewEvent;

use crate::context::PageContext;
use crate::form::{Form, Params, Posted};
use crate::html::{input, reason};
use crate::page::Page;
use crate::problem::{Answered, Problem};

pub(super) async fn show(ctx: PageContext, Params(request): Params) -> Answered {
    ctx.permitted()?;
    let kinds = ctx.runtime().kinds().await?;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.kind.as_str()).collect();
    let body = form(&ctx, &names, request.text("kind").unwrap_or_default());
    let command = "tidegate publish KIND --payload '{}'";
    Page::new("/events", "Publish an event", command, body).answer(&ctx)
}

fn form(ctx: &PageContext, kinds: &[&str], chosen: &str) -> Markup {
    html! {
        section.publish {
            p { "The event is handled like any other: its handlers run at the next drain. The console's login needs the role tidegate_publish too." }
            form.filters method="post" action=(ctx.base().to("/publish")) {
                label { span { "Kind" } select name="kind" required { @for kind in kinds { option value=(kind) selected[*kind == chosen] { (kind) } } } }
                (input("Group", "group", "", ""))
                (input("Correlation id", "correlation", "", ""))
                (input("Deduplication key", "dedup_key", "", ""))
                (input("Start in", "delay", "", "30s, 2h"))
                (input("Deadline in", "expires_in", "", "1h"))
                label.wide { span { "Payload (JSON)" } textarea name="payload" rows="6" {} }
                (reason())
                button.primary { "Publish" }
            }
        }
    }
}

fn event(sent: &Form) -> Result<NewEvent, Problem> {
    let payload = sent.owned("payload").map(RawValue::from_string).transpose();
    // The parser's message does not quote the text.
    let payload =
        payload.map_err(|error| Problem::invalid(format!("payload: must be JSON: {error}")))?;
    let event = NewEvent::raw(sent.needed("kind")?, payload)
        .set_if(sent.text("group"), NewEvent::group)
        .set_if(sent.text("correlation"), NewEvent::correlation)
        .set_if(sent.text("dedup_key"), NewEvent::dedup)
        .set_if(sent.duration("delay")?, NewEvent::delay)
        .set_if(sent.duration("expires_in")?, NewEvent::start_within);
    Ok(event)
}

pub(super) async fn publish(ctx: PageContext, Posted(sent): Posted) -> Answered {
    ctx.permitted()?;
    let (event, reason) = (event(&sent)?, sent.needed("reason")?);
    let actor = ctx.actor();
    let published = ctx.runtime().publish_by_hand(event, reason, Some(&actor));
    let published = published.await?;
    let id = published.id;
    if !published.created {
        return Err(Problem::conflict(format!(
            "Event {id} is live with this deduplication key."
        )));
    }
    let to = ctx.base().to(&format!("/events/{id}"));
    ctx.lead(to.as_str(), &format!("Published event {id}."))
}
