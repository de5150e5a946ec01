//! Owns the personal data in the application's own tables: how a person is forgotten, and how long a row is
//! kept. The queue handles the personal data in events.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use tidegate::config::parse_duration;
use tidegate::connect::{Client, Transaction};
use tidegate::forget::{Forgotten, Records, Subject, SubjectKeys};
use tidegate::queue::{Statement, document};
use tidegate::{Error, statements};
use uuid::Uuid;

use super::medical;

/// A patient, identified by UUID.
const PATIENT: &str = "patient";
/// An employee who is the subject of forms, identified by national id.
const PERSON: &str = "person";
/// A form, identified by its id.
const FORM: &str = "form";

/// Maximum number of rows removed in one transaction.
const BATCH: i32 = 10_000;

/// Each retention setting with the statement that removes older rows. Without a setting, rows are kept
/// forever.
static RETENTIONS: [(&str, &Statement); 3] = [
    ("FORMS_RETENTION", &EXPIRE_FORMS),
    ("CHECKS_RETENTION", &EXPIRE_CHECKS),
    ("MEDICAL_RETENTION", &EXPIRE_MEDICAL),
];

statements! {
    EXPIRE_FORMS: "forms.expire" [FLOAT8, INT4, BOOL] = "SELECT forms.expire(make_interval(secs => $1), $2, $3)::text";

    EXPIRE_CHECKS: "checks.expire" [FLOAT8, INT4, BOOL] = "SELECT checks.expire(make_interval(secs => $1), $2, $3)::text";

    EXPIRE_MEDICAL: "medical.expire" [FLOAT8, INT4, BOOL] = "SELECT medical.expire(make_interval(secs => $1), $2, $3)::text";

    FORGET_PATIENT: "medical.forget" [UUID, BOOL] = "SELECT medical.forget($1, $2)::text";

    FORGET_FORMS: "forms.forget" [TEXT, TEXT, BOOL] = "SELECT forms.forget($1, $2, $3)::text";
}

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
        let Some(text) = (self.setting)(name) else {
            return Ok(None);
        };
        let kept = parse_duration(&text).ok();
        let kept = kept.filter(|kept| *kept >= Duration::from_hours(24));
        kept.map(Some).ok_or_else(|| {
            let needed = "must be a duration of a day or more, such as 730d";
            Error::Config(format!("{name}: {needed}, got {text:?}"))
        })
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
            for (name, expire) in RETENTIONS {
                if let Some(kept) = self.retention(name)? {
                    let age = kept.as_secs_f64();
                    let rows: Option<Rows> =
                        document(client, expire, &[&age, &BATCH, &dry_run]).await?;
                    removed.extend(rows.unwrap_or_default());
                }
            }
            Ok(removed)
        }
        .boxed()
    }
}

/// Numbers of rows by table.
type Rows = BTreeMap<String, u64>;

async fn patient(tx: &Transaction<'_>, id: &str, dry_run: bool) -> Result<Forgotten, Error> {
    let patient_id: Uuid = id
        .parse()
        .map_err(|_| Error::Invalid("subject: a patient must be a UUID".to_owned()))?;
    let tables = document(tx, &FORGET_PATIENT, &[&patient_id, &dry_run]).await?;
    let keys = SubjectKeys {
        groups: vec![medical::group(patient_id)],
        ..SubjectKeys::default()
    };
    let tables = tables.unwrap_or_default();
    Ok(Forgotten { keys, tables })
}

/// The answer of `forms.forget`.
#[derive(Default, Deserialize)]
struct ForgottenForms {
    forms: Vec<String>,
    tables: Rows,
}

async fn of_forms(
    tx: &Transaction<'_>,
    subject: &Subject,
    dry_run: bool,
) -> Result<Forgotten, Error> {
    let id = &subject.id;
    let is_form = subject.name == FORM;
    let (form, person) = (is_form.then_some(id), (!is_form).then_some(id));
    let forgotten: Option<ForgottenForms> =
        document(tx, &FORGET_FORMS, &[&form, &person, &dry_run]).await?;
    let ForgottenForms { mut forms, tables } = forgotten.unwrap_or_default();
    // Events may still exist for a form that is already removed.
    forms.extend(form.cloned());
    // Not its group: a letter about another case may wait there.
    let keys = SubjectKeys {
        correlation_ids: forms,
        ..SubjectKeys::default()
    };
    Ok(Forgotten { keys, tables })
}
