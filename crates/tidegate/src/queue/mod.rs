//! Owns all SQL of the live queue and its log: publish, lease, renew, finalize, retry, release, and what
//! operators do. Each verb is one set-based statement. It knows neither handlers nor Lambda.
//!
//! The surprise: nothing here is prepared. Statements go out with their types in one round trip
//! (`query_typed`), keep no state in the session, and so work through a pooler in transaction mode.
//! Every call has a time limit; after [`Error::is_connection_lost`] the connection must be dropped.

pub(crate) mod ending;
mod finalize;
mod lease;
mod lineage;
mod operate;
mod publish;
mod read;
pub mod retention;
pub mod sql;

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

pub use finalize::{
    Completed, Completion, ErrorEntry, Finalization, Finalized, Flushed, Follow, Retried, complete,
    end_unreadable, finalize, finalize_one, finalize_under, finished_under, retry, save_progress,
};
pub(crate) use finalize::{commit, complete_and_commit};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use lease::progress;
pub use lease::{
    InHand, LeaseRequest, LeasedBatch, Swept, Walk, hand_back, in_hand, lease, promote,
    remove_ended, renew, sweep,
};
pub use lineage::{Kin, Lineage, MOST_KIN, Relation};
pub use operate::{pause, replay, requeue, resume, unblock};
pub use publish::{Published, publish, publish_batch};
pub use read::{
    Backlog, Job, JobStatus, ListFilter, Overview, Pulse, backlog, blocked_groups, job, leases,
    lineage, list, others, overview, pulse, register_kinds, registered, show, stats, unregistered,
};

use self::sql::Statement;
use crate::error::Error;

/// No statement of the queue takes longer; one that does is stuck behind a lock or a dead network.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends one statement with its parameters' types, within [`STATEMENT_TIMEOUT`].
pub(crate) async fn query(
    client: &(impl GenericClient + Sync),
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let types = statement.params.iter().cloned();
    let params: Vec<_> = values.iter().copied().zip(types).collect();
    within_limit(statement.name, client.query_typed(statement.text, &params)).await
}

async fn within_limit<T>(
    stage: &'static str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|source| Error::Database { stage, source }),
        Err(_) => Err(Error::TimedOut {
            stage,
            limit: STATEMENT_TIMEOUT,
        }),
    }
}
