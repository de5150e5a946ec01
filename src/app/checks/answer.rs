//! The action `receive_issuing`: receives a bus message, from an invocation or from the command
//! line.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Filter, Received, receive};
use tidegate::{Database, Error};

/// The request of the action.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The whole message, relevant or not, as [`receive`] reads it.
    message: Value,
}

/// The result of receiving a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename = "receive_issuing")]
pub struct ReceiveIssuingReport {
    /// Whether it requests a check. If not, nothing was stored.
    pub relevant: bool,
    /// The event that performs the check.
    pub id: Option<i64>,
    /// Whether that event is new. If not, nothing was stored.
    pub created: bool,
}

/// Receives a message that may request an AI check (B32), in a transaction of its own.
///
/// # Errors
/// [`Error::Invalid`] names the field. Otherwise as [`receive`].
pub async fn answer(filter: Filter, database: Database, fields: Value) -> Result<Value, Error> {
    let refused = |error: serde_json::Error| Error::Invalid(format!("invocation: {error}"));
    let asked: Asked = serde_json::from_value(fields).map_err(refused)?;
    let report = received(&database, &filter, &asked.message).await?;
    serde_json::to_value(report).map_err(refused)
}

async fn received(
    database: &Database,
    filter: &Filter,
    message: &Value,
) -> Result<ReceiveIssuingReport, Error> {
    let failed = |stage| move |source| Error::Database { stage, source };
    let mut client = database.connect().await?;
    let tx = client.transaction().await.map_err(failed("begin"))?;
    let received = receive(&tx, filter, message).await?;
    tx.commit().await.map_err(failed("commit"))?;
    let (id, created) = match received {
        Received::Irrelevant => (None, false),
        Received::Stored { event_id } => (Some(event_id), true),
        Received::Duplicate { event_id } => (Some(event_id), false),
    };
    Ok(ReceiveIssuingReport {
        relevant: id.is_some(),
        id,
        created,
    })
}
