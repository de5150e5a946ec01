//! A name that a proxy in front has verified. The proxy must prove itself with a secret, because a client
//! that bypasses it could write any header.

use axum::http::{HeaderMap, HeaderName};
use tidegate::Error;

use super::{Identity, Refusal, named, same};

/// The header with the proxy's secret.
const SECRET: &str = "x-tidegate-proxy-secret";

/// The shortest secret that is accepted.
const SHORTEST_SECRET: usize = 32;

pub(super) struct Proxy {
    header: HeaderName,
    secret: String,
}

impl Proxy {
    pub(super) fn new(header: &str, secret: &str) -> Result<Self, Error> {
        let header = header.parse().map_err(|_| {
            Error::Config(format!(
                "--proxy-header: must be the name of a header such as X-Forwarded-User, got {header:?}"
            ))
        })?;
        let secret = secret.trim();
        if secret.len() < SHORTEST_SECRET {
            return Err(Error::Config(format!(
                "--proxy-secret-file: must hold at least {SHORTEST_SECRET} characters, holds {}",
                secret.len()
            )));
        }
        Ok(Self {
            header,
            secret: secret.to_owned(),
        })
    }

    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        let mut secrets = headers.get_all(SECRET).iter();
        let (secret, more) = (secrets.next(), secrets.next());
        let given = secret.map_or(&b""[..], |secret| secret.as_bytes());
        if more.is_some() || !same(given, self.secret.as_bytes()) {
            return Err(Refusal::Wrong(
                "this console accepts only requests from its proxy",
            ));
        }
        let mut names = headers.get_all(&self.header).iter();
        let name = names
            .next()
            .map(|name| std::str::from_utf8(name.as_bytes()));
        match (name, names.next()) {
            (Some(Ok(name)), None) => named(name),
            _ => Err(Refusal::Unknown("the proxy has not sent a user name")),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const KNOWN: &str = "0123456789abcdef0123456789abcdef";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_the_proxy_says_who_somebody_is() {
        let proxy = Proxy::new("X-User", KNOWN).unwrap();
        let user = ("x-user", "ada");
        assert_eq!(
            proxy
                .identify(&headers(&[user, (SECRET, KNOWN)]))
                .unwrap()
                .name,
            "ada"
        );
        for wrong in [
            &[user][..],
            &[user, (SECRET, "")],
            &[user, (SECRET, "0123456789abcdef0123456789abcdeF")],
            &[user, (SECRET, KNOWN), (SECRET, KNOWN)],
            &[(SECRET, KNOWN)],
            &[user, ("x-user", "eve"), (SECRET, KNOWN)],
        ] {
            assert!(proxy.identify(&headers(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_short_secret_and_an_odd_header_are_refused_by_name() {
        let error = Proxy::new("X-User", "short").err().unwrap().to_string();
        assert!(
            error.contains("--proxy-secret-file") && error.contains("32"),
            "{error}"
        );
        assert!(Proxy::new("X User", KNOWN).is_err());
    }
}
