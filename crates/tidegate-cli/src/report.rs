//! Owns the documents that only the command line prints, and maps each verb to the schema of its document.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tidegate_admin::schema;

/// The document of `publish`.
#[derive(Serialize, JsonSchema)]
pub struct PublishReport {
    /// The event: a new one, or the live one that it duplicates.
    pub id: i64,
    /// Whether it is new.
    pub created: bool,
    /// Its status.
    pub status: String,
    /// The number of attempts so far.
    pub attempts: u32,
    /// Whether it has replaced the waiting event with its deduplication key.
    pub replaced: bool,
}

/// The document of `new`.
#[derive(Serialize, JsonSchema)]
pub struct StarterReport {
    /// The new folder.
    pub folder: String,
    /// Its files.
    pub files: Vec<&'static str>,
}

/// The document of `completions`.
#[derive(Serialize, JsonSchema)]
pub struct Completions {
    /// The shell.
    pub shell: String,
    /// The script.
    pub script: String,
}

/// The document of `man`: the page, or the names of the written files.
#[derive(Serialize, JsonSchema)]
pub struct Man {
    /// The page in roff, without --dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// The files that were written, with --dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
}

/// The document of `schema`.
#[derive(Serialize, JsonSchema)]
pub struct Schemas {
    /// Schemas by verb.
    pub schemas: serde_json::Map<String, Value>,
}

/// Returns the schema of a verb's document, for verbs that every program has; `None` if there is no such
/// verb.
pub fn schema_of(verb: &str) -> Option<Value> {
    Some(match verb {
        "publish" => schema::of::<PublishReport>("publish"),
        "new" => schema::of::<StarterReport>("new"),
        "completions" => schema::of::<Completions>("completions"),
        "man" => schema::of::<Man>("man"),
        "schema" => schema::of::<Schemas>("schema"),
        "status" => schema::of_action("stats")?,
        other => schema::of_action(&other.replace('-', "_"))?,
    })
}
