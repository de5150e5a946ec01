//! Owns IAM database authentication. The password is a token that is created here and is valid for 15
//! minutes, and no secret is stored anywhere. A token is a URL, signed like a request that is never sent
//! (<https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html>).

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings};
use tidegate_core::Error;

use crate::sdk::{Aws, CALL_TIMEOUT};
use crate::sign::For;
use crate::{Failed, encoded};

/// The server accepts no older token for a new connection.
const VALID: Duration = Duration::from_mins(15);

/// Whom a token lets in, and where.
pub(crate) struct TokenFor<'a> {
    pub host: &'a str,
    pub port: u16,
    pub user: &'a str,
}

impl TokenFor<'_> {
    /// Signs the token, within five seconds.
    ///
    /// # Errors
    /// [`Error::Secret`] when there are no credentials or no region.
    pub(crate) async fn sign(&self, aws: &Aws) -> Result<String, Error> {
        let signing = tokio::time::timeout(CALL_TIMEOUT, self.sign_unbounded(aws)).await;
        let late = |_| Err(failed(format!("no credentials within {CALL_TIMEOUT:?}")));
        signing.unwrap_or_else(late)
    }

    async fn sign_unbounded(&self, aws: &Aws) -> Result<String, Error> {
        let config = aws.config().await?;
        let region = config
            .region()
            .ok_or_else(|| failed("AWS_REGION is not set"))?;
        let credentials = aws.credentials().await.map_err(failed)?;
        let signed = self.signed(region.as_ref(), credentials, SystemTime::now());
        signed.map_err(|error| failed(format!("the token cannot be signed: {error}")))
    }

    fn signed(
        &self,
        region: &str,
        credentials: Credentials,
        now: SystemTime,
    ) -> Result<String, Failed> {
        let mut settings = SigningSettings::default();
        settings.expires_in = Some(VALID);
        settings.signature_location = SignatureLocation::QueryParams;
        let mut url = format!(
            "https://{}:{}/?Action=connect&DBUser={}",
            self.host,
            self.port,
            encoded(self.user)
        );
        let body = SignableBody::Bytes(&[]);
        let request = SignableRequest::new("GET", url.clone(), std::iter::empty(), body)?;
        let to = For {
            service: "rds-db",
            region,
            settings,
            now,
        };
        let (_, pairs) = to.sign(credentials, request)?.into_parts();
        for (name, value) in pairs {
            write!(url, "&{name}={}", encoded(&value))?;
        }
        Ok(url.split_off("https://".len()))
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::Secret(format!("DATABASE_AUTH=iam: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_signed_as_the_aws_sdk_signs_it() {
        let login = TokenFor {
            host: "prod-instance.us-east-1.rds.amazonaws.com",
            port: 3306,
            user: "peccy",
        };
        let credentials = Credentials::new("akid", "secret", None, None, "test");
        // 2024-08-26, 22:00.
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(479_086);
        assert_eq!(
            login.signed("us-east-1", credentials, now).unwrap(),
            "prod-instance.us-east-1.rds.amazonaws.com:3306/?Action=connect&DBUser=peccy\
             &X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=akid%2F20240826%2Fus-east-1%2Frds-db%2Faws4_request\
             &X-Amz-Date=20240826T220000Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=dd0cba843009474347af724090233265628ace491ea17ce3eb3da098b983ad89"
        );
    }
}
