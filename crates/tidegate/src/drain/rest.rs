//! Owns what a run looks at in the queue when it ends, and how long it may look.

use std::time::Duration;

use futures_util::future::{try_join, try_join3};
use tidegate_core::connect::Conn;
use tidegate_core::error::Error;
use tidegate_core::queue::{self, Queryable};

use super::{Drain, StopReason};
use crate::dispatch::Dispatch;

/// The longest time that a look may take.
const LOOK: Duration = Duration::from_secs(5);

impl<D: Dispatch> Drain<D> {
    /// Asks the database, for at most half of the time that the run has left. An answer that does not come by
    /// then stays unknown, because no look is worth a failed run.
    pub(super) async fn look<T>(
        &mut self,
        ask: impl AsyncFnOnce(Conn<'_>) -> Result<T, Error>,
    ) -> Option<T> {
        let left = self.limit().saturating_sub(self.budget.elapsed());
        let limit = LOOK.min(left / 2);
        let session = self.fetcher.session()?;
        let asked = Error::within("look", limit, async {
            let client = session.client().await?;
            let settings = format!("SET LOCAL statement_timeout = {}", limit.as_millis().max(1));
            let begin = async {
                client
                    .begin_look(&settings)
                    .await
                    .map_err(Error::at("begin"))
            };
            // One transaction, and not one for each statement.
            let within = client.conn().within_transaction();
            let ((), answer) = try_join(begin, ask(within)).await?;
            let commit = client.batch_execute("COMMIT").await;
            commit.map_err(Error::at("commit"))?;
            Ok(answer)
        });
        match asked.await {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::warn!(%error, "what is left in the queue is not known");
                session.close();
                None
            }
        }
    }

    /// Reports what is left when the run has released everything. A run without a slot has seen nothing.
    pub(super) async fn look_at_rest(&mut self) {
        if self.report.slot == 0 {
            return;
        }
        let kinds = self.fetcher.all_kinds.clone();
        let is_empty = self.report.stop_reason == StopReason::QueueEmpty;
        // Behind an empty queue are all its finished rows, still dead in the index. Counting there took a
        // twentieth of a drain of 200,000 events.
        let most = if is_empty { 0 } else { queue::MOST_LEFT };
        let first = self.look(async |look: Conn<'_>| {
            let left = queue::left_to_do(&look, &kinds, most);
            try_join3(queue::backlog(&look), left, queue::wal_position(&look)).await
        });
        let Some((backlog, left, wal)) = first.await else {
            return;
        };
        self.report.backlog = Some(backlog.events);
        self.report.oldest_age_ms = Some(backlog.oldest_age_ms);
        self.note_left(left, wal);
        if self.services.calls.has_shut() {
            let down = self.look(async |look: Conn<'_>| queue::services_down(&look).await);
            self.report.services_down = down.await.unwrap_or_default();
        }
        if backlog.events == 0 {
            self.report.oldest_ready_ms = Some(0);
            return;
        }
        let second = self.look(async |look: Conn<'_>| {
            let ready = queue::oldest_ready(&look, &kinds);
            try_join(queue::expiring(&look), ready).await
        });
        if let Some((expiring, ready)) = second.await {
            self.report.expiring = expiring.iter().map(|kind| kind.events).sum();
            self.report.oldest_ready_ms = Some(ready.map_or(0, |(_, ms)| ms));
        }
        // Not at the end of a spent budget, because the caller's deadline comes first.
        if is_empty {
            let others = self.look(async |look: Conn<'_>| queue::others(&look, &kinds).await);
            self.report.unhandled = others.await.unwrap_or_default();
        }
    }
}
