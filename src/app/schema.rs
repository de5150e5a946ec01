//! Owns the check of JSON against the published schema of a type, so that an interface accepts exactly what
//! it promises. It reports every fault with its place, and knows no system.
//!
//! It supports only the JSON Schema keywords that our types use. A test fails if a type starts to
//! use another keyword. A validator for all keywords (`jsonschema`, without its default features) would
//! add 21 crates and 175,000 lines to a function with cold starts, and its errors would have to be
//! turned into these in nearly as many lines as there are here.

use std::collections::BTreeMap;
use std::iter;

use jiff::civil::Date;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use tidegate::Error;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use uuid::Uuid;

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
    pub fn new(entry: impl Into<String>, rule: &str, description: impl Into<String>) -> Self {
        Self {
            entry: entry.into(),
            rule: rule.to_owned(),
            params: Vec::new(),
            description: description.into(),
        }
    }

    pub(super) fn with(mut self, params: impl IntoIterator<Item = Value>) -> Self {
        self.params = params.into_iter().collect();
        self
    }
}

/// The first fault as an error, which names the field below `what`.
pub(crate) fn refused(what: &str, faults: &[FieldError]) -> Error {
    let first = faults.first().map_or_else(String::new, |fault| {
        let place = fault.entry.replacen('$', what, 1);
        format!("{}: {}", place.trim_start_matches('.'), fault.description)
    });
    Error::Invalid(first)
}

/// Schemas of types, by name.
pub(super) type Described = BTreeMap<String, RefOr<Schema>>;

/// Adds the schema of a type, and of everything that it refers to.
pub(super) fn describe<T: ToSchema>(described: &mut Described) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    described.extend(schemas);
}

/// Schemas by name, ready for checks.
pub(super) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    pub(super) fn of(schemas: Described) -> Self {
        let json = |(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default());
        Self(schemas.into_iter().map(json).collect())
    }

    /// Checks a value against the schema of its type, then decodes it.
    ///
    /// # Errors
    /// All faults, in the order of the schema.
    pub(super) fn decode<T: ToSchema + DeserializeOwned>(
        &self,
        json: &Value,
    ) -> Result<T, Vec<FieldError>> {
        let faults = self.check::<T>(json);
        if !faults.is_empty() {
            return Err(faults);
        }
        // Serde accepts everything that the schema accepts. A test checks this.
        T::deserialize(json).map_err(|_| vec![FieldError::new("$", "schema", "does not decode")])
    }

    /// Returns all faults of `value`, in the order of the schema.
    pub(super) fn check<T: ToSchema>(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.named(&T::name(), value, "$", &mut errors);
        errors
    }

    fn named(&self, name: &str, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
        match self.0.get(name) {
            Some(schema) => self.any(schema, value, at, errors),
            None => errors.push(FieldError::new(at, "schema", "has no schema")),
        }
    }

    fn any(&self, schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or_default();
            return self.named(name, value, at, errors);
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
            Value::Number(number) => {
                let outside = whole(number)
                    .and_then(|number| outside(schema, ["minimum", "maximum"], number));
                errors.extend(outside.map(|(range, bounds)| {
                    FieldError::new(at, "number", format!("must be {range}")).with(bounds)
                }));
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn one_of(&self, choices: &[Value], value: &Value, at: &str, errors: &mut Vec<FieldError>) {
        // The choice is null or another type. For a value that is not null, report the faults
        // against the other type.
        let is_null = |choice: &&Value| choice["type"] == "null";
        let (nulls, others): (Vec<&Value>, Vec<&Value>) = choices.iter().partition(is_null);
        if let ([_], [something]) = (&nulls[..], &others[..]) {
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
            let fields = choices.iter().map(|choice| &choice["required"][0]);
            let names: Vec<&str> = fields.filter_map(Value::as_str).collect();
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
                    let odd = "has a field that is not allowed";
                    errors.push(FieldError::new(at, "unknown", odd));
                }
                None => {}
            }
        }
    }

    fn array(&self, schema: &Value, items: &[Value], at: &str, errors: &mut Vec<FieldError>) {
        if let Some((range, bounds)) =
            outside(schema, ["minItems", "maxItems"], counted(items.len()))
        {
            let needed = format!("must have {range} items");
            errors.push(FieldError::new(at, "items", needed).with(bounds));
        }
        for (index, item) in items.iter().enumerate() {
            self.any(&schema["items"], item, &format!("{at}[{index}]"), errors);
        }
    }
}

