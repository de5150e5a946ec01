//! Owns the SQL of the forms system's tables, one function for each statement. Those that handlers call
//! reject a form that is missing.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate::{Context, Error, HandlerError};
use tidegate_core::connect::Queryable;
use tidegate_core::queue::{document, first, query};
use tidegate_core::statements;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::events::Archived;
use super::model::{Form, FormStatus, Grant, Measure, Progress};

statements! {
    /// Stores a form as submitted, unless its id is known.
    SUBMIT: "forms.submit" [JSONB, UUID] = "\
INSERT INTO forms.form (id, company_number, company_name, contact_name, contact_email, contact_phone,
        employee_national_id, employee_name, expert_name, expert_company, expert_competence,
        need_reason, need_requirement, need_estimated_cost, need_hours, need_start_date, status, client_id)
SELECT d->>'id', d->'company'->>'number', d->'company'->>'name', d->'company'->'contact'->>'name', d->'company'->'contact'->>'email',
       d->'company'->'contact'->>'phone', d->'employee'->>'national_id', d->'employee'->>'name',
       d->'expert'->>'name', d->'expert'->>'company', d->'expert'->>'competence',
       d->'need'->>'reason', d->'need'->>'requirement', (d->'need'->>'estimated_cost')::bigint,
       (d->'need'->>'hours')::integer, (d->'need'->>'start_date')::date, 'submitted', $2
  FROM (SELECT $1::jsonb) AS given(d)
    ON CONFLICT (id) DO NOTHING
RETURNING id";

    LOAD: "forms.load" [TEXT] = "\
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

    /// The progress of a form. Times are in RFC 3339.
    PROGRESS: "forms.progress" [TEXT] = "\
SELECT jsonb_strip_nulls(jsonb_build_object(
       'submitted_at', created_at, 'updated_at', updated_at, 'steps', forms.steps(id),
       'measure', CASE WHEN case_number IS NOT NULL
                       THEN jsonb_build_object('case_number', case_number, 'measure_id', measure_id) END))::text
  FROM forms.form WHERE id = $1";

    NOTICE: "forms.notice" [TEXT] = "SELECT coalesce(jsonb_object_agg(part, text), '{}')::text FROM forms.notice WHERE about = $1";

    /// Stores the case and returns the stored one. The first case is kept.
    KEEP_CASE: "forms.keep_case" [TEXT, TEXT, TEXT] = "\
UPDATE forms.form
   SET case_number = coalesce(case_number, $2), measure_id = coalesce(measure_id, $3),
       updated_at = clock_timestamp()
 WHERE id = $1
RETURNING jsonb_build_object('case_number', case_number, 'measure_id', measure_id)::text";

    CASE_OF: "forms.case_of" [TEXT] = "\
SELECT jsonb_build_object('case_number', case_number, 'measure_id', measure_id)::text
  FROM forms.form WHERE id = $1 AND case_number IS NOT NULL AND measure_id IS NOT NULL";

    /// Waits for a concurrent transaction that gives a form this case, or receives a message about it. So
    /// each sees what the other has stored. It is a statement of its own, so that the next one sees it.
    LOCK_CASE: "forms.lock_case" [TEXT, TEXT] = "SELECT pg_advisory_xact_lock(hashtextextended(jsonb_build_array($1, $2)::text, 0))::text";

    FORM_OF: "forms.form_of" [TEXT, TEXT] = "SELECT id FROM forms.form WHERE case_number = $1 AND measure_id = $2";

    /// Sets a form's status, unless it has ended otherwise: only what was approved can still be cancelled.
    ADVANCE: "forms.advance" [TEXT, TEXT] = "\
UPDATE forms.form SET status = $2, updated_at = clock_timestamp()
 WHERE id = $1 AND (status = 'submitted' OR status = 'approved' AND $2 = 'cancelled')
RETURNING id";

    /// Stores a grant. The same letter again changes nothing, and a grant never moves to another form. The
    /// grant of a letter that came before the number of its case gets its form later.
    SAVE_GRANT: "forms.save_grant" [TEXT, JSONB, JSONB] = "\
INSERT INTO forms.awarded_grant AS g
       (grant_number, form_id, case_number, measure_id, company_number, amount, valid_from, valid_to, document_id, journal_id)
