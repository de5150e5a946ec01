//! The shipped application: forms, checks and medical jobs on one queue. It uses only what any other program
//! can use, and the queue knows nothing of it.
//!
//! It owns its events, tables and handlers ([`app`]), and the HTTP interface of jobs and forms ([`http`]). It
//! does not know how an event is leased, retried or stored.
//!
//! A request over HTTP, a message or a verb of the command line comes to the intake of its system, which
//! checks it against its schema. One transaction stores the data and publishes the event. A drain gives the
//! event to its handlers, by the one `match` in [`app`]. A handler calls the one service that it names, or
//! writes to the tables in the transaction that completes the event. It may publish the next event.

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
}
