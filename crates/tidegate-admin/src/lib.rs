//! What operators ask of a program, and the JSON of its answers: no terminal, no HTML, no cloud. The shells
//! (`tidegate_lambda`, `tidegate_cli`, `tidegate_console`) are built on it.
//!
//! It owns [`Program`], a whole program ready for a shell; the verbs, one file each, and their list
//! (`verbs`); their format in an invocation and of `--json`; [`views`], which read a bounded number of rows;
//! [`doctor`], the checks of a database; [`retention`], how finished events leave the log; [`metrics`] and
//! [`prometheus`], the numbers of a run and of the queue (`numbers`); [`logs`], the log's lines.
//!
//! A request comes from a shell as an invocation or a command line, is read into the request of its verb,
//! runs over the database, and its report goes back as JSON, which the shell shows.

pub mod doctor;
pub mod logs;
mod numbers;
pub mod retention;
mod time_arg;
mod verbs;

pub use numbers::{metrics, prometheus};
pub use verbs::program::Program;
pub use verbs::*;
