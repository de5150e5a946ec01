//! Owns signatures on requests that this crate makes of AWS without the SDK's crate for the service.
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html>

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SigningInstructions, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use http::HeaderMap;

use crate::Failed;
use crate::sdk::Aws;

/// How and for what a request is signed.
pub(crate) struct For<'a> {
    pub service: &'a str,
    pub region: &'a str,
    pub settings: SigningSettings,
    pub now: SystemTime,
}

impl For<'_> {
    pub(crate) fn sign(
        self,
        credentials: Credentials,
        request: SignableRequest<'_>,
    ) -> Result<SigningInstructions, Failed> {
        let identity = credentials.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(self.region)
            .name(self.service)
            .time(self.now)
            .settings(self.settings)
            .build()?
            .into();
        Ok(sign(request, &params)?.into_parts().0)
    }
}

/// Signs with the process's credentials, found as every AWS tool finds them.
#[derive(Default)]
pub struct Signer(pub(crate) Aws);

impl Signer {
    /// Returns the headers that sign a request with `body` to `url`, which has these headers already.
    ///
    /// # Errors
    /// If there are no credentials, or the URL is malformed.
    pub async fn headers(
        &self,
        service: &str,
        region: &str,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<HeaderMap, Failed> {
        let to = For {
            service,
            region,
            settings: SigningSettings::default(),
            now: SystemTime::now(),
        };
        let credentials = self.0.credentials().await?;
        signature(to, method, url, headers, body, credentials)
    }
}

pub(crate) fn signature(
    to: For<'_>,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    credentials: Credentials,
) -> Result<HeaderMap, Failed> {
    let headers = headers.iter().copied();
    let signable = SignableRequest::new(method, url, headers, SignableBody::Bytes(body))?;
    let mut request = http::Request::builder().uri(url).body(())?;
    to.sign(credentials, signable)?
        .apply_to_request_http1x(&mut request);
    Ok(std::mem::take(request.headers_mut()))
}
