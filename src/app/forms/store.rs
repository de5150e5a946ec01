//! Owns the SQL of the forms system's tables, one function for each statement. Each writing
//! function reports whether it found its row. The caller decides what a missing row means.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::model::{Form, FormStatus, Grant, Measure};
use crate::app::sql::query;
use tidegate::Error;

/// Stores a form as submitted. It replaces only a draft with the same id.
const SUBMIT: &str = "\
INSERT INTO forms.form AS f
       (id, company_number, company_name, contact_name, contact_email, contact_phone,
        employee_national_id, employee_name, expert_name, expert_company, expert_competence,
        need_reason, need_requirement, need_estimated_cost, need_hours, need_start_date, status)
SELECT d->>'id', d->'company'->>'number', d->'company'->>'name',
       d->'company'->'contact'->>'name', d->'company'->'contact'->>'email', d->'company'->'contact'->>'phone',
       d->'employee'->>'national_id', d->'employee'->>'name',
       d->'expert'->>'name', d->'expert'->>'company', d->'expert'->>'competence',
       d->'need'->>'reason', d->'need'->>'requirement', (d->'need'->>'estimated_cost')::bigint,
       (d->'need'->>'hours')::integer, (d->'need'->>'start_date')::date, 'submitted'
  FROM (SELECT $1::jsonb) AS given(d)
    ON CONFLICT (id) DO UPDATE
   SET company_number = excluded.company_number, company_name = excluded.company_name,
       contact_name = excluded.contact_name, contact_email = excluded.contact_email,
       contact_phone = excluded.contact_phone, employee_national_id = excluded.employee_national_id,
       employee_name = excluded.employee_name, expert_name = excluded.expert_name,
       expert_company = excluded.expert_company, expert_competence = excluded.expert_competence,
       need_reason = excluded.need_reason, need_requirement = excluded.need_requirement,
       need_estimated_cost = excluded.need_estimated_cost, need_hours = excluded.need_hours,
       need_start_date = excluded.need_start_date, status = excluded.status,
       updated_at = clock_timestamp()
 WHERE f.status = 'draft'
RETURNING f.id";

const LOAD: &str = "\
SELECT jsonb_build_object(
       'id', id,
       'company', jsonb_build_object('number', company_number, 'name', company_name,
           'contact', jsonb_build_object('name', contact_name, 'email', contact_email, 'phone', contact_phone)),
       'employee', jsonb_build_object('national_id', employee_national_id, 'name', employee_name),
       'expert', jsonb_build_object('name', expert_name, 'company', expert_company, 'competence', expert_competence),
       'need', jsonb_build_object('reason', need_reason, 'requirement', need_requirement,
           'estimated_cost', need_estimated_cost, 'hours', need_hours,
           'start_date', to_char(need_start_date, 'YYYY-MM-DD')),
       'status', status)::text
  FROM forms.form WHERE id = $1";

/// Stores the case and returns the stored one. The first case is kept.
const KEEP_CASE: &str = "\
UPDATE forms.form
   SET case_number = coalesce(case_number, $2), measure_id = coalesce(measure_id, $3),
       updated_at = clock_timestamp()
 WHERE id = $1 AND status <> 'draft'
RETURNING case_number, measure_id";

const CASE_OF: &str = "SELECT case_number, measure_id FROM forms.form WHERE id = $1";

const FORM_OF: &str = "SELECT id FROM forms.form WHERE case_number = $1 AND measure_id = $2";

/// Approves a form. A status only moves forward: a cancelled form cannot become approved.
const APPROVE: &str = "\
UPDATE forms.form SET status = 'approved', updated_at = clock_timestamp()
 WHERE id = $1 AND status = 'submitted'
RETURNING id";

const CANCEL: &str = "\
UPDATE forms.form SET status = 'cancelled', updated_at = clock_timestamp()
 WHERE id = $1 AND status IN ('submitted', 'approved')
RETURNING id";

const STATUS_OF: &str = "SELECT status FROM forms.form WHERE id = $1";

/// Stores a grant. The same letter again changes nothing, and a grant never moves to another form.
const SAVE_GRANT: &str = "\
INSERT INTO forms.awarded_grant AS g
       (grant_number, form_id, case_number, measure_id, company_number, amount, valid_from, valid_to,
        document_id, journal_id)
VALUES ($1, $2, $3, $4, $5, $6, $7::date, $8::date, $9, $10)
    ON CONFLICT (grant_number) DO UPDATE
   SET case_number = excluded.case_number, measure_id = excluded.measure_id,
       company_number = excluded.company_number, amount = excluded.amount,
       valid_from = excluded.valid_from, valid_to = excluded.valid_to,
       document_id = excluded.document_id, journal_id = excluded.journal_id
 WHERE g.form_id IS NOT DISTINCT FROM excluded.form_id
RETURNING g.grant_number";

const FORM_OF_GRANT: &str = "SELECT form_id FROM forms.awarded_grant WHERE grant_number = $1";

/// Stores a message. It waits for a concurrent transaction that stores the same message, and stores
/// nothing if that one commits.
const KEEP_MESSAGE: &str = "\
INSERT INTO forms.message (client_id, source, external_id, subject, form_id, content)
VALUES ($1, $2, $3, $4, $5, $6::jsonb)
    ON CONFLICT (client_id, source, external_id) DO NOTHING
RETURNING id::text";

/// Stores a form. Returns false if a form with this id exists and is not a draft.
pub(super) async fn submit(
    client: &(impl GenericClient + Sync),
    form: &Form,
) -> Result<bool, Error> {
    let text = json("forms.submit", form)?;
    let rows = query(client, "forms.submit", SUBMIT, &[(&text, Type::TEXT)]).await?;
    Ok(!rows.is_empty())
}

