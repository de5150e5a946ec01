//! Owns what a run looks at in the queue when it ends, and how long it may look.

use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, try_join3, try_join5};
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
            // One transaction, and not one for each statement; all of it in one round trip.
            let within = client.conn().within_transaction();
            let begin = client.begin_look(&settings);
            let looked = try_join3(begin, ask(within), client.end_look()).await;
            looked.map(|((), answer, ())| answer)
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

    /// Reports what is left when the run has released everything. A run without a slot has seen nothing,
    /// unless it needed none. Then all looks are one.
    pub(super) async fn look_at_rest(&mut self) {
        let idle = self.slots.idle;
        if self.report.slot == 0 && !idle {
            return;
        }
        let kinds = self.fetcher.all_kinds.clone();
        let is_empty = self.report.stop_reason == StopReason::QueueEmpty;
        let has_shut = self.services.calls.has_shut();
        // Behind an empty queue are all its finished rows, still dead in the index. Counting there took a
        // twentieth of a drain of 200,000 events, and a search for the oldest one as much.
        let most = if is_empty { 0 } else { queue::MOST_LEFT };
        let looked = self.look(async |look: Conn<'_>| {
            let left = queue::left_to_do(&look, &kinds, most);
            let down = OptionFuture::from(has_shut.then(|| queue::services_down(&look)));
            let down = down.map(Option::transpose);
            let seen = OptionFuture::from(idle.then(|| queue::waiting(&look, &kinds, is_empty)));
            let seen = seen.map(Option::transpose);
            let backlog = queue::backlog(&look);
            try_join5(backlog, left, queue::wal_position(&look), down, seen).await
        });
        let Some((backlog, left, wal, down, seen)) = looked.await else {
            return;
        };
        self.report.backlog = Some(backlog.events);
        self.report.oldest_age_ms = Some(backlog.oldest_age_ms);
        self.note_left(left, wal);
        self.report.services_down = down.unwrap_or_default();
        let seen = match seen {
            None if backlog.events > 0 => {
                let look = async |look: Conn<'_>| queue::waiting(&look, &kinds, is_empty).await;
                self.look(look).await
            }
            seen => Some(seen.unwrap_or_default()),
        };
        if let Some(seen) = seen {
            self.report.expiring = seen.expiring;
            self.report.oldest_ready_ms = Some(seen.oldest_ready_ms);
            self.report.unhandled = seen.others;
        }
    }
}
