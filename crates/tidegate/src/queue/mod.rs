//! Owns the calls of all SQL for the live queue and its log: publish, lease, renew, finalize, retry, release,
//! and the operators' requests. Each is one set-based statement. It knows neither handlers nor Lambda.
//!
//! No statement is prepared. Statements are sent with their parameter types in one round trip
//! (`query_typed`), keep no state in the session, and so work through a pooler in transaction mode. Every
//! call has a time limit. After [`Error::is_connection_lost`] the connection must be dropped.

#[cfg(feature = "admin")]
mod admin;
pub(crate) mod ending;
mod finalize;
mod lease;
mod publish;
mod read;
pub mod retention;
mod schedule;
mod service;
mod slot;
pub mod sql;
pub(crate) mod statement;

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

#[cfg(feature = "admin")]
pub use self::admin::*;
pub use self::finalize::{
    Completed, Completion, ErrorEntry, Finalization, Flushed, Follow, Retried, complete,
    end_unreadable, finalize_under, finished_under, report_progress, retry, save_progress,
};
pub(crate) use self::finalize::{commit, complete_and_commit};
pub use self::lease::{
    InHand, LeaseRequest, LeasedBatch, Returned, Swept, Walk, hand_back, in_hand, lease, progress,
    promote, remove_ended, renew, sweep, take_back_starts,
};
pub(crate) use self::publish::ALONE;
#[cfg(feature = "admin")]
pub(crate) use self::publish::refused;
pub use self::publish::{Published, publish, publish_batch, receive};
#[cfg(feature = "admin")]
pub(crate) use self::read::parsed;
pub use self::read::{
    Backlog, EXPIRY_WINDOW, Job, JobStatus, MOST_EXPIRING, backlog, declare_policies, expiring,
    job, others, register_kinds, registered, unregistered,
};
pub use self::retention::KindRetention;
pub use self::schedule::{
    Declared, DueSchedule, Fired, Firing, Times, declared_schedules, drop_schedule, due_schedules,
    fire_schedules, put_schedule,
};
pub use self::service::{
    Claim, Grant, Limited, ServiceReport, Watched, claim_service, report_service, services,
    services_down,
};
pub use self::slot::{
    Kept, Left, MOST_LEFT, Slot, Taken, close_slot, keep_slot, leave_slot, left_to_do, note_run,
    should_wake, take_slot, wal_position,
};
use self::statement::Statement;
use crate::error::Error;

/// The longest time for a statement of the queue. A slower statement is stuck behind a lock or a dead
/// network.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Every statement, for the tests that prepare each one and check who may run it.
pub fn statements() -> impl Iterator<Item = &'static Statement> {
    let lists = sql::ALL.iter().chain([&retention::ALL]);
    lists.copied().flatten().copied()
}

/// Sends one statement with the types of its parameters, within [`STATEMENT_TIMEOUT`].
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
