//! Every statement on the live queue and its log, by name. A test prepares each against a migrated
//! database. All times are the database's: `clock_timestamp()`, since `now()` stands still for a
//! whole transaction.

pub mod doctor;
pub mod fan_in;
pub mod live;
pub mod look;
pub mod operate;
#[cfg(feature = "operate")]
pub mod prometheus;
pub mod retention;
pub mod schedule;
pub mod service;
pub mod slot;
pub mod survey;

use tokio_postgres::types::Type;

/// A statement with the types of its parameters, which travel with it: nothing is prepared.
#[derive(Debug)]
pub struct Statement {
    /// For error messages.
    pub name: &'static str,
    /// Types of `$1`, `$2` and so on.
    pub params: &'static [Type],
    /// The text.
    pub text: &'static str,
}

/// All of them, for the test that prepares each.
#[cfg(feature = "internals")]
pub static ALL: &[&[&Statement]] = &[
    live::ALL,
    look::ALL,
    operate::ALL,
    prometheus::ALL,
    retention::ALL,
    schedule::ALL,
    service::ALL,
    slot::ALL,
    survey::ALL,
    fan_in::ALL,
    doctor::ALL,
];
