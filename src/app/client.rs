//! Owns calls to other systems over HTTP: where they are, how long they may take, what their answer
//! means for the event. It knows no system's routes.
//!
//! The surprise: a message about a failed call names the service and the status and nothing else. A
//! service may answer with what it was sent, and what it was sent may be about a person.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use tidegate::connect::Trust;
use tidegate::{Error, HandlerError, trace};

/// No call takes longer, its answer included, unless its caller says so.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Made at the first call: building it reads the system's certificates, which a run without calls
/// should not pay for. Clones share one.
#[derive(Debug, Clone, Default)]
pub struct HttpClient(Arc<OnceCell<Client>>);

impl HttpClient {
    async fn get(&self) -> Result<&Client, Error> {
        let build = || async {
            // A redirected POST would arrive as a GET; better to see it as the failure it is.
            let builder = Client::builder().redirect(redirect::Policy::none());
            let tls = Trust::system().connector().await?;
            let client = builder.tls_backend_preconfigured(tls).build();
            client.map_err(|error| Error::Config(format!("HTTP client: {error}")))
        };
        self.0.get_or_try_init(build).await
    }
}

/// One system that handlers talk to.
#[derive(Debug, Clone)]
pub struct HttpService {
    name: &'static str,
    variable: &'static str,
    /// None while the variable is not set: its handlers then retry, everything else works.
    base: Option<Url>,
    http: HttpClient,
}

impl HttpService {
    /// A service of this name whose base URL stands in `variable`, read with `setting`. An empty
    /// value counts as unset.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_setting(
        name: &'static str,
        variable: &'static str,
        setting: impl Fn(&str) -> Option<String>,
        http: HttpClient,
    ) -> Result<Self, Error> {
        let base = match setting(variable).filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(base_url(&text).ok_or_else(|| {
                // The value is not shown: it may hold a password.
                Error::Config(format!(
                    "{variable}: must be an http:// or https:// URL without query or fragment"
                ))
            })?),
        };
        Ok(Self {
            name,
            variable,
            base,
            http,
        })
    }

    /// Whether there is a base URL.
    pub(super) fn is_configured(&self) -> bool {
        self.base.is_some()
    }

    /// Sends `body` as JSON to `path` below the base URL. `key` is the same for every repetition of
    /// this call and no other.
    ///
    /// # Errors
    /// A retry, code `<service>_unavailable`, when the service cannot be reached, is too slow, answers
    /// 408, 425, 429 or 5xx, or makes no sense; a rejection, code `<service>_refused`, for any other
    /// 4xx: it says that what the event refers to is missing or wrong, and that stays so.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<T, HandlerError> {
        self.post_within(path, key, body, CALL_TIMEOUT).await
    }

    /// As [`HttpService::post`], to a service that may take this long, its answer included.
    ///
    /// # Errors
    /// As [`HttpService::post`].
    pub async fn post_within<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, HandlerError> {
        self.call(path, key, body, limit, |status| status.is_success())
            .await
    }

    /// As [`HttpService::post`], to a service that answers 409 with what is there already: that is a
    /// success too.
    ///
    /// # Errors
    /// As [`HttpService::post`], but for 409.
    pub async fn post_or_find<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<T, HandlerError> {
        self.call(path, key, body, CALL_TIMEOUT, |status| {
            status.is_success() || status == StatusCode::CONFLICT
        })
        .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
        limit: Duration,
        is_answer: impl Fn(StatusCode) -> bool,
    ) -> Result<T, HandlerError> {
        let mut request = self
            .request(path, limit)
            .await?
            .header("Idempotency-Key", key)
            .json(body);
        if let Some(position) = trace::current() {
            request = request.header("traceparent", position.to_string());
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.unavailable(reason(&error, limit)))?;
        match response.status() {
            status if is_answer(status) => self.decode(response, limit).await,
            status if is_refusal(status) => {
                let message = format!("{} answered {}", self.name, status.as_u16());
                Err(HandlerError::reject(
                    format!("{}_refused", self.name),
                    message,
                ))
            }
            status => Err(self.unavailable(format_args!("answered {}", status.as_u16()))),
        }
    }

    async fn request(&self, path: &str, limit: Duration) -> Result<RequestBuilder, HandlerError> {
        let base = self.base.as_ref().ok_or_else(|| {
            self.unavailable(format_args!(
                "is not configured: set {} to its base URL",
                self.variable
            ))
        })?;
        let url = base
            .join(path)
            .map_err(|_| self.unavailable("has no such path"))?;
        let client = self
            .http
            .get()
            .await
            .map_err(|error| self.unavailable(format_args!("cannot be called: {error}")))?;
        Ok(client.post(url).timeout(limit))
    }

    async fn decode<T: DeserializeOwned>(
        &self,
        response: Response,
        limit: Duration,
    ) -> Result<T, HandlerError> {
        response.json().await.map_err(|error| {
            if error.is_decode() {
                // The decoder's own message may quote the answer.
                self.unavailable("gave an answer that does not decode")
            } else {
                self.unavailable(reason(&error, limit))
            }
        })
    }

    fn unavailable(&self, reason: impl Display) -> HandlerError {
        let Self { name, .. } = self;
        HandlerError::retry(format!("{name}_unavailable"), format!("{name} {reason}"))
    }
}

