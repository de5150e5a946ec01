//! Owns the SQL of the forms system's tables, one function for each statement. Each writing
//! function reports whether it found its row. The caller decides what a missing row means.

use serde_json::{Value, json};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::events::Archived;
use super::model::{Form, FormStatus, Grant, Measure};
use crate::app::sql::{Param, document, first, query};
use tidegate::{Context, Error, HandlerError, Verdicts};

/// Stores a form as submitted, unless its id is known.
const SUBMIT: &str = "\
INSERT INTO forms.form
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
    ON CONFLICT (id) DO NOTHING
RETURNING id";

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
       'status', status)
  FROM forms.form WHERE id = $1";

/// Stores the case and returns the stored one. The first case is kept.
const KEEP_CASE: &str = "\
UPDATE forms.form
   SET case_number = coalesce(case_number, $2), measure_id = coalesce(measure_id, $3),
       updated_at = clock_timestamp()
 WHERE id = $1
RETURNING case_number, measure_id";

const CASE_OF: &str = "SELECT case_number, measure_id FROM forms.form WHERE id = $1";

const FORM_OF: &str = "SELECT id FROM forms.form WHERE case_number = $1 AND measure_id = $2";

/// Changes the status of a form. It only moves forward: a cancelled form cannot become approved.
const ADVANCE: &str = "\
UPDATE forms.form SET status = $2, updated_at = clock_timestamp()
 WHERE id = $1 AND (status = 'submitted' OR status = 'approved' AND $2 = 'cancelled')
RETURNING id";

const STATUS_OF: &str = "SELECT to_jsonb(status) FROM forms.form WHERE id = $1";

/// Stores a grant. The same letter again changes nothing, and a grant never moves to another form.
const SAVE_GRANT: &str = "\
INSERT INTO forms.awarded_grant AS g
       (grant_number, form_id, case_number, measure_id, company_number, amount, valid_from, valid_to,
        document_id, journal_id)
SELECT d->>'grant_number', $1, d->'measure'->>'case_number', d->'measure'->>'measure_id', d->>'company_number',
       (d->>'amount')::bigint, (d->>'valid_from')::date, (d->>'valid_to')::date,
       $3->>'document_id', $3->>'journal_id'
  FROM (SELECT $2::jsonb) AS given(d)
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
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (client_id, source, external_id) DO NOTHING
RETURNING id::text";

/// Stores a form. Returns false if a form with this id exists.
pub(super) async fn submit(client: &Client, form: &Form) -> Result<bool, Error> {
    let id = first::<String>(client, "forms.submit", SUBMIT, &[&json!(form)]).await?;
    Ok(id.is_some())
}

/// Loads a stored form, and returns its connection at once, because a call to a service may follow.
pub(super) async fn load(ctx: &Context, form_id: &str) -> Result<Option<Form>, HandlerError> {
    let client = ctx.connection().await?;
    let form = document(&client, "forms.load", LOAD, &[&form_id]).await;
    form.retryable()
}

/// Stores the case and returns the form's case. Returns `None` if the form is missing.
pub(super) async fn keep_case(
    client: &Client,
    form_id: &str,
    case: &Measure,
) -> Result<Option<Measure>, Error> {
    let params: [&dyn Param; 3] = [&form_id, &case.case_number, &case.measure_id];
    let rows = query(client, "forms.keep_case", KEEP_CASE, &params).await?;
    Ok(rows.first().and_then(measure))
}

/// Returns the case that an earlier run stored, if any.
pub(super) async fn case_of(ctx: &Context, form_id: &str) -> Result<Option<Measure>, HandlerError> {
    let client = ctx.connection().await?;
    let rows = query(&client, "forms.case_of", CASE_OF, &[&form_id]).await;
    Ok(rows.retryable()?.first().and_then(measure))
}

pub(super) async fn form_of(client: &Client, case: &Measure) -> Result<Option<String>, Error> {
    let params: [&dyn Param; 2] = [&case.case_number, &case.measure_id];
    first(client, "forms.form_of", FORM_OF, &params).await
}

/// Returns whether the form has this status only now.
pub(super) async fn advance(
    client: &Client,
    form_id: &str,
    status: FormStatus,
) -> Result<bool, Error> {
    let params: [&dyn Param; 2] = [&form_id, &status.to_string()];
    let id = first::<String>(client, "forms.advance", ADVANCE, &params).await?;
    Ok(id.is_some())
}

pub(super) async fn status_of(client: &Client, form_id: &str) -> Result<Option<FormStatus>, Error> {
    document(client, "forms.status_of", STATUS_OF, &[&form_id]).await
}

/// Returns whether the grant is stored for this form, or without a form. False if it belongs to
/// another form.
pub(super) async fn save_grant(
    client: &Client,
    form_id: Option<&str>,
    grant: &Grant,
    archived: &Archived,
) -> Result<bool, Error> {
    let params: [&dyn Param; 3] = [&form_id, &json!(grant), &json!(archived)];
    let number = first::<String>(client, "forms.save_grant", SAVE_GRANT, &params).await?;
    Ok(number.is_some())
}

/// Returns the form of a grant, or `None` if the grant is unknown or its case belongs to another
/// system.
pub(super) async fn form_of_grant(
    client: &Client,
    grant_number: &str,
) -> Result<Option<String>, Error> {
    let params: [&dyn Param; 1] = [&grant_number];
    let form_id = first(client, "forms.form_of_grant", FORM_OF_GRANT, &params).await?;
    Ok(form_id.flatten())
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

/// Returns the id of the stored message, or `None` if it was already stored.
pub(super) async fn keep_message(
    client: &Client,
    key: &MessageKey<'_>,
    subject: &str,
    form_id: Option<&str>,
    content: &Value,
) -> Result<Option<String>, Error> {
    let (sender, source, external_id) = (&key.client, &key.source, &key.external_id);
    let params: [&dyn Param; 6] = [sender, source, external_id, &subject, &form_id, content];
    first(client, "forms.keep_message", KEEP_MESSAGE, &params).await
}

fn measure(row: &Row) -> Option<Measure> {
    Some(Measure {
        case_number: row.get::<_, Option<_>>(0)?,
        measure_id: row.get::<_, Option<_>>(1)?,
    })
}
