//! Owns the one error type of the engine: what went wrong with the *infrastructure*, by stage. An
//! event that failed is never an error; it is an outcome ([`crate::outcome`]).

use std::time::Duration;

use tokio_postgres::error::SqlState;

/// An infrastructure failure, by stage.
///
/// Its Debug text is its Display text: a derived one would show the driver's error with the
/// database's detail, which may quote a row and so a payload (I9).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or malformed; the message names it and what is allowed.
    #[error("configuration: {0}")]
    Config(String),
    /// There is no login: the secret cannot be read or makes no sense, or nothing signs a token.
    #[error("secret: {0}")]
    Secret(String),
    /// The database could not be reached, or whoever answers there is not to be trusted.
    #[error("connect: {0}")]
    Connect(String),
    /// The database refuses who we are, with every password there is.
    #[error("login: {0}")]
    Login(String),
    /// A statement failed.
    #[error("queue: {stage}: {}{}", describe(source), remedy(source))]
    Database {
        /// The statement's name.
        stage: &'static str,
        /// What the driver or the database said.
        source: tokio_postgres::Error,
    },
    /// The database did not answer in time; the statement may still have been applied.
    #[error("queue: {stage}: no answer from the database within {limit:?}")]
    TimedOut {
        /// The statement's name.
        stage: &'static str,
        /// The limit that passed.
        limit: Duration,
    },
    /// A further drain could not be started.
    #[error("start of a drain: {0}")]
    Start(String),
    /// The schema could not be brought up to date.
    #[error("migrate: {0}")]
    Migrate(String),
    /// An argument of a publish or of an operator's verb is not allowed; names the field.
    #[error("{0}")]
    Invalid(String),
    /// What the database answered makes no sense here: another version wrote it, or it holds a value that no program
    /// could read. Names the place.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// The event is neither in the queue nor in the log.
    #[error("event {0} is unknown: neither in the queue nor in the log")]
    UnknownEvent(i64),
    /// The lease is no longer held, so nothing was changed.
    #[error("the lease of event {0} is lost; nothing was changed")]
    LeaseLost(i64),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Error({self})")
    }
}

impl Error {
    /// The SQLSTATE, when the database itself answered with an error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database { source, .. } => source.code(),
            _ => None,
        }
    }

    /// What is not allowed, of an [`Error::Invalid`]: the field or flag that its text begins with. `None` when it names
    /// none, or an event of a batch before it.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        let Self::Invalid(text) = self else {
            return None;
        };
        let (field, _) = text.split_once(": ")?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        field.chars().all(is_name).then_some(field)
    }

    /// Whether the connection must be thrown away: closed, timed out or out of step. Anything the
    /// database answered in words leaves the connection usable, but for its own shutdown (class 57).
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Connect(_) => true,
            Self::Database { source, .. } => match source.code() {
                Some(state) => state.code().starts_with("57P") || state.code().starts_with("08"),
                None => true,
            },
            _ => false,
        }
    }

    /// Whether the statement was refused because of the data in it (classes 21, 22, 23 and 54), so
    /// that the rest of a batch is worth trying without the culprit.
    #[must_use]
    pub fn is_bad_data(&self) -> bool {
        const CLASSES: [&str; 4] = ["21", "22", "23", "54"];
        self.sqlstate()
            .is_some_and(|state| CLASSES.iter().any(|class| state.code().starts_with(class)))
    }

    /// Whether the database has looked at the statement and refused it: the connection is fine, and sending the
    /// same again is of no use.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.sqlstate().is_some() && !self.is_connection_lost() && !self.is_transient()
    }

    /// Whether a trigger or a function of somebody's raised it (class P0).
    #[must_use]
    pub fn is_by_trigger(&self) -> bool {
        self.sqlstate()
            .is_some_and(|state| state.code().starts_with("P0"))
    }

    /// Whether a statement waited for a lock as long as it may (`lock_timeout`), and changed nothing.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        self.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether the same statement may succeed if sent again: serialization failure or deadlock.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.sqlstate()
            .is_some_and(|state| state.code().starts_with("40"))
    }
}

/// Message and SQLSTATE. Never the detail, which may quote a row and so a payload.
#[must_use]
pub fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} ({})", db.message(), db.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// What to do when one of the queue's own statements does not find its schema.
fn remedy(error: &tokio_postgres::Error) -> &'static str {
    let unmigrated = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
    ];
    match error.code() {
        Some(code) if unmigrated.contains(code) => "; run `tidegate migrate` first",
        _ => of_pooler(error),
    }
}

/// What to do when a prepared statement is not in the session, or another one of its name is: somebody
/// gives each transaction the session that is free.
pub(crate) fn of_pooler(error: &tokio_postgres::Error) -> &'static str {
    let prepared = [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
    ];
    match error.code() {
        Some(code) if prepared.contains(code) => {
            "; a pooler stands between and mixes up prepared statements: connect to the server itself, or set \
             max_prepared_statements (pgbouncer 1.21 or newer)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_argument_is_told_by_its_name() {
        for (text, field) in [
            ("payload: must have no \\u0000", Some("payload")),
            ("--message: it is no file", Some("--message")),
            ("event 3: kind: 'x' is not registered", None),
            ("value out of range: overflow", None),
            ("nothing in particular", None),
        ] {
            assert_eq!(Error::Invalid(text.to_owned()).field(), field, "{text}");
        }
        assert_eq!(Error::Config("payload: x".to_owned()).field(), None);
    }
}
