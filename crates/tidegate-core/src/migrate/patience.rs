//! Waits for the locks that a migration needs, in bounded time, and finds out who holds them.
//!
//! A statement that changes a table waits until nobody uses the table, and everybody who comes later waits
//! behind it. A transaction that is left open would so stop all publishers. Each wait is therefore short, and
//! between two tries the others go on.

use std::convert::Infallible;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::connect::{Client, Queryable, Transaction};
use crate::error::{Error, Result, describe};

/// The longest wait for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a migration tries to get its locks.
pub(super) const TRIES: u32 = 5;

/// The pause between two tries, in which those go on who waited behind it.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// SQL that describes a session of `pg_stat_activity AS a`. What another login does is known to members of
/// `pg_read_all_stats` alone.
pub(super) const SESSION: &str = "format('pid %s, login %s, application %s', a.pid, coalesce(a.usename, 'unknown'), coalesce(nullif(a.application_name, ''), 'unnamed'))
    || CASE WHEN a.xact_start IS NULL THEN ''
            ELSE format(', %s, transaction open for %s', a.state, justify_hours(date_trunc('second', clock_timestamp() - a.xact_start))) END";

/// A connection for migrations, beside one that looks for whom it waits.
pub(super) struct Patient<'a> {
    client: &'a mut Client,
    /// Another connection, so that it can look while the first one waits.
    guard: &'a Client,
    /// The sessions for which it last waited.
    waited_for: String,
    has_timed_out: bool,
}

impl<'a> Patient<'a> {
    pub(super) fn new(client: &'a mut Client, guard: &'a Client) -> Self {
        Self {
            client,
            guard,
            waited_for: String::new(),
            has_timed_out: false,
        }
    }

    /// The connection, for statements that change no table.
    pub(super) fn client(&self) -> &Client {
        self.client
    }

    /// Returns for whom this waited in vain, if it did since the last call.
    pub(super) fn gave_up_on(&mut self) -> Option<String> {
        let who = std::mem::take(&mut self.waited_for);
        let unknown = || "another session, which has ended".to_owned();
        std::mem::take(&mut self.has_timed_out)
            .then(|| if who.is_empty() { unknown() } else { who })
    }

    pub(super) async fn within<T>(
        &mut self,
        work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        let failed = Error::at("migrate");
        let transaction = self.client.transaction().await.map_err(&failed)?;
        let pid = limit_waits(&transaction).await.map_err(&failed)?;
        let done = tokio::select! {
            done = work(&transaction) => done,
            never = look(self.guard, pid, &mut self.waited_for) => match never {},
        };
        self.has_timed_out |= done.as_ref().is_err_and(Error::is_lock_timeout);
        let done = done?;
        transaction.commit().await.map_err(&failed)?;
        Ok(done)
    }

    /// Runs SQL for the queue's schema, in a transaction of its own. An error says what it was.
    pub(super) async fn batch(&mut self, what: &str, sql: &str) -> Result<()> {
        let sql = self.client.conn().schema.written(sql);
        let at = Error::at("migrate");
        let done = self.within(async |client| client.batch_execute(&sql).await.map_err(at));
        let told = |why: &_| Error::Migrate(format!("{what}: {}", describe(why)));
        done.await.map_err(|error| match error {
            Error::Database { source, .. } => told(&source),
            error => error,
        })
    }
}

/// Limits the waits of this transaction. Returns the server process that runs it. (Behind a pooler, every
/// transaction may have another one.)
async fn limit_waits(transaction: &Transaction<'_>) -> Result<i32, tokio_postgres::Error> {
    // The other two settings are those that the migrations' files were written under.
    let limit = format!(
        "SET LOCAL lock_timeout = '{}ms'; SET LOCAL standard_conforming_strings = on; SET LOCAL quote_all_identifiers = off",
        LOCK_TIMEOUT.as_millis()
    );
    transaction.batch_execute(&limit).await?;
    let sql = "SELECT pg_backend_pid()";
    let rows = transaction.query_typed(sql, &[]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Keeps `seen` up to date with the sessions that this process waits for, if it waits for any.
async fn look(guard: &Client, pid: i32, seen: &mut String) -> Infallible {
    // A transaction sees other sessions as it first saw them, unless it forgets that.
    let afresh = "SELECT pg_stat_clear_snapshot()";
    let sql = format!(
        "SELECT string_agg({SESSION}, '; ') FROM unnest(pg_blocking_pids($1)) AS b (pid) JOIN pg_stat_activity AS a ON a.pid = b.pid"
    );
    loop {
        tokio::time::sleep(LOCK_TIMEOUT / 4).await;
        let _ = guard.batch_execute(afresh).await;
        // Whoever cannot look still gives up in time.
        let rows = guard.query_typed(&sql, &[(&pid, Type::INT4)]).await;
        let who = rows.ok().and_then(|rows| rows.first()?.get(0));
        if let Some(who) = who {
            *seen = who;
        }
    }
}

pub(super) fn gave_up(error: &Error, who: &str) -> Error {
    let seconds = LOCK_TIMEOUT.as_secs();
    Error::Migrate(format!(
        "{error}; {TRIES} times it waited {seconds} s for a lock that another session had: {who}; \
         end that transaction, or its session with SELECT pg_terminate_backend(pid), and migrate again"
    ))
}
