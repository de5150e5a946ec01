//! Requests sample medical jobs, at least one of each family, and prints what it did. There are two
//! patients. One has a story that deliberately contains a duplicate, a conflict and an invalid request.
//! The other one cannot receive messages, so a job waits. Every run uses new patients.
//!
//! All people in it are invented.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tidegate::connect::Client;
use tidegate_job::app::medical;
use uuid::Uuid;

use crate::{Outcome, services};

pub(crate) async fn publish(client: &mut Client, only_approval: bool) -> Outcome<()> {
    let patient = Sample::of(Uuid::new_v4());
    let story = patient.story().into_iter();
    let is_wanted = |kind: &str| {
        !only_approval || ["service_request_create_job", "approval_create_job"].contains(&kind)
    };
    for (what, kind, own) in story.filter(|(_, kind, _)| is_wanted(kind)) {
        patient.ask(client, what, kind, own).await?;
    }
    if !only_approval {
        unreachable_patient(client).await?;
    }
    Ok(())
}

/// Every message to this patient fails as if its service were down, so the job waits and costs no attempt.
async fn unreachable_patient(client: &mut Client) -> Outcome<()> {
    let patient = Sample::of(services::UNREACHABLE.parse()?);
    let create = json!({"signed_data": patient.service_request()});
    patient
        .ask(client, "is made", "service_request_create_job", create)
        .await?;
    let resend = json!({"service_request_id": patient.request});
    let what = "cannot be told: waits for the service";
    patient
        .ask(client, what, "service_request_resend_job", resend)
        .await
}

/// A patient and the ids of a story.
struct Sample {
    patient: Uuid,
    user: Uuid,
    client: Uuid,
    episode: Uuid,
    request: Uuid,
}

impl Sample {
    fn of(patient: Uuid) -> Self {
        Self {
            patient,
            user: Uuid::new_v4(),
            client: Uuid::new_v4(),
            episode: Uuid::new_v4(),
            request: Uuid::new_v4(),
        }
    }

    async fn ask(&self, client: &mut Client, what: &str, kind: &str, own: Value) -> Outcome<()> {
        let mut payload = json!({"request_id": Uuid::new_v4(), "patient_id": self.patient,
            "user_id": self.user, "client_id": self.client});
        for (name, field) in own.as_object().into_iter().flatten() {
            payload[name] = field.clone();
        }
        let job =
            medical::validate(kind, &payload).map_err(|refusal| format!("{kind}: {refusal:?}"))?;
        let tx = client.transaction().await?;
        let published = tidegate::publish(&tx, &job).await?;
        tx.commit().await?;
        let is = if published.created {
            "job"
        } else {
            "duplicate of job"
        };
        println!("{kind} ({what}): {is} {}", published.id);
        Ok(())
    }

    fn service_request(&self) -> String {
        signed(
            &self.part(
                json!({"id": self.request, "requester_employee": self.user, "text": "Sample"}),
            ),
        )
    }

    /// An entity of a signed content: these fields, and those that every new one has.
    fn part(&self, mut own: Value) -> Value {
        own["subject"] = json!(self.patient);
        own["code"] = json!("A00");
        own["date"] = json!("2026-01-15");
        own
    }

    /// The requests of the story, in order, each with its expected result.
    fn story(&self) -> Vec<(&'static str, &'static str, Value)> {
        let Self {
            user,
            client,
            episode,
            request,
            ..
        } = self;
        let open = |name: &str| {
            json!({"id": episode, "name": name, "type": "primary_care", "status": "active",
            "managing_organization": client, "period": {"start": "2027-01-11"}, "care_manager": user,
            "referral_requests": [request]})
        };
        let part = |own| self.part(own);
        let measured = |value: f64| part(json!({"id": Uuid::new_v4(), "value": value}));
        let encounter = json!({"encounter": part(json!({"id": Uuid::new_v4(), "episode": episode})),
            "conditions": [part(json!({"id": Uuid::new_v4()}))], "observations": [measured(36.6)]});
        let report = json!({"observations": [measured(120.0)],
            "diagnostic_report": part(json!({"id": Uuid::new_v4(), "recorded_by": user}))});
        let procedure = part(json!({"id": Uuid::new_v4(), "recorded_by": user, "text": "Sample"}));
        let visit = json!({"id": Uuid::new_v4(), "period": {"start": "2027-01-11"}});
        let approval = json!({"id": Uuid::new_v4(), "service_request": request, "granted_to": user,
            "access_level": "read"});
        let close = json!({"id": episode, "request_params": {"period": {"end": "2027-02-01"},
            "closing_summary": "Sample", "status_reason": "cured"}});
        vec![
            (
                "is made",
                "service_request_create_job",
                json!({"signed_data": self.service_request()}),
            ),
            ("is opened", "episode_create_job", open("Sample")),
            ("asked for twice", "episode_create_job", open("Sample")),
            (
                "its id is taken: 422",
                "episode_create_job",
                open("Another name"),
            ),
            (
                "is stored",
                "package_create_job",
                json!({"visit": visit, "signed_data": signed(&encounter)}),
            ),
            (
                "is stored",
                "diagnostic_report_package_create_job",
                signed_data(&report),
            ),
            ("is stored", "procedure_create_job", signed_data(&procedure)),
            (
                "waits for the patient's word",
                "approval_create_job",
                approval,
            ),
            (
                "nobody uses it: 409",
                "service_request_process_job",
                json!({"service_request_id": request}),
            ),
            ("closes its referral too", "episode_close_job", close),
        ]
    }
}

fn signed(content: &Value) -> String {
    STANDARD.encode(content.to_string())
}

fn signed_data(content: &Value) -> Value {
    json!({"signed_data": signed(content)})
}
