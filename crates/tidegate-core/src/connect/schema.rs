//! Owns the name of a queue's schema, and the connections that carry it: a statement gets the name from the
//! connection that sends it.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio_postgres::{Error as Failure, GenericClient, IsolationLevel, SimpleQueryStream};

use super::pool::Lent;
use crate::config::{Lookup, environment};
use crate::error::{Error, Result};

/// The schema unless another one is named.
const USUAL: &str = "tidegate";

/// What stands for the schema's name in all statements and migrations. The roles' names begin with it, too.
const PLACEHOLDER: &str = "@tidegate";

/// The variable that names the schema.
const SETTING: &str = "TIDEGATE_SCHEMA";

/// The most characters of a name. `NAME_publish` and the other roles are names of Postgres, too.
const LONGEST: usize = 41;

/// The schema of a queue. A database may hold several queues, each in a schema of its own. Cheap to clone.
#[derive(Clone)]
pub struct Schema(Arc<Named>);

struct Named {
    name: String,
    /// The texts that were written for this schema, by the address and length of the text in the program.
    texts: Mutex<HashMap<(usize, usize), Arc<str>>>,
}

impl Schema {
    /// Returns the schema of this name: a small letter or `_`, then small letters, digits and `_`, 41
    /// characters at most.
    ///
    /// # Errors
    /// [`Error::Config`] says what is allowed.
    pub fn named(name: &str) -> Result<Self> {
        let is_start = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_plain = |c: char| is_start(c) || c.is_ascii_digit();
        let fits =
            name.starts_with(is_start) && name.chars().all(is_plain) && name.len() <= LONGEST;
        if !fits || name.starts_with("pg_") {
            return Err(Error::Config(format!(
                "{SETTING}: must be 1 to {LONGEST} of a-z, 0-9 and _, and begin with a letter or _, but not with pg_; got {name:?}"
            )));
        }
        let name = name.to_owned();
        let texts = Mutex::default();
        Ok(Self(Arc::new(Named { name, texts })))
    }

    /// Reads `TIDEGATE_SCHEMA`. Where these settings have none, that of the process counts.
    ///
    /// # Errors
    /// As [`Schema::named`].
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self> {
        let name = lookup(SETTING).or_else(|| environment(SETTING));
        name.map_or_else(|| Ok(Self::default()), |name| Self::named(&name))
    }

