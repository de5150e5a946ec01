//! Owns the numbers that leave a program: what CloudWatch reads of each run and cleanup (`metrics`), and what
//! Prometheus reads of a queue (`prometheus`).
//!
//! A run counts its own numbers (`drain::figures`). The numbers that operators request are verbs and views
//! (`admin::stats`, `admin::views`). All of these are below or above this folder: it imports the run's, and
//! the verbs import it.

pub mod metrics;
pub mod prometheus;
