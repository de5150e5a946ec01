//! Owns the engine's one error type: failures of the *infrastructure*, by stage. A failed event is never an
//! error; it is an outcome (see `tidegate::HandlerError`).

use std::time::Duration;

use tokio_postgres::error::SqlState;

/// An infrastructure failure, by stage.
///
/// Its Debug text is its Display text. A derived one would show the driver's error with the database's
/// detail, which may quote a row and so a payload (I9).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or malformed. The message names it and what is allowed.
    #[error("configuration: {0}")]
    Config(String),
    /// There is no login: the secret cannot be read or parsed, or no token can be signed.
    #[error("secret: {0}")]
    Secret(String),
    /// The database could not be reached, or the server that answers cannot be trusted.
    #[error("connect: {0}")]
    Connect(String),
    /// The database refuses the login, with every known password.
    #[error("login: {0}")]
    Login(String),
    /// A statement failed.
    #[error("queue: {stage}: {}{}", describe(source), remedy(source))]
    Database {
        /// The statement's name.
        stage: &'static str,
        /// The error of the driver or the database.
        source: tokio_postgres::Error,
    },
    /// The database did not answer in time. The statement may still have been applied.
    #[error("queue: {stage}: no answer from the database within {limit:?}")]
    TimedOut {
        /// The statement's name.
        stage: &'static str,
        /// The time limit that passed.
        limit: Duration,
    },
    /// A further drain could not be started.
    #[error("start of a drain: {0}")]
    Start(String),
    /// The schema could not be updated.
    #[error("migrate: {0}")]
    Migrate(String),
    /// An argument of a publish or of an operator's request is not allowed. The message names the field.
    #[error("{0}")]
    Invalid(String),
    /// The database's answer cannot be read here: another version wrote it, or it holds a value that no
    /// program could read. The message names the place.
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

/// The result of what may fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Turns the driver's errors into errors of this stage.
    pub fn at(stage: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |source| Self::Database { stage, source }
    }

    /// Waits for work, at most for `limit`.
    ///
    /// # Errors
    /// Those of the work, or [`Error::TimedOut`].
    pub async fn within<T>(
        stage: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, Self>>,
    ) -> Result<T, Self> {
        let late = Self::TimedOut { stage, limit };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(late))
    }

    /// Returns the SQLSTATE, when the database itself answered with an error.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Self::Database { source, .. } => source.code(),
            _ => None,
        }
    }

    /// Returns which field or flag of an [`Error::Invalid`] is not allowed: the name with which its text
    /// begins. `None` when the text names no field, or first names an event of a batch.
    pub fn field(&self) -> Option<&str> {
        let Self::Invalid(text) = self else {
            return None;
        };
        let (field, _) = text.split_once(": ")?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        field.chars().all(is_name).then_some(field)
    }

    /// Whether the connection must be closed: it is closed, timed out or out of step. After an error
    /// message from the database the connection is usable, except when the server shuts down (class 57P) or
    /// reports a connection error (class 08).
    pub fn is_connection_lost(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Connect(_) => true,
            Self::Database { source, .. } => {
                source.code().is_none() || self.is_of_class(&["57P", "08"])
            }
            _ => false,
        }
    }

    /// Whether the statement was refused because of its data (classes 21, 22, 23 and 54). Then the rest of a
    /// batch is worth trying without the culprit.
    pub fn is_bad_data(&self) -> bool {
        self.is_of_class(&["21", "22", "23", "54"])
    }

    /// Whether the database has examined the statement and refused it. The connection is fine, and sending
    /// the same statement again is of no use.
    pub fn is_refusal(&self) -> bool {
        self.sqlstate().is_some() && !self.is_connection_lost() && !self.is_transient()
    }

    /// Whether a trigger or a function raised the error (class P0).
    pub fn is_by_trigger(&self) -> bool {
        self.is_of_class(&["P0"])
    }

    /// Whether a statement reached the limit of its wait for a lock (`lock_timeout`), and so changed nothing.
    pub fn is_lock_timeout(&self) -> bool {
        self.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether the database cannot read what it has stored (class XX).
    pub fn is_corruption(&self) -> bool {
        self.is_of_class(&["XX"])
    }

    /// Whether a statement waited for too long, for a lock or for the server, or was cancelled, and so
    /// changed nothing. Nothing is wrong with what it writes.
    pub fn is_wait(&self) -> bool {
        self.is_lock_timeout() || self.sqlstate() == Some(&SqlState::QUERY_CANCELED)
    }

    /// Whether the same statement may succeed when sent again: a serialization failure or a deadlock.
    pub fn is_transient(&self) -> bool {
        self.is_of_class(&["40"])
    }

    fn is_of_class(&self, classes: &[&str]) -> bool {
        let state = self.sqlstate().map_or("", SqlState::code);
        classes.iter().any(|class| state.starts_with(class))
    }
}

/// Returns the message and the SQLSTATE, but never the detail, which may quote a row and so a payload.
pub fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} ({})", db.message(), db.code().code());
    }
    with_causes(error)
}

/// Returns an error's text with those of its causes.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let reason = source.downcast_ref::<tokio_postgres::Error>().map_or_else(
            || source.to_string(),
            |error| describe(error) + of_pooler(error),
        );
        text = format!("{text}: {reason}");
        cause = source.source();
    }
    text
}

/// Returns what to do when one of the queue's own statements does not find its schema.
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

/// Returns what to do when the session lacks a prepared statement, or has another one of the same name. This
/// is how a pooler shows that gives each transaction whichever session is free.
fn of_pooler(error: &tokio_postgres::Error) -> &'static str {
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
