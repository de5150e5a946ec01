//! JSON Schemas (draft 2020-12) of the documents that actions and verbs answer with. Each schema is derived
//! from the report itself. Rows that the library passes on as the database writes them have their shapes in
//! `rows`.
//!
//! Schemas are open: a later version may add fields.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

/// The answer of `--json` and of a function if a request fails.
#[derive(Serialize, JsonSchema)]
pub struct Failed {
    /// The error. It names the field if a field is wrong.
    pub error: String,
    /// The counts so far, if a drain failed in the middle; otherwise null.
    pub report: Option<Value>,
}

/// Returns the schema of the library's answer to an action, such as `drain`; `None` if there is no such
/// action.
pub fn of_action(action: &str) -> Option<Value> {
    match action {
        "error" => Some(plain::<Failed>()),
        _ => super::schema_of(action),
    }
}

/// Returns the schema of a report whose document has this `action`.
pub fn of<T: JsonSchema>(action: &str) -> Value {
    one_of::<T>(&[action])
}

pub(super) fn one_of<T: JsonSchema>(actions: &[&str]) -> Value {
    let mut schema = plain::<T>();
    let action = match actions {
        [action] => json!({"const": action}),
        _ => json!({"enum": actions}),
    };
    let Some(fields) = schema.as_object_mut() else {
        return schema;
    };
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    properties["action"] = action;
    let required = fields.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut()
        && !required.iter().any(|name| name == "action")
    {
        required.insert(0, json!("action"));
    }
    schema
}

/// Returns a schema that stands alone: it contains everything that it refers to.
fn plain<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.inline_subschemas = true;
    SchemaGenerator::new(settings)
        .into_root_schema_for::<T>()
        .to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_asks_for_its_action() {
        for action in super::super::ACTIONS {
            let schema = of_action(action).unwrap_or_else(|| panic!("{action} has no schema"));
            let required = schema["required"].as_array().unwrap();
            assert!(required.contains(&json!("action")), "{action}: {schema}");
        }
        assert_eq!(of_action("nothing"), None);
    }
}
