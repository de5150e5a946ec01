//! Owns the check of JSON against a published schema. It reports every fault with its place, and
//! knows no kinds of jobs.
//!
//! It supports only the JSON Schema keywords that our types use. A test fails if a type starts to
//! use another keyword. A validator for all keywords (`jsonschema`, without its default features) would
//! add 21 crates and 175,000 lines to a function with cold starts, and its errors would have to be
//! turned into these in nearly as many lines as there are here.

use std::collections::BTreeMap;
use std::iter;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use uuid::Uuid;

use crate::app::field::is_day;

/// One fault of a request. It never quotes the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where the fault is, for example `$.period.start` or `$.resources[0].id`.
    pub entry: String,
    /// The violated rule, for programs: `required`, `format`, `length` …
    pub rule: String,
    /// What the rule allows, for programs. Dropped first if the stored result is too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Value>)]
    pub params: Vec<Value>,
    /// What is allowed, for people.
    pub description: String,
}

impl FieldError {
    /// Creates a fault without parameters.
    pub fn new(
        entry: impl Into<String>,
        rule: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        Self {
            entry: entry.into(),
            rule: rule.into(),
            params: Vec::new(),
            description: description.into(),
        }
    }

    pub(super) fn with(mut self, params: impl IntoIterator<Item = Value>) -> Self {
        self.params = params.into_iter().collect();
        self
    }
}

/// Schemas by name, ready for checks.
pub(super) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    pub(super) fn of(schemas: BTreeMap<String, RefOr<Schema>>) -> Self {
        let json = |(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default());
        Self(schemas.into_iter().map(json).collect())
    }

    /// Returns all faults of `value`, in the order of the schema.
    pub(super) fn check(&self, name: &str, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match self.0.get(name) {
            Some(schema) => self.any(schema, value, "$", &mut errors),
            None => errors.push(FieldError::new("$", "schema", "has no schema")),
        }
        errors
    }

    fn any(&self, schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or_default();
            return match self.0.get(name) {
                Some(schema) => self.any(schema, value, at, errors),
                None => errors.push(FieldError::new(at, "schema", "has no schema")),
            };
        }
        for schema in schema["allOf"].as_array().into_iter().flatten() {
            self.any(schema, value, at, errors);
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            return self.one_of(choices, value, at, errors);
        }
        if let Some(error) = wrong_type(&schema["type"], value, at) {
            return errors.push(error);
        }
        match value {
            Value::Object(fields) => self.object(schema, fields, at, errors),
            Value::Array(items) => self.array(schema, items, at, errors),
            Value::String(text) => errors.extend(wrong_text(schema, text, at)),
            _ => {}
        }
    }

    fn one_of(&self, choices: &[Value], value: &Value, at: &str, errors: &mut Vec<FieldError>) {
        // The choice is null or another type. For a value that is not null, report the faults
        // against the other type.
        if let [one, other] = choices
            && let Some(something) = match (&one["type"], &other["type"]) {
                (null, _) if null == "null" => Some(other),
                (_, null) if null == "null" => Some(one),
                _ => None,
            }
        {
            if !value.is_null() {
                self.any(something, value, at, errors);
            }
            return;
        }
        let fits = |choice: &&Value| {
            let mut errors = Vec::new();
            self.any(choice, value, at, &mut errors);
            errors.is_empty()
        };
        if choices.iter().filter(fits).count() != 1 {
            let fields = choices
                .iter()
                .filter_map(|choice| choice["required"][0].as_str());
            let names: Vec<&str> = fields.collect();
            let description = format!("must have exactly one of {}", names.join(" and "));
            let error = FieldError::new(at, "exclusive", description);
            errors.push(error.with(names.into_iter().map(Value::from)));
        }
    }

    fn object(
        &self,
        schema: &Value,
        fields: &Map<String, Value>,
        at: &str,
        errors: &mut Vec<FieldError>,
    ) {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            if !fields.contains_key(name) {
                let entry = format!("{at}.{name}");
                errors.push(FieldError::new(entry, "required", "is needed"));
            }
        }
        let known = schema["properties"].as_object();
        let closed = schema["additionalProperties"] == json!(false);
        for (name, value) in fields {
            match known.and_then(|known| known.get(name)) {
                Some(schema) => self.any(schema, value, &format!("{at}.{name}"), errors),
                // An unknown name comes from outside, so the error does not repeat it.
                None if closed => {
                    errors.push(FieldError::new(
                        at,
                        "unknown",
                        "has a field that is not allowed",
                    ));
                }
                None => {}
            }
        }
    }

    fn array(&self, schema: &Value, items: &[Value], at: &str, errors: &mut Vec<FieldError>) {
        if let Some((range, bounds)) = outside(schema, ["minItems", "maxItems"], items.len()) {
            let needed = format!("must have {range} items");
            errors.push(FieldError::new(at, "items", needed).with(bounds));
        }
        for (index, item) in items.iter().enumerate() {
            self.any(&schema["items"], item, &format!("{at}[{index}]"), errors);
        }
    }
}

