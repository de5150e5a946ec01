//! Owns a database, the stand-in and the program between them, and the made-up patients in it.

use std::sync::Arc;

use tidegate::connect::Client;
use tidegate::{Database, DrainOptions, DrainReport, Published};

pub use crate::application::World;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tidegate_job::app::medical::services::{OTP, SIGNATURE, SMS};
use tidegate_job::app::{App, medical};
use uuid::Uuid;

pub const PATIENT: Uuid = Uuid::from_u128(0xA1);
pub const OTHER_PATIENT: Uuid = Uuid::from_u128(0xA2);
/// Who asks, and so who signs.
pub const USER: Uuid = Uuid::from_u128(0xB1);
/// The legal entity the user asks for.
pub const CLIENT: Uuid = Uuid::from_u128(0xC1);
pub const OTHER_CLIENT: Uuid = Uuid::from_u128(0xC2);

/// What must not be found in an error, however a job ends.
pub const CANARY: &str = "Canary Complaint";

pub fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

pub fn signed(content: &Value) -> String {
    STANDARD.encode(content.to_string())
}

/// An entity of a signed content: `own` with the fields that every new one has.
pub fn part(own: &Value) -> Value {
    with(
        &json!({"subject": PATIENT, "code": "A00", "date": "2026-01-15"}),
        own,
    )
}

/// `own` with the fields that every kind has.
pub fn payload(own: &Value) -> Value {
    let common = json!({"request_id": "request-1", "patient_id": PATIENT, "user_id": USER, "client_id": CLIENT});
    with(&common, own)
}

/// `value` with the fields of `more`, in the place of its own where both have one.
pub fn with(value: &Value, more: &Value) -> Value {
    let mut value = value.clone();
    for (name, field) in more.as_object().expect("an object") {
        value[name] = field.clone();
    }
    value
}

impl World {
    /// Makes the next attempt of every waiting job its last.
    pub async fn last_attempt(&self) {
        self.execute("UPDATE tidegate.event_queue SET max_attempts = attempts + 1")
            .await;
    }

    pub async fn submit(&mut self, kind: &str, payload: &Value) -> Published {
        submit(&mut self.client, kind, payload).await
    }

    /// Submits a job and drains: how it ended, as the view of jobs tells.
    pub async fn run(&mut self, kind: &str, payload: &Value) -> Value {
        let Published { id, .. } = self.submit(kind, payload).await;
        self.drain().await;
        self.job(id).await
    }

    pub async fn job(&self, id: i64) -> Value {
        self.value(&format!(
            "SELECT to_jsonb(j) FROM tidegate.jobs j WHERE id = {id}"
        ))
        .await
    }

    /// All that jobs have left behind: the patient's data and its audit, how each job ended, and how much was
    /// sent.
    pub async fn effects(&self) -> Value {
        let left = "
SELECT jsonb_build_object(
       'entities', (SELECT jsonb_agg(to_jsonb(e) - '{created_at,updated_at,expires_at}'::text[] ORDER BY kind, id)
                      FROM medical.entity e),
       'audit', (SELECT jsonb_agg(to_jsonb(a) - '{id,at,event_id}'::text[] ORDER BY event_id, entity_kind, entity_id)
                   FROM medical.audit a),
       'jobs', (SELECT jsonb_agg(jsonb_build_array(kind, status, status_code, result) ORDER BY id) FROM tidegate.jobs))";
        let mut left = self.value(left).await;
        for service in [OTP, SMS, SIGNATURE] {
            left[service] = json!(self.services.kept(service).len());
        }
        left
    }

    /// Puts entities there, as if earlier jobs had. What a seed leaves out is usual.
    pub async fn seed(&self, entities: &[Value]) {
        let insert = "\
INSERT INTO medical.entity (kind, id, patient_id, parent_id, organization_id, status, content, facts, expires_at)
SELECT kind, id, coalesce(patient_id, $2), parent_id, coalesce(organization_id, $3), status,
       coalesce(content, '{}'), coalesce(facts, '{}'),
       CASE WHEN kind = 'service_request'
            THEN clock_timestamp() + CASE WHEN expired THEN interval '-1 second' ELSE interval '1 day' END END
  FROM jsonb_to_recordset($1) AS s(kind text, id uuid, patient_id uuid, parent_id uuid, organization_id uuid,
       status text, content jsonb, facts jsonb, expired boolean)";
        self.client
            .execute(insert, &[&json!(entities), &PATIENT, &CLIENT])
            .await
            .expect("the entities are good");
    }

    /// `kind status` of all entities of all patients, sorted.
    pub async fn entities(&self) -> Vec<String> {
        let all = self
            .value("SELECT coalesce(jsonb_agg(kind || ' ' || status ORDER BY kind, status), '[]') FROM medical.entity")
            .await;
        serde_json::from_value(all).expect("a list of texts")
    }
}

pub async fn drain(database: &Database, app: &Arc<App>, concurrency: usize) -> DrainReport {
    drain_with(database, app, |options| options.concurrency = concurrency).await
}

/// A drain that takes one job and no other, nor the same again.
pub async fn drain_one(database: &Database, app: &Arc<App>) -> DrainReport {
    drain_with(database, app, |options| options.max_events = Some(1)).await
}

async fn drain_with(
    database: &Database,
    app: &Arc<App>,
    change: impl FnOnce(&mut DrainOptions),
) -> DrainReport {
    let mut options = crate::application::retrying_in_an_hour();
    change(&mut options);
    crate::application::drain(database, app, &options).await
}

pub async fn submit(client: &mut Client, kind: &str, payload: &Value) -> Published {
    let job =
        medical::validate(kind, payload).unwrap_or_else(|refusal| panic!("{kind}: {refusal:?}"));
    let tx = client.transaction().await.expect("a transaction starts");
    let published = tidegate::publish(&tx, &job).await.expect("it is published");
    tx.commit().await.expect("it commits");
    published
}
