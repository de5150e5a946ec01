//! Owns what a program reports about people in its own tables, so that a forget and a cleanup can remove it.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use crate::connect::{Client, Transaction};
use crate::error::Result;

/// The person or thing that data is about, in the program's own terms: `patient=7f0c…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Subject {
    /// One of [`Records::subjects`].
    pub name: String,
    /// Its id.
    pub id: String,
}

impl std::fmt::Debug for Subject {
    /// Leaves out the id, which may identify a person (I9).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({:?})", self.name)
    }
}

/// Parses `patient=7f0c…`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_subject(text: &str) -> Result<Subject, String> {
    match text.split_once('=') {
        Some((name, id)) if !name.is_empty() && !id.is_empty() => Ok(Subject {
            name: name.to_owned(),
            id: id.to_owned(),
        }),
        _ => Err("must be NAME=ID, such as customer=42".to_owned()),
    }
}

/// Groups and correlation ids of a subject's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubjectKeys {
    /// Groups.
    pub groups: Vec<String>,
    /// Correlation ids.
    pub correlation_ids: Vec<String>,
}

/// The data about people in a program's own tables: how to remove it, and how long to keep it.
pub trait Records: Send + Sync {
    /// Returns the allowed types of a [`Subject`], such as `patient` or `customer`.
    fn subjects(&self) -> &'static [&'static str];

    /// Removes the data of a subject or, with `dry_run`, reports what would be removed. It is called twice:
    /// before the subject's events are forgotten, to find out which they are, and afterwards.
    fn forget<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        subject: &'a Subject,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Forgotten>>;

    /// Removes some of the rows whose retention is over, as many as fit into a short transaction; with
    /// `dry_run`, counts all of them. A cleanup repeats the call until nothing, or no time, is left. Returns
    /// the number of rows by table.
    fn expire<'a>(
        &'a self,
        client: &'a Client,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<BTreeMap<String, u64>>>;
}

/// What a program's own tables hold about a subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The keys by which the subject's events are found.
    pub keys: SubjectKeys,
    /// Rows removed, by table.
    pub tables: BTreeMap<String, u64>,
}
