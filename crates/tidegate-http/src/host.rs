//! Owns which server a request means, by the name that it has for it.

use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};

/// Returns the name by which a request calls the server, in small letters and with its port; `None` if it
/// has no name, or several.
#[must_use]
pub fn host(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let mut named = headers.get_all(HOST).iter();
    match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok().map(str::to_ascii_lowercase),
        (None, _) => uri
            .authority()
            .map(|authority| authority.as_str().to_ascii_lowercase()),
        _ => None,
    }
}

/// Whether a request names this machine as its server, by `localhost` or a loopback address, with any port. A
/// page of another site cannot send such a request and read the answer, even if its own host name resolves to
/// this machine (DNS rebinding).
#[must_use]
pub fn is_for_this_machine(headers: &HeaderMap, uri: &Uri) -> bool {
    host(headers, uri).is_some_and(|host| is_this_machine(without_port(&host)))
}

/// Whether a name without a port is `localhost` or a loopback address.
#[must_use]
pub fn is_this_machine(name: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
}

/// Removes the port of a host.
#[must_use]
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}
