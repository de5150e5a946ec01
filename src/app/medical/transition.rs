//! Owns the only path from a job to a change. First it loads and locks the stored entities, and looks at who
//! may do the job. Then the rules of the job return a [`Plan`] or an expected error. Finally it writes the
//! plan, its audit and the end of the job in one transaction (E12). The rules themselves are in `rules`.
//!
//! A job that notifies the patient is planned twice. The first plan checks that the job is allowed and
//! determines the notification. Its transaction is then rolled back, because no lock may be held during a
//! call to another system. After the call, the second plan decides again, based on the data at that time.

use serde_json::{Value, json};
use tidegate::{
    Context, Done, FencedTransaction, HandlerError, HandlerResult, Handlers, NewEvent, Verdicts,
};
use tidegate_core::connect::{Conn, Queryable};
use uuid::Uuid;

use super::authority::{Authority, Who};
use super::entity::{Entity, EntityKind, EntityStatus, demand};
use super::payload::{Job, event_of};
use super::services::{Call, SIGNATURE, Services};
use super::signed::Part;
use super::store::{CHANGE, CREATE, EntityRow, Patient};
use super::value::AccessLevel;
use super::verdict::{RESULT_LIMIT, fit};

/// The rules of a kind, which a new kind needs besides its payload.
pub trait Transition: Job {
    /// Decides what the job changes.
    ///
    /// # Errors
    /// An expected error: 403, 404, 409 or 422.
    fn plan(
        &self,
        patient: &Patient<'_>,
    ) -> impl Future<Output = Result<Plan, HandlerError>> + Send;
}

/// The only handler of a job, which has the name of the kind.
pub(super) fn handlers<'a, J: Transition>(
    services: &'a Services,
    job: &'a J,
    ctx: &'a Context,
) -> Handlers<'a> {
    Handlers::one(J::KIND, run(services, job, ctx)).calls(J::SERVICE)
}

async fn run<J: Transition>(services: &Services, job: &J, ctx: &Context) -> HandlerResult {
    let common = job.common();
    if let Some(data) = job.signed_data().filter(|_| services.verify_signatures()) {
        let key = ctx.idempotency_key("signature");
        let verified = Box::pin(services.verify(data, common.user_id, &key));
        if J::SERVICE == Some(SIGNATURE) {
            ctx.once("signature", verified).await?;
        } else {
            ctx.once("signature", ctx.call(SIGNATURE, verified)).await?;
        }
    }
    let (mut tx, mut plan) = prepare(job, ctx).await?;
    if let Some(call) = plan.call {
        drop(tx);
        let key = ctx.idempotency_key("call");
        let sent = services.tell(call, common.patient_id, &key);
        ctx.once("call", sent).await?;
        (tx, plan) = prepare(job, ctx).await?;
    }
    let patient = of(job, tx.conn());
    let by = (Some(ctx.event_id()), J::KIND);
    patient.write(&CREATE, by, &plan.created).await?;
    patient.write(&CHANGE, by, &plan.changed).await?;
    for event in plan.follow_ups {
        ctx.emit(&event)?;
    }
    let result = fit(plan.result, RESULT_LIMIT);
    tx.complete(Done::with(&result)?).await
}

async fn prepare<'a, J: Transition>(
    job: &J,
    ctx: &'a Context,
) -> Result<(FencedTransaction<'a>, Plan), HandlerError> {
    let tx = ctx.transaction().await?;
    let plan = job.plan(&of(job, tx.conn())).await?;
    Ok((tx, plan))
}

fn of<'a, J: Transition>(job: &'a J, client: Conn<'a>) -> Patient<'a> {
    Patient {
        client,
        common: job.common(),
        authority: J::AUTHORITY,
    }
}

/// What decides who may do a job.
pub(super) enum Subject<'a> {
    /// Nothing does.
    Nothing,
    /// The client that the request names.
    Client(Uuid),
    /// The employee in this field of a signed content.
    Employee(&'a Part, &'static str),
    /// A stored entity.
    Entity(&'a Entity),
}

