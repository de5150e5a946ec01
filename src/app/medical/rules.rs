//! Owns the rules of the 21 kinds: what each kind refuses, and with which code. Each kind has one short
//! implementation.
//!
//! Decisions where the requirements leave a choice:
//!
//! - If the entity that a job names does not exist or belongs to another patient, the code is 404 in
//!   every kind. If an entity that the job only refers to does not exist, the code is 422. Such
//!   references are the resources of an approval, the episode of a new encounter, the referrals of a new
//!   episode, and what a service request was completed with, which must be the client's own.
//! - Who may do a job is no rule of a kind but its [`Authority`](super::authority::Authority), which is
//!   checked as soon as the entity is found.
//! - A content gets 422 if it is not base64 of JSON, lacks required fields, is about another patient or the
//!   future, or is not signed. It gets 409 if it conflicts with the stored data.
//! - There is no register of employees and legal entities here. The signer is the user who makes the
//!   request (`user_id`). "signer = employee" means that the content names that user (`recorded_by`,
//!   `requester_employee`). "Own organization" means `client_id`: an entity belongs to the client that
//!   created it, and only its `managing_organization` creates an episode.
//! - There is no register of patients either. A patient is known if any entity is stored for them.
//! - Releasing a service request that is not in use succeeds. A resend changes no data, so it leaves no
//!   audit row.
//! - The episode of an encounter must be active when the package is created. A package has at most 60
//!   entities, because the links to them must fit into a stored result.
//! - Service requests expire at 23:59:59 UTC of the seventh day after the day of their creation.
//! - No job answers with 500. A call that a service refuses costs an attempt, and the job waits 24 hours for
//!   a service that does not answer. Then the job has `failed_with_error`.
//! - "Equals stored" ignores `status`, `status_reason` and `explanatory_letter` of each entity. It
//!   requires the complete package, with exactly the same entities.

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate::HandlerError;
use uuid::Uuid;

use super::content::{
    Content, DiagnosticReportPackage, EncounterPackage, Procedure, ServiceRequest,
};
use super::entity::EntityStatus::{
    Active, Closed, Completed, EnteredInError, InProgress, New, Recalled,
};
use super::entity::{Entity, EntityKind, EntityStatus, conflict, demand, not_found};
use super::payload;
use super::services::Call;
use super::signed::{Part, Signed, open};
use super::store::{EntityRow, Patient};
use super::transition::{Plan, Subject, Transition};
use super::value::Resource;
use super::verdict::{fault, invalid, refuse};
use crate::app::schema::FieldError;

/// What a service request can be completed with.
const RESULTS: [EntityKind; 3] = [
    EntityKind::Encounter,
    EntityKind::DiagnosticReport,
    EntityKind::Procedure,
];

type Planned = Result<Plan, HandlerError>;

// --- Approvals ---

impl Transition for payload::ApprovalCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        match (&self.resources, self.service_request) {
            (Some(resources), None) => {
                let resources = resources.iter().map(|one| (one.entity, one.id));
                must_exist(patient, &listed("resources", resources)).await?;
            }
            (None, Some(id)) => service_request_must_be_open(patient, id).await?,
            // The schema reports this for payloads from the interface. Others are checked here.
            _ => {
                let needed = "must have exactly one of resources and service_request";
                return Err(fault("$", "exclusive", needed));
            }
        }
        let plan = patient.permit(Subject::Nothing).await?;
        let wanted = (EntityKind::Approval, self.id, "$.id".to_owned());
        patient.must_be_new(&[wanted]).await?;
        let mut content = json!({"id": self.id, "granted_to": self.granted_to,
            "access_level": self.access_level});
        if let Some(id) = self.service_request {
            content["service_request"] = json!(id);
        } else {
            content["resources"] = json!(self.resources);
        }
        let mut approval = content.clone();
        approval["status"] = json!(New);
        let created = new_entity(EntityKind::Approval, self.id, content);
        let plan = plan.answer(json!({ "response_data": approval }));
        Ok(plan.create(created).tell(Call::Otp(self.id)))
    }
}

