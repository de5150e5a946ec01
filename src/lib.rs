//! The job: forms, checks and medical jobs on a queue of their own. Its events and the one `match` from each to its
//! handlers ([`app`]), and the HTTP interface of the medical jobs ([`http`]). Everything else is the queue's, which knows
//! nothing of it: this program uses what any other one could.

pub mod app;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;
pub mod schemas;

/// The README's Rust examples are compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
