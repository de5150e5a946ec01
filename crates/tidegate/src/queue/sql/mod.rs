//! Every statement on the live queue and its log, by name. A test prepares each one against a migrated
//! database. All times come from the database: `clock_timestamp()`, because `now()` does not advance within a
//! transaction.

pub mod doctor;
pub mod live;
pub mod look;
pub mod prometheus;
pub mod schedule;
pub mod service;
pub mod slot;
pub mod survey;

pub use super::statement::Statement;
pub(crate) use super::statement::statements;

/// The statements of this folder, without those of the operators' verbs.
pub static ALL: &[&[&Statement]] = &[
    live::ALL,
    look::ALL,
    prometheus::ALL,
    schedule::ALL,
    service::ALL,
    slot::ALL,
    survey::ALL,
    doctor::ALL,
];
