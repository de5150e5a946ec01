//! Owns logins that AWS keeps: a secret of Secrets Manager, or a token signed with the function's credentials in place of a
//! password. With the feature `aws` alone.

mod iam;
mod sdk;
mod secret;

pub(super) use self::iam::Iam;
pub(super) use self::secret::Secret;
pub use self::secret::SecretText;
