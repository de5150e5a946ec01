//! Owns the access to AWS: the SDK's settings, over the HTTP client and the TLS library that the program
//! already has. A second stack, the SDK's own, would add 4 MB to the package and 30 to 50 ms to a cold start.
//!
//! Region, credentials and endpoints are found as in every AWS tool: `AWS_REGION`, `AWS_ENDPOINT_URL`,
//! `AWS_ENDPOINT_URL_SECRETS_MANAGER`, profiles, the function's role. `AWS_CA_BUNDLE` names the certificates
//! to trust instead of the system's.

use std::error::Error as StdError;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use reqwest::{ClientBuilder, redirect};
use tidegate_core::Error;
use tidegate_core::config::{environment, read_file};
use tidegate_core::connect::Trust;
use tokio::sync::OnceCell;

use crate::Failed;

/// The longest time for a call to AWS, including its repetitions.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time for one attempt of a call, which leaves time for a second one.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a connection shows that it lives, and how long one is kept without use: a function that was
/// frozen in between would find it dead.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The SDK's settings, loaded at the first call.
#[derive(Default)]
pub(crate) struct Aws(OnceCell<SdkConfig>);

impl Aws {
    pub(crate) async fn config(&self) -> Result<&SdkConfig, Error> {
        self.0.get_or_try_init(load).await
    }

    /// Returns the process's credentials, found as every AWS tool finds them.
    pub(crate) async fn credentials(&self) -> Result<Credentials, Failed> {
        let provider = self.config().await?.credentials_provider();
        let provider = provider.ok_or("no source of credentials")?;
        Ok(provider.provide_credentials().await?)
    }
}

async fn load() -> Result<SdkConfig, Error> {
    let timeouts = TimeoutConfig::builder()
        .operation_timeout(CALL_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .build();
    let loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(OverReqwest {
            client: client_of_aws().await?,
            limit: None,
        })
        .timeout_config(timeouts)
        .retry_config(RetryConfig::standard().with_initial_backoff(Duration::from_millis(200)));
    Ok(loader.load().await)
}

pub(crate) async fn client_of_aws() -> Result<reqwest::Client, Error> {
    let trust = match environment("AWS_CA_BUNDLE") {
        None => Trust::system(),
        Some(path) => Trust::only(&read_file("AWS_CA_BUNDLE", &path)?, &"AWS_CA_BUNDLE")?,
    };
    http_client(&trust, |builder| builder).await
}

/// Returns a client that follows no redirects, and trusts these certificates.
///
/// # Errors
/// [`Error::Config`] when it cannot be made.
pub async fn http_client(
    trust: &Trust,
    with: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<reqwest::Client, Error> {
    let builder = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(ATTEMPT_TIMEOUT)
        .tcp_keepalive(KEEP_ALIVE)
        .pool_idle_timeout(KEEP_ALIVE)
        .tls_backend_preconfigured(trust.connector().await?);
    let built = with(builder).build();
    built.map_err(|error| Error::Config(format!("HTTP client: {error}")))
}

/// Sends the SDK's calls over reqwest. All of them are small, so bodies are read as a whole.
#[derive(Debug, Clone)]
struct OverReqwest {
    client: reqwest::Client,
    limit: Option<Duration>,
}

impl HttpClient for OverReqwest {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let limits = [settings.connect_timeout(), settings.read_timeout()];
        SharedHttpConnector::new(Self {
            client: self.client.clone(),
            limit: settings
                .read_timeout()
                .map(|_| limits.into_iter().flatten().sum()),
        })
    }
}

impl HttpConnector for OverReqwest {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(send(self.clone(), request))
    }
}

async fn send(over: OverReqwest, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(malformed)?;
    let (parts, body) = request.into_parts();
    let body = body.bytes().ok_or_else(|| malformed("a streamed body"))?;
    let request = http::Request::from_parts(parts, body.to_vec());
    let mut request = reqwest::Request::try_from(request).map_err(malformed)?;
    *request.timeout_mut() = over.limit;
    let response = over.client.execute(request).await.map_err(failed)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = SdkBody::from(response.bytes().await.map_err(failed)?);
    let mut answer = HttpResponse::new(status.as_u16().try_into().map_err(malformed)?, body);
    for (name, value) in &headers {
        let value = value.to_str().map_err(malformed)?;
        answer
            .headers_mut()
            .append(name.as_str().to_owned(), value.to_owned());
    }
    Ok(answer)
}

fn malformed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> ConnectorError {
    ConnectorError::user(error.into())
}

fn failed(error: reqwest::Error) -> ConnectorError {
    if error.is_timeout() {
        ConnectorError::timeout(error.into())
    } else {
        ConnectorError::io(error.into())
    }
}