impl Patient<'_> {
    /// Begins a plan. Requires that the request is made by somebody who may do a job of this kind. A subject
    /// that does not fit the authority is refused.
    ///
    /// # Errors
    /// The code of the authority. 422 if a content does not name the employee.
    pub(super) async fn permit(&self, subject: Subject<'_>) -> Result<Plan, HandlerError> {
        let (client, user) = (self.common.client_id, self.common.user_id);
        let Authority { who, code } = self.authority;
        let is_permitted = match (who, &subject) {
            (Who::Anyone, Subject::Nothing) => true,
            (Who::Itself, Subject::Client(named)) => *named == client,
            (Who::Signer, Subject::Employee(part, field)) => part.uuid(field)? == user,
            (_, Subject::Entity(entity)) => {
                let is_own = who != Who::User && entity.organization_id == client;
                is_own
                    || match who {
                        Who::User | Who::OwnerOrUser => entity.is_used_by(client),
                        Who::OwnerOrApproved => self.reaches(entity, AccessLevel::Write).await?,
                        _ => false,
                    }
            }
            _ => false,
        };
        let refusal = match &subject {
            Subject::Nothing | Subject::Client(_) => "a client can ask only for itself".to_owned(),
            Subject::Employee(part, field) => {
                format!("the signer is not the {field} of the {}", part.kind)
            }
            Subject::Entity(entity) if who == Who::User => {
                format!("the {} is not used by this legal entity", entity.kind)
            }
            Subject::Entity(entity) => {
                format!("the {} belongs to another legal entity", entity.kind)
            }
        };
        demand(is_permitted, HandlerError::reject(code, refusal))?;
        Ok(Plan::default())
    }

    /// Finds and locks the entity that a job is about, and begins a plan whose result is a link to it.
    ///
    /// # Errors
    /// 404 if it does not exist. Otherwise as [`Patient::permit`].
    pub(super) async fn target(
        &self,
        kind: EntityKind,
        id: Uuid,
    ) -> Result<(Entity, Plan), HandlerError> {
        let entity = self.get(kind, id).await?;
        let plan = self.permit(Subject::Entity(&entity)).await?;
        let links = self.links(&[(kind, id)]);
        Ok((entity, plan.answer(links)))
    }
}

/// The changes that a permitted job is going to make.
#[derive(Default)]
pub struct Plan {
    created: Vec<EntityRow>,
    changed: Vec<EntityRow>,
    follow_ups: Vec<NewEvent>,
    call: Option<Call>,
    result: Value,
}

impl Plan {
    /// Sets the result that the client reads.
    pub(super) fn answer(self, result: Value) -> Self {
        Self { result, ..self }
    }

    pub(super) fn create(mut self, entity: EntityRow) -> Self {
        self.created.push(entity);
        self
    }

    /// Changes the state of an entity and stores facts. A fact of null removes the stored fact.
    pub(super) fn change(self, entity: &Entity, status: EntityStatus, facts: Value) -> Self {
        self.rewrite(entity, status, json!({}), facts)
    }

    /// Like [`Plan::change`], and also replaces fields of the content.
    pub(super) fn rewrite(
        mut self,
        entity: &Entity,
        status: EntityStatus,
        content: Value,
        facts: Value,
    ) -> Self {
        self.changed.push(EntityRow {
            content,
            facts,
            ..EntityRow::change(entity.kind, entity.id, status)
        });
        self
    }

    /// Notifies the patient before anything is written.
    pub(super) fn tell(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }

    /// Publishes another job for the same patient. It is published only if this job is processed.
    pub(super) fn follow_up(mut self, job: &impl Job) -> Result<Self, HandlerError> {
        self.follow_ups.push(event_of(job).reject("follow_up")?);
        Ok(self)
    }
}
