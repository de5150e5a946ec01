//! Owns the calls of all SQL for the live queue and its log: publish, lease, renew, finalize, retry, release, and the
//! operators' requests. Each is one set-based statement. It knows neither handlers nor Lambda.
//!
//! No statement is prepared. Statements are sent with their parameter types in one round trip (`query_typed`), keep no
//! state in the session, and so work through a pooler in transaction mode. Every call has a time limit. After
//! [`Error::is_connection_lost`] the connection must be dropped.

pub(crate) mod ending;
mod finalize;
mod lease;
mod lineage;
mod operate;
#[cfg(feature = "operate")]
pub(crate) mod prometheus;
mod publish;
mod read;
#[cfg(not(feature = "internals"))]
pub(crate) mod retention;
#[cfg(feature = "internals")]
pub mod retention;
mod schedule;
mod service;
mod slot;
#[cfg(not(feature = "internals"))]
pub(crate) mod sql;
#[cfg(feature = "internals")]
pub mod sql;
mod survey;

use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

pub use lineage::{Lineage, RelatedEvent, Relation};
pub use operate::{change_service, pause, resume, set_policy, unblock};
pub(crate) use publish::ALONE;
pub use publish::{Published, publish, publish_batch, receive};
pub use read::{
    Backlog, EXPIRY_WINDOW, Job, JobStatus, ListFilter, MOST_EXPIRING, backlog, blocked_groups,
    expiring, job, leases, lineage, list, show,
};
pub use retention::KindRetention;
pub use schedule::{change_schedule, schedules};
pub use service::{services, services_down};

/// Functions of the queue for the drain and for this project's own tests.
#[cfg(feature = "internals")]
mod internals {
    pub use super::finalize::{
        Completed, Completion, ErrorEntry, Finalization, Flushed, Follow, Retried, complete,
        end_unreadable, finalize_under, finished_under, report_progress, retry, save_progress,
    };
    pub use super::lease::{
        InHand, LeaseRequest, LeasedBatch, Returned, Swept, Walk, hand_back, in_hand, lease,
        progress, promote, remove_ended, renew, sweep, take_back_starts,
    };
    pub use super::lineage::MOST_RELATED;
    pub use super::operate::{
        ForgottenEvents, find_subject, forget, offspring, replay, requeue, retire,
    };
    pub use super::read::{
        Overview, declare_policies, others, overview, register_kinds, registered, stats,
        unregistered,
    };
    pub use super::schedule::{
        Declared, DueSchedule, Fired, Firing, Times, declared_schedules, drop_schedule,
        due_schedules, fire_schedules, forget_schedules, put_schedule,
    };
    pub use super::service::{
        Claim, Grant, Limited, ServiceReport, Watched, claim_service, report_service,
    };
    pub use super::slot::{
        Kept, Left, MOST_LEFT, Slot, Taken, close_slot, keep_slot, leave_slot, left_to_do,
        note_run, should_wake, take_slot, wal_position,
    };
}
#[cfg(not(feature = "internals"))]
mod internals {
    pub(crate) use super::finalize::{
        Completed, Completion, ErrorEntry, Finalization, Follow, Retried, complete, end_unreadable,
        finalize_under, finished_under, report_progress, retry, save_progress,
    };
    pub(crate) use super::lease::{
        InHand, LeaseRequest, LeasedBatch, Returned, Walk, hand_back, in_hand, lease, promote,
        remove_ended, renew, sweep, take_back_starts,
    };
    pub(crate) use super::operate::{find_subject, forget, offspring, replay, requeue, retire};
    pub(crate) use super::read::{
        declare_policies, others, overview, register_kinds, registered, stats, unregistered,
    };
    #[cfg(feature = "schedules")]
    pub(crate) use super::schedule::{
        Declared, Times, declared_schedules, drop_schedule, put_schedule,
    };
    pub(crate) use super::schedule::{
        DueSchedule, Fired, Firing, due_schedules, fire_schedules, forget_schedules,
    };
    pub(crate) use super::service::{
        Claim, Grant, Limited, ServiceReport, Watched, claim_service, report_service,
    };
    pub(crate) use super::slot::{
        Kept, Left, MOST_LEFT, Taken, close_slot, keep_slot, leave_slot, left_to_do, note_run,
        should_wake, take_slot, wal_position,
    };
}
pub(crate) use finalize::{commit, complete_and_commit};
#[cfg(feature = "internals")]
pub use internals::*;
#[cfg(not(feature = "internals"))]
pub(crate) use internals::*;
pub(crate) use operate::{ChangedPage, Page, change, publish_by_hand};
pub(crate) use read::search_floor;
pub(crate) use survey::{
    audit, blocked, content, course, dead, depths, drains, ended, event, group, kinds,
    log_partitions, rights, service_states, work,
};

use self::sql::Statement;
use crate::error::Error;

/// The longest time for a statement of the queue. A slower statement is stuck behind a lock or a dead network.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

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
