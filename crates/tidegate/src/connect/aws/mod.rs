//! Owns logins that AWS keeps: a secret of Secrets Manager, or a token as the password, signed with the
//! function's credentials. Also owns the call with which a function starts itself again. Only with the
//! feature `aws`.

mod iam;
mod invoke;
mod request;
mod sdk;
mod secret;
mod sign;
mod tick;

use std::fmt::Write;
use std::sync::Arc;

use futures_util::future::FutureExt;

use self::iam::Iam;
pub use self::invoke::{DeadMessages, Invoked, SelfInvoke};
pub use self::request::{Arn, NoResponse, Requests, Response, SignedRequest, exchange};
pub use self::sdk::http_client;
use self::secret::{DatabaseSecret, SecretText};
pub use self::sign::Signer;
use super::SecretReader;
use super::login::Login;
use super::settings::DatabasePlace;
use super::source::Source;
use super::tls::Trust;
use crate::chain::{NextTick, StartDrain};
use crate::error::Result;

/// Returns the source of this login with signed tokens as the password.
///
/// # Errors
/// [`Error::Config`] when the URL does not fit a token.
pub(super) fn signed_login(login: Login) -> Result<Source> {
    Ok(Iam::new(login)?.source())
}

/// Returns the source of the logins in this secret.
#[expect(clippy::unnecessary_wraps, reason = "without AWS it is refused")]
pub(super) fn secret_login(
    id: String,
    place: DatabasePlace,
    trust: Option<Trust>,
) -> Result<Source> {
    Ok(DatabaseSecret::new(id, place, trust).source())
}

/// Returns a reader of this secret of Secrets Manager.
#[expect(clippy::unnecessary_wraps, reason = "without AWS it is refused")]
pub(super) fn stored_secret(_: &str, id: String) -> Result<SecretReader> {
    let secret = Arc::new(SecretText::new(id));
    Ok(Box::new(move || {
        let secret = secret.clone();
        async move { secret.read().await }.boxed()
    }))
}

/// Returns what invokes the function with this ARN.
#[doc(hidden)]
pub fn starter(_: &str, arn: String) -> Result<Arc<dyn StartDrain>> {
    Ok(Arc::new(Invoked {
        by: Arc::default(),
        arn,
        trace: None,
    }))
}

/// Returns the schedule with this ARN.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) when it is not the ARN of a schedule.
#[doc(hidden)]
pub fn next_tick(setting: &str, arn: String) -> Result<Arc<dyn NextTick>> {
    Ok(Arc::new(tick::TickSchedule::new(setting, arn)?))
}

/// The configuration in the text of a secret alone.
#[doc(hidden)]
pub fn config_of_secret(text: &str) -> Result<tokio_postgres::Config> {
    let secret = DatabaseSecret::new("night/db".to_owned(), DatabasePlace::default(), None);
    secret.login(text).map(|login| login.config)
}

/// Why a request cannot be signed.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Percent-encodes everything but the unreserved characters of RFC 3986, as the signature requires.
pub fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => {
                // Writing to a String cannot fail.
                let _ = write!(encoded, "%{other:02X}");
            }
        }
    }
    encoded
}
