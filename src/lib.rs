//! The shipped application: forms, checks and medical jobs on one queue. It contains its events, the one
//! `match` from each event to its handlers ([`app`]), and the HTTP interface of jobs and forms ([`http`]).
//! Everything else is part of the queue, which knows nothing of this application. The application uses only
//! what any other program can use.

pub mod app;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/targets.rs"]
pub mod fuzz;
#[cfg(feature = "full")]
pub mod http;
pub mod schemas;

/// Compiles the Rust examples of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the handbook's pages whose Rust examples are complete, too.
#[cfg(doctest)]
mod handbook {
    #[doc = include_str!("../docs/guides/existing-program.md")]
    struct ExistingProgram;

    #[doc = include_str!("../docs/guides/publish.md")]
    struct Publish;

    #[doc = include_str!("../docs/guides/testing.md")]
    struct Testing;
}
