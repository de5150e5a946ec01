//! Owns the stored result of a job: links or data if it was processed, the list of invalid fields if
//! it was not. A result never exceeds [`RESULT_LIMIT`] bytes.

use serde_json::{Value, json};
use tidegate::{Fault, HandlerError};
use uuid::Uuid;

use super::entity::EntityKind;
use crate::app::schema::FieldError;

/// Maximum size of a stored result, in bytes.
pub const RESULT_LIMIT: usize = 10_000;

/// Maximum size of the details of a fault. The rest of the fault fits into the remaining bytes of
/// the limit.
const DETAILS_LIMIT: usize = RESULT_LIMIT - 200;

/// An expected error: the request is invalid in these places.
pub(super) fn invalid(errors: &[FieldError]) -> HandlerError {
    let details = fit(json!({ "invalid": errors }), DETAILS_LIMIT);
    let fault = Fault::new("422", "the request is not valid");
    HandlerError::reject_all(vec![fault.with_details(details)])
}

/// Refuses a request that has these faults, if it has any.
///
/// # Errors
/// As [`invalid`].
pub(super) fn refuse(errors: &[FieldError]) -> Result<(), HandlerError> {
    match errors {
        [] => Ok(()),
        errors => Err(invalid(errors)),
    }
}

/// An expected error: the request is invalid in this place.
pub(super) fn fault(entry: &str, rule: &str, description: &str) -> HandlerError {
    invalid(&[FieldError::new(entry, rule, description)])
}

/// A result with links to where entities can be read.
pub(super) fn links(patient_id: Uuid, entities: &[(EntityKind, Uuid)]) -> Value {
    let link = |(kind, id): &(EntityKind, Uuid)| json!({"entity": kind, "href": kind.href(patient_id, *id)});
    json!({ "links": entities.iter().map(link).collect::<Vec<_>>() })
}

/// Shortens a result to `limit` bytes of JSON. It first drops the params of the rules, then entries
/// of `invalid` from the end, and then truncates strings with `...`. The last resort is `"..."`
/// alone.
#[must_use]
pub fn fit(mut result: Value, limit: usize) -> Value {
    if fits(&result, limit) {
        return result;
    }
    if let Some(entries) = result.get_mut("invalid").and_then(Value::as_array_mut) {
        for fields in entries.iter_mut().filter_map(Value::as_object_mut) {
            fields.remove("params");
        }
    }
    let mut size = result.to_string().len();
    if let Some(entries) = result.get_mut("invalid").and_then(Value::as_array_mut) {
        // The first entry stays. Without it, the list would report no fault.
        while size > limit && entries.len() > 1 {
            size -= entries.pop().map_or(0, |entry| entry.to_string().len() + 1);
        }
    }
    let mut longest = limit;
    while !fits(&result, limit) && longest > 0 {
        longest /= 2;
        cut(&mut result, longest);
    }
    if fits(&result, limit) {
        result
    } else {
        json!("...")
    }
}

fn fits(result: &Value, limit: usize) -> bool {
    result.to_string().len() <= limit
}

/// Truncates every string to this many characters, including the dots.
fn cut(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(longest) {
                let kept = text.char_indices().nth(longest.saturating_sub(3));
                text.truncate(kept.map_or(end, |(kept, _)| kept));
                text.push_str("...");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut(item, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|field| cut(field, longest)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invalid_of(entries: usize, params: usize, description: &str) -> Value {
        let params: Vec<usize> = (0..params).collect();
        let entry =
            json!({"entry": "$.a", "rule": "r", "params": params, "description": description});
        json!({ "invalid": vec![entry; entries] })
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let result = invalid_of(3, 3, "text");
        assert_eq!(fit(result.clone(), RESULT_LIMIT), result);
    }

    #[test]
    fn params_go_first() {
        let small = fit(invalid_of(3, 5_000, "text"), RESULT_LIMIT);
        assert_eq!(small["invalid"].as_array().unwrap().len(), 3);
        assert!(small["invalid"][0].get("params").is_none());
        assert_eq!(small["invalid"][0]["description"], "text");
    }

    #[test]
    fn then_entries_from_the_end() {
        let small = fit(invalid_of(1_000, 1, "text"), RESULT_LIMIT);
        let entries = small["invalid"].as_array().unwrap();
        assert!((100..1_000).contains(&entries.len()), "{}", entries.len());
        assert!(entries.iter().all(|entry| entry["description"] == "text"));
        assert!(small.to_string().len() <= RESULT_LIMIT);
    }

    #[test]
    fn then_strings_are_cut_with_dots_between_characters() {
        for text in ["x".repeat(20_000), "ж".repeat(20_000), "\"".repeat(20_000)] {
            let small = fit(invalid_of(2, 1, &text), RESULT_LIMIT);
            assert!(small.to_string().len() <= RESULT_LIMIT);
            let kept = small["invalid"][0]["description"].as_str().unwrap();
            assert!(
                kept.ends_with("...") && kept.len() > 1_000,
                "{}",
                kept.len()
            );
            assert_eq!(small["invalid"][0]["entry"], "$.a");
            assert!(
                fit(json!({ "response_data": text }), RESULT_LIMIT)
                    .to_string()
                    .len()
                    <= RESULT_LIMIT
            );
        }
    }

    #[test]
    fn the_links_of_the_largest_package_fit_uncut() {
        let largest =
            [(EntityKind::MedicationStatement, Uuid::max()); super::super::signed::MAX_PARTS];
        let result = links(Uuid::max(), &largest);
        assert_eq!(fit(result.clone(), RESULT_LIMIT), result);
    }

    #[test]
    fn nothing_is_ever_longer() {
        let hopeless = json!({ "list": vec![0; 20_000] });
        assert_eq!(fit(hopeless, RESULT_LIMIT), "...");
        let error = invalid(&[FieldError::new("$", "r", "x".repeat(50_000))]);
        assert!(serde_json::to_string(&error.faults()[0]).unwrap().len() <= RESULT_LIMIT);
    }
}
