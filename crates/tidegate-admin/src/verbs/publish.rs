//! Publishes an event for an operator of the console, with an audit row. It is no verb: on the command line,
//! `publish` publishes as programs do.

use tidegate_core::error::{Error, Result};
use tidegate_core::event::NewEvent;
use tidegate_core::queue::{Published, publish, query, refused};
use tidegate_core::statements;
use tokio_postgres::types::ToSql;

use super::program::Runtime;

statements! {
    /// Records in the audit that an operator has published an event, in the same transaction.
    RECORD_PUBLISH: "record_publish" [INT8, TEXT, TEXT] = "SELECT @tidegate.record_publish($1, $2, $3)";
}

impl Runtime {
    /// Publishes an event, with an audit row if its deduplication key is new, and then wakes a drain as
    /// [`Runtime::wakes_for`] says. The event has the program's attempt limit, unless it sets its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what is wrong with the event, the reason or the actor; when the database
    /// fails.
    pub async fn publish_by_hand(
        &self,
        event: NewEvent,
        reason: &str,
        actor: Option<&String>,
    ) -> Result<Published> {
        let event = match self.stored.max_attempts {
            Some(attempts) if event.max_attempts.is_none() => event.max_attempts(attempts),
            _ => event,
        };
        event.check()?;
        self.check_payload(&event)?;
        let mut client = self.database.connect().await?;
        let transaction = client.transaction().await.map_err(Error::at("begin"))?;
        let published = publish(&transaction, &event).await?;
        if published.created {
            let actor = actor.or(self.actor.as_ref());
            let values: &[&(dyn ToSql + Sync)] = &[&published.id, &reason, &actor];
            let recorded = query(&transaction, &RECORD_PUBLISH, values).await;
            recorded.map_err(refused)?;
        }
        transaction.commit().await.map_err(Error::at("commit"))?;
        if self.wakes_for(&event) {
            self.wake().await;
        }
        Ok(published)
    }
}