async fn service_request_must_be_open(patient: &Patient<'_>, id: Uuid) -> Result<(), HandlerError> {
    let request = patient.find(EntityKind::ServiceRequest, id).await?;
    let request = request.ok_or_else(|| invalid(&[does_not_exist("$.service_request")]))?;
    request.must_be(&[Active])?;
    request.must_not_be_expired()
}

impl Transition for payload::ApprovalResendJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (approval, plan) = patient.target(EntityKind::Approval, self.id).await?;
        approval.must_be(&[New])?;
        let plan = plan.answer(json!({ "response_data": "" }));
        Ok(plan.tell(Call::Otp(self.id)))
    }
}

// --- Diagnostic reports ---

impl Transition for payload::DiagnosticReportPackageCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<DiagnosticReportPackage>(&self.signed_data)?;
        create_signed(patient, &signed, "recorded_by").await
    }
}

impl Transition for payload::DiagnosticReportPackageCancelJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<DiagnosticReportPackage>(&self.signed_data)?;
        let (report, plan) = patient
            .target(signed.root.kind, signed.root.item.id)
            .await?;
        cancel_package(patient, plan, &signed, report).await
    }
}

// --- Episodes ---

impl Transition for payload::EpisodeCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let managing = Subject::Client(self.managing_organization);
        let plan = patient.permit(managing).await?;
        let wanted = (EntityKind::Episode, self.id, "$.id".to_owned());
        patient.must_be_new(&[wanted]).await?;
        let referrals = self.referral_requests.iter();
        let referrals = referrals.map(|id| (EntityKind::ServiceRequest, *id));
        let referrals = listed("referral_requests", referrals);
        let found = must_exist(patient, &referrals).await?;
        // Who closes the episode also closes these.
        let foreign = |(_, id, _): &&(_, _, _)| {
            let mut found = found.iter().filter(|request| request.id == *id);
            !found.any(|request| request.serves(patient.common.client_id))
        };
        let foreign = referrals.iter().filter(foreign).map(|(_, _, entry)| {
            let needed = "must be of the legal entity, or used by it";
            FieldError::new(entry, "inclusion", needed)
        });
        refuse(&foreign.collect::<Vec<_>>())?;
        let content = json!({"id": self.id, "name": self.name, "type": self.r#type,
            "managing_organization": self.managing_organization, "period": self.period,
            "care_manager": self.care_manager, "referral_requests": self.referral_requests});
        let links = patient.links(&[(EntityKind::Episode, self.id)]);
        let episode = new_entity(EntityKind::Episode, self.id, content);
        Ok(plan.answer(links).create(episode))
    }
}

impl Transition for payload::EpisodeUpdateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (episode, plan) = patient.target(EntityKind::Episode, self.id).await?;
        episode.must_be(&[Active])?;
        let content = json!(self.request_params);
        Ok(plan.rewrite(&episode, Active, content, json!({})))
    }
}

impl Transition for payload::EpisodeCloseJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (episode, plan) = patient.target(EntityKind::Episode, self.id).await?;
        episode.must_be(&[Active])?;
        let end = json!(self.request_params.period.end);
        let mut period = episode.content["period"].clone();
        // Days are stored as text, and the texts sort in the same order as the days.
        if end.as_str() < period["start"].as_str() {
            let description = "must be a day not before the start of the episode";
            return Err(fault("$.request_params.period.end", "order", description));
        }
        period["end"] = end;
        let facts = json!({"closing_summary": self.request_params.closing_summary,
            "status_reason": self.request_params.status_reason});
        let content = json!({ "period": period });
        let plan = plan.rewrite(&episode, Closed, content, facts);
        // One job for each referral. Each referral has its own state, and a referral that cannot be closed
        // must not keep the episode open.
        let referrals = Vec::<Uuid>::deserialize(&episode.content["referral_requests"]);
        let mut referrals = referrals.unwrap_or_default().into_iter();
        referrals.try_fold(plan, |plan, id| {
            plan.follow_up(&payload::ServiceRequestCloseJob {
                request_id: self.request_id.clone(),
                patient_id: self.patient_id,
                user_id: self.user_id,
                client_id: self.client_id,
                id,
            })
        })
    }
}

