//! Owns the personal data in the application's own tables: how a person is forgotten, and how long a row is
//! kept. The queue handles the personal data in events.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::Value;
use tidegate::Error;
use tidegate::config::parse_duration;
use tidegate::forget::{Forgotten, Records, Subject, SubjectKeys};
use tidegate::tokio_postgres::{Client, GenericClient, Transaction};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::forms::intake;
use super::medical;
use super::sql::query;

/// A patient, identified by UUID.
const PATIENT: &str = "patient";
/// An employee who is the subject of forms, identified by national id.
const PERSON: &str = "person";
/// A form, identified by its id.
const FORM: &str = "form";

/// Maximum number of rows removed in one transaction.
const BATCH: i32 = 10_000;

/// Each retention setting with the function that removes older rows. Without a setting, rows are kept
/// forever.
const RETENTIONS: [(&str, &str); 3] = [
    (
        "FORMS_RETENTION",
        "SELECT forms.expire(make_interval(secs => $1), $2, $3)::text",
    ),
    (
        "CHECKS_RETENTION",
        "SELECT checks.expire(make_interval(secs => $1), $2, $3)::text",
    ),
    (
        "MEDICAL_RETENTION",
        "SELECT medical.expire(make_interval(secs => $1), $2, $3)::text",
    ),
];

/// The personal data, with the settings for its retention.
pub struct People {
    setting: fn(&str) -> Option<String>,
}

impl People {
    /// Reads `FORMS_RETENTION`, `CHECKS_RETENTION` and `MEDICAL_RETENTION` each time it removes old rows.
    #[must_use]
    pub fn new(setting: fn(&str) -> Option<String>) -> Self {
        Self { setting }
    }

    fn retention(&self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(text) = (self.setting)(name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let wanted = |got: String| {
            Error::Config(format!(
                "{name}: must be a duration of a day or more, such as 730d, got {got}"
            ))
        };
        let kept = parse_duration(&text).map_err(|_| wanted(format!("{text:?}")))?;
        if kept < Duration::from_hours(24) {
            return Err(wanted(format!("{text:?}")));
        }
        Ok(Some(kept))
    }
}

impl Records for People {
    fn subjects(&self) -> &'static [&'static str] {
        &[PATIENT, PERSON, FORM]
    }

    fn forget<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        subject: &'a Subject,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Forgotten, Error>> {
        async move {
            if subject.name == PATIENT {
                return patient(transaction, &subject.id, dry_run).await;
            }
            of_forms(transaction, subject, dry_run).await
        }
        .boxed()
    }

    fn expire<'a>(
        &'a self,
        client: &'a Client,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<BTreeMap<String, u64>, Error>> {
        async move {
            let mut removed = BTreeMap::new();
            for (name, statement) in RETENTIONS {
                let Some(kept) = self.retention(name)? else {
                    continue;
                };
                let kept = kept.as_secs_f64();
                let params: [Param<'_>; 3] = [
                    (&kept, Type::FLOAT8),
                    (&BATCH, Type::INT4),
                    (&dry_run, Type::BOOL),
                ];
                let told = told(client, "expire", statement, &params).await?;
                removed.extend(rows_by_table(&told));
            }
            Ok(removed)
        }
        .boxed()
    }
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

async fn patient(
    transaction: &Transaction<'_>,
    id: &str,
    dry_run: bool,
) -> Result<Forgotten, Error> {
    let patient_id: Uuid = id
        .parse()
        .map_err(|_| Error::Invalid("subject: a patient must be a UUID".to_owned()))?;
    let sql = "SELECT medical.forget($1, $2)::text";
    let params: [Param<'_>; 2] = [(&patient_id, Type::UUID), (&dry_run, Type::BOOL)];
    let told = told(transaction, "forget", sql, &params).await?;
    Ok(Forgotten {
        keys: SubjectKeys {
            groups: vec![medical::group(patient_id)],
            ..SubjectKeys::default()
        },
        tables: rows_by_table(&told),
    })
}

async fn of_forms(
    transaction: &Transaction<'_>,
    subject: &Subject,
    dry_run: bool,
) -> Result<Forgotten, Error> {
    let is_form = subject.name == FORM;
    let (form, person) = (
        is_form.then_some(&subject.id),
        (!is_form).then_some(&subject.id),
    );
    let sql = "SELECT forms.forget($1, $2, $3)::text";
    let params: [Param<'_>; 3] = [
        (&form, Type::TEXT),
        (&person, Type::TEXT),
        (&dry_run, Type::BOOL),
    ];
    let told = told(transaction, "forget", sql, &params).await?;
    let ids = told["forms"].as_array().into_iter().flatten();
    let mut forms: Vec<String> = ids
        .filter_map(|id| id.as_str().map(str::to_owned))
        .collect();
    // Events may still exist for a form that is already removed.
    forms.extend(form.cloned());
    Ok(Forgotten {
        keys: SubjectKeys {
            groups: forms.iter().map(|id| intake::group_of(id)).collect(),
            correlation_ids: forms,
        },
        tables: rows_by_table(&told["tables"]),
    })
}

async fn told(
    client: &(impl GenericClient + Sync),
    stage: &'static str,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Value, Error> {
    let rows = query(client, stage, sql, params).await?;
    let text: &str = rows.first().map_or("null", |row| row.get(0));
    serde_json::from_str(text).map_err(|error| Error::Unreadable(format!("{stage}: {error}")))
}

fn rows_by_table(told: &Value) -> BTreeMap<String, u64> {
    let fields = told.as_object().into_iter().flatten();
    fields
        .filter_map(|(table, rows)| Some((table.clone(), rows.as_u64()?)))
        .collect()
}
