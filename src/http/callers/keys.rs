//! Owns API keys, and the key that signs links. An API key has 256 random bits. It is shown once, and only
//! its digest is stored. A caller that AWS IAM identifies has a row of the same table, with the digest of its
//! ARN. Nobody can send the ARN in place of a key, because an ARN does not look like a key.
//!
//! A key is looked up at every request, so a revoked key is refused at once.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidegate::Error;
use tidegate::config::parse_duration;
use tidegate::connect::Client;
use tidegate_admin::Audit;
use tidegate_core::queue::{Statement, document, documents, first};
use tidegate_core::statements;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Known, Scope};
use crate::http::begin;
use tidegate_cli::clap::{self, Args};

/// The beginning of a key. People, source code scanners and this program recognize a key by it.
const PREFIX: &str = "tidegate_";

/// Number of random bytes of a key, and of the characters that encode them.
const RANDOM: usize = 32;
const CHARACTERS: usize = 43;

statements! {
    FIND: "api key" [BYTEA] = "SELECT to_jsonb(k)::text FROM callers.api_key_of($1) AS k";

    CREATE: "create api key" [BYTEA, TEXT, UUID, UUID, TEXT_ARRAY, FLOAT8, TEXT, TEXT] = "SELECT callers.create_api_key($1, $2, $3, $4, $5, make_interval(secs => $6), $7, $8)";

    REVOKE: "revoke api key" [INT8, TEXT, TEXT] = "SELECT callers.revoke_api_key($1, $2, $3)";

    ROTATE: "rotate link key" [BOOL, TEXT, TEXT] = "SELECT callers.rotate_link_key($1, $2, $3)";

    LIST: "api keys" [] = "\
SELECT jsonb_build_object('id', id, 'label', label, 'client_id', client_id, 'user_id', user_id, 'scopes', scopes,
           'created_at', created_at, 'expires_at', expires_at, 'revoked_at', revoked_at,
           'valid', revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true))::text
  FROM callers.api_key ORDER BY id";
}

/// Whether this looks like a key. Credentials of other types are not looked up.
pub(super) fn is_key(token: &str) -> bool {
    let random = token.strip_prefix(PREFIX);
    random.is_some_and(|text| text.len() == CHARACTERS && text.is_ascii())
}

/// The SHA-256 of a key, or of an IAM principal's ARN: all that is stored of it.
pub(super) type KeyDigest = [u8; 32];

/// Finds on whose behalf the holder of a key (or an IAM principal) calls, and what it permits; `None` if it
/// is unknown, expired or revoked.
///
/// # Errors
/// Database errors.
pub(super) async fn find(client: &mut Client, digest: &KeyDigest) -> Result<Option<Known>, Error> {
    let transaction = begin(client).await?;
    document(&transaction, &FIND, &[&&digest[..]]).await
}

pub(super) fn digest(key: &str) -> KeyDigest {
    Sha256::digest(key).into()
}

// The properties of a new key. The comments are the help's text.
#[derive(Args)]
pub(super) struct NewKey {
    /// Name of the key for people, 1 to 100 characters.
    #[arg(long, required_unless_present = "iam")]
    label: Option<String>,
    /// Permit a role or user of AWS IAM instead of the holder of a key, an ARN; the label is the ARN.
    #[arg(long, conflicts_with = "label", value_parser = principal)]
    iam: Option<String>,
    /// Legal entity on whose behalf the holder of the key calls, a UUID.
    #[arg(long, value_parser = uuid)]
    client: Uuid,
    /// User who calls, a UUID; without it, each request names its user.
    #[arg(long, value_parser = uuid)]
    user: Option<Uuid>,
    /// What the key permits; may be given several times.
    #[arg(long = "scope", required = true, value_parser = Scope::NAMES)]
    scopes: Vec<String>,
    /// How long the key is valid, such as 90d.
    #[arg(long, default_value = "365d", value_parser = parse_duration)]
    expires_in: Duration,
}