/// With a slash at its end, so that a path is put behind it and not in the place of its last part.
fn base_url(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok()?;
    let plain = url.query().is_none() && url.fragment().is_none() && url.has_host();
    if !plain || !matches!(url.scheme(), "http" | "https") {
        return None;
    }
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Some(url)
}

/// Whether the fault lies in the request, so that sending it again cannot help.
fn is_refusal(status: StatusCode) -> bool {
    let passing = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_client_error() && !passing.contains(&status)
}

/// Why a call failed, with its causes, without the URL.
fn reason(error: &reqwest::Error, limit: Duration) -> String {
    if error.is_timeout() {
        return format!("gave no answer within {limit:.1?}");
    }
    let mut text = if error.is_connect() {
        "cannot be reached"
    } else {
        "broke the call off"
    }
    .to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(url: Option<&str>) -> Result<HttpService, Error> {
        let url = url.map(ToOwned::to_owned);
        HttpService::from_setting(
            "archive",
            "ARCHIVE_URL",
            |_| url.clone(),
            HttpClient::default(),
        )
    }

    #[test]
    fn a_malformed_url_is_a_configuration_error_that_names_the_variable_and_hides_the_value() {
        for bad in [
            "archive",
            "ftp://host",
            "http://",
            "http://user:secret@host?x=secret",
            "https://host#secret",
        ] {
            let error = service(Some(bad)).expect_err(bad).to_string();
            assert!(
                error.contains("ARCHIVE_URL") && error.contains("must be"),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn paths_go_below_the_base_url() {
        for base in ["http://host/api", "http://host/api/"] {
            let url = service(Some(base))
                .unwrap()
                .base
                .unwrap()
                .join("documents")
                .unwrap();
            assert_eq!(url.as_str(), "http://host/api/documents");
        }
    }

    #[tokio::test]
    async fn a_service_without_a_url_asks_for_a_retry_and_names_the_variable() {
        for unset in [None, Some("")] {
            let service = service(unset).unwrap();
            let error = service
                .post::<()>("documents", "key", &())
                .await
                .expect_err("there is no URL")
                .to_string();
            assert!(
                error.starts_with("retry: archive_unavailable: ")
                    && error.contains("set ARCHIVE_URL"),
                "{error}"
            );
        }
    }

    #[test]
    fn only_faults_of_the_request_are_final() {
        let refusals: Vec<u16> = (100..600)
            .filter(|code| is_refusal(StatusCode::from_u16(*code).unwrap()))
            .collect();
        assert!(
            [400, 401, 404, 410, 422]
                .iter()
                .all(|code| refusals.contains(code))
        );
        assert!(
            refusals
                .iter()
                .all(|code| (400..500).contains(code) && ![408, 425, 429].contains(code))
        );
    }
}