fn wrong_type(allowed: &Value, value: &Value, at: &str) -> Option<FieldError> {
    let names: Vec<&str> = match allowed {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if names.contains(&"integer") && whole(number).is_some() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
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
    for word in ["format", "pattern"] {
        let shape = schema[word].as_str().unwrap_or_default();
        if let Some(description) = misfit(shape, text) {
            return Some(FieldError::new(at, word, description).with([Value::from(shape)]));
        }
    }
    let length = counted(text.chars().count());
    if let Some((range, bounds)) = outside(schema, ["minLength", "maxLength"], length) {
        let description = format!("must have {range} characters");
        return Some(FieldError::new(at, "length", description).with(bounds));
    }
    let holds_nul = text.contains('\0');
    holds_nul.then(|| FieldError::new(at, "format", "must have no NUL character"))
}

/// What a format or a pattern allows, if the text does not fit it.
fn misfit(shape: &str, text: &str) -> Option<&'static str> {
    Some(match shape {
        "uuid" if !is_uuid(text) => "must be a UUID with hyphens",
        "date" if !is_day(text) => "must be a day that exists, YYYY-MM-DD",
        "date-time" if humantime::parse_rfc3339(text).is_err() => {
            "must be a time in UTC such as 2027-01-11T09:00:00Z"
        }
        r"\S" if text.chars().all(is_blank) => "must be text, not only blanks",
        r"^(?!\.{1,2}$)[\s\S]*\S" if text.chars().all(is_blank) || [".", ".."].contains(&text) => {
            "must be text, not only blanks, and neither . nor .."
        }
        "^[0-9]{9}$" if !is_number(text, 9) => "must be a number of exactly 9 digits",
        "^[0-9]{11}$" if !is_number(text, 11) => "must be a number of exactly 11 digits",
        r"^\+? *([0-9] *){4,15}$" if !is_phone(text) => {
            "must be 4 to 15 digits, with blanks between and a + in front or not"
        }
        r"^[^\s\x00-\x1f\x7f-\x9f@]+@[^\s\x00-\x1f\x7f-\x9f]+$" if !is_email(text) => {
            "must be an address like name@example.org"
        }
        _ => return None,
    })
}

/// Accepts only the form with hyphens. The parser would also accept braces and plain hex digits.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

/// Whether a text is an existing day. So the database's own check, which would quote the value, never fails.
/// The database does not support year 0.
pub(super) fn is_day(text: &str) -> bool {
    let is_shaped = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    let shaped = text.len() == 10 && text.bytes().enumerate().all(is_shaped);
    shaped && text.parse().is_ok_and(|day: Date| day.year() > 0)
}

/// Whether a pattern treats the character as blank: white space as in ECMA-262.
fn is_blank(c: char) -> bool {
    c == '\u{feff}' || c.is_whitespace() && c != '\u{85}'
}

fn is_number(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_email(text: &str) -> bool {
    let parts = text.split_once('@');
    parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn is_phone(text: &str) -> bool {
    let number = text.strip_prefix('+').unwrap_or(text).replace(' ', "");
    (4..=15).any(|digits| is_number(&number, digits))
}

/// The number, if it is whole. In JSON Schema, `97.0` is also a whole number.
pub(super) fn whole(number: &Number) -> Option<i64> {
    number.as_i64().or_else(|| {
        let plain = format!("{:.0}", number.as_f64()?);
        let read: i64 = plain.parse().ok()?;
        (number.as_f64() == plain.parse().ok()).then_some(read)
    })
}

fn counted(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The range that the number is not in, for people and for programs; `None` if it is.
fn outside(schema: &Value, words: [&str; 2], number: i64) -> Option<(String, Vec<Value>)> {
    let [min, max] = words.map(|word| schema[word].as_i64());
    if min.is_none_or(|min| number >= min) && max.is_none_or(|max| number <= max) {
        return None;
    }
    let min = min.unwrap_or(0);
    let range = match max {
        Some(max) => format!("{min} to {max}"),
        None => format!("at least {min}"),
    };
    Some((range, iter::once(min).chain(max).map(Value::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{checks, medical, submission};

    /// The keywords that [`Schemas::check`] supports, and keywords that are only for people.
    const WORDS: [&str; 18] = [
        "$ref",
        "additionalProperties",
        "allOf",
        "description",
        "enum",
        "format",
        "items",
        "maximum",
        "maxItems",
        "maxLength",
        "minimum",
        "minItems",
        "minLength",
        "oneOf",
        "pattern",
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
                "format" if *value == "int32" || *value == "int64" => {}
                "format" | "pattern" => {
                    assert!(misfit(value.as_str().unwrap(), " ").is_some(), "{value}");
                }
                "additionalProperties" => assert_eq!(value, false),
                _ => {}
            }
        }
    }

    #[test]
    fn every_word_of_our_schemas_is_understood_and_every_reference_leads_somewhere() {
        let systems = [medical::schemas(), submission::schemas(), checks::schemas()];
        let schemas = Schemas::of(systems.into_iter().flatten().collect());
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

    #[test]
    fn only_days_that_exist_are_dates() {
        for good in ["2024-02-29", "2000-02-29", "2027-12-31", "0001-01-01"] {
            assert!(is_day(good), "{good}");
        }
        for bad in [
            "2023-02-29",
            "1900-02-29",
            "2027-13-01",
            "2027-00-01",
            "2027-04-31",
            "2027-1-01",
            "+027-01-01",
            "20270101",
            "2027-01-01T00:00",
            "0000-01-01",
            "２027-01-01",
        ] {
            assert!(!is_day(bad), "{bad}");
        }
    }
}
