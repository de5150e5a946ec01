//! Owns the SQL of the medical tables, which finds, locks, creates and changes the entities of a patient.
//! Every write adds its audit row in the same statement.

use serde::Serialize;
use serde_json::{Value, json};
use tidegate::{Error, HandlerError};
use tidegate_core::connect::{Conn, Queryable};
use tidegate_core::queue::{Statement, document, documents, first, query};
use tidegate_core::statements;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::authority::Authority;
use super::entity::{Entity, EntityKind, EntityStatus, Record, not_found};
use super::payload::Common;
use super::value::AccessLevel;
use super::verdict::{self, refuse};
use crate::app::schema::FieldError;

/// An entity as the jobs need it, as one JSON value.
macro_rules! entity {
    () => {
        "jsonb_build_object('kind', kind, 'id', id, 'status', status, 'organization_id', organization_id, \
         'content', content, 'facts', facts, 'expired', coalesce(expires_at <= clock_timestamp(), false))::text"
    };
}

statements! {
    /// Finds and locks the patient's entities of these kinds and ids. Every transaction locks them in
    /// the same order. The locks last until the transaction ends, so the entities that a decision is
    /// based on cannot change.
    FIND: "medical.find" [UUID, JSONB] = concat!("SELECT ", entity!(), "
  FROM medical.entity
  WHERE patient_id = $1
    AND (kind, id) IN (SELECT kind, id FROM jsonb_to_recordset($2::jsonb) AS g(kind text, id uuid))
  ORDER BY kind, id
    FOR NO KEY UPDATE");

    FIND_CHILDREN: "medical.find_children" [UUID, UUID] = concat!("SELECT ", entity!(), "
  FROM medical.entity
  WHERE patient_id = $1 AND parent_id = $2
  ORDER BY kind, id
    FOR NO KEY UPDATE");

    /// Those of these ids that are taken, by any patient and for any kind of entity.
    TAKEN: "medical.taken" [JSONB] = "\
SELECT to_jsonb(e.id)::text
  FROM medical.entity AS e
  JOIN jsonb_to_recordset($1::jsonb) AS g(id uuid) USING (id)";

    KNOWS_PATIENT: "medical.knows_patient" [UUID] =
        "SELECT EXISTS (SELECT FROM medical.entity WHERE patient_id = $1)";

    /// Whether an employee of a legal entity reaches an entity of others: an active approval names it, or an
    /// entity that it is a part of. The approval for a service request is also for its result.
    REACHES: "medical.reaches" [UUID, TEXT, UUID, UUID, UUID, TEXT] = "\
WITH RECURSIVE named AS (
    SELECT kind, id, parent_id FROM medical.entity WHERE patient_id = $1 AND kind = $2 AND id = $3
     UNION
    SELECT e.kind, e.id, e.parent_id FROM named JOIN medical.entity AS e ON e.patient_id = $1 AND e.id = named.parent_id
), granted AS (
    SELECT CASE WHEN r.id IS NULL THEN a.content->'resources'
                ELSE jsonb_build_array(jsonb_build_object('entity', r.kind, 'id', r.id), r.facts->'completed_with') END AS resources
      FROM medical.entity AS a
      LEFT JOIN medical.entity AS r ON r.patient_id = $1 AND r.kind = 'service_request' AND r.id::text = a.content->>'service_request'
     WHERE a.patient_id = $1 AND a.kind = 'approval' AND a.status = 'active' AND a.organization_id = $4
       AND a.content->>'granted_to' = $5::text AND a.content->>'access_level' IN ('write', $6))
SELECT EXISTS (SELECT FROM granted JOIN named ON resources @> jsonb_build_array(jsonb_build_object('entity', kind, 'id', id)))";

    /// Creates entities of the client. Service requests expire with the seventh day after the day of their
    /// creation. Days are in UTC, because the servers of one system may be in different time zones.
    pub(super) CREATE: "medical.create" [UUID, JSONB, INT8, TEXT, TEXT, UUID, UUID] = "\
WITH created AS (
    INSERT INTO medical.entity (kind, id, patient_id, parent_id, organization_id, status, content, facts, expires_at)
    SELECT kind, id, $1, parent_id, $7, status, content, facts,
           CASE WHEN kind = 'service_request'
                THEN (date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') + interval '7 days 23:59:59') AT TIME ZONE 'UTC' END
      FROM jsonb_to_recordset($2::jsonb) AS g(kind text, id uuid, parent_id uuid, status text, content jsonb, facts jsonb)
    RETURNING kind, id, status)
INSERT INTO medical.audit (event_id, event_kind, request_id, user_id, client_id, patient_id, entity_kind, entity_id, status_after)
SELECT $3, $4, $5, $6, $7, $1, kind, id, status FROM created
RETURNING id";

    /// Changes entities. A fact of null removes the stored fact.
    pub(super) CHANGE: "medical.change" [UUID, JSONB, INT8, TEXT, TEXT, UUID, UUID] = "\
WITH given AS (
    SELECT g.kind, g.id, g.status, g.content, g.facts, e.status AS status_before
      FROM jsonb_to_recordset($2::jsonb) AS g(kind text, id uuid, status text, content jsonb, facts jsonb)
      JOIN medical.entity AS e USING (kind, id)
), changed AS (
    UPDATE medical.entity AS e
       SET status = given.status, content = e.content || given.content,
           facts = jsonb_strip_nulls(e.facts || given.facts), updated_at = clock_timestamp()
      FROM given
     WHERE e.kind = given.kind AND e.id = given.id AND e.patient_id = $1
    RETURNING e.kind, e.id, given.status_before, given.status)
INSERT INTO medical.audit
       (event_id, event_kind, request_id, user_id, client_id, patient_id, entity_kind, entity_id, status_before, status_after)
SELECT $3, $4, $5, $6, $7, $1, kind, id, status_before, status FROM changed
RETURNING id";

    /// Reads an entity as a [`Record`].
    READ: "medical.read" [UUID, TEXT, UUID] = "\
SELECT (jsonb_strip_nulls(jsonb_build_object(
           'entity', kind, 'id', id, 'patient_id', patient_id, 'parent_id', parent_id,
           'organization_id', organization_id, 'status', status,
           'expires_at', expires_at, 'created_at', created_at, 'updated_at', updated_at))
       || jsonb_build_object('content', content, 'facts', facts))::text
  FROM medical.entity
 WHERE patient_id = $1 AND kind = $2 AND id = $3";
}

