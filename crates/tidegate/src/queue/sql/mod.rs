//! Every statement on the live queue and its log, by name. A test prepares each one against a migrated
//! database. All times come from the database: `clock_timestamp()`, because `now()` does not advance within a
//! transaction.

pub mod doctor;
pub mod live;
pub mod look;
pub mod prometheus;
pub mod retention;
pub mod schedule;
pub mod service;
pub mod slot;
pub mod survey;

use tokio_postgres::types::Type;

/// A statement with the types of its parameters. The types are sent with it, because nothing is prepared.
#[derive(Debug)]
pub struct Statement {
    /// The name in error messages.
    pub name: &'static str,
    /// Types of `$1`, `$2` and so on.
    pub params: &'static [Type],
    /// The SQL text.
    pub text: &'static str,
}

/// All statements but those of the operators' verbs, for the test that prepares each one.
pub static ALL: &[&[&Statement]] = &[
    live::ALL,
    look::ALL,
    prometheus::ALL,
    retention::ALL,
    schedule::ALL,
    service::ALL,
    slot::ALL,
    survey::ALL,
    doctor::ALL,
];
