//! Publishes an event, and wakes a drain.

use tidegate::NewEvent;
use tidegate_admin::program::{Failure, Runtime};
use tidegate_core::queue;

use crate::answer::{Answer, json_argument, own_document};
use crate::args::PublishArgs;
use crate::report::PublishReport;

pub async fn publish(runtime: &Runtime, args: PublishArgs) -> Result<Answer, Failure> {
    let payload = args.payload.as_deref();
    let payload = payload.map(|text| json_argument("--payload", text));
    let attempts = args.max_attempts.or(runtime.stored.max_attempts);
    let event = NewEvent::raw(args.kind, payload.transpose()?)
        .set_if(args.group, NewEvent::group)
        .set_if(args.dedup_key, NewEvent::dedup)
        .set_if(args.replace.then_some(()), |event, ()| event.replace())
        .set_if(args.correlation_id, NewEvent::correlation)
        .set_if(args.delay, NewEvent::delay)
        .set_if(args.expires_in, NewEvent::start_within)
        .set_if(attempts, NewEvent::max_attempts)
        .set_if(args.traceparent, NewEvent::traceparent);
    event.check()?;
    runtime.check_payload(&event)?;
    let client = runtime.database.connect().await?;
    let published = queue::publish(&client, &event).await?;
    if runtime.wakes_for(&event) {
        runtime.wake().await;
    }
    let text = if published.created {
        format!("published event {}", published.id)
    } else if published.replaced {
        format!("replaced event {}, which waits", published.id)
    } else {
        format!(
            "event {} is live with this deduplication key, {} with {} attempts; nothing was published",
            published.id, published.status, published.attempts
        )
    };
    let report = PublishReport {
        id: published.id,
        created: published.created,
        status: published.status.to_string(),
        attempts: published.attempts,
        replaced: published.replaced,
    };
    Ok(Answer::new(own_document("publish", &report)?, text))
}
