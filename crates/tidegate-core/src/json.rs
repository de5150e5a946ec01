//! Owns JSON that passes through: what functions answer, what handlers return, what an event has stored. It
//! is kept as its text, because numbers change when they are parsed and printed again.

use std::fmt::{self, Display};

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Result, Value};

/// A JSON document as its text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Writes a value as JSON.
    ///
    /// # Errors
    /// When JSON has no form for it.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        to_raw_value(value).map(Self)
    }

    /// Returns the text, as it was written.
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Parses the text.
    ///
    /// # Errors
    /// When it does not fit `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.get())
    }

    /// Returns the members of an object in the order in which they stand. Any other value has none.
    #[must_use]
    pub fn members(&self) -> Vec<(String, Self)> {
        self.read::<Members>()
            .map(|members| members.0)
            .unwrap_or_default()
    }
}

struct Members(Vec<(String, Json)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl From<Box<RawValue>> for Json {
    fn from(text: Box<RawValue>) -> Self {
        Self(text)
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        // Each `Value` has a form in JSON.
        Self(to_raw_value(&value).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Json {}

impl Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}
