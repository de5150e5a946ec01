//! The shipped application: forms, checks and medical jobs on one queue. It contains its events, the one `match` from
//! each event to its handlers ([`app`]), and the HTTP interface of the medical jobs ([`http`]). Everything else is part
//! of the queue, which knows nothing of this application. The application uses only what any other program can use.

pub mod app;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;

/// Compiles the Rust examples of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
