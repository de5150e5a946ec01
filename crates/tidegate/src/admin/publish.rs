//! Publishes an event for an operator. It is no verb: the console shows it, and the command line publishes as
//! programs do.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;
use crate::event::NewEvent;
use crate::queue::Statement;
use crate::queue::{Published, publish, query, refused};

/// Records in the audit that an operator has published an event, in the same transaction.
pub(super) static RECORD_PUBLISH: Statement = Statement {
    name: "record_publish",
    params: &[Type::INT8, Type::TEXT, Type::TEXT],
    text: "SELECT tidegate.record_publish($1, $2, $3)",
};

/// Publishes an event for an operator, in a transaction with its audit row. A duplicate is not recorded.
///
/// # Errors
/// [`Error::Invalid`] names the field and what is allowed; otherwise the database's error.
pub(super) async fn publish_by_hand(
    client: &mut Client,
    event: &NewEvent,
    reason: &str,
    actor: Option<&str>,
) -> Result<Published, Error> {
    let transaction = client.transaction().await.map_err(Error::at("begin"))?;
    let published = publish(&transaction, event).await?;
    if published.created {
        let values: &[&(dyn ToSql + Sync)] = &[&published.id, &reason, &actor];
        let recorded = query(&transaction, &RECORD_PUBLISH, values).await;
        recorded.map_err(refused)?;
    }
    transaction.commit().await.map_err(Error::at("commit"))?;
    Ok(published)
}
