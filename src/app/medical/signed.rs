//! Owns signed contents: base64 of JSON, and how it is split into entities.
//!
//! An entity is compared and stored as JSON, not as a Rust type. The stored content must remain
//! exactly what was signed, including fields that this program does not know.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate::HandlerError;
use uuid::Uuid;

use super::content::{Content, PackageItem};
use super::entity::EntityKind;
use super::payload::SCHEMAS;
use super::verdict::{fault, refuse};
use crate::app::schema::FieldError;

/// One entity of a signed content.
pub(crate) struct Part {
    pub kind: EntityKind,
    /// The fields that every kind of entity has.
    pub item: PackageItem,
    /// Its place in the content, for error messages: `$.conditions[0]`.
    pub at: String,
    pub content: Value,
}

/// A signed content, split into its entities.
pub(crate) struct Signed {
    pub root: Part,
    /// The entities below the root.
    pub below: Vec<Part>,
}

/// Maximum number of entities in one package. Links to all of them must fit into a stored result.
pub(super) const MAX_PARTS: usize = 60;

/// Decodes and checks a signed content of this shape.
///
/// # Errors
/// 422 if it is not base64 of JSON, or does not match the schema of the shape.
pub(crate) fn open<T: Content>(signed_data: &str) -> Result<Signed, HandlerError> {
    let json = decode(signed_data).ok_or_else(|| {
        let needed = "must be base64 of JSON without NUL characters";
        fault("$.signed_data", "format", needed)
    })?;
    refuse(&SCHEMAS.check::<T>(&json))?;
    let signed = split::<T>(&json).ok_or_else(|| fault("$", "required", "is empty"))?;
    if signed.parts().count() > MAX_PARTS {
        let needed = format!("must have at most {MAX_PARTS} entities");
        return Err(fault("$", "length", &needed));
    }
    Ok(signed)
}

fn decode(signed_data: &str) -> Option<Value> {
    let bytes = STANDARD.decode(signed_data).ok()?;
    let json = serde_json::from_slice(&bytes).ok()?;
    (!holds_nul(&json)).then_some(json)
}

/// Whether a text or a field name contains the character NUL, which the database cannot store.
fn holds_nul(json: &Value) -> bool {
    match json {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Splits a content into entities. The schema guarantees that every part is an object with a valid id
/// and state.
fn split<T: Content>(json: &Value) -> Option<Signed> {
    let part = |kind, at: String, content: &Value| {
        Some(Part {
            kind,
            item: PackageItem::deserialize(content).ok()?,
            at,
            content: content.clone(),
        })
    };
    let root = match T::ROOT_FIELD {
        Some(field) => part(T::ROOT, format!("$.{field}"), &json[field]),
        None => part(T::ROOT, "$".to_owned(), json),
    };
    let below = T::LISTS.iter().flat_map(|(field, kind)| {
        let items = json[field].as_array().into_iter().flatten().enumerate();
        items.filter_map(move |(index, item)| part(*kind, format!("$.{field}[{index}]"), item))
    });
    let below = below.collect();
    Some(Signed { root: root?, below })
}

impl Signed {
    /// The root first, then the entities below it.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.root).chain(&self.below)
    }

    /// The faults of entities that are to be created for this patient: duplicate ids, states that are not the
    /// initial one, another patient, and a code or a date that is missing or wrong.
    pub(crate) fn faults_of_new(&self, patient_id: Uuid) -> Vec<FieldError> {
        let mut faults = Vec::new();
        for (index, part) in self.parts().enumerate() {
            let Part { kind, item, at, .. } = part;
            let fault =
                |field, rule, needed: &str| FieldError::new(format!("{at}.{field}"), rule, needed);
            let is_same = |other: &Part| other.item.id == item.id;
            if self.parts().take(index).any(is_same) {
                faults.push(fault("id", "unique", "is there twice"));
            }
            let first = kind.initial();
            if item.status.is_some_and(|status| status != first) {
                let fault = fault("status", "inclusion", &format!("must be {first}"));
                faults.push(fault.with([json!(first)]));
            }
            if item.subject != Some(patient_id) {
                faults.push(fault(
                    "subject",
                    "inclusion",
                    "must be the patient of the job",
                ));
            }
            if item.code.is_none() {
                faults.push(fault("code", "required", "is needed"));
            }
            match &item.date {
                None => faults.push(fault("date", "required", "is needed")),
                Some(date) if date.is_future() => {
                    faults.push(fault("date", "order", "must not be in the future"));
                }
                Some(_) => {}
            }
        }
        faults
    }
}

impl Part {
    /// Returns a field of the content that the schema declares as a UUID.
    ///
    /// # Errors
    /// 422 if the field is not a UUID.
    pub(super) fn uuid(&self, field: &str) -> Result<Uuid, HandlerError> {
        Uuid::deserialize(&self.content[field]).map_err(|_| {
            let entry = format!("{}.{field}", self.at);
            fault(&entry, "format", "must be a UUID")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::{EncounterPackage, Procedure};
    use super::*;

    fn signed(content: &Value) -> String {
        STANDARD.encode(content.to_string())
    }

    #[test]
    fn what_is_no_base64_of_json_is_refused_and_never_quoted() {
        let nul = STANDARD.encode(r#"{"id":"\u0000"}"#);
        for bad in ["***", "c2VjcmV0", "", "/w==", nul.as_str()] {
            let Err(error) = open::<Procedure>(bad) else {
                panic!("{bad}")
            };
            assert_eq!(error.faults()[0].code, "422", "{bad}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn a_package_falls_into_its_entities_root_first() {
        let id = Uuid::from_u128;
        let (patient, code, date) = (id(8), "A00", "2026-01-15");
        let package = json!({
            "encounter": {"id": id(1), "episode": id(9), "subject": patient, "code": code, "date": date},
            "devices": [{"id": id(2), "subject": id(7), "code": code, "date": "9999-12-31"}],
            "conditions": [{"id": id(3), "free": {"text": 1}, "subject": patient, "code": code, "date": date},
                {"id": id(3), "status": "closed"}],
        });
        let signed = open::<EncounterPackage>(&signed(&package)).ok().unwrap();
        let found: Vec<(&str, EntityKind)> = signed
            .parts()
            .map(|part| (part.at.as_str(), part.kind))
            .collect();
        assert_eq!(
            found,
            [
                ("$.encounter", EntityKind::Encounter),
                ("$.conditions[0]", EntityKind::Condition),
                ("$.conditions[1]", EntityKind::Condition),
                ("$.devices[0]", EntityKind::Device),
            ]
        );
        let faults: Vec<String> = signed
            .faults_of_new(patient)
            .into_iter()
            .map(|fault| fault.entry)
            .collect();
        let second = ["id", "status", "subject", "code", "date"];
        let mut wanted = second
            .map(|field| format!("$.conditions[1].{field}"))
            .to_vec();
        wanted.extend(["subject", "date"].map(|field| format!("$.devices[0].{field}")));
        assert_eq!(faults, wanted);
    }
}