fn wrong_type(allowed: &Value, value: &Value, at: &str) -> Option<FieldError> {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let names: Vec<&str> = match allowed {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    (!names.contains(&found)).then(|| {
        let description = format!("must be {}, got {found}", names.join(" or "));
        FieldError::new(at, "type", description).with(names.into_iter().map(Value::from))
    })
}

fn wrong_text(schema: &Value, text: &str, at: &str) -> Option<FieldError> {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.iter().any(|one| one == text)
    {
        let names: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
        let description = format!("must be {}", names.join(" or "));
        return Some(FieldError::new(at, "inclusion", description).with(allowed.clone()));
    }
    let length = text.chars().count();
    if let Some((range, bounds)) = outside(schema, ["minLength", "maxLength"], length) {
        let description = format!("must have {range} characters");
        return Some(FieldError::new(at, "length", description).with(bounds));
    }
    if text.contains('\0') {
        return Some(FieldError::new(at, "format", "must have no NUL character"));
    }
    let format = schema["format"].as_str().unwrap_or_default();
    let description = match format {
        "uuid" if !is_uuid(text) => "must be a UUID with hyphens",
        "date" if !is_day(text) => "must be a day that exists, YYYY-MM-DD",
        _ => return None,
    };
    Some(FieldError::new(at, "format", description).with([Value::from(format)]))
}

/// Accepts only the form with hyphens. The parser would also accept braces and plain hex digits.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

/// Returns the range that a count is outside of, for people and for programs.
fn outside(schema: &Value, words: [&str; 2], count: usize) -> Option<(String, Vec<Value>)> {
    let [min, max] = words.map(|word| {
        let limit = schema[word].as_u64();
        limit.and_then(|limit| usize::try_from(limit).ok())
    });
    let min = min.unwrap_or(0);
    if count >= min && max.is_none_or(|max| count <= max) {
        return None;
    }
    let range = match max {
        Some(max) => format!("{min} to {max}"),
        None => format!("at least {min}"),
    };
    Some((range, iter::once(min).chain(max).map(Value::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::medical::payload::schemas;

    /// The keywords that [`Schemas::check`] supports, and keywords that are only for people.
    const WORDS: [&str; 15] = [
        "$ref",
        "additionalProperties",
        "allOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "oneOf",
        "properties",
        "required",
        "type",
    ];

    fn words(schema: &Value, found: &mut Vec<String>) {
        for (word, value) in schema.as_object().into_iter().flatten() {
            found.push(word.clone());
            match word.as_str() {
                "properties" => value
                    .as_object()
                    .unwrap()
                    .values()
                    .for_each(|one| words(one, found)),
                "items" => words(value, found),
                "allOf" | "oneOf" => value
                    .as_array()
                    .unwrap()
                    .iter()
                    .for_each(|one| words(one, found)),
                "format" => assert!(
                    ["uuid", "date"].iter().any(|known| value == known),
                    "{value}"
                ),
                "additionalProperties" => assert_eq!(value, false),
                _ => {}
            }
        }
    }

    #[test]
    fn every_word_of_our_schemas_is_understood_and_every_reference_leads_somewhere() {
        let schemas = Schemas::of(schemas());
        for (name, schema) in &schemas.0 {
            let mut found = Vec::new();
            words(schema, &mut found);
            assert!(found.len() > 1, "{name}: {schema}");
            let unknown = found.iter().find(|word| !WORDS.contains(&word.as_str()));
            assert_eq!(unknown, None, "{name}");
        }
        let all = json!(schemas.0).to_string();
        for rest in all.split("#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap();
            assert!(schemas.0.contains_key(name), "{name}");
        }
    }
}
