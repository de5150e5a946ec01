//! What a program needs of AWS: the secrets that Secrets Manager keeps, tokens of IAM in place of a
//! database's password, functions that start drains, the schedule of the next tick, and signed requests for
//! what the SDK is not linked for. It implements [`Cloud`] and knows no queue.
//!
//! The Lambda function installs it, and so does the command line with its feature `aws`. Any other program
//! calls [`install`] before it reads settings, for example before
//! [`Database::from_settings`](tidegate_core::connect::Database::from_settings).

mod iam;
mod invoke;
mod request;
mod sdk;
mod secret;
mod sign;
mod tick;

use std::fmt::Write;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use tidegate_core::Error;
use tidegate_core::chain::{NextTick, StartDrain};
use tidegate_core::connect::{Cloud, Version};

pub use self::invoke::{DeadMessages, Invoked, SelfInvoke};
pub use self::request::{Arn, NoResponse, Requests, Response, SignedRequest, exchange};
pub use self::sdk::http_client;
pub use self::sign::Signer;
use iam::TokenFor;
use sdk::Aws;
use tick::TickSchedule;

/// Makes AWS the cloud of this process. Its own settings come from the environment: `AWS_REGION` and so on.
/// Nothing is requested before a setting names it.
pub fn install() {
    tidegate_core::connect::install(Account::default());
}

/// The account whose credentials the process has.
#[derive(Default)]
struct Account(Aws);

impl Cloud for Account {
    fn secret<'a>(
        &'a self,
        id: &'a str,
        version: Version,
    ) -> BoxFuture<'a, Result<Option<String>, Error>> {
        secret::read(&self.0, id, version).boxed()
    }

    fn token<'a>(
        &'a self,
        host: &'a str,
        port: u16,
        user: &'a str,
    ) -> BoxFuture<'a, Result<String, Error>> {
        async move { TokenFor { host, port, user }.sign(&self.0).await }.boxed()
    }

    fn starter(&self, function: String) -> Arc<dyn StartDrain> {
        Arc::new(Invoked {
            by: Arc::default(),
            arn: function,
            trace: None,
        })
    }

    fn next_tick(&self, setting: &str, schedule: String) -> Result<Arc<dyn NextTick>, Error> {
        Ok(Arc::new(TickSchedule::new(setting, schedule)?))
    }
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
