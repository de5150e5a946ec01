//! Storing events: by kind, or by a message of the bus.

use std::io::Read;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate::app::checks::ReceiveIssuingReport;
use tidegate::program::Service;
use tidegate::{Error, NewEvent, queue};

use crate::args::PublishArgs;
use crate::{Answer, Failed, document};

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
    if let Some(id) = args.correlation_id {
        event = event.correlation(id);
    }
    if let Some(delay) = args.delay {
        event = event.delay(delay);
    }
    if let Some(time) = args.expires_in {
        event = event.start_within(time);
    }
    if let Some(attempts) = args.max_attempts.or(service.max_attempts) {
        event = event.max_attempts(attempts);
    }
    if let Some(header) = args.traceparent {
        event = event.traceparent(header);
    }
    event.check()?;
    let client = service.database.connect().await?;
    let published = queue::publish(&client, &event).await?;
    let text = if published.created {
        format!("published event {}", published.id)
    } else {
        format!(
            "event {} is live with this deduplication key; nothing was published",
            published.id
        )
    };
    let document = json!({"action": "publish", "id": published.id, "created": published.created});
    Ok(Answer::new(document, text))
}

pub async fn receive_issuing(service: &Service, message: &str) -> Result<Answer, Failed> {
    let message: Box<RawValue> = json_argument("--message", message)?;
    let unreadable = |error| Error::Invalid(format!("--message: {error}"));
    let message: Value = serde_json::from_str(message.get()).map_err(unreadable)?;
    let fields = json!({"message": message});
    let answer = service.further("receive_issuing", fields).await?;
    let report: ReceiveIssuingReport = serde_json::from_value(answer).map_err(unreadable)?;
    let text = match report.id {
        None => "the message asks for no check; nothing was stored".to_owned(),
        Some(id) if report.created => format!("published event {id}"),
        Some(id) => format!("event {id} is to make this check already; nothing was stored"),
    };
    Ok(Answer::new(document(&report)?, text))
}

/// Reads a flag's JSON: as it stands, or @FILE, or - for stdin.
fn json_argument(flag: &str, argument: &str) -> Result<Box<RawValue>, Error> {
    let unreadable = |error: std::io::Error| Error::Invalid(format!("{flag}: {argument}: {error}"));
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        text
    } else if let Some(file) = argument.strip_prefix('@') {
        std::fs::read_to_string(file).map_err(unreadable)?
    } else {
        argument.to_owned()
    };
    serde_json::from_str(text.trim())
        .map_err(|error| Error::Invalid(format!("{flag}: JSON, @FILE or - is allowed: {error}")))
}
