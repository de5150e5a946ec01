//! Owns signatures on requests that this crate makes of AWS without the SDK's crate for the service.
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html>

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use http::HeaderMap;

use super::sdk::Aws;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What a request is signed for.
pub(super) struct For<'a> {
    pub service: &'a str,
    pub region: &'a str,
}

/// The headers that sign a POST of `body` to `url`, which has these headers already.
pub(super) fn signature(
    to: &For<'_>,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    credentials: Credentials,
) -> Result<HeaderMap, Failed> {
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(to.region)
        .name(to.service)
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()?
        .into();
    let headers = headers.iter().copied();
    let signable = SignableRequest::new("POST", url, headers, SignableBody::Bytes(body))?;
    let (instructions, _) = sign(signable, &params)?.into_parts();
    let mut request = http::Request::post(url).body(())?;
    instructions.apply_to_request_http1x(&mut request);
    Ok(std::mem::take(request.headers_mut()))
}

/// Signs with the process's credentials, found as every AWS tool finds them.
#[derive(Default)]
pub struct Signer(Aws);

impl Signer {
    /// Returns the headers that sign a POST of `body` to `url`.
    ///
    /// # Errors
    /// If there are no credentials, or the URL is malformed.
    pub async fn headers(
        &self,
        service: &str,
        region: &str,
        url: &str,
        body: &[u8],
    ) -> Result<HeaderMap, Failed> {
        let config = self.0.config().await?;
        let provider = config.credentials_provider();
        let provider = provider.ok_or("no source of credentials")?;
        let credentials = provider.provide_credentials().await?;
        signature(&For { service, region }, url, &[], body, credentials)
    }
}
