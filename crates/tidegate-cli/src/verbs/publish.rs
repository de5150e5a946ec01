//! Publishes events.

use tidegate::program::Service;
use tidegate::{NewEvent, queue};

use crate::answer::{Answer, Failed, document, json_argument};
use crate::args::PublishArgs;
use crate::report::Published;

pub async fn publish(service: &Service, args: PublishArgs) -> Result<Answer, Failed> {
    let mut event = NewEvent::raw(
        args.kind,
        args.payload
            .map(|text| json_argument("--payload", &text))
            .transpose()?,
    );
    if let Some(key) = args.group {
        event = event.group(key);
    }
    if let Some(key) = args.dedup_key {
        event = event.dedup(key);
    }
    if args.replace {
        event = event.replace();
    }
    if let Some(id) = args.correlation_id {
        event = event.correlation(id);
    }
    if let Some(delay) = args.delay {
        event = event.delay(delay);
    }
    if let Some(time) = args.expires_in {
        event = event.start_within(time);
    }
    if let Some(attempts) = args.max_attempts.or(service.stored.max_attempts) {
        event = event.max_attempts(attempts);
    }
    if let Some(header) = args.traceparent {
        event = event.traceparent(header);
    }
    event.check()?;
    let client = service.database.connect().await?;
    let published = queue::publish(&client, &event).await?;
    if args.delay.is_none() {
        service.wake().await;
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
    let report = Published {
        action: "publish",
        id: published.id,
        created: published.created,
        status: published.status.to_string(),
        attempts: published.attempts,
        replaced: published.replaced,
    };
    Ok(Answer::new(document(&report)?, text))
}
