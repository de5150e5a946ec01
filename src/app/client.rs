//! Owns HTTP calls to other systems: their URLs, how long a call may take, and what each answer means for the
//! event. It knows no routes of any system.
//!
//! A refusal is an answer about this one request: it costs the event an attempt. Every other failure is
//! caused by the service or our configuration, and costs none. A refusal is final at once only if judging
//! requests is what the service does. Any other service that refuses a request today, because of a fault of
//! its own, may take it tomorrow.
//!
//! A message about a failed call contains only the name of the service and the status. A service may echo the
//! request in its answer, and the request may be about a person.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Identity, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate::config::is_loopback;
use tidegate::connect::Trust;
use tidegate::{Error, HandlerError, Lookup, trace};
use tokio::sync::OnceCell;

use super::credentials::Credentials;

/// Time limit of a call, including its answer, unless the caller sets another one.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an answer, in bytes. Answers are ids and verdicts, and all answers in progress are in
/// memory at once.
const MOST_ANSWER: usize = 1 << 20;

/// The setting that lists the services whose base URL may be `http://` to another machine.
const OVER_HTTP: &str = "SERVICES_OVER_HTTP";

/// Shared by its clones, and created at the first call. Creating it reads the system's certificates, and a
/// run without calls should not pay for that.
#[derive(Debug, Clone, Default)]
pub struct HttpClient(Arc<OnceCell<Client>>);

impl HttpClient {
    /// Creates the client, which follows no redirects, if there is none yet.
    ///
    /// # Errors
    /// [`Error::Config`] if TLS cannot be set up.
    async fn get(&self, certificate: Option<&Identity>) -> Result<&Client, Error> {
        let build = || async {
            // A redirect would turn a POST into a GET, and send our token to a host that nobody configured. A
            // redirect is therefore a failure.
            let builder = Client::builder().redirect(redirect::Policy::none());
            let client = match certificate {
                None => {
                    let tls = Trust::system().connector().await?;
                    builder.tls_backend_preconfigured(tls).build()
                }
                Some(certificate) => builder.identity(certificate.clone()).build(),
            };
            client.map_err(|error| Error::Config(format!("HTTP client: {error}")))
        };
        self.0.get_or_try_init(build).await
    }
}

/// One system that handlers call.
#[derive(Debug, Clone)]
pub struct HttpService {
    name: &'static str,
    variable: &'static str,
    /// None if the variable is not set. Events that need this service then wait, and everything else works.
    base: Option<Url>,
    credentials: Credentials,
    http: HttpClient,
    /// Whether 409 comes with the object that already exists, and counts as success.
    pub(super) finds: bool,
    /// Whether it judges requests, as the signature service does: a refusal is its answer then, and final.
    pub(super) judges: bool,
}

