//! Owns the key files of tests with sealed payloads.

use std::io::Write;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

pub const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub const NEW: &str = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

/// A file of keys, the first of which seals.
pub fn keys(keys: &[(&str, &str)]) -> NamedTempFile {
    let named: serde_json::Map<String, Value> = keys
        .iter()
        .map(|(name, key)| ((*name).to_owned(), json!(key)))
        .collect();
    let mut file = NamedTempFile::new().unwrap();
    let text = json!({"current": keys[0].0, "keys": named}).to_string();
    file.write_all(text.as_bytes()).unwrap();
    file
}