impl Transition for payload::EpisodeCancelJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (episode, plan) = patient.target(EntityKind::Episode, self.id).await?;
        episode.must_be(&[Active, Closed])?;
        let children = patient.children_of(self.id).await?;
        let are_cancelled = children.iter().all(|child| child.is(EnteredInError));
        let uncancelled = conflict("an encounter of the episode is not cancelled");
        demand(are_cancelled, uncancelled)?;
        let facts = json!(self.request_params);
        Ok(plan.change(&episode, EnteredInError, facts))
    }
}

// --- Encounter packages ---

impl Transition for payload::PackageCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<EncounterPackage>(&self.signed_data)?;
        let episode_id = signed.root.uuid("episode")?;
        let missing = || {
            let description = "an active episode of the patient is needed";
            fault("$.encounter.episode", "existence", description)
        };
        let episode = patient.find(EntityKind::Episode, episode_id).await?;
        let episode = episode.ok_or_else(missing)?;
        let plan = patient.permit(Subject::Entity(&episode)).await?;
        demand(episode.is(Active), missing())?;
        let facts = json!({ "visit": self.visit });
        create_package(patient, plan, &signed, Some(episode_id), facts).await
    }
}

impl Transition for payload::PackageCancelJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<EncounterPackage>(&self.signed_data)?;
        if !patient.is_known().await? {
            return Err(not_found("patient"));
        }
        let root = &signed.root;
        let (encounter, plan) = patient.target(root.kind, root.item.id).await?;
        patient
            .get(EntityKind::Episode, root.uuid("episode")?)
            .await?;
        cancel_package(patient, plan, &signed, encounter).await
    }
}

// --- Procedures ---

impl Transition for payload::ProcedureCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<Procedure>(&self.signed_data)?;
        create_signed(patient, &signed, "recorded_by").await
    }
}

impl Transition for payload::ProcedureCancelJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let root = signed_root::<Procedure>(self.id, &self.signed_data)?;
        let (procedure, plan) = patient.target(root.kind, root.item.id).await?;
        procedure.must_be(&[Completed])?;
        procedure.must_equal(&root.content)?;
        Ok(plan.change(&procedure, EnteredInError, reasons(&root)))
    }
}

// --- Service requests ---

impl Transition for payload::ServiceRequestCreateJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let signed = open::<ServiceRequest>(&self.signed_data)?;
        create_signed(patient, &signed, "requester_employee").await
    }
}

impl Transition for payload::ServiceRequestUseJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let client = Subject::Client(self.used_by_legal_entity);
        let plan = patient.permit(client).await?;
        let (kind, id) = (EntityKind::ServiceRequest, self.service_request_id);
        let request = patient.get(kind, id).await?;
        request.must_be(&[Active])?;
        request.must_not_be_expired()?;
        let is_free = request.facts["used_by_legal_entity"].is_null();
        demand(is_free, conflict("the service_request is used already"))?;
        let facts = json!({"used_by_employee": self.used_by_employee,
            "used_by_legal_entity": self.used_by_legal_entity});
        let plan = plan.answer(patient.links(&[(kind, id)]));
        Ok(plan.change(&request, Active, facts))
    }
}

impl Transition for payload::ServiceRequestReleaseJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (request, plan) = service_request(patient, self.service_request_id, Active).await?;
        request.must_not_be_expired()?;
        let facts = json!({"used_by_employee": null, "used_by_legal_entity": null});
        Ok(plan.change(&request, Active, facts))
    }
}

impl Transition for payload::ServiceRequestProcessJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (request, plan) = service_request(patient, self.service_request_id, Active).await?;
        Ok(plan.change(&request, InProgress, json!({})))
    }
}

