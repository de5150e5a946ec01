//! Owns the list of a program's queues: what `TIDEGATE_QUEUES` names, or the rows of `TIDEGATE_QUEUES_QUERY`.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use crate::config::Lookup;
use crate::connect::Schema;
use crate::error::{Error, Result};

/// The variable with the list, such as `north=night/north, south=night/south#acme, #globex`: for each queue
/// its name, the id of the secret of its database, and its schema. Without an id, it is in the database of
/// the other settings. Without a name, it is called as its schema, or else as its secret.
pub(super) const LIST: &str = "TIDEGATE_QUEUES";

/// The variable with a query that returns the list: a row for each queue, with the columns `name`, `secret`
/// and `schema`, or some of them. It is asked in the database of the other settings.
pub(super) const QUERY: &str = "TIDEGATE_QUEUES_QUERY";

/// Where one queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    /// The id of the secret with the login; `None` for the database of the other settings.
    pub secret: Option<String>,
    /// `None` for the schema of the other settings.
    pub schema: Option<Schema>,
}

impl Entry {
    /// # Errors
    /// What is wrong, when it names no place, or no schema that can be.
    fn new(name: Option<&str>, secret: Option<&str>, schema: Option<&str>) -> Result<Self, String> {
        let given = |text: Option<&str>| {
            let text = text.map(str::trim).filter(|text| !text.is_empty());
            text.map(str::to_owned)
        };
        let (secret, schema) = (given(secret), given(schema));
        let usual = schema.as_deref().or(secret.as_deref().map(name_of_secret));
        let name = given(name).or_else(|| usual.map(str::to_owned));
        match name {
            Some(name) if secret.is_some() || schema.is_some() => Ok(Self {
                name,
                schema: schema.as_deref().map(schema_named).transpose()?,
                secret,
            }),
            _ => Err("a secret or a schema is missing".to_owned()),
        }
    }

    /// Reads `name=secret#schema`, of which the name and either of the others may be missing.
    fn written(text: &str) -> Result<Self, String> {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if !name.trim().is_empty() => (Some(name), place),
            Some(_) => (None, ""),
            None => (None, text),
        };
        let (secret, schema) = match place.split_once('#') {
            Some((secret, schema)) if !schema.trim().is_empty() => (secret, Some(schema)),
            Some(_) => ("", None),
            None => (place, None),
        };
        Self::new(name, Some(secret), schema)
    }

    fn of_row(row: &Row) -> Result<Self, String> {
        let columns = row.columns();
        let text = |wanted: &str| match columns.iter().position(|column| column.name() == wanted) {
            Some(at) => row
                .try_get::<_, Option<&str>>(at)
                .map_err(|error| format!("column {wanted}: must be text: {error}")),
            None => Ok(None),
        };
        Self::new(text("name")?, text("secret")?, text("schema")?)
    }
}

fn schema_named(name: &str) -> Result<Schema, String> {
    Schema::named(name).map_err(|error| match error {
        Error::Config(text) => text,
        other => other.to_string(),
    })
}

/// Reads `TIDEGATE_QUEUES`; `None` if it is not set.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub(super) fn of_settings(lookup: Lookup<'_>) -> Result<Option<Vec<Entry>>> {
    let Some(list) = lookup(LIST) else {
        return Ok(None);
    };
    let entries = list.split(',').map(|text| {
        Entry::written(text).map_err(|error| {
            Error::Config(format!(
                "{LIST}: must be a comma-separated list of name=secret, name=secret#schema or name=#schema, got {:?}: {error}",
                text.trim()
            ))
        })
    });
    let entries: Vec<Entry> = entries.collect::<Result<_>>()?;
    let mut names = BTreeSet::new();
    let entries = entries.into_iter().map(|entry| is_new(&mut names, entry));
    let entries: Vec<Entry> = entries
        .collect::<Result<_, String>>()
        .map_err(|why| Error::Config(format!("{LIST}: {why}")))?;
    let has_secrets = entries.iter().any(|entry| entry.secret.is_some());
    for other in ["DATABASE_URL", "DATABASE_SECRET_ID"] {
        if has_secrets && lookup(other).is_some() {
            return Err(Error::Config(format!(
                "{LIST}: names secrets, and {other} is set too; set only one of them"
            )));
        }
    }
    Ok(Some(entries))
}

/// Reads the rows of the query. The log names those that are no queue, which are left out: one customer's row
/// stops no other's.
///
/// # Errors
/// [`Error::Config`], if none is left, names the variable, the row, and what it must be.
pub(super) fn of_rows(rows: &[Row]) -> Result<Vec<Entry>> {
    let (mut entries, mut names, mut wrong) = (Vec::new(), BTreeSet::new(), None);
    for (at, row) in rows.iter().enumerate() {
        let entry = Entry::of_row(row).and_then(|entry| is_new(&mut names, entry));
        match entry {
            Ok(entry) => entries.push(entry),
            Err(why) => {
                let error = Error::Config(format!("{QUERY}: row {}: {why}", at + 1));
                tracing::error!(%error, "a queue is left out");
                wrong.get_or_insert(error);
            }
        }
    }
    match wrong {
        Some(error) if entries.is_empty() => Err(error),
        _ => Ok(entries),
    }
}

