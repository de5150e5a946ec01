//! Owns the payloads of the eleven kinds of the forms system. Each payload carries what the next step
//! needs.

use serde::{Deserialize, Serialize};

use super::model::{Form, Grant, Measure};

tidegate::events! {
    /// A step of the forms system.
    #[derive(Debug)]
    pub enum FormEvent {
        /// A form was submitted.
        FormSubmitted(FormSubmitted) = "form_submitted",
        /// The form was archived.
        FormArchived(FormArchived) = "form_archived",
        /// The case system opened a case for the form.
        CaseOpened(CaseOpened) = "case_opened",
        /// A grant letter for a form was received.
        GrantLetterReceived(GrantLetterReceived) = "grant_letter_received",
        /// The letter was archived.
        GrantLetterArchived(GrantLetterArchived) = "grant_letter_archived",
        /// The grant was saved.
        GrantSaved(GrantSaved) = "grant_saved",
        /// A grant letter for a case of another system was received.
        ExternalLetterReceived(ExternalLetterReceived) = "external_letter_received",
        /// That letter was archived.
        ExternalLetterArchived(ExternalLetterArchived) = "external_letter_archived",
        /// The case system cancelled a measure of a form.
        FormCancelled(FormCancelled) = "form_cancelled",
        /// The case system declined the application.
        FormDeclined(FormDeclined) = "form_declined",
        /// A grant letter was viewed.
        GrantLetterViewed(GrantLetterViewed) = "grant_letter_viewed",
    }
}

/// The place of a document in the archive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Archived {
    /// The archive's document.
    pub document_id: String,
    /// The archive's journal entry.
    pub journal_id: String,
}

/// A form was submitted. Published in the transaction that stored the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormSubmitted {
    /// The form as it was submitted.
    pub form: Form,
}

/// The document archive stored the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormArchived {
    /// The form.
    pub form_id: String,
    /// Where the archive stored it.
    #[serde(flatten)]
    pub archived: Archived,
}

/// The case system opened a case for the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseOpened {
    /// The form.
    pub form_id: String,
    /// The case, and the measure in it.
    #[serde(flatten)]
    pub case: Measure,
}

/// A grant letter for one of our cases was received.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterReceived {
    /// The form.
    pub form_id: String,
    /// The stored message that contained the letter.
    pub letter_id: String,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// The document archive stored the grant letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterArchived {
    /// The form.
    pub form_id: String,
    /// Where the archive stored it.
    #[serde(flatten)]
    pub archived: Archived,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// The grant was saved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantSaved {
    /// The form.
    pub form_id: String,
    /// The grant.
    pub grant: Grant,
}

/// A grant letter for a case of another system was received.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExternalLetterReceived {
    /// The stored message that contained the letter.
    pub letter_id: String,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// The document archive stored a letter for a case of another system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExternalLetterArchived {
    /// Where the archive stored it.
    #[serde(flatten)]
    pub archived: Archived,
    /// The grant that the letter announces.
    pub grant: Grant,
}

/// The case system cancelled the form's measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormCancelled {
    /// The form.
    pub form_id: String,
    /// The cancelled measure.
    pub measure: Measure,
}

/// The case system declined the form's measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormDeclined {
    /// The form.
    pub form_id: String,
    /// The stored message that declined it.
    pub letter_id: String,
    /// The declined measure.
    pub measure: Measure,
}

/// A grant letter was viewed. Views are only counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterViewed {
    /// The grant.
    pub grant_number: String,
    /// The form of the grant, if the grant belongs to one of our cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_id: Option<String>,
}