impl Transition for payload::ServiceRequestCompleteJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (request, plan) = service_request(patient, self.service_request_id, InProgress).await?;
        let Resource { entity, id } = self.completed_with;
        if !RESULTS.contains(&entity) {
            let results = RESULTS.map(|kind| kind.to_string()).join(" or ");
            let needed = format!("must be {results}");
            return Err(fault("$.completed_with.entity", "inclusion", &needed));
        }
        let place = "$.completed_with";
        let found = must_exist(patient, &[(entity, id, place.to_owned())]).await?;
        // The approval for a service request is also for its result.
        let is_own = |result: &Entity| result.organization_id == patient.common.client_id;
        let needed = "must be of the legal entity that completes the service request";
        demand(found.iter().all(is_own), fault(place, "inclusion", needed))?;
        let facts =
            json!({"completed_with": self.completed_with, "status_reason": self.status_reason});
        Ok(plan.change(&request, Completed, facts))
    }
}

impl Transition for payload::ServiceRequestRecallJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (id, signed) = (self.service_request_id, &self.signed_data);
        take_back(patient, id, signed, &[Active], (Recalled, "recalled")).await
    }
}

impl Transition for payload::ServiceRequestCancelJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (id, signed) = (self.service_request_id, &self.signed_data);
        let from = &[Active, Completed];
        take_back(patient, id, signed, from, (EnteredInError, "cancelled")).await
    }
}

/// Ends a service request as its signed content says, and notifies the patient.
async fn take_back(
    patient: &Patient<'_>,
    id: Uuid,
    signed_data: &str,
    from: &[EntityStatus],
    (to, about): (EntityStatus, &'static str),
) -> Planned {
    let root = signed_root::<ServiceRequest>(id, signed_data)?;
    let (request, plan) = patient.target(root.kind, root.item.id).await?;
    request.must_be(from)?;
    request.must_equal(&root.content)?;
    let plan = plan.tell(Call::Sms(id, about));
    Ok(plan.change(&request, to, reasons(&root)))
}

impl Transition for payload::ServiceRequestCloseJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (request, plan) = service_request(patient, self.id, Active).await?;
        Ok(plan.change(&request, Completed, json!({})))
    }
}

impl Transition for payload::ServiceRequestResendJob {
    async fn plan(&self, patient: &Patient<'_>) -> Planned {
        let (request, plan) = service_request(patient, self.service_request_id, Active).await?;
        Ok(plan.tell(Call::Sms(request.id, "resent")))
    }
}

// --- What several rules share ---

/// Returns the entities that a job refers to. Refuses those that the patient does not have, with 422 and the
/// place of each.
async fn must_exist(
    patient: &Patient<'_>,
    wanted: &[(EntityKind, Uuid, String)],
) -> Result<Vec<Entity>, HandlerError> {
    let ids: Vec<_> = wanted.iter().map(|(kind, id, _)| (*kind, *id)).collect();
    let found = patient.find_all(&ids).await?;
    let is_missing = |(kind, id, _): &&(_, _, _)| {
        let mut found = found.iter();
        !found.any(|entity| (entity.kind, entity.id) == (*kind, *id))
    };
    let missing = wanted.iter().filter(is_missing);
    let faults: Vec<_> = missing.map(|(_, _, entry)| does_not_exist(entry)).collect();
    refuse(&faults)?;
    Ok(found)
}

/// Names the places of entities in a list of the payload.
fn listed(
    field: &str,
    entities: impl Iterator<Item = (EntityKind, Uuid)>,
) -> Vec<(EntityKind, Uuid, String)> {
    let entities = entities.enumerate();
    let place = |(index, (kind, id))| (kind, id, format!("$.{field}[{index}]"));
    entities.map(place).collect()
}

/// Finds the service request that a job is about, which must have this state, and begins the plan.
async fn service_request(
    patient: &Patient<'_>,
    id: Uuid,
    status: EntityStatus,
) -> Result<(Entity, Plan), HandlerError> {
    let (request, plan) = patient.target(EntityKind::ServiceRequest, id).await?;
    request.must_be(&[status])?;
    Ok((request, plan))
}

