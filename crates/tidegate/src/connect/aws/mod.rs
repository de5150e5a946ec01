//! Owns logins that AWS keeps: a secret of Secrets Manager, or a token signed with the function's credentials in place of a
//! password; and the call by which a function starts itself again. With the feature `aws` alone.

mod iam;
mod invoke;
mod sdk;
mod secret;
mod sign;

use std::fmt::Write;

pub(super) use self::iam::Iam;
pub use self::invoke::{Invoked, SelfInvoke};
pub(super) use self::secret::Secret;
pub use self::secret::SecretText;
#[cfg(feature = "otel")]
pub(crate) use self::sign::Signer;

/// Percent-encoded but for what RFC 3986 leaves unreserved, as the signature demands.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => {
                // Writing to a String does not fail.
                let _ = write!(encoded, "%{other:02X}");
            }
        }
    }
    encoded
}
