//! What each verb does: calls the library and turns its report into an answer.

pub mod cleanup;
pub mod drain;
pub mod look;
pub mod migrate;
pub mod operate;
pub mod publish;
pub mod serve;
