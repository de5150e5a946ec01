//! Owns the numbers that leave a program: what CloudWatch reads of each run and cleanup (`metrics`), and what
//! Prometheus reads of a queue (`prometheus`).
//!
//! A run counts its own numbers: `drain::figures` of the crate `tidegate`. The numbers that operators ask for
//! are the verbs `stats` and `failures`, and the views.

pub mod metrics;
pub mod prometheus;