pub(super) async fn load(
    client: &(impl GenericClient + Sync),
    form_id: &str,
) -> Result<Option<Form>, Error> {
    let rows = query(client, "forms.load", LOAD, &[(&form_id, Type::TEXT)]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    // The decoder's own message may quote the row.
    let form = serde_json::from_str(row.get(0))
        .map_err(|_| Error::Unreadable("forms.form: a row does not decode".to_owned()))?;
    Ok(Some(form))
}

/// Stores the case and returns the form's case. Returns `None` if the form is missing or a draft.
pub(super) async fn keep_case(
    client: &(impl GenericClient + Sync),
    form_id: &str,
    case: &Measure,
) -> Result<Option<Measure>, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (&form_id, Type::TEXT),
        (&case.case_number, Type::TEXT),
        (&case.measure_id, Type::TEXT),
    ];
    let rows = query(client, "forms.keep_case", KEEP_CASE, &params).await?;
    Ok(rows.first().and_then(measure))
}

pub(super) async fn case_of(
    client: &(impl GenericClient + Sync),
    form_id: &str,
) -> Result<Option<Measure>, Error> {
    let rows = query(client, "forms.case_of", CASE_OF, &[(&form_id, Type::TEXT)]).await?;
    Ok(rows.first().and_then(measure))
}

pub(super) async fn form_of(
    client: &(impl GenericClient + Sync),
    case: &Measure,
) -> Result<Option<String>, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 2] = [
        (&case.case_number, Type::TEXT),
        (&case.measure_id, Type::TEXT),
    ];
    let rows = query(client, "forms.form_of", FORM_OF, &params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Returns whether the form changed from submitted to approved.
pub(super) async fn approve(
    client: &(impl GenericClient + Sync),
    form_id: &str,
) -> Result<bool, Error> {
    let rows = query(client, "forms.approve", APPROVE, &[(&form_id, Type::TEXT)]).await?;
    Ok(!rows.is_empty())
}

/// Returns whether the form changed to cancelled.
pub(super) async fn cancel(
    client: &(impl GenericClient + Sync),
    form_id: &str,
) -> Result<bool, Error> {
    let rows = query(client, "forms.cancel", CANCEL, &[(&form_id, Type::TEXT)]).await?;
    Ok(!rows.is_empty())
}

pub(super) async fn status_of(
    client: &(impl GenericClient + Sync),
    form_id: &str,
) -> Result<Option<FormStatus>, Error> {
    let rows = query(
        client,
        "forms.status_of",
        STATUS_OF,
        &[(&form_id, Type::TEXT)],
    )
    .await?;
    Ok(rows.first().and_then(|row| match row.get(0) {
        "draft" => Some(FormStatus::Draft),
        "submitted" => Some(FormStatus::Submitted),
        "approved" => Some(FormStatus::Approved),
        "cancelled" => Some(FormStatus::Cancelled),
        _ => None,
    }))
}

/// Returns whether the grant is stored for this form, or without a form. False if it belongs to
/// another form.
pub(super) async fn save_grant(
    client: &(impl GenericClient + Sync),
    form_id: Option<&str>,
    grant: &Grant,
    document_id: &str,
    journal_id: &str,
) -> Result<bool, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 10] = [
        (&grant.grant_number, Type::TEXT),
        (&form_id, Type::TEXT),
        (&grant.measure.case_number, Type::TEXT),
        (&grant.measure.measure_id, Type::TEXT),
        (&grant.company_number, Type::TEXT),
        (&grant.amount, Type::INT8),
        (&grant.valid_from, Type::TEXT),
        (&grant.valid_to, Type::TEXT),
        (&document_id, Type::TEXT),
        (&journal_id, Type::TEXT),
    ];
    let rows = query(client, "forms.save_grant", SAVE_GRANT, &params).await?;
    Ok(!rows.is_empty())
}

/// Returns the form of a grant, or `None` if the grant is unknown or its case belongs to another
/// system.
pub(super) async fn form_of_grant(
    client: &(impl GenericClient + Sync),
    grant_number: &str,
) -> Result<Option<String>, Error> {
    let rows = query(
        client,
        "forms.form_of_grant",
        FORM_OF_GRANT,
        &[(&grant_number, Type::TEXT)],
    )
    .await?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// What identifies a message from outside. A message with a known key is a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageKey<'a> {
    /// The identified client that sent it, if it came over HTTP.
    pub client: Option<Uuid>,
    /// The system that sent it, 1 to 100 characters.
    pub source: &'a str,
    /// The sender's own id of it, 1 to 200 characters.
    pub external_id: &'a str,
}

/// A message from outside, as it is stored.
pub(super) struct StoredMessage<'a> {
    pub key: MessageKey<'a>,
    pub subject: &'static str,
    pub form_id: Option<&'a str>,
    pub content: String,
}

/// Returns the id of the stored message, or `None` if it was already stored.
pub(super) async fn keep_message(
    client: &(impl GenericClient + Sync),
    message: &StoredMessage<'_>,
) -> Result<Option<String>, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 6] = [
        (&message.key.client, Type::UUID),
        (&message.key.source, Type::TEXT),
        (&message.key.external_id, Type::TEXT),
        (&message.subject, Type::TEXT),
        (&message.form_id, Type::TEXT),
        (&message.content, Type::TEXT),
    ];
    let rows = query(client, "forms.keep_message", KEEP_MESSAGE, &params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Serializes a value to JSON text for a parameter.
pub(super) fn json(stage: &'static str, value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Invalid(format!("{stage}: {error}")))
}

fn measure(row: &Row) -> Option<Measure> {
    Some(Measure {
        case_number: row.get::<_, Option<_>>(0)?,
        measure_id: row.get::<_, Option<_>>(1)?,
    })
}