    /// The schema of the process's environment. A name that is not allowed says nothing here: whoever makes a
    /// [`Database`](super::Database) of the environment gets the error.
    fn of_process() -> &'static Self {
        static OF_PROCESS: LazyLock<Schema> =
            LazyLock::new(|| Schema::from_settings(&environment).unwrap_or_default());
        &OF_PROCESS
    }

    /// Returns the name. It needs no quotes in SQL.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns a statement's text for this schema, which is written once.
    pub(crate) fn text(&self, text: &'static str) -> Arc<str> {
        let mut texts = self.0.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let own = texts.entry((text.as_ptr().addr(), text.len()));
        own.or_insert_with(|| self.written(text).into()).clone()
    }

    /// Writes SQL for this schema, whose name `@tidegate` stands for.
    pub fn written(&self, sql: &str) -> String {
        sql.replace(PLACEHOLDER, self.name())
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Schema {}

impl Default for Schema {
    /// The schema `tidegate`.
    fn default() -> Self {
        static DEFAULT: LazyLock<Schema> = LazyLock::new(|| {
            let name = USUAL.to_owned();
            let texts = Mutex::default();
            Schema(Arc::new(Named { name, texts }))
        });
        DEFAULT.clone()
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A connection to a database, and the schema of the queue that is meant. One's own ends when dropped; one
/// that is lent from the pool of a [`Database`](super::Database) goes back to it. Use it like the
/// [`tokio_postgres::Client`] that it is.
#[derive(Debug)]
pub struct Client {
    session: Session,
    schema: Schema,
    /// Whether each statement of the queue begins a transaction of its own.
    begins: bool,
}

#[derive(Debug)]
pub(super) enum Session {
    Own(tokio_postgres::Client),
    Lent(Lent),
}

/// How each transaction of the queue begins. At the other levels of isolation, a statement that has waited
/// for another transaction's lock would not see what that transaction wrote.
pub const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

impl Client {
    /// Makes a connection of the driver one to the queue of a schema.
    pub fn new(client: tokio_postgres::Client, schema: Schema) -> Self {
        Self::of(Session::Own(client), schema)
    }

    pub(super) fn of(session: Session, schema: Schema) -> Self {
        Self {
            session,
            schema,
            begins: false,
        }
    }

    /// With `true`, each statement of the queue begins and ends a transaction of its own, because the login's
    /// default is another level of isolation. Not for a connection on which transactions are begun by hand.
    pub(super) fn beginning(self, begins: bool) -> Self {
        Self { begins, ..self }
    }

    /// Ends the connection, even if it is lent from a pool.
    pub fn close(mut self) {
        if let Session::Lent(lent) = &mut self.session {
            lent.leave();
        }
    }

    /// Gives a lent connection back at once. All its statements have been answered.
    pub fn give_back(mut self) {
        if let Session::Lent(lent) = &mut self.session {
            lent.end = None;
        }
    }

    /// Begins a transaction with the statement `begin`, without waiting for the answer. The transaction rolls
    /// back when the connection is dropped.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn begin(&mut self, begin: &str) -> Result<SimpleQueryStream, Failure> {
        if let Session::Lent(lent) = &mut self.session {
            lent.end = Some("ROLLBACK");
        }
        self.simple_query_raw(begin).await
    }

    /// Begins a transaction at READ COMMITTED, which rolls back when it is dropped.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Failure> {
        let schema = self.schema.clone();
        let begin = self.build_transaction();
        let begin = begin.isolation_level(IsolationLevel::ReadCommitted);
        Ok(Transaction {
            transaction: begin.start().await?,
            schema,
        })
    }

    /// Begins a transaction that changes nothing, with these settings. All reports and metrics are read in
    /// one, and what is left after a drain.
    ///
    /// Its plans are not compiled (`jit = off`). Compiling takes longer than the statements do: a plan has an
    /// expression for each of a hundred partitions, and a planner switch makes even the plan of an empty
    /// queue look expensive.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn begin_look(&self, settings: &str) -> Result<(), Error> {
        let begin = format!(
            "{BEGIN} READ ONLY; SET LOCAL jit = off; SET LOCAL IntervalStyle = postgres; {settings}"
        );
        let sent = self.batch_execute(&begin);
        sent.await.map_err(Error::at("begin"))
    }

    /// Ends what [`Client::begin_look`] began. It may be sent before that is answered.
    ///
    /// # Errors
    /// When the database fails or does not answer.
    pub async fn end_look(&self) -> Result<(), Error> {
        let sent = self.batch_execute("COMMIT");
        sent.await.map_err(Error::at("commit"))
    }
}

impl From<tokio_postgres::Client> for Client {
    /// Makes a connection of the driver one to the queue in the schema that `TIDEGATE_SCHEMA` names.
    fn from(client: tokio_postgres::Client) -> Self {
        Self::new(client, Schema::of_process().clone())
    }
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        match &self.session {
            Session::Own(client) => client,
            Session::Lent(lent) => &lent.client,
        }
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match &mut self.session {
            Session::Own(client) => client,
            Session::Lent(lent) => &mut lent.client,
        }
    }
}

/// A transaction of a [`Client`]. Use it like the [`tokio_postgres::Transaction`] that it is.
pub struct Transaction<'a> {
    transaction: tokio_postgres::Transaction<'a>,
    schema: Schema,
}

