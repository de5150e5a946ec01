//! Checks every request: the host name, the person, the rate, and that a change comes from a page of the
//! console.
//!
//! Forged requests are detected without state, as in Go's `http.CrossOriginProtection`. Browsers say in
//! `Sec-Fetch-Site` where a request comes from, older ones at least in `Origin`. A change with neither is
//! refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, HOST, ORIGIN, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_http::{FairQuota, host, is_this_machine, without_port};
use tracing::Span;

use crate::page;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::shared::ConsoleState;
use crate::who::{Given, Identity, Refusal};

/// The rate limit of one person: requests per second, and the size of a burst.
const PER_SECOND: f64 = 20.0;
const AT_ONCE: f64 = 120.0;

/// How long a busy console asks clients to wait, in seconds: as long as the database may take for a statement
/// of a page.
const BUSY_FOR_S: u64 = 5;

/// The most people whose rate is tracked. With one more, all begin anew.
const MOST_CALLERS: usize = 10_000;

/// Limits the rate of each person.
#[derive(Default)]
pub(crate) struct Pace(Mutex<BTreeMap<String, (Instant, f64)>>);

impl Pace {
    /// Takes one request out of the person's allowance, if any is left.
    fn allows(&self, caller: &str) -> bool {
        let mut callers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if callers.len() >= MOST_CALLERS && !callers.contains_key(caller) {
            callers.clear();
        }
        let (at, left) = callers.entry(caller.to_owned()).or_insert((now, AT_ONCE));
        *left = (*left + at.elapsed().as_secs_f64() * PER_SECOND).min(AT_ONCE);
        *at = now;
        let allows = *left >= 1.0;
        if allows {
            *left -= 1.0;
        }
        allows
    }
}

/// The host name under which AWS has published this function. AWS routes no other name to the function, so a
/// request for this name cannot be an attempt at DNS rebinding.
#[derive(Clone)]
pub(crate) struct FunctionHost(pub String);

/// What the checks of a request need.
#[derive(Clone)]
pub(crate) struct Guard {
    pub shared: Arc<ConsoleState>,
    pub pace: Arc<Pace>,
    /// The places for requests of all people together.
    pub places: FairQuota<()>,
    /// The places for requests of each person.
    pub people: FairQuota<String>,
}

/// Passes on the requests of known people, with the person's identity. Strangers take no place.
pub(crate) async fn admit(
    State(guard): State<Guard>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let identity = admitted(&guard, &parts)?;
    let share = guard.people.take(identity.name.clone());
    let _share = share.ok_or_else(|| Problem::too_often(1))?;
    let _place = guard.places.take(()).ok_or_else(|| {
        let text = "Too many requests at once. Try again.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too busy", text)
    })?;
    parts.extensions.insert(identity);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

fn given(request: &Parts) -> Option<Given> {
    let given = request.extensions.get::<Given>().cloned();
    let layer = || request.extensions.get::<Identity>().cloned();
    given.or_else(|| layer().map(Given::Layer))
}