/// An entity to create, or a change to one.
#[derive(Serialize)]
pub(super) struct EntityRow {
    pub kind: EntityKind,
    pub id: Uuid,
    /// Only of a new entity.
    pub parent_id: Option<Uuid>,
    pub status: EntityStatus,
    /// The content of a new entity, or the fields of the content to replace.
    pub content: Value,
    /// Facts to store. Null removes a fact.
    pub facts: Value,
}

impl EntityRow {
    /// A change of the state, of the content and of the facts.
    pub(super) fn change(kind: EntityKind, id: Uuid, status: EntityStatus) -> Self {
        Self {
            kind,
            id,
            parent_id: None,
            status,
            content: json!({}),
            facts: json!({}),
        }
    }
}

/// Reads a stored entity of this patient, without a lock.
///
/// # Errors
/// Database errors.
pub async fn read(
    client: &impl Queryable,
    patient_id: Uuid,
    kind: EntityKind,
    id: Uuid,
) -> Result<Option<Record>, Error> {
    document(client, &READ, &[&patient_id, &kind.to_string(), &id]).await
}

/// Whether an approval lets an employee of a legal entity do this with an entity of others.
///
/// # Errors
/// Database errors.
pub(super) async fn reaches(
    client: &impl Queryable,
    (patient_id, kind, id): (Uuid, EntityKind, Uuid),
    (organization, user): (Uuid, Option<Uuid>),
    level: AccessLevel,
) -> Result<bool, Error> {
    let (kind, level) = (kind.to_string(), format!("{level:?}").to_lowercase());
    let params: [&(dyn ToSql + Sync); 6] = [&patient_id, &kind, &id, &organization, &user, &level];
    let reaches = first(client, &REACHES, &params).await?;
    Ok(reaches.unwrap_or_default())
}