impl Transaction<'_> {
    /// Commits. (The driver's own `commit` cannot be reached through `Deref`, because it consumes the
    /// transaction.)
    ///
    /// # Errors
    /// When the database fails.
    pub async fn commit(self) -> Result<(), Failure> {
        self.transaction.commit().await
    }

    /// Rolls back, and waits for the answer. Dropping the transaction rolls back, too, but does not wait.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rollback(self) -> Result<(), Failure> {
        self.transaction.rollback().await
    }
}

impl<'a> Deref for Transaction<'a> {
    type Target = tokio_postgres::Transaction<'a>;

    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

/// A connection, perhaps with an open transaction, and the queue that is meant.
#[derive(Clone, Copy)]
pub struct Conn<'a> {
    pub(crate) client: &'a tokio_postgres::Client,
    /// The schema of the queue.
    pub schema: &'a Schema,
    /// Whether each statement begins a transaction of its own, and ends it.
    pub(crate) begins: bool,
}

impl Conn<'_> {
    /// Returns the same connection for statements within a transaction that the caller has begun and will
    /// end.
    #[must_use]
    pub fn within_transaction(self) -> Self {
        let begins = false;
        Self { begins, ..self }
    }
}

impl Deref for Conn<'_> {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        self.client
    }
}

/// What statements of a queue are sent over: a connection or a transaction, with the queue's schema. With a
/// plain connection or transaction of [`tokio_postgres`], the schema is the one that `TIDEGATE_SCHEMA` names;
/// [`Schema::on`] names another.
pub trait Queryable: Sync {
    /// Returns the connection and the queue's schema.
    fn conn(&self) -> Conn<'_>;
}

impl Schema {
    /// Names this schema for a connection or transaction of the driver:
    /// `publish(&schema.on(&transaction), &event)`.
    pub fn on<'a>(&'a self, client: &'a impl GenericClient) -> Conn<'a> {
        Conn {
            client: client.client(),
            schema: self,
            begins: false,
        }
    }
}

impl Queryable for Conn<'_> {
    fn conn(&self) -> Conn<'_> {
        *self
    }
}

impl Queryable for Client {
    fn conn(&self) -> Conn<'_> {
        Conn {
            begins: self.begins,
            ..self.schema.on(&**self)
        }
    }
}

impl Queryable for Transaction<'_> {
    fn conn(&self) -> Conn<'_> {
        self.schema.on(&self.transaction)
    }
}

impl<T: GenericClient + Sync> Queryable for T {
    fn conn(&self) -> Conn<'_> {
        Schema::of_process().on(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholder_alone_stands_for_the_schema() {
        let acme = Schema::named("acme").unwrap();
        for (sql, written) in [
            ("SELECT @tidegate.publish($1)", "SELECT acme.publish($1)"),
            ("TO @tidegate_read;", "TO acme_read;"),
            ("nspname = '@tidegate'", "nspname = 'acme'"),
            ("'tidegate', tidegate.t", "'tidegate', tidegate.t"),
        ] {
            assert_eq!(acme.written(sql), written);
            assert_eq!(Schema::default().written(sql), sql.replace('@', ""));
        }
    }

    #[test]
    fn a_text_is_written_once_for_a_schema() {
        let acme = Schema::named("acme").unwrap();
        let text = "SELECT @tidegate.publish($1)";
        let (first, again) = (acme.text(text), acme.clone().text(text));
        assert_eq!(&*first, "SELECT acme.publish($1)");
        assert!(std::ptr::eq(&raw const *first, &raw const *again));
    }

    #[test]
    fn a_name_that_postgres_would_have_to_quote_is_refused() {
        for name in [
            "",
            "1st",
            "Acme",
            "a-b",
            "a.b",
            "a\"b",
            "pg_own",
            "ä",
            &"a".repeat(42),
        ] {
            let error = Schema::named(name).unwrap_err().to_string();
            assert!(
                error.contains("TIDEGATE_SCHEMA: must be 1 to 41 of"),
                "{error}"
            );
        }
        for name in ["a", "_", "tenant_7", &"a".repeat(41)] {
            assert_eq!(Schema::named(name).unwrap().name(), name);
        }
    }
}
