//! Owns what a run looks at in the queue when it ends, and how long it may look.

use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, try_join, try_join3, try_join4};
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
            // One transaction, and not one for each statement; all of it in one round trip.
            let within = client.conn().within_transaction();
            let commit = async {
                let commit = client.batch_execute("COMMIT").await;
                commit.map_err(Error::at("commit"))
            };
            let ((), answer, ()) = try_join3(begin, ask(within), commit).await?;
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

    /// Reports what is left when the run has released everything. A run without a slot has seen nothing, unless
    /// it needed none.
    pub(super) async fn look_at_rest(&mut self) {
        if self.report.slot == 0 && !self.slots.idle {
            return;
        }
        let kinds = self.fetcher.all_kinds.clone();
        let is_empty = self.report.stop_reason == StopReason::QueueEmpty;
        // Behind an empty queue are all its finished rows, still dead in the index. Counting there took a
        // twentieth of a drain of 200,000 events.
        let has_shut = self.services.calls.has_shut();
        let most = if is_empty { 0 } else { queue::MOST_LEFT };
        let looked = self.look(async |look: Conn<'_>| {
            let (backlog, ready) = (queue::backlog(&look), queue::oldest_ready(&look, &kinds));
            let (left, expiring) = (
                queue::left_to_do(&look, &kinds, most),
                queue::expiring(&look),
            );
            // Not at the end of a spent budget, because the caller's deadline comes first.
            let others = OptionFuture::from(is_empty.then(|| queue::others(&look, &kinds)));
            let others = others.map(Option::transpose);
            let down = OptionFuture::from(has_shut.then(|| queue::services_down(&look)));
            let down = down.map(Option::transpose);
            let rest = try_join3(backlog, left, queue::wal_position(&look));
            try_join(rest, try_join4(expiring, ready, others, down)).await
        });
        let Some(((backlog, left, wal), (expiring, ready, others, down))) = looked.await else {
            return;
        };
        self.report.backlog = Some(backlog.events);
        self.report.oldest_age_ms = Some(backlog.oldest_age_ms);
        self.note_left(left, wal);
        self.report.expiring = expiring.iter().map(|kind| kind.events).sum();
        self.report.oldest_ready_ms = Some(ready.map_or(0, |(_, ms)| ms));
        self.report.unhandled = others.unwrap_or_default();
        self.report.services_down = down.unwrap_or_default();
    }
}