fn admitted(guard: &Guard, parts: &Parts) -> Result<Identity, Problem> {
    let settings = &guard.shared.settings;
    if settings.behind_tls && !used_tls(&parts.headers) {
        return Err(Problem::refused(&Refusal::NotPrivate));
    }
    let given = given(parts);
    let identified = settings.auth.identify(&parts.headers, given.as_ref());
    let identity = identified.map_err(|refusal| {
        guard.shared.refusals.note(&parts.extensions);
        Problem::refused(&refusal)
    })?;
    Span::current().record("person", &*identity.name);
    if !guard.pace.allows(&identity.name) {
        return Err(Problem::too_often(1));
    }
    if !is_safe(&parts.method) {
        if !is_our_own(&parts.headers) {
            let text = "The request did not come from a page of this console.";
            return Err(Problem::forbidden(text));
        }
        if !settings.acting.allows(&identity) {
            return Err(Problem::forbidden("You have read-only access."));
        }
    }
    Ok(identity)
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn used_tls(headers: &HeaderMap) -> bool {
    let scheme = headers.get("x-forwarded-proto");
    scheme.is_some_and(|scheme| scheme == "https")
}

/// Whether the request comes from a page of the console, or from a person who typed the address.
fn is_our_own(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let (Some(origin), Some(host)) = (text(ORIGIN), text(HOST)) else {
        return false;
    };
    let origin = origin.split_once("://");
    origin.is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
}

/// Answers 421 to requests for unknown host names. This protects against DNS rebinding.
pub(crate) async fn by_name(
    State(shared): State<Arc<ConsoleState>>,
    request: Request,
    next: Next,
) -> Response {
    let published = request.extensions().get::<FunctionHost>();
    let is_ours = |host: &str| {
        answers_to(&shared.settings, host)
            || published.is_some_and(|FunctionHost(name)| name.eq_ignore_ascii_case(host))
    };
    let host = host(request.headers(), request.uri());
    if host.is_some_and(|host| is_ours(&host)) {
        return next.run(request).await;
    }
    let text = "This console does not answer to this host name. Allow it with --host.";
    Problem::new(StatusCode::MISDIRECTED_REQUEST, "Wrong host name", text).into_response()
}

fn answers_to(settings: &Settings, host: &str) -> bool {
    let name = without_port(host);
    let is = |known: &String| [host, name].iter().any(|it| known.eq_ignore_ascii_case(it));
    is_this_machine(name) || settings.hosts.iter().any(is)
}

/// Puts the page of a problem in place of an error.
pub(crate) async fn explain(
    State(shared): State<Arc<ConsoleState>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let known = response.extensions_mut().remove::<Problem>();
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, BUSY_FOR_S.into());
    }
    let problem = match (known, response.status()) {
        (Some(problem), _) => problem,
        (None, StatusCode::NOT_FOUND) => Problem::not_found(),
        (None, status) if status.is_client_error() || status.is_server_error() => Problem::new(
            status,
            "This request cannot be answered",
            status.to_string(),
        ),
        _ => return response,
    };
    let (mut parts, _) = response.into_parts();
    let (page, body) = page::of_problem(&shared.settings, &problem)
        .into_response()
        .into_parts();
    parts.headers.extend(page.headers);
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue, Uri};

    use super::*;
    use crate::who::Auth;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_our_own_pages_may_act() {
        let host = ("host", "ops.example:8081");
        for (given, ours) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    host,
                    ("origin", "https://ops.example:8081"),
                ],
                false,
            ),
            (&[host, ("origin", "https://ops.example:8081")], true),
            (&[host, ("origin", "https://evil.example")], false),
            (&[host, ("origin", "null")], false),
            (&[host], false),
            (&[], false),
        ] {
            assert_eq!(is_our_own(&headers(given)), ours, "{given:?}");
        }
    }

    #[test]
    fn a_console_answers_to_its_names_alone() {
        let mut settings = Settings::new(Auth::given());
        settings.hosts = ["Ops.example", "other.example:9000"]
            .map(str::to_owned)
            .into();
        for known in [
            "localhost:1",
            "127.0.0.1",
            "[::1]:8081",
            "ops.example",
            "ops.example:8443",
            "other.example:9000",
        ] {
            assert!(answers_to(&settings, known), "{known}");
        }
        for unknown in [
            "evil.example",
            "other.example",
            "localhost.evil.example",
            "ops.example.evil:80",
            "",
        ] {
            assert!(!answers_to(&settings, unknown), "{unknown}");
        }
        let two = headers(&[("host", "localhost")]);
        assert_eq!(
            host(&two, &Uri::from_static("/")).as_deref(),
            Some("localhost")
        );
    }

    #[test]
    fn who_asks_too_often_waits() {
        let pace = Pace::default();
        let answered = (0..1000).filter(|_| pace.allows("ada")).count();
        assert!((120..1000).contains(&answered), "{answered}");
        assert!(pace.allows("bob"));
    }
}