SELECT d->>'grant_number', $1, d->'measure'->>'case_number', d->'measure'->>'measure_id', d->>'company_number',
       (d->>'amount')::bigint, (d->>'valid_from')::date, (d->>'valid_to')::date, $3->>'document_id', $3->>'journal_id'
  FROM (SELECT $2::jsonb) AS given(d)
    ON CONFLICT (grant_number) DO UPDATE
   SET form_id = coalesce(excluded.form_id, g.form_id), case_number = excluded.case_number,
       measure_id = excluded.measure_id, company_number = excluded.company_number, amount = excluded.amount,
       valid_from = excluded.valid_from, valid_to = excluded.valid_to, document_id = excluded.document_id, journal_id = excluded.journal_id
 WHERE g.form_id IS NOT DISTINCT FROM excluded.form_id
    OR (g.form_id IS NULL OR excluded.form_id IS NULL)
   AND (g.case_number, g.measure_id) = (excluded.case_number, excluded.measure_id)
RETURNING g.grant_number";

    FORM_OF_GRANT: "forms.form_of_grant" [TEXT] = "SELECT form_id FROM forms.awarded_grant WHERE grant_number = $1";

    /// Stores a message. It waits for a concurrent transaction that stores the same message, and stores
    /// nothing if that one commits.
    KEEP_MESSAGE: "forms.keep_message" [UUID, TEXT, TEXT, TEXT, TEXT, JSONB] = "\
INSERT INTO forms.message (client_id, source, external_id, subject, form_id, content)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (client_id, source, external_id) DO NOTHING
RETURNING id::text";

    /// Whether the stored message with this key has this content.
    IS_KEPT: "forms.is_kept" [UUID, TEXT, TEXT, TEXT, JSONB] = "\
SELECT EXISTS (SELECT FROM forms.message
                WHERE client_id IS NOT DISTINCT FROM $1 AND source = $2 AND external_id = $3 AND (subject, content) = ($4, $5))";

    /// The form that has got the case of a stored letter, and a form of its company whose case is being
    /// opened.
    LETTER: "forms.letter" [UUID, TEXT] = "\
SELECT jsonb_build_array((SELECT form_id FROM forms.message WHERE id = $1), forms.opening($2))::text";

    /// Gives a form the messages that came before the number of its case, and returns their subjects, ids and
    /// contents.
    ADOPT: "forms.adopt" [TEXT, JSONB] = "\
WITH adopted AS (
    UPDATE forms.message SET form_id = $1
     WHERE form_id IS NULL AND coalesce(content->'measure', content) = $2
    RETURNING id, subject, content, received_at
)
SELECT coalesce(jsonb_agg(jsonb_build_array(subject, id, content) ORDER BY received_at, id), '[]')::text FROM adopted";
}

/// Stores a form that this client submitted. Returns false if a form with this id exists.
pub(super) async fn submit(
    client: &impl Queryable,
    sender: Option<Uuid>,
    form: &Form,
) -> Result<bool, Error> {
    let id = first::<String>(client, &SUBMIT, &[&json!(form), &sender]).await?;
    Ok(id.is_some())
}

pub(super) async fn form(client: &impl Queryable, form_id: &str) -> Result<Option<Form>, Error> {
    document(client, &LOAD, &[&form_id]).await
}

/// Loads a stored form, and returns its connection at once, because a call to a service may follow.
pub(super) async fn load(ctx: &Context, form_id: &str) -> Result<Form, HandlerError> {
    let client = ctx.connection().await?;
    let form = form(&*client, form_id).await?;
    form.ok_or_else(|| missing(form_id))
}

/// The texts that a company reads about an event of its form, by part; empty if there are none.
pub(super) async fn notice(
    ctx: &Context,
    about: &'static str,
) -> Result<BTreeMap<String, String>, HandlerError> {
    let client = ctx.connection().await?;
    let parts = document(&*client, &NOTICE, &[&about]).await?;
    Ok(parts.unwrap_or_default())
}

pub(super) async fn progress(
    client: &impl Queryable,
    form_id: &str,
) -> Result<Option<(Form, Progress)>, Error> {
    let progress = document(client, &PROGRESS, &[&form_id]).await?;
    Ok(form(client, form_id).await?.zip(progress))
}

/// Stores the case, unless the form has one, and returns the form's case. Like [`form_of`], it locks the case
/// before the form.
pub(super) async fn keep_case(
    client: &impl Queryable,
    form_id: &str,
    case: &Measure,
) -> Result<Measure, HandlerError> {
    lock_case(client, case).await?;
    let params: [&(dyn ToSql + Sync); 3] = [&form_id, &case.case_number, &case.measure_id];
    let kept = document(client, &KEEP_CASE, &params).await?;
    kept.ok_or_else(|| missing(form_id))
}

