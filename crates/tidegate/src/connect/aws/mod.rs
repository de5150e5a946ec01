//! Owns logins that AWS keeps: a secret of Secrets Manager, or a token as the password, signed with the function's
//! credentials. Also owns the call with which a function starts itself again. Only with the feature `aws`.

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
pub use self::sign::Signer;

/// Percent-encodes everything but the unreserved characters of RFC 3986, as the signature requires.
fn encoded(text: &str) -> String {
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