/// Returns the entry, if none before has its name.
fn is_new(names: &mut BTreeSet<String>, entry: Entry) -> Result<Entry, String> {
    if names.insert(entry.name.clone()) {
        return Ok(entry);
    }
    Err(format!("names must differ, got {:?} twice", entry.name))
}

/// Returns the name of a queue whose entry is only an id. For an ARN it is the name of the secret, without
/// the hyphen and the six characters with which Secrets Manager ends every ARN.
fn name_of_secret(id: &str) -> &str {
    let secret = match id.split_once(":secret:") {
        Some((service, secret)) if service.starts_with("arn:") => secret,
        _ => return id,
    };
    match secret.rsplit_once('-') {
        Some((name, end)) if end.len() == 6 && !name.is_empty() => name,
        _ => secret,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    fn read(pairs: &'static [(&str, &str)]) -> Result<Vec<(String, String, String)>> {
        let entries = of_settings(&settings(pairs))?.unwrap_or_default();
        let parts = entries.into_iter().map(|entry| {
            let schema = entry.schema.map(|schema| schema.name().to_owned());
            (
                entry.name,
                entry.secret.unwrap_or_default(),
                schema.unwrap_or_default(),
            )
        });
        Ok(parts.collect())
    }

    #[test]
    fn each_queue_has_a_name_a_secret_and_a_schema_or_some_of_them() {
        let owned = |parts: &[(&str, &str, &str)]| -> Vec<_> {
            let parts = parts.iter().copied();
            parts
                .map(|(name, secret, schema)| (name.into(), secret.into(), schema.into()))
                .collect()
        };
        let of = |pairs: &'static [(&str, &str)]| read(pairs).unwrap();
        assert_eq!(
            of(&[(LIST, "north=night/north, night/south")]),
            owned(&[
                ("north", "night/north", ""),
                ("night/south", "night/south", "")
            ])
        );
        let beside_a_url = &[
            (LIST, "n=#acme, #globex"),
            ("DATABASE_URL", "postgres://h/d"),
        ];
        assert_eq!(
            of(beside_a_url),
            owned(&[("n", "", "acme"), ("globex", "", "globex")])
        );
        assert_eq!(
            of(&[(LIST, "night/east#initech")]),
            owned(&[("initech", "night/east", "initech")])
        );
        assert!(
            of_settings(&settings(&[("DATABASE_URL", "x")]))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_list_that_names_no_queue_is_refused_with_what_it_must_be() {
        for (pairs, told) in [
            (&[(LIST, "north=a,,south=b")][..], "got \"\""),
            (&[(LIST, "=a")], "got \"=a\""),
            (&[(LIST, "a=")], "a secret or a schema is missing"),
            (&[(LIST, "a#")], "a secret or a schema is missing"),
            (&[(LIST, "#A-b")], "TIDEGATE_SCHEMA: must be 1 to 41"),
            (&[(LIST, "a=x, b=y, a=z")], "got \"a\" twice"),
            (
                &[(LIST, "a=x"), ("DATABASE_SECRET_ID", "y")],
                "DATABASE_SECRET_ID is set too",
            ),
        ] {
            let error = read(pairs).unwrap_err().to_string();
            assert!(error.contains(LIST) && error.contains(told), "{error}");
        }
    }

    #[test]
    fn an_arn_without_a_name_has_the_name_of_its_secret() {
        let arn = |secret: &str| format!("arn:aws:secretsmanager:eu-central-1:1:secret:{secret}");
        for (secret, name) in [
            ("night/north-AbCdEf", "night/north"),
            ("north-west-AbCdEf", "north-west"),
            ("rds!cluster-0a1b-AbCdEf", "rds!cluster-0a1b"),
            ("north", "north"),
            ("-AbCdEf", "-AbCdEf"),
        ] {
            assert_eq!(name_of_secret(&arn(secret)), name);
        }
        for id in ["night/north-AbCdEf", "a:secret:b-AbCdEf"] {
            assert_eq!(name_of_secret(id), id);
        }
        let list = format!("{}, south={}", arn("north-AbCdEf"), arn("x-AbCdEf"));
        let lookup = |name: &str| (name == LIST).then(|| list.clone());
        let found = of_settings(&lookup).unwrap().unwrap();
        assert_eq!(found[0].name, "north");
        assert_eq!(found[1].secret.as_deref(), Some(&*arn("x-AbCdEf")));
    }
}
