//! Owns API keys: 256 random bits, shown once, of which only a digest is kept; and the key by which links are signed.
//!
//! A key is looked up at every request, so that one that was revoked is so at once.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row};
use uuid::Uuid;

use super::{Caller, Known};
use crate::app::sql::query;
use crate::http::begin;
use tidegate::Error;
use tidegate::connect::Pooled;

/// What a key begins with, so that people, scanners of sources and we know one when they see it.
const PREFIX: &str = "tidegate_";

/// Random bytes of a key, and how many characters they take.
const RANDOM: usize = 32;
const CHARACTERS: usize = 43;

const FIND: &str = "SELECT client_id, user_id, scopes FROM callers.api_key_of($1)";

const CREATE: &str =
    "SELECT callers.create_api_key($1, $2, $3, $4, $5, make_interval(secs => $6), $7, $8)";

const REVOKE: &str = "SELECT callers.revoke_api_key($1, $2, $3)";

const ROTATE: &str = "SELECT callers.rotate_link_key($1, $2, $3)";

const LIST: &str = "\
SELECT jsonb_build_object('id', id, 'label', label, 'client_id', client_id, 'user_id', user_id, 'scopes', scopes,
           'created_at', created_at, 'expires_at', expires_at, 'revoked_at', revoked_at,
           'valid', revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true))
  FROM callers.api_key ORDER BY id";

/// Whether this has the look of a key: nobody else's credential is looked up.
pub(super) fn is_key(token: &str) -> bool {
    let random = token.strip_prefix(PREFIX);
    random.is_some_and(|text| text.len() == CHARACTERS && text.is_ascii())
}

/// Whose key this is and what it is good for; `None` if it is unknown, expired or revoked.
///
/// # Errors
/// The database's.
pub(super) async fn find(client: &mut Pooled, key: &str) -> Result<Option<Known>, Error> {
    let transaction = begin(client).await?;
    let digest = digest(key);
    let rows = query(&transaction, "api key", FIND, &[(&digest, Type::BYTEA)]).await?;
    Ok(rows.first().map(|row| {
        let caller = Caller {
            client: Some(row.get(0)),
            user: row.get(1),
            patient: None,
        };
        let scopes: Vec<&str> = row.get(2);
        Known::new(caller, scopes)
    }))
}

fn digest(key: &str) -> Vec<u8> {
    Sha256::digest(key).to_vec()
}

/// What a new key is to be.
pub(super) struct NewKey<'a> {
    pub(super) label: &'a str,
    pub(super) client: Uuid,
    pub(super) user: Option<Uuid>,
    pub(super) scopes: &'a [&'a str],
    pub(super) lifetime: Duration,
}

/// Who does it and why, for the audit.
pub(super) struct By<'a> {
    pub(super) reason: &'a str,
    pub(super) actor: Option<&'a str>,
}

/// Makes a key: what is kept of it, and the key itself in the field `key`. It is nowhere else.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; else the database's.
pub(super) async fn create(client: &Client, new: &NewKey<'_>, by: &By<'_>) -> Result<Value, Error> {
    let key = new_key()?;
    let lifetime = new.lifetime.as_secs_f64();
    let params: [(&(dyn ToSql + Sync), Type); 8] = [
        (&digest(&key), Type::BYTEA),
        (&new.label, Type::TEXT),
        (&new.client, Type::UUID),
        (&new.user, Type::UUID),
        (&new.scopes, Type::TEXT_ARRAY),
        (&lifetime, Type::FLOAT8),
        (&by.reason, Type::TEXT),
        (&by.actor, Type::TEXT),
    ];
    let mut made = answer(client, "create api key", CREATE, &params).await?;
    made["key"] = json!(key);
    Ok(made)
}

/// From the library that TLS is of, whose generator is the system's.
fn new_key() -> Result<String, Error> {
    let mut random = [0; RANDOM];
    openssl::rand::rand_bytes(&mut random)
        .map_err(|error| Error::Config(format!("random numbers: {error}")))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
}

/// Takes a key back, from now on.
///
/// # Errors
/// [`Error::Invalid`] when there is none of this id; else the database's.
pub(super) async fn revoke(client: &Client, id: i64, by: &By<'_>) -> Result<Value, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (&id, Type::INT8),
        (&by.reason, Type::TEXT),
        (&by.actor, Type::TEXT),
    ];
    answer(client, "revoke api key", REVOKE, &params).await
}

/// Signs links with a new key, and forgets the earlier ones if told so.
///
/// # Errors
/// [`Error::Invalid`] names what is not allowed; else the database's.
pub(super) async fn rotate(client: &Client, forget: bool, by: &By<'_>) -> Result<Value, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 3] = [
        (&forget, Type::BOOL),
        (&by.reason, Type::TEXT),
        (&by.actor, Type::TEXT),
    ];
    answer(client, "rotate link key", ROTATE, &params).await
}

/// All keys, oldest first, as far as they are kept.
///
/// # Errors
/// The database's.
pub(super) async fn list(client: &Client) -> Result<Vec<Value>, Error> {
    let rows = query(client, "api keys", LIST, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn answer(
    client: &(impl GenericClient + Sync),
    stage: &'static str,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Value, Error> {
    let rows = query(client, stage, sql, params).await.map_err(refused)?;
    Ok(rows.first().map_or(Value::Null, |row: &Row| row.get(0)))
}

/// The functions' own words, which begin with the field, and a constraint's name.
fn refused(error: Error) -> Error {
    let Error::Database { source, .. } = &error else {
        return error;
    };
    let Some(told) = source.as_db_error() else {
        return error;
    };
    match *told.code() {
        SqlState::INVALID_PARAMETER_VALUE => Error::Invalid(told.message().to_owned()),
        SqlState::CHECK_VIOLATION => {
            let must = told
                .constraint()
                .unwrap_or("a constraint")
                .replace('_', " ");
            Error::Invalid(format!("api-key: it must hold that {must}"))
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