impl HttpService {
    /// Creates a service with this name. `variable`, such as `ARCHIVE_URL`, holds its base URL. Variables
    /// with the same prefix hold its credentials: `ARCHIVE_AUTH_SECRET_ID` or `ARCHIVE_AUTH_FILE`,
    /// `ARCHIVE_AUTH_HEADER`, `ARCHIVE_CLIENT_CERT_FILE`. Anyone on the network path can read an `http://`
    /// connection to another machine. It is allowed only for the services listed in `SERVICES_OVER_HTTP`,
    /// separated by commas.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_setting(
        name: &'static str,
        variable: &'static str,
        lookup: Lookup<'_>,
        http: &HttpClient,
    ) -> Result<Self, Error> {
        let prefix = variable.trim_end_matches("_URL");
        let over_http = lookup(OVER_HTTP).unwrap_or_default();
        let over_http = over_http.split(',').any(|listed| listed.trim() == name);
        let base = lookup(variable).map(|text| {
            let url = base_url(prefix, &text)?;
            if url.scheme() == "https" || over_http || is_loopback(url.host_str().unwrap_or_default()) {
                return Ok(url);
            }
            Err(format!(
                "must be an https:// URL, because the host is not this machine; {OVER_HTTP}={name} allows http://, \
                 which anyone on the network path can read"
            ))
        });
        let base = base.transpose();
        let credentials = Credentials::from_settings(prefix, lookup)?;
        // A certificate is for this service only, which then gets a client of its own.
        let shared = credentials.certificate().is_none().then(|| http.clone());
        Ok(Self {
            name,
            variable,
            base: base.map_err(|why| Error::Config(format!("{variable}: {why}")))?,
            credentials,
            http: shared.unwrap_or_default(),
            finds: false,
            judges: false,
        })
    }

    /// Sends `body` as JSON to `path` below the base URL, and returns the answer. `key` is the same for every
    /// repetition of this call, and for no other call.
    ///
    /// # Errors
    /// A retry with the code `<service>_refused` for 400, 409, 410 and 422, which are about this request. It
    /// is a rejection if the service judges requests. Everything else is [`HandlerError::unavailable`], with
    /// the code `credentials` for 401, 403 and 407. The code is `<service>_unavailable` if the service cannot
    /// be reached, is too slow, returns an invalid answer, or returns any other status: 5xx, or a 4xx caused
    /// by our configuration. This includes 404: no call names an object by its path, so the base URL is
    /// wrong. 429 is [`HandlerError::busy`], with the same code.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<T, HandlerError> {
        self.post_within(path, key, body, CALL_TIMEOUT).await
    }

    /// Like [`HttpService::post`], with a time limit of its own that includes the answer.
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
        let answered = async {
            let response = self.call(path, key, body).await?;
            let status = response.status();
            let decoded = self.decode(response).await;
            // A conflict without the object is a refusal.
            decoded.map_err(|error| match status {
                StatusCode::CONFLICT => self.failure(status, &HeaderMap::new()),
                _ => error,
            })
        };
        self.within(limit, answered).await
    }

    /// Like [`HttpService::post`], for a call whose answer says nothing more than its status: the body is not
    /// read.
    ///
    /// # Errors
    /// As [`HttpService::post`].
    pub async fn tell(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<(), HandlerError> {
        let answered = self.within(CALL_TIMEOUT, self.call(path, key, body));
        answered.await.map(drop)
    }

    async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, HandlerError>>,
    ) -> Result<T, HandlerError> {
        let answer = tokio::time::timeout(limit, answer).await;
        answer.unwrap_or_else(|_| {
            Err(self.unavailable(format_args!("gave no answer within {limit:.1?}")))
        })
    }

    async fn call(
        &self,
        path: &str,
        key: &str,
        body: &impl Serialize,
    ) -> Result<Response, HandlerError> {
        let mut request = self.request(path).await?.header("Idempotency-Key", key);
        if let Some(position) = trace::current() {
            request = request.header("traceparent", position.to_string());
        }
        let response = self.send(request.json(body)).await?;
        let status = response.status();
        if status.is_success() || self.finds && status == StatusCode::CONFLICT {
            return Ok(response);
        }
        Err(self.failure(status, response.headers()))
    }

    /// Converts an unsuccessful answer to what it means for the event.
    fn failure(&self, status: StatusCode, headers: &HeaderMap) -> HandlerError {
        let (name, said) = (self.name, format!("answered {}", status.as_u16()));
        let why = format!("{name} {said}");
        let error = match status.as_u16() {
            400 | 409 | 410 | 422 if self.judges => {
                HandlerError::reject(format!("{name}_refused"), why)
            }
            400 | 409 | 410 | 422 => HandlerError::retry(format!("{name}_refused"), why).answered(),
            _ if is_about_credentials(status) => {
                let why = format!("{why}: it does not accept our credentials");
                HandlerError::unavailable("credentials", why)
            }
            429 => HandlerError::busy(format!("{name}_unavailable"), why),
            _ => self.unavailable(said),
        };
        let text = |name| headers.get(name)?.to_str().ok();
        error.after_header(text(RETRY_AFTER), text(DATE))
    }

    /// Sends a request with our credentials. If they are refused and have changed since, it sends the request
    /// once more.
    async fn send(&self, request: RequestBuilder) -> Result<Response, HandlerError> {
        let Some((name, sent)) = self.header(None).await? else {
            return self.answer(request).await;
        };
        let again = request.try_clone();
        let response = self.answer(request.header(name, &sent)).await?;
        if !is_about_credentials(response.status()) {
            return Ok(response);
        }
        match again.zip(self.header(Some(&sent)).await?) {
            None => Ok(response),
            Some((again, (name, value))) => self.answer(again.header(name, value)).await,
        }
    }

    async fn header(
        &self,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<(HeaderName, HeaderValue)>, HandlerError> {
        let header = self.credentials.header(refused).await;
        header.map_err(|error| self.uncallable(&error))
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response, HandlerError> {
        let sent = request.send().await;
        sent.map_err(|error| self.unavailable(reason(&error)))
    }

    async fn request(&self, path: &str) -> Result<RequestBuilder, HandlerError> {
        let Self { variable, base, .. } = self;
        let unset = format!("is not configured: set {variable} to its base URL");
        let base = base.as_ref().ok_or_else(|| self.unavailable(unset))?;
        let url = base.join(path);
        let url = url.map_err(|_| self.unavailable("has no such path"))?;
        let client = self.http.get(self.credentials.certificate()).await;
        Ok(client.map_err(|error| self.uncallable(&error))?.post(url))
    }

    async fn decode<T: DeserializeOwned>(&self, mut response: Response) -> Result<T, HandlerError> {
        let broken = |error: reqwest::Error| self.unavailable(reason(&error));
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(broken)? {
            if body.len() + part.len() > MOST_ANSWER {
                let why = format_args!("gave an answer of more than {MOST_ANSWER} bytes");
                return Err(self.unavailable(why));
            }
            body.extend_from_slice(&part);
        }
        // The decoder's own message may quote the answer.
        let decoded = serde_json::from_slice(&body);
        decoded.map_err(|_| self.unavailable("gave an answer that does not decode"))
    }

    fn uncallable(&self, error: &Error) -> HandlerError {
        self.unavailable(format_args!("cannot be called: {error}"))
    }

    fn unavailable(&self, reason: impl Display) -> HandlerError {
        let Self { name, .. } = self;
        HandlerError::unavailable(format!("{name}_unavailable"), format!("{name} {reason}"))
    }
}

/// Parses a base URL and ends it with a slash: a path is then appended, and does not replace the last
/// segment. An error does not show the URL, because it may contain a password.
fn base_url(prefix: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(Url::has_host);
    let is_plain = |url: &Url| url.query().is_none() && url.fragment().is_none();
    let url = url.filter(|url| is_plain(url) && matches!(url.scheme(), "http" | "https"));
    let Some(mut url) = url else {
        return Err("must be an http:// or https:// URL without query or fragment".to_owned());
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!(
            "must be a URL without user and password, which settings and logs would show: \
             {prefix}_AUTH_SECRET_ID or {prefix}_AUTH_FILE says where a token is kept"
        ));
    }
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

/// Whether the service does not accept us, whatever we send. It is then not called again at once.
fn is_about_credentials(status: StatusCode) -> bool {
    [401, 403, 407].contains(&status.as_u16())
}

/// Describes why a call failed, with its causes but without the URL.
fn reason(error: &reqwest::Error) -> String {
    let text = if error.is_connect() {
        "cannot be reached"
    } else {
        "closed the connection"
    };
    let mut text = text.to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn service(url: Option<&str>) -> Result<HttpService, Error> {
        let url = url.map(ToOwned::to_owned);
        HttpService::from_setting(
            "archive",
            "ARCHIVE_URL",
            &|name| url.clone().filter(|_| name == "ARCHIVE_URL"),
            &HttpClient::default(),
        )
    }

    #[test]
    fn a_malformed_url_is_a_configuration_error_that_names_the_variable_and_hides_the_value() {
        for bad in [
            "archive",
            "ftp://host",
            "http://",
            "http://user:secret@host?x=secret",
            "http://user:secret@host",
            "https://secret@host/api",
            "https://:secret@host",
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
    fn a_url_with_a_password_is_told_where_it_belongs() {
        let error = service(Some("https://user:secret@host")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("ARCHIVE_URL") && error.contains("ARCHIVE_AUTH_SECRET_ID"),
            "{error}"
        );
    }

    #[test]
    fn paths_go_below_the_base_url() {
        for base in ["https://host/api", "https://host/api/"] {
            let url = service(Some(base))
                .unwrap()
                .base
                .unwrap()
                .join("documents")
                .unwrap();
            assert_eq!(url.as_str(), "https://host/api/documents");
        }
    }

    fn over_http(url: &str, listed: &str) -> Result<HttpService, Error> {
        let set = |name: &str| match name {
            "ARCHIVE_URL" => Some(url.to_owned()),
            OVER_HTTP => Some(listed.to_owned()),
            _ => None,
        };
        HttpService::from_setting("archive", "ARCHIVE_URL", &set, &HttpClient::default())
    }

    #[test]
    fn plaintext_to_another_machine_must_be_asked_for() {
        let elsewhere = [
            "http://archive.example.org",
            "HTTP://10.0.0.1:8080",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
            "http://[2001:db8::1]/api",
            "http://0.0.0.0",
        ];
        for url in elsewhere {
            for listed in ["", "cases", "archive2", "ARCHIVE_URL"] {
                let error = over_http(url, listed).expect_err(url).to_string();
                let named = [
                    "ARCHIVE_URL: must be",
                    "https://",
                    "SERVICES_OVER_HTTP=archive",
                ];
                assert!(named.iter().all(|part| error.contains(part)), "{error}");
                assert!(!error.contains("example.org"), "{error}");
            }
            for listed in ["archive", "cases, archive ,sms"] {
                over_http(url, listed).unwrap();
            }
        }
        let here = ["localhost:80", "127.0.0.1", "127.1.2.3:8080", "[::1]:8080"];
        let here = here.map(|host| format!("http://{host}/api"));
        for url in here.iter().map(String::as_str).chain(["https://host"]) {
            over_http(url, "").unwrap();
        }
    }

    #[tokio::test]
    async fn a_redirect_takes_our_token_nowhere() {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "canary").unwrap();
        let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        elsewhere.set_nonblocking(true).unwrap();
        let target = elsewhere.local_addr().unwrap();
        for status in [301, 302, 303, 307, 308] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\nnull") {
                    assert!(stream.read_buf(&mut asked).await.unwrap() > 0);
                }
                let told = format!(
                    "HTTP/1.1 {status} Moved\r\nlocation: http://{target}/documents\r\ncontent-length: 0\r\n\r\n"
                );
                stream.write_all(told.as_bytes()).await.unwrap();
                String::from_utf8(asked).unwrap()
            });
            let set = |name: &str| match name {
                "ARCHIVE_URL" => Some(url.clone()),
                "ARCHIVE_AUTH_FILE" => token.path().to_str().map(ToOwned::to_owned),
                _ => None,
            };
            let service =
                HttpService::from_setting("archive", "ARCHIVE_URL", &set, &HttpClient::default())
                    .unwrap();
            let asked = service.tell("documents", "key", &()).await;
            let error = asked.unwrap_err().to_string();
            let told = format!("archive_unavailable: archive answered {status}");
            assert!(error.contains(&told), "{error}");
            assert!(server.await.unwrap().contains("Bearer canary"), "{status}");
            let came = elsewhere.accept().unwrap_err();
            assert_eq!(came.kind(), std::io::ErrorKind::WouldBlock, "{status}");
        }
    }

    #[tokio::test]
    async fn a_service_without_a_url_asks_for_a_retry_and_names_the_variable() {
        let service = service(None).unwrap();
        let asked = service.tell("documents", "key", &()).await;
        let error = asked.expect_err("there is no URL").to_string();
        assert!(
            error.starts_with("retry: archive_unavailable: ") && error.contains("set ARCHIVE_URL"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_answer_without_end_is_given_up_on() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(asked > 0);
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\"";
            stream.write_all(head).await.unwrap();
            let mut sent = 0;
            // More than the client may keep, but not too much for a test.
            while sent < 64 * MOST_ANSWER && stream.write_all(&[b'x'; 4096]).await.is_ok() {
                sent += 4096;
            }
            sent
        });
        let service = service(Some(&url)).unwrap();
        let asked = service.post::<String>("documents", "key", &()).await;
        let error = asked.unwrap_err().to_string();
        assert!(
            error.contains("archive gave an answer of more than"),
            "{error}"
        );
        assert!(server.await.unwrap() < 64 * MOST_ANSWER);
    }

    #[test]
    fn an_answer_about_this_request_costs_an_attempt_and_is_final_only_of_a_judge() {
        let named = [
            ("archive_refused", &[400, 409, 410, 422][..]),
            ("credentials", &[401, 403, 407][..]),
        ];
        let page = include_str!("../../docs/shipped/application.md");
        for (_, codes) in named {
            let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
            let row = format!("\n| {} | ", codes.join(", "));
            assert!(page.contains(&row), "application.md needs {row}");
        }
        let archive = service(None).unwrap();
        let mut judge = archive.clone();
        judge.judges = true;
        for code in 100..=999 {
            let status = StatusCode::from_u16(code).unwrap();
            let expected = named.iter().find(|(_, codes)| codes.contains(&code));
            let expected = expected.map_or("archive_unavailable", |(code, _)| *code);
            let judged = judge.failure(status, &HeaderMap::new()).is_rejection();
            assert_eq!(judged, expected == "archive_refused", "{code}");
            let error = archive.failure(status, &HeaderMap::new());
            assert!(!error.is_rejection(), "{code}");
            let [fault] = error.faults() else {
                panic!("{error}")
            };
            assert_eq!(fault.code, expected, "{code}");
            let message = format!("archive answered {code}");
            assert!(fault.message.starts_with(&message), "{error}");
        }
    }
}
