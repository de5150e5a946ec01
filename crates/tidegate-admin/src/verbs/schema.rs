//! JSON Schemas (draft 2020-12) of the documents that actions and verbs answer with. Each schema is derived
//! from the report itself. Rows that a report passes on as the database writes them have their shapes in
//! `views::rows`.
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

/// Returns the schema of the answer to an action that every program has, such as `drain`, or of `error`;
/// `None` if there is no such action.
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

/// What the schema of a field says to people. Of a description,
///
/// - "How many …" continues the number of its field,
/// - "Whether …" is said if its field is true, and "False if …" if it is false,
/// - the first paragraph says what a field is; the others say what to do about a list.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(pub &'a Value);

impl<'a> Words<'a> {
    fn paragraphs(self) -> impl Iterator<Item = String> {
        let all = self.0["description"].as_str().unwrap_or_default();
        let paragraphs = all.split("\n\n");
        paragraphs.map(|paragraph| paragraph.replace('\n', " "))
    }

    /// What the field is, without "How many" and without a full stop, for use behind a number.
    pub fn about(self) -> String {
        let about = self.paragraphs().next().unwrap_or_default();
        let about = about.strip_prefix("How many ").unwrap_or(&about);
        about.trim_end_matches('.').to_owned()
    }

    /// What to do about a list, line by line.
    pub fn advice(self) -> impl Iterator<Item = String> {
        self.paragraphs().skip(1)
    }

    /// The sentence of a flag that is true or false; `None` if its description has none for this value.
    pub fn sentence(self, is_true: bool) -> Option<String> {
        let begin = if is_true { "Whether " } else { "False if " };
        let about = self.paragraphs().next()?;
        let mut letters = about.strip_prefix(begin)?.chars();
        let first = letters.next()?.to_uppercase();
        Some(first.chain(letters).collect())
    }

    /// The schema of one value of an enum, or null.
    pub fn of(self, value: &Value) -> &'a Value {
        let within = ["oneOf", "anyOf"].map(|all| self.0[all].as_array());
        for one in within.into_iter().flatten().flatten() {
            if one["const"] == *value {
                return one;
            }
            if one["oneOf"].is_array() {
                return Words(one).of(value);
            }
        }
        &Value::Null
    }
}

/// A schema that contains everything that it refers to.
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