/// Opens a signed content, which must be about the entity with this id.
fn signed_root<T: Content>(id: Uuid, signed_data: &str) -> Result<Part, HandlerError> {
    let root = open::<T>(signed_data)?.root;
    let description = "must be the id that the job is about";
    demand(root.item.id == id, fault("$.id", "inclusion", description))?;
    Ok(root)
}

/// Creates all entities of a content that the employee in this field has to sign.
async fn create_signed(patient: &Patient<'_>, signed: &Signed, employee: &'static str) -> Planned {
    let employee = Subject::Employee(&signed.root, employee);
    let plan = patient.permit(employee).await?;
    create_package(patient, plan, signed, None, json!({})).await
}

/// Creates all entities of a signed content: the root below `parent_id` with these facts, the others below
/// the root.
async fn create_package(
    patient: &Patient<'_>,
    plan: Plan,
    signed: &Signed,
    parent_id: Option<Uuid>,
    facts: Value,
) -> Planned {
    refuse(&signed.faults_of_new(patient.common.patient_id))?;
    let wanted = signed.parts();
    let wanted = wanted.map(|part| (part.kind, part.item.id, format!("{}.id", part.at)));
    patient.must_be_new(&wanted.collect::<Vec<_>>()).await?;
    let links: Vec<_> = signed
        .parts()
        .map(|part| (part.kind, part.item.id))
        .collect();
    let new = |part: &Part, parent_id| EntityRow {
        parent_id,
        ..new_entity(part.kind, part.item.id, part.content.clone())
    };
    let root = EntityRow {
        facts,
        ..new(&signed.root, parent_id)
    };
    let plan = plan.answer(patient.links(&links)).create(root);
    let parent_id = Some(signed.root.item.id);
    let below = signed.below.iter();
    Ok(below.fold(plan, |plan, part| plan.create(new(part, parent_id))))
}

/// Marks the entities of a package that the content marks as `entered_in_error`.
async fn cancel_package(
    patient: &Patient<'_>,
    plan: Plan,
    signed: &Signed,
    root: Entity,
) -> Planned {
    let mut stored = patient.children_of(root.id).await?;
    stored.push(root);
    let mut plan = plan.answer(patient.links(&[]));
    let mut cancelled = 0;
    for part in signed.parts() {
        let is_part = |entity: &Entity| (entity.kind, entity.id) == (part.kind, part.item.id);
        let at = stored
            .iter()
            .position(is_part)
            .ok_or_else(not_the_package)?;
        let entity = stored.swap_remove(at);
        entity.must_equal(&part.content)?;
        match part.item.status {
            Some(EnteredInError) if !entity.is(EnteredInError) => {
                cancelled += 1;
                plan = plan.change(&entity, EnteredInError, reasons(part));
            }
            // An entity that was entered in error keeps this state. A signed content cannot set any other
            // state.
            Some(status) => entity.must_be(&[status])?,
            None => {}
        }
    }
    if !stored.is_empty() {
        return Err(not_the_package());
    }
    if cancelled == 0 {
        return Err(conflict("nothing is newly entered_in_error"));
    }
    Ok(plan)
}

fn not_the_package() -> HandlerError {
    conflict("the entities of the package are not the stored ones")
}

/// The reasons of a cancellation, as stated in its signed content.
fn reasons(part: &Part) -> Value {
    json!({"status_reason": part.content["status_reason"],
        "explanatory_letter": part.content["explanatory_letter"]})
}

/// Builds an entity without a parent.
fn new_entity(kind: EntityKind, id: Uuid, content: Value) -> EntityRow {
    EntityRow {
        content,
        ..EntityRow::change(kind, id, kind.initial())
    }
}

fn does_not_exist(entry: impl Into<String>) -> FieldError {
    let needed = "something of the patient's that exists is needed";
    FieldError::new(entry, "existence", needed)
}
