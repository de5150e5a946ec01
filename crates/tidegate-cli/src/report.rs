//! Owns the documents that only the command line prints, and says which schema each verb's document has.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tidegate::schema;

/// What `publish` prints.
#[derive(Serialize, JsonSchema)]
pub struct Published {
    /// Always `publish`.
    pub action: &'static str,
    /// The event, new or live before.
    pub id: i64,
    /// Whether it is new.
    pub created: bool,
    /// Its status.
    pub status: String,
    /// How often it was tried.
    pub attempts: u32,
    /// Whether it has taken the place of the waiting event with its deduplication key.
    pub replaced: bool,
}

/// What `new` prints.
#[derive(Serialize, JsonSchema)]
pub struct Written {
    /// Always `new`.
    pub action: &'static str,
    /// The new folder.
    pub folder: String,
    /// Its files.
    pub files: Vec<&'static str>,
}

/// What `completions` prints.
#[derive(Serialize, JsonSchema)]
pub struct Completions {
    /// Always `completions`.
    pub action: &'static str,
    /// The shell.
    pub shell: String,
    /// The script.
    pub script: String,
}

/// What `man` prints: the page, or the files that it wrote.
#[derive(Serialize, JsonSchema)]
pub struct Man {
    /// Always `man`.
    pub action: &'static str,
    /// The page in roff, without --dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// The files that were written, with --dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
}

/// What `schema` prints.
#[derive(Serialize, JsonSchema)]
pub struct Schemas {
    /// Always `schema`.
    pub action: &'static str,
    /// Schemas by verb.
    pub schemas: serde_json::Map<String, Value>,
}

/// The schema of what a verb that every program has prints with `--json`; `None` when there is no such verb.
pub fn schema_of(verb: &str) -> Option<Value> {
    Some(match verb {
        "publish" => schema::of::<Published>("publish"),
        "new" => schema::of::<Written>("new"),
        "completions" => schema::of::<Completions>("completions"),
        "man" => schema::of::<Man>("man"),
        "schema" => schema::of::<Schemas>("schema"),
        "status" => schema::of_action("stats")?,
        "blocked-groups" => schema::of_action("blocked_groups")?,
        other => schema::of_action(other)?,
    })
}