fn principal(text: &str) -> Result<String, String> {
    let must = "must be the ARN of a role or a user of IAM";
    super::claims::principal(text).ok_or_else(|| must.to_owned())
}

fn uuid(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_| "must be a UUID".to_owned())
}

/// Creates a key. Returns the stored properties, and the key itself in the field `key`. The key is available
/// nowhere else. A principal of IAM has no key.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub(super) async fn create(client: &Client, new: &NewKey, by: &Audit) -> Result<Value, Error> {
    let key = new.iam.clone().map_or_else(new_key, Ok)?;
    let params: [&(dyn ToSql + Sync); 8] = [
        &&digest(&key)[..],
        new.label.as_ref().unwrap_or(&key),
        &new.client,
        &new.user,
        &new.scopes,
        &new.expires_in.as_secs_f64(),
        &by.reason,
        &by.actor,
    ];
    let mut made = answer(client, &CREATE, &params).await?;
    if new.iam.is_none() {
        made["key"] = json!(key);
    }
    Ok(made)
}

/// Uses the random generator of the TLS library, which is that of the system.
fn new_key() -> Result<String, Error> {
    let mut random = [0; RANDOM];
    openssl::rand::rand_bytes(&mut random)
        .map_err(|error| Error::Config(format!("random numbers: {error}")))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
}

/// Revokes a key, effective immediately.
///
/// # Errors
/// [`Error::Invalid`] if there is no key with this id. Otherwise database errors.
pub(super) async fn revoke(client: &Client, id: i64, by: &Audit) -> Result<Value, Error> {
    answer(client, &REVOKE, &[&id, &by.reason, &by.actor]).await
}

/// Signs links with a new key from now on, and removes the earlier keys if requested.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed. Otherwise database errors.
pub(super) async fn rotate(client: &Client, forget: bool, by: &Audit) -> Result<Value, Error> {
    answer(client, &ROTATE, &[&forget, &by.reason, &by.actor]).await
}

/// Returns the stored properties of all keys, oldest first.
///
/// # Errors
/// Database errors.
pub(super) async fn list(client: &Client) -> Result<Vec<Value>, Error> {
    documents(client, &LIST, &[]).await
}

async fn answer(
    client: &Client,
    statement: &'static Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Value, Error> {
    let answer = first(client, statement, values).await.map_err(refused)?;
    Ok(answer.unwrap_or_default())
}

/// Converts the messages of the SQL functions, which begin with the field, and violations of a constraint.
fn refused(error: Error) -> Error {
    let raised = match &error {
        Error::Database { source, .. } => source.as_db_error(),
        _ => None,
    };
    match raised.map(|raised| (raised.code(), raised)) {
        Some((&SqlState::INVALID_PARAMETER_VALUE, raised)) => {
            Error::Invalid(raised.message().to_owned())
        }
        Some((&SqlState::UNIQUE_VIOLATION, _)) => {
            Error::Invalid("iam: must be no caller yet; revoke its key first".to_owned())
        }
        Some((&SqlState::CHECK_VIOLATION, raised)) => {
            let rule = raised
                .constraint()
                .unwrap_or("a constraint")
                .replace('_', " ");
            Error::Invalid(format!("api-key: must satisfy the rule: {rule}"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_256_random_bits_and_is_known_by_its_look() {
        let [one, other] = [(); 2].map(|()| new_key().unwrap());
        assert_ne!(one, other);
        for key in [one, other] {
            assert!(is_key(&key), "{key}");
            let random = key.strip_prefix(PREFIX).unwrap();
            assert_eq!(URL_SAFE_NO_PAD.decode(random).unwrap().len(), RANDOM);
            assert!(!is_key(random) && !is_key(&key[1..]) && !is_key(&format!("{key}A")));
        }
        assert!(!is_key("") && !is_key("tidegate_") && !is_key("a.b.c"));
    }
}
