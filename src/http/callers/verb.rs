//! The verbs `api-key` and `link-key`, which manage callers and the key that signs links.

#![expect(
    clippy::doc_markdown,
    reason = "the arguments' comments are the help's text, which is read as it is"
)]

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Error;
use tidegate::config::{environment, parse_duration};
use tidegate_cli::clap::{self, Args, Parser, Subcommand};
use tidegate_cli::{Answer, Ask};
use uuid::Uuid;

use super::keys::{self, By, NewKey};

/// Create, list and revoke API keys for callers of the HTTP interface.
#[derive(Parser)]
#[command(
    name = "api-key",
    after_help = "Example:\n  tidegate api-key create --label 'ward 3' --client 00000000-0000-4000-8000-0000000000c1 --scope jobs --reason 'contract 12'\n  \
        tidegate api-key list\n  tidegate api-key revoke 7 --reason 'it was sent by e-mail'"
)]
pub struct ApiKey {
    #[command(subcommand)]
    asked: Asked,
}

#[derive(Subcommand)]
enum Asked {
    /// Create a key and print it; it is not shown again.
    Create(Create),
    /// List the keys that are still stored.
    List,
    /// Revoke a key, effective at once.
    Revoke {
        /// Id of the key, as api-key list shows it.
        id: i64,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Args)]
struct Create {
    /// Name of the key for people, 1 to 100 characters.
    #[arg(long)]
    label: String,
    /// Legal entity on whose behalf the holder of the key calls, a UUID.
    #[arg(long, value_parser = uuid)]
    client: Uuid,
    /// User who calls, a UUID; without it, each request names its user.
    #[arg(long, value_parser = uuid)]
    user: Option<Uuid>,
    /// What the key permits; may be given several times.
    #[arg(long = "scope", required = true, value_parser = ["jobs", "forms", "letters", "metrics"])]
    scopes: Vec<String>,
    /// How long the key is valid, such as 90d.
    #[arg(long, default_value = "365d", value_parser = parse_duration)]
    expires_in: Duration,
    #[command(flatten)]
    why: Why,
}

#[derive(Args)]
struct Why {
    /// Reason for the change, recorded in the audit.
    #[arg(long)]
    reason: String,
    /// Your name for the audit [env: TIDEGATE_ACTOR] [default: $USER].
    #[arg(long)]
    actor: Option<String>,
}

fn uuid(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_| "must be a UUID".to_owned())
}

/// Runs an API key command.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub async fn api_key(ask: Ask, asked: ApiKey) -> Result<Answer, Error> {
    let client = ask.service.database.connect().await?;
    match asked.asked {
        Asked::Create(create) => {
            let scopes: Vec<&str> = create.scopes.iter().map(String::as_str).collect();
            let new = NewKey {
                label: &create.label,
                client: create.client,
                user: create.user,
                scopes: &scopes,
                lifetime: create.expires_in,
            };
            let actor = create.why.actor();
            let by = create.why.by(actor.as_deref());
            let made = keys::create(&client, &new, &by).await?;
            let [id, key, until] = ["id", "key", "expires_at"].map(|name| shown(&made[name]));
            let text = format!("{key}\nkey {id}, valid until {until}; it is not shown again");
            Ok(Answer::new(made, text))
        }
        Asked::List => {
            let keys = keys::list(&client).await?;
            let text = table(&keys);
            let document = json!({"action": "list_api_keys", "keys": keys});
            Ok(Answer::new(document, text))
        }
        Asked::Revoke { id, why } => {
            let actor = why.actor();
            let revoked = keys::revoke(&client, id, &why.by(actor.as_deref())).await?;
            let text = match revoked["changed"].as_bool() {
                Some(true) => format!("key {id} is revoked"),
                _ => format!("key {id} was already revoked"),
            };
            Ok(Answer::new(revoked, text))
        }
    }
}

fn table(keys: &[Value]) -> String {
    if keys.is_empty() {
        return "there are no API keys".to_owned();
    }
    let mut text = String::new();
    for key in keys {
        let [id, label, client] = ["id", "label", "client_id"].map(|name| shown(&key[name]));
        let scopes = key["scopes"].as_array().into_iter().flatten().map(shown);
        let scopes: Vec<String> = scopes.collect();
        let state = match (&key["revoked_at"], key["valid"].as_bool()) {
            (Value::String(at), _) => format!("revoked {at}"),
            (_, Some(true)) => format!("valid until {}", shown(&key["expires_at"])),
            _ => format!("expired {}", shown(&key["expires_at"])),
        };
        let scopes = scopes.join(",");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{id:>6}  {client}  {scopes:<18}  {state}  {label}");
    }
    text
}

/// Formats a field for people.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "ever".to_owned(),
        other => other.to_string(),
    }
}

/// Replace the key that signs links to jobs.
#[derive(Parser)]
#[command(
    name = "link-key",
    after_help = "Example:\n  tidegate link-key rotate --reason 'once a year'\n  tidegate link-key rotate --forget --reason 'a copy of the database was lost'"
)]
pub struct LinkKey {
    #[command(subcommand)]
    asked: Rotate,
}

#[derive(Subcommand)]
enum Rotate {
    /// Sign links with a new key from now on.
    Rotate {
        /// Forget the earlier keys; every link signed before stops working.
        #[arg(long)]
        forget: bool,
        #[command(flatten)]
        why: Why,
    },
}

/// Rotates the key of the links.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub async fn link_key(ask: Ask, asked: LinkKey) -> Result<Answer, Error> {
    let Rotate::Rotate { forget, why } = asked.asked;
    let client = ask.service.database.connect().await?;
    let actor = why.actor();
    let rotated = keys::rotate(&client, forget, &why.by(actor.as_deref())).await?;
    let text = if forget {
        "links are signed with a new key; earlier links no longer work"
    } else {
        "links are signed with a new key; earlier links still work"
    };
    Ok(Answer::new(rotated, text))
}

impl Why {
    /// Returns the actor, as every other verb does.
    fn actor(&self) -> Option<String> {
        let said = self.actor.clone();
        said.or_else(|| environment("TIDEGATE_ACTOR"))
            .or_else(|| environment("USER"))
    }

    fn by<'a>(&'a self, actor: Option<&'a str>) -> By<'a> {
        By {
            reason: &self.reason,
            actor,
        }
    }
}