/// A stored message: its subject, id and content.
pub(super) type Message = (String, String, Value);

/// Gives a form the messages about its case that came before it had one. Returns them, oldest first.
pub(super) async fn adopt(
    client: &impl Queryable,
    form_id: &str,
    case: &Measure,
) -> Result<Vec<Message>, HandlerError> {
    let adopted = document(client, &ADOPT, &[&form_id, &json!(case)]).await?;
    Ok(adopted.unwrap_or_default())
}

/// The case that an earlier run stored, if any.
pub(super) async fn case_of(ctx: &Context, form_id: &str) -> Result<Option<Measure>, HandlerError> {
    let client = ctx.connection().await?;
    Ok(document(&*client, &CASE_OF, &[&form_id]).await?)
}

async fn lock_case(client: &impl Queryable, case: &Measure) -> Result<(), Error> {
    let case: [&(dyn ToSql + Sync); 2] = [&case.case_number, &case.measure_id];
    query(client, &LOCK_CASE, &case).await.map(drop)
}

/// The form of a case. A form that gets the case meanwhile finds what this transaction stores.
pub(super) async fn form_of(
    client: &impl Queryable,
    case: &Measure,
) -> Result<Option<String>, Error> {
    lock_case(client, case).await?;
    first(client, &FORM_OF, &[&case.case_number, &case.measure_id]).await
}

/// Sets the status of a form, unless it has ended otherwise.
pub(super) async fn advance(
    client: &impl Queryable,
    form_id: &str,
    wanted: FormStatus,
) -> Result<(), Error> {
    first::<String>(client, &ADVANCE, &[&form_id, &wanted.to_string()]).await?;
    Ok(())
}

/// The form that has got the case of this letter, and a form of the letter's company whose case is still
/// being opened.
pub(super) async fn letter(
    client: &impl Queryable,
    letter_id: Option<Uuid>,
    grant: &Grant,
) -> Result<(Option<String>, Option<String>), Error> {
    let found = document(client, &LETTER, &[&letter_id, &grant.company_number]).await?;
    Ok(found.unwrap_or_default())
}

/// Stores a grant for this form, or without a form.
pub(super) async fn save_grant(
    client: &impl Queryable,
    form_id: Option<&str>,
    grant: &Grant,
    archived: &Archived,
) -> Result<(), HandlerError> {
    let params: [&(dyn ToSql + Sync); 3] = [&form_id, &json!(grant), &json!(archived)];
    let number = first::<String>(client, &SAVE_GRANT, &params).await?;
    let foreign = format!("grant {} belongs to another form", grant.grant_number);
    let foreign = || HandlerError::reject("grant_of_another_form", foreign);
    number.map(drop).ok_or_else(foreign)
}

/// The form of a grant; `None` if the grant is unknown or its case belongs to another system.
pub(super) async fn form_of_grant(
    client: &impl Queryable,
    grant_number: &str,
) -> Result<Option<String>, Error> {
    let form_id = first(client, &FORM_OF_GRANT, &[&grant_number]).await?;
    Ok(form_id.flatten())
}

/// What identifies a message from outside: the identified client that sent it, if it came over HTTP, the
/// system that sent it, and the sender's own id of it. A message with a known key is a repetition.
pub(super) type MessageKey<'a> = (Option<Uuid>, &'a str, &'a str);

/// Stores a message, and returns its id; `None` if its key is known.
pub(super) async fn keep_message(
    client: &impl Queryable,
    (sender, source, external_id): &MessageKey<'_>,
    form_id: Option<&str>,
    (subject, content): (&str, &Value),
) -> Result<Option<String>, Error> {
    let params: [&(dyn ToSql + Sync); 6] =
        [sender, source, external_id, &subject, &form_id, content];
    first(client, &KEEP_MESSAGE, &params).await
}

pub(super) async fn is_kept(
    client: &impl Queryable,
    (sender, source, external_id): &MessageKey<'_>,
    (subject, content): (&str, &Value),
) -> Result<bool, Error> {
    let params: [&(dyn ToSql + Sync); 5] = [sender, source, external_id, &subject, content];
    let is_kept = first(client, &IS_KEPT, &params).await?;
    Ok(is_kept.unwrap_or_default())
}

fn missing(form_id: &str) -> HandlerError {
    let message = format!("forms.form has no submitted form {form_id}");
    HandlerError::reject("form_not_found", message)
}
