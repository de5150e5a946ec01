//! Looking without touching: status, one event, lists.

use serde_json::Value;
use tidegate::service::Service;
use tidegate::{Error, queue};

use crate::args::ListArgs;
use crate::{Answer, Failed, document, text};

pub async fn status(service: &Service) -> Result<Answer, Failed> {
    let stats = service.stats().await?;
    let text = text::status(&stats);
    Ok(Answer::new(document(&stats)?, text))
}

pub async fn show(service: &Service, id: i64) -> Result<Answer, Failed> {
    let client = service.database.connect().await?;
    let event = queue::show(&client, id)
        .await?
        .ok_or(Error::UnknownEvent(id))?;
    let text = text::event(&event);
    Ok(Answer::new(event, text))
}

pub async fn list(service: &Service, args: &ListArgs) -> Result<Answer, Failed> {
    let status = args.status.as_deref().map(str::to_uppercase);
    let client = service.database.connect().await?;
    let events = queue::list(&client, status.as_deref(), args.kind.as_deref(), args.limit).await?;
    let text = text::list(&events);
    Ok(Answer::new(Value::Array(events), text))
}
