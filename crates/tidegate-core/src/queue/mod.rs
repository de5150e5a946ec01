//! Owns the calls of the SQL for the live queue and its log: publish, lease, renew, finalize, retry, release.
//! Each is one set-based statement, which stands beside its call. It knows neither handlers nor Lambda.
//!
//! No statement is prepared. Statements are sent with their parameter types in one round trip
//! (`query_typed`), keep no state in the session, and so work through a pooler in transaction mode. Every
//! call has a time limit. After [`Error::is_connection_lost`] the connection must be dropped.

mod finalize;
mod lease;
mod publish;
mod pull;
mod read;
pub mod retention;
mod schedule;
mod service;
mod slot;
pub(crate) mod statement;
mod target;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSqlOwned, ToSql};

pub use self::finalize::*;
pub use self::lease::*;
pub use self::publish::*;
pub use self::pull::{PollRequest, PolledEvent};
pub use self::read::*;
pub use self::schedule::*;
pub use self::service::*;
pub use self::slot::*;
pub use self::statement::Statement;
pub use self::target::*;
pub use crate::connect::Queryable;
use crate::connect::{BEGIN, Conn};
use crate::error::{Error, Result};

/// The longest time for a statement of the queue. A slower statement is stuck behind a lock or a dead
/// network.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Every statement, for the tests that prepare each one and check who may run it.
pub fn statements() -> impl Iterator<Item = &'static Statement> {
    let lists = [
        finalize::ALL,
        lease::ALL,
        publish::ALL,
        pull::ALL,
        read::ALL,
        retention::ALL,
        schedule::ALL,
        service::ALL,
        slot::ALL,
        target::ALL,
    ];
    lists.into_iter().flatten().copied()
}

/// Sends one statement with the types of its parameters, within [`STATEMENT_TIMEOUT`].
///
/// # Errors
/// When the database refuses the statement, or does not answer in time.
pub async fn query(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>> {
    let types = statement.params.iter().cloned();
    let params: Vec<_> = values.iter().copied().zip(types).collect();
    let Conn {
        client,
        schema,
        begins,
    } = client.conn();
    let text = schema.text(statement.text);
    // On the heap, because each of its callers would hold it.
    let answer = Box::pin(async {
        let answer = client.query_typed(&text, &params);
        if !begins {
            return answer.await;
        }
        // All three travel in one round trip.
        let (begin, commit) = (client.batch_execute(BEGIN), client.batch_execute("COMMIT"));
        let (opened, rows, ended) = futures_util::future::join3(begin, answer, commit).await;
        opened.and(rows).and_then(|rows| ended.map(|()| rows))
    });
    within_limit(statement.name, answer).await
}

/// Sends a statement whose answer does not matter.
///
/// # Errors
/// As [`query`].
pub async fn execute(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<()> {
    query(client, statement, values).await.map(drop)
}

/// Sends a statement, and returns the first column of each row.
///
/// # Errors
/// As [`query`].
pub async fn all<T: FromSqlOwned>(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>> {
    let rows = query(client, statement, values).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Sends a statement, and returns the first column of the first row, if there is one.
///
/// # Errors
/// As [`query`].
pub async fn first<T: FromSqlOwned>(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Option<T>> {
    let rows = query(client, statement, values).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Sends a statement whose rows are one JSON document each, and reads all of them. One that does not parse is
/// an error: left out, it would seem not to exist.
///
/// # Errors
/// As [`query`], and [`Error::Unreadable`].
pub async fn documents<T: DeserializeOwned>(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>> {
    let rows = query(client, statement, values).await?;
    let numbered = rows.iter().enumerate();
    let read = |(n, row): (usize, &Row)| {
        serde_json::from_str(row.get(0)).map_err(|error| {
            // For a wrong type the parser quotes the value, which may be a payload's (I9).
            let why = match error.classify() {
                Category::Data => "a field is not of the expected type".to_owned(),
                _ => error.to_string(),
            };
            Error::Unreadable(format!("{}: row {}: {why}", statement.name, n + 1))
        })
    };
    numbered.map(read).collect()
}

/// Returns the first document of [`documents`], if there is one.
///
/// # Errors
/// As [`documents`].
pub async fn document<T: DeserializeOwned>(
    client: &impl Queryable,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Option<T>> {
    let all = documents(client, statement, values).await?;
    Ok(all.into_iter().next())
}

/// Writes a parameter as JSON. A value that cannot be written is an error, because as null it would be lost.
pub(crate) fn text<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Invalid(format!("{what}: {error}")))
}

async fn within_limit<T>(
    stage: &'static str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    let answer = async { answer.await.map_err(Error::at(stage)) };
    Error::within(stage, STATEMENT_TIMEOUT, answer).await
}
