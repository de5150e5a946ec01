//! Owns the payloads of the forms system's ten kinds: what one step tells the next.

use serde::{Deserialize, Serialize};

use super::model::{Form, Grant, Measure};

/// A form was handed in; published in the transaction that stored it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormSubmitted {
    /// The form as it was handed in.
    pub form: Form,
}

/// The document archive has the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FormArchived {
    /// The form.
    pub form_id: String,
    /// The archive's document.
    pub document_id: String,
    /// The archive's journal entry.
    pub journal_id: String,
}

/// The case system has opened a case for the form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseOpened {
    /// The form.
    pub form_id: String,
    /// The case.
    pub case_number: String,
    /// The measure in that case.
    pub measure_id: String,
}

/// A grant letter came for a case of ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterReceived {
    /// The form.
    pub form_id: String,
    /// The stored message the letter came in.
    pub letter_id: String,
    /// What the letter grants.
    pub grant: Grant,
}

/// The document archive has the grant letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterArchived {
    /// The form.
    pub form_id: String,
    /// The archive's document.
    pub document_id: String,
    /// The archive's journal entry.
    pub journal_id: String,
    /// What the letter grants.
    pub grant: Grant,
}

/// The grant is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantSaved {
    /// The form.
    pub form_id: String,
    /// What was granted.
    pub grant: Grant,
}

/// A grant letter came for a case that is not ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExternalLetterReceived {
    /// The stored message the letter came in.
    pub letter_id: String,
    /// What the letter grants.
    pub grant: Grant,
}

/// The document archive has the letter of a case that is not ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExternalLetterArchived {
    /// The archive's document.
    pub document_id: String,
    /// The archive's journal entry.
    pub journal_id: String,
    /// What the letter grants.
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

/// Somebody looked at a grant letter. Only counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantLetterViewed {
    /// The grant.
    pub grant_number: String,
    /// Its form, when the grant is of a case of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_id: Option<String>,
}
