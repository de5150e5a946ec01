//! Owns who may do a job: the [`Authority`] of a kind, and the only check of it. A plan cannot begin without
//! a [`Permission`], so no kind can do without the check.

use uuid::Uuid;

use super::entity::{Entity, EntityKind, demand};
use super::signed::Part;
use super::store::{self, Patient};
use tidegate::HandlerError;

/// Who may do a job of a kind. A client is the legal entity on whose behalf the request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Any client: the patient agrees by the one-time password.
    Anyone,
    /// The employee whom the signed content names.
    Signer,
    /// The client that the request names.
    Itself,
    /// The client that the entity belongs to.
    Owner,
    /// Also an employee whom an active approval permits to write the entity.
    OwnerOrApproved,
    /// Also a client with an episode that the service request led to.
    OwnerOrReferred,
    /// Also the client that uses the service request.
    OwnerOrUser,
    /// The client that uses the service request.
    User,
}

/// Who may do a job of a kind, and the code that ends the job of anybody else: 403, unless the source
/// prescribes 409.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority {
    /// Who may do it.
    pub who: Who,
    /// The code of a refusal.
    pub code: &'static str,
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

/// Shows that the authority of a kind was looked at. Only [`Patient::permit`] makes one.
pub(super) struct Permission(());

impl Patient<'_> {
    /// Requires that the request is made by somebody who may do a job of this kind. A subject that does not
    /// fit the authority is refused.
    ///
    /// # Errors
    /// The code of the authority. 422 if a content does not name the employee.
    pub(super) async fn permit(&self, subject: Subject<'_>) -> Result<Permission, HandlerError> {
        let (client, user) = (self.common.client_id, self.common.user_id);
        let Authority { who, code } = self.authority;
        let is_permitted = match (who, &subject) {
            (Who::Anyone, Subject::Nothing) => true,
            (Who::Itself, Subject::Client(named)) => *named == client,
            (Who::Signer, Subject::Employee(part, field)) => part.uuid(field)? == user,
            (Who::User, Subject::Entity(entity)) => entity.is_used_by(client),
            (
                Who::Owner | Who::OwnerOrApproved | Who::OwnerOrReferred | Who::OwnerOrUser,
                Subject::Entity(entity),
            ) if entity.organization_id == client => true,
            (Who::OwnerOrUser, Subject::Entity(entity)) => entity.is_used_by(client),
            (Who::OwnerOrReferred, Subject::Entity(entity)) => {
                store::is_referred(self.client, self.common.patient_id, client, entity.id).await?
            }
            (Who::OwnerOrApproved, Subject::Entity(entity)) => {
                let named = (entity.kind, entity.id);
                let patient_id = self.common.patient_id;
                store::is_approved(self.client, patient_id, named, (client, user), true).await?
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
        Ok(Permission(()))
    }

    /// Finds and locks the entity that a job is about, and requires that the job may be done.
    ///
    /// # Errors
    /// 404 if it does not exist. Otherwise as [`Patient::permit`].
    pub(super) async fn target(
        &self,
        kind: EntityKind,
        id: Uuid,
    ) -> Result<(Entity, Permission), HandlerError> {
        let entity = self.get(kind, id).await?;
        let permission = self.permit(Subject::Entity(&entity)).await?;
        Ok((entity, permission))
    }
}
