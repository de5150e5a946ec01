//! The verbs `api-key` and `link-key`, which manage callers and the key that signs links.

use std::fmt::Write;

use serde_json::{Value, json};
use tidegate::Error;
use tidegate_admin::Audit;
use tidegate_admin::program::Runtime;
use tidegate_cli::clap::{self, Args, Parser, Subcommand};
use tidegate_cli::{Answer, Ask};

use super::keys::{self, NewKey};

/// Create, list and revoke API keys for callers of the HTTP interface.
#[derive(Parser)]
#[command(
    name = "api-key",
    after_help = "Example:\n  tidegate api-key create --label 'ward 3' --client 00000000-0000-4000-8000-0000000000c1 --scope jobs --reason 'contract 12'\n  \
        tidegate api-key list\n  tidegate api-key revoke 7 --reason 'it was sent by e-mail'\n\n\
        The login must be the owner's, or have the role tidegate_callers."
)]
pub struct ApiKey {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create a key and print it; it is not shown again.
    Create(Create),
    /// List the keys that are still stored.
    List,
    /// Revoke a key, effective at once.
    Revoke {
        /// Id of the key, as api-key list shows it.
        id: i64,
        #[command(flatten)]
        by: Audit,
    },
}

#[derive(Args)]
struct Create {
    #[command(flatten)]
    key: NewKey,
    #[command(flatten)]
    by: Audit,
}

/// Creates, lists or revokes API keys.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub async fn api_key(ask: Ask, request: ApiKey) -> Result<Answer, Error> {
    let runtime = ask.runtime;
    let client = runtime.database.connect().await?;
    match request.action {
        Action::Create(create) => {
            let made = keys::create(&client, &create.key, &named(&runtime, create.by)).await?;
            let [id, label, until] = ["id", "label", "expires_at"].map(|name| shown(&made[name]));
            let text = match made["key"].as_str() {
                Some(key) => format!("{key}\nkey {id}, valid until {until}; it is not shown again"),
                None => format!("{label} may call as key {id}, valid until {until}"),
            };
            Ok(Answer::new(made, text))
        }
        Action::List => {
            let keys = keys::list(&client).await?;
            let text = table(&keys);
            let document = json!({"action": "list_api_keys", "keys": keys});
            Ok(Answer::new(document, text))
        }
        Action::Revoke { id, by } => {
            let revoked = keys::revoke(&client, id, &named(&runtime, by)).await?;
            let text = match revoked["changed"].as_bool() {
                Some(true) => format!("key {id} is revoked"),
                _ => format!("key {id} was already revoked"),
            };
            Ok(Answer::new(revoked, text))
        }
    }
}

/// Fills in the operator's name, as for every other verb.
fn named(runtime: &Runtime, by: Audit) -> Audit {
    let actor = by.actor.or_else(|| runtime.actor.clone());
    Audit { actor, ..by }
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

/// Formats a field for people. A key without an end is valid until "ever".
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
    after_help = "Example:\n  tidegate link-key rotate --reason 'once a year'\n  tidegate link-key rotate --forget --reason 'a copy of the database was lost'\n\n\
        The login must be the owner's, or have the role tidegate_callers."
)]
pub struct LinkKey {
    #[command(subcommand)]
    action: Rotate,
}

#[derive(Subcommand)]
enum Rotate {
    /// Sign links with a new key from now on.
    Rotate {
        /// Forget the earlier keys; every link signed before stops working.
        #[arg(long)]
        forget: bool,
        #[command(flatten)]
        by: Audit,
    },
}

/// Rotates the key of the links.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub async fn link_key(ask: Ask, request: LinkKey) -> Result<Answer, Error> {
    let Rotate::Rotate { forget, by } = request.action;
    let runtime = ask.runtime;
    let client = runtime.database.connect().await?;
    let rotated = keys::rotate(&client, forget, &named(&runtime, by)).await?;
    let text = if forget {
        "links are signed with a new key; earlier links no longer work"
    } else {
        "links are signed with a new key; earlier links still work"
    };
    Ok(Answer::new(rotated, text))
}
