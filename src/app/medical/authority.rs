//! Owns the words for who may do a job. `payload` has the [`Authority`] of each kind, and `transition` looks
//! at it: a plan can begin nowhere else.

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