/// The patient of a job, inside the job's transaction. It gives access to no other patient.
pub struct Patient<'a> {
    pub(super) client: Conn<'a>,
    pub(super) common: Common<'a>,
    pub(super) authority: Authority,
}

impl Patient<'_> {
    /// Finds and locks those of the wanted entities that exist.
    pub(super) async fn find_all(
        &self,
        wanted: &[(EntityKind, Uuid)],
    ) -> Result<Vec<Entity>, Error> {
        documents(
            &self.client,
            &FIND,
            &[&self.common.patient_id, &names(wanted)],
        )
        .await
    }

    /// Finds and locks an entity, if it exists.
    pub(super) async fn find(&self, kind: EntityKind, id: Uuid) -> Result<Option<Entity>, Error> {
        Ok(self.find_all(&[(kind, id)]).await?.pop())
    }

    /// Finds and locks an entity, or returns 404 if it does not exist.
    pub(super) async fn get(&self, kind: EntityKind, id: Uuid) -> Result<Entity, HandlerError> {
        let found = self.find(kind, id).await?;
        found.ok_or_else(|| not_found(kind))
    }

    /// As [`reaches`], for the user and the client of the job.
    pub(super) async fn reaches(&self, entity: &Entity, level: AccessLevel) -> Result<bool, Error> {
        let named = (self.common.patient_id, entity.kind, entity.id);
        let by = (self.common.client_id, Some(self.common.user_id));
        reaches(&self.client, named, by, level).await
    }

    /// Finds and locks the entities below an entity.
    pub(super) async fn children_of(&self, parent_id: Uuid) -> Result<Vec<Entity>, Error> {
        documents(
            &self.client,
            &FIND_CHILDREN,
            &[&self.common.patient_id, &parent_id],
        )
        .await
    }

    /// Whether any entity is stored for this patient.
    pub(super) async fn is_known(&self) -> Result<bool, Error> {
        let known = first(&self.client, &KNOWS_PATIENT, &[&self.common.patient_id]).await?;
        Ok(known.unwrap_or_default())
    }

    /// Refuses ids that are already taken, by any patient and for any kind, with 422 and the places where
    /// they appear.
    pub(super) async fn must_be_new(
        &self,
        wanted: &[(EntityKind, Uuid, String)],
    ) -> Result<(), HandlerError> {
        let ids: Vec<_> = wanted.iter().map(|(kind, id, _)| (*kind, *id)).collect();
        let taken: Vec<Uuid> = documents(&self.client, &TAKEN, &[&names(&ids)]).await?;
        let is_taken = |(_, id, _): &&(_, _, _)| taken.contains(id);
        let faults = wanted.iter().filter(is_taken).map(|(kind, _, entry)| {
            FieldError::new(entry, "unique", format!("a new {kind}'s id is needed"))
        });
        refuse(&faults.collect::<Vec<_>>())
    }

    /// The result of a job with links to entities of this patient.
    pub(super) fn links(&self, entities: &[(EntityKind, Uuid)]) -> Value {
        verdict::links(self.common.patient_id, entities)
    }

    /// Creates or changes entities. Requires that every row is written. A missing row would mean a change
    /// that was not made. `by` is the event and its kind, or only a name if the change is made at once,
    /// without a job.
    pub(super) async fn write(
        &self,
        statement: &'static Statement,
        (event_id, event_kind): (Option<i64>, &'static str),
        rows: &[EntityRow],
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let common = &self.common;
        let params: [&(dyn ToSql + Sync); 7] = [
            &common.patient_id,
            &json!(rows),
            &event_id,
            &event_kind,
            &common.request_id,
            &common.user_id,
            &common.client_id,
        ];
        let written = query(&self.client, statement, &params).await?.len();
        if written == rows.len() {
            return Ok(());
        }
        let wanted = rows.len();
        let message = format!("{}: wrote {written} of {wanted} rows", statement.name);
        Err(Error::Invalid(message))
    }
}

fn names(wanted: &[(EntityKind, Uuid)]) -> Value {
    let name = |(kind, id): &(_, _)| json!({"kind": kind, "id": id});
    wanted.iter().map(name).collect()
}
