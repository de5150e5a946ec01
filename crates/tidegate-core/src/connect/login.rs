//! Owns what one attempt to connect needs: the address, the login, and whether to use TLS. It is read from a
//! URL, or combined from a secret and the environment.
//!
//! TLS with a checked certificate and host name is the default for everything but loopback and sockets,
//! whatever the default of the driver that a URL was written for. Plaintext over a network must be requested
//! with `sslmode=disable`.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use postgres_native_tls::MakeTlsConnector;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, Client, Config, NoTls};

use super::CONNECT_TIMEOUT;
use super::tls::Trust;
use crate::config::is_loopback;
use crate::error::{Error, Result, describe};

/// Everything that one attempt to connect needs.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) config: Config,
    /// `None` for plaintext.
    pub(super) trust: Option<Trust>,
}

/// Why one attempt to connect has failed.
pub(super) enum Failure {
    /// The login was refused. Another password may help, and the same one will not.
    Refused(String),
    /// The login may have been refused: a pooler may use one code for a wrong password, an unreachable server
    /// and a busy one.
    Unclear(String),
    /// Another password would not have helped.
    Other(Error),
}

/// What helps if nobody who is trusted has signed the server's certificate.
const UNTRUSTED: &str = "; its authority is not trusted: name it in the secret's ca_pem or in DATABASE_CA_FILE \
     (RDS's are at https://truststore.pki.rds.amazonaws.com)";

/// What `sslmode` may be.
const MODES: &str = "must be verify-full (the default off loopback) or disable";

/// The value of `sslmode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TlsMode {
    /// Not set: plaintext on loopback, TLS elsewhere.
    Default,
    /// `disable`.
    Disabled,
    /// `verify-full`.
    VerifyFull,
}

impl TlsMode {
    /// # Errors
    /// What the value must be.
    pub(super) fn parse(mode: &str) -> Result<Self, String> {
        match mode {
            "disable" => Ok(Self::Disabled),
            "verify-full" => Ok(Self::VerifyFull),
            other => Err(format!("sslmode: {MODES}, got {other:?}")),
        }
    }
}

impl Login {
    /// Parses a `postgres://` URL or a keyword/value string.
    ///
    /// # Errors
    /// [`Error::Config`]. Its text never contains the password.
    pub(super) fn from_url(url: &str, trust: &Trust) -> Result<Self> {
        let refused = |why: &str| Error::Config(format!("DATABASE_URL: {why}"));
        let (config, mode) = parse(url).map_err(|why| refused(&why))?;
        if config.get_hosts().is_empty() {
            return Err(refused("the host is missing"));
        }
        Ok(Self::new(config, mode, trust))
    }

    /// Completes a configuration that names a host.
    pub(super) fn new(mut config: Config, mode: TlsMode, trust: &Trust) -> Self {
        // If one host does not answer, the others still have their share of the time.
        let hosts = u32::try_from(config.get_hosts().len()).unwrap_or(1).max(1);
        config
            .connect_timeout(CONNECT_TIMEOUT / hosts)
            // Notices within seconds, and not after two hours, that a peer has disappeared without closing
            // the connection.
            .keepalives_idle(Duration::from_secs(30))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        let plaintext =
            mode == TlsMode::Disabled || (mode == TlsMode::Default && is_local(&config));
        config.ssl_mode(if plaintext {
            SslMode::Disable
        } else {
            SslMode::Require
        });
        Self {
            config,
            trust: (!plaintext).then(|| trust.clone()),
        }
    }

    /// Prepares what the first connection would have to wait for.
    pub(super) async fn prepare(&self) -> Result<()> {
        if let Some(trust) = &self.trust {
            trust.connector().await?;
        }
        Ok(())
    }

    /// Connects within [`CONNECT_TIMEOUT`]: name look-up, TCP, TLS and login together. The connection takes
    /// `place` with it.
    ///
    /// # Errors
    /// The failure says whether another password might help.
    pub(super) async fn open(
        &self,
        place: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Client, Failure> {
        let opening = tokio::time::timeout(CONNECT_TIMEOUT, self.open_unbounded(place));
        opening.await.unwrap_or_else(|_| {
            let place = self.place();
            Err(Failure::Other(Error::Connect(format!(
                "{place}no answer within {CONNECT_TIMEOUT:?}"
            ))))
        })
    }

    /// Asks the server to cancel what a session is doing.
    pub(super) async fn cancel(&self, token: CancelToken) {
        let cancelling = async {
            let Some(trust) = &self.trust else {
                return token.cancel_query(NoTls).await.ok();
            };
            let connector = MakeTlsConnector::new(trust.connector().await.ok()?);
            token.cancel_query(connector).await.ok()
        };
        let _ = tokio::time::timeout(CONNECT_TIMEOUT, cancelling).await;
    }

    async fn open_unbounded(
        &self,
        place: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Client, Failure> {
        let Some(trust) = &self.trust else {
            let connected = self.config.connect(NoTls).await;
            let (client, connection) = connected.map_err(|error| self.failure(&error))?;
            tokio::spawn(held(connection, place.take()));
            return Ok(client);
        };
        let connector = trust.connector().await.map_err(Failure::Other)?;
        let connected = self.config.connect(MakeTlsConnector::new(connector)).await;
        let (client, connection) = connected.map_err(|error| self.failure(&error))?;
        tokio::spawn(held(connection, place.take()));
        Ok(client)
    }

    fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        let mut text = self.place() + &describe(error);
        let untrusted = ["issuer certificate", "self-signed", "self signed"]; // OpenSSL's words.
        if untrusted.iter().any(|word| text.contains(word)) {
            text += UNTRUSTED;
        }
        let refusals = [
            SqlState::INVALID_PASSWORD,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        ];
        match error.code() {
            Some(code) if refusals.contains(code) => Failure::Refused(text),
            // Pgbouncer uses this code for all its refusals.
            Some(code) if *code == SqlState::PROTOCOL_VIOLATION => Failure::Unclear(text),
            _ => Failure::Other(Error::Connect(text)),
        }
    }

    /// Returns the address, to begin an error with: `host:port: `. Empty if the URL's password contains an
    /// `@` that is not written as `%40`. Then the driver takes the rest of the password for the host and the
    /// database's name.
    fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        let names = hosts.iter().map(String::as_str);
        if names
            .chain(self.config.get_dbname())
            .any(|name| name.contains('@'))
        {
            return String::new();
        }
        // A single port holds for all hosts.
        let ports = self.config.get_ports();
        let port = |n: usize| ports.get(n).or(ports.first()).unwrap_or(&5432);
        let places = hosts.iter().enumerate();
        let places: Vec<String> = places
            .map(|(n, host)| format!("{host}:{}", port(n)))
            .collect();
        places.join(", ") + ": "
    }
}

/// Drives a connection to its end, which its client notices by itself, and then gives back its place.
async fn held<T>(connection: impl Future<Output = T>, place: Option<OwnedSemaphorePermit>) {
    connection.await;
    drop(place);
}

impl Failure {
    /// Converts the failure to an error, and adds what was found out later.
    pub(super) fn with(self, further: &str) -> Error {
        match self {
            Self::Refused(text) => Error::Login(text + further),
            Self::Unclear(text) => Error::Connect(text + further),
            Self::Other(error) => error,
        }
    }
}

/// Parses a URL or a keyword/value string. `sslmode` is read here, because the driver does not know
/// `verify-full`, and does not tell `prefer` from no mode at all.
fn parse(url: &str) -> Result<(Config, TlsMode), String> {
    let must = |why: &str| format!("must be a postgres:// URL or key=value pairs: {why}");
    let (mut mode, mut for_driver) = (TlsMode::Default, url.to_owned());
    let options = options(url);
    for (name, place) in options.iter().rev() {
        match *name {
            "sslmode" => {
                let written = TlsMode::parse(&url[place.clone()].replace('\\', ""))?;
                // The last one counts.
                if mode == TlsMode::Default {
                    mode = written;
                }
                for_driver.replace_range(place.clone(), "prefer");
            }
            "sslrootcert" => {
                return Err(
                    "must not have sslrootcert: name the file in DATABASE_CA_FILE".to_owned(),
                );
            }
            name if FOREIGN.contains(&name) => {
                return Err(must(&format!("unknown option `{name}`")));
            }
            _ => {}
        }
    }
    let config = for_driver.parse::<Config>().map_err(|error| {
        // The driver names an unknown option, which may be a part of a password: what stands after a space,
        // in a password without quotes.
        if options.iter().all(|(name, _)| is_known(name)) {
            must(&describe(&error))
        } else {
            must("unknown option")
        }
    })?;
    // A mode that only the driver has found, because its name is written with %.
    if config.get_ssl_mode() != SslMode::Prefer {
        return Err(format!("sslmode: {MODES}"));
    }
    Ok((config, mode))
}

/// Returns the options in a URL or a keyword/value string: their names, and where their values stand.
fn options(url: &str) -> Vec<(&str, Range<usize>)> {
    let mut schemes = ["postgres://", "postgresql://"].iter();
    let login = schemes.find_map(|scheme| url.strip_prefix(scheme));
    // To the driver, a login ends at the first `@`.
    let place = login.map(|login| login.split_once('@').map_or(login, |(_, place)| place));
    let query = place.map(|place| place.split_once('?').map_or("", |(_, query)| query));
    let (mut rest, mut options) = (query.unwrap_or(url), Vec::new());
    while let Some((name, mut value)) = rest.split_once('=') {
        let end = if query.is_some() {
            value.find('&').unwrap_or(value.len())
        } else {
            let quoted = value.trim_start().strip_prefix('\'');
            value = quoted.unwrap_or(value.trim_start());
            value_end(value, quoted.is_some())
        };
        let start = url.len() - value.len();
        options.push((name.trim(), start..start + end));
        rest = value[end..].trim_start_matches(['&', '\'']);
    }
    options
}

/// Returns where the value ends with which the rest of a keyword/value string begins.
fn value_end(rest: &str, is_quoted: bool) -> usize {
    let mut is_escaped = false;
    let is_end = |letter: char| {
        if std::mem::take(&mut is_escaped) {
            return false;
        }
        is_escaped = letter == '\\';
        if is_quoted {
            letter == '\''
        } else {
            letter.is_whitespace()
        }
    };
    rest.find(is_end).unwrap_or(rest.len())
}

/// Whether the driver knows an option of this name: it takes one of these values for each that it knows.
fn is_known(name: &str) -> bool {
    let values = ["1", "127.0.0.1", "any", "disable", "postgres"];
    let is_name = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let takes = |value: &&str| format!("{name}={value}").parse::<Config>().is_ok();
    is_name(name) && values.iter().any(takes)
}

/// Options of other drivers, which an error may name.
const FOREIGN: [&str; 13] = [
    "connection_limit",
    "currentSchema",
    "fallback_application_name",
    "gssencmode",
    "pgbouncer",
    "pool_timeout",
    "schema",
    "search_path",
    "socket_timeout",
    "ssl",
    "sslcert",
    "sslkey",
    "statement_cache_capacity",
];

/// Whether the connection stays on this machine. The driver connects to the addresses, if there are any.
fn is_local(config: &Config) -> bool {
    let mut addresses = config.get_hostaddrs().iter();
    addresses.all(IpAddr::is_loopback)
        && config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => is_loopback(name),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(url: &str) -> Result<Login, Error> {
        Login::from_url(url, &Trust::system())
    }

    #[test]
    fn an_option_of_another_driver_is_named_and_no_part_of_a_password_is() {
        for (url, names) in [
            ("postgres://u:p@h/db?pgbouncer=true", true),
            ("host=h user=u schema=public", true),
            ("host=h user=u password=my canary=x", false),
        ] {
            let error = login(url).err().unwrap().to_string();
            assert!(error.contains("unknown option"), "{error}");
            assert_eq!(
                error.contains("`pgbouncer`") || error.contains("`schema`"),
                names,
                "{error}"
            );
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn tls_is_the_default_off_loopback_and_plaintext_must_be_asked_for() {
        let tls = |url: &str| {
            login(url)
                .unwrap_or_else(|error| panic!("{error}"))
                .trust
                .is_some()
        };
        assert!(!tls("postgres://u:p@127.0.0.1/db"));
        assert!(!tls("postgres://u:p@localhost:5433/db"));
        // The driver connects to the address.
        assert!(!tls("host=localhost hostaddr=127.0.0.1 user=u"));
        assert!(tls("host=localhost hostaddr=10.0.0.5 user=u"));
        assert!(!tls("host=/tmp user=u"));
        assert!(tls("postgres://u:p@db.example/db"));
        assert!(tls("postgres://u:p@localhost/db?sslmode=verify-full"));
        assert!(!tls(
            "postgres://u:p@db.example/db?sslmode=disable&application_name=x"
        ));
        assert!(!tls("host=db.example user=u sslmode=disable"));
        assert!(!tls("host=db.example sslmode = 'disable' user=u"));
    }

    #[test]
    fn weaker_tls_modes_are_refused_by_name() {
        for mode in ["prefer", "allow", "require", "verify-ca"] {
            let error = login(&format!("postgres://u@h/db?sslmode={mode}"))
                .err()
                .unwrap()
                .to_string();
            assert!(
                error.contains("sslmode") && error.contains("verify-full"),
                "{error}"
            );
        }
        let error = login("postgres://u:verify-full@h/db?sslmode=yes")
            .err()
            .unwrap();
        assert!(error.to_string().contains("verify-full"), "{error}");
        for url in [
            "postgres://u@h/db?sslrootcert=ca.pem",
            "postgres://u@h/db?sslmode=verify-full&sslrootcert=ca.pem",
            "host=h sslrootcert=ca.pem sslmode=verify-full",
        ] {
            let error = login(url).err().unwrap().to_string();
            assert!(error.contains("DATABASE_CA_FILE"), "{error}");
        }
    }

    #[test]
    fn the_mode_is_what_is_written_in_either_form() {
        let default = [
            "postgres://u:sslmode=disable@h/db",
            "postgres://u:p?sslmode=disable@h/db",
            "postgresql://u@h/sslmode=disable",
            "host=h user=u password='p sslmode=disable'",
            r"host=h user=u password='it\'s sslmode=disable'",
            r"host=h user=u password=p\ sslmode=disable",
            "host=h user=sslmode=disable",
        ];
        let full = [
            "postgres://u:verify-full@h/db?sslmode=verify-full",
            "postgresql://h?application_name=verify-full&sslmode=verify-full",
            "postgres://h/db?sslmode=disable&sslmode=verify-full",
            "postgres://h/db?sslmode=verify-full&sslmode=verify-full&user=u",
            "host=h sslmode=verify-full",
            "host=h sslmode = 'verify-full'user=u",
            r"host=h sslmode=verify\-full user=u",
            "host=h sslmode=disable sslmode='verify-full'",
        ];
        let plain = [
            "postgres://u:p@h/db?sslmode=disable",
            "postgres://h?sslmode=disable&application_name=x",
            "host=h sslmode=disable user=u",
            "sslmode='disable' host=h",
            r"host=h password='\'sslmode=verify-full' sslmode='disable'",
        ];
        let mode = |url: &str| parse(url).map(|(_, mode)| mode);
        for url in default {
            assert_eq!(mode(url), Ok(TlsMode::Default), "{url}");
        }
        for url in full {
            assert_eq!(mode(url), Ok(TlsMode::VerifyFull), "{url}");
        }
        for url in plain {
            assert_eq!(mode(url), Ok(TlsMode::Disabled), "{url}");
        }
        for value in [
            "allow",
            "prefer",
            "require",
            "verify-ca",
            "Verify-Full",
            "yes",
            "",
        ] {
            for url in [
                format!("postgres://u:p@h/db?sslmode={value}&user=x"),
                format!("postgres://h?sslmode={value}"),
                format!("host=h sslmode='{value}' user=x"),
            ] {
                let refused = mode(&url).unwrap_err();
                let said = format!("sslmode: {MODES}, got {value:?}");
                assert_eq!(refused, said, "{url}");
            }
        }
        let encoded = mode("postgres://h?ssl%6dode=disable").unwrap_err();
        assert_eq!(encoded, format!("sslmode: {MODES}"));
    }

    #[test]
    fn the_password_is_in_no_error() {
        for url in [
            "postgres://u:canary@h:notaport/db",
            "password=canary port=x",
            "host=h password=two canary=x",
            "host=h password=two canary x=1",
            "host=h password='two canary",
            "postgres://u@h/db?canary=x",
        ] {
            let error = login(url).err().unwrap().to_string();
            assert!(!error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn an_error_names_the_host_and_port_but_no_part_of_a_password() {
        for (url, place) in [
            ("postgres://u:p@db.example/d", "db.example:5432: "),
            ("host=a,b port=6432 user=u", "a:6432, b:6432: "),
            ("host=/tmp port=1 user=u", "/tmp:1: "),
            ("postgres://u:p@canary@h/d", ""),
            ("postgres://u:p@can/ary@h/d", ""),
        ] {
            assert_eq!(login(url).ok().unwrap().place(), place, "{url}");
        }
    }

    #[test]
    fn a_quoted_password_keeps_its_spaces_and_whatever_looks_like_a_mode() {
        for (url, password) in [
            ("host=h user=u password='two  spaces'", "two  spaces"),
            (
                "host=h password='a sslmode=prefer' sslmode=disable user=u",
                "a sslmode=prefer",
            ),
            (
                r"host=h password='it\'s  so' user=u  sslmode='disable'",
                "it's  so",
            ),
            (r"host=h password=no\ quotes user=u", "no quotes"),
            ("host=h user=u password=it's", "it's"),
            (
                "host=h password=verify-full user=u sslmode=verify-full",
                "verify-full",
            ),
            ("host=h password=prefer user=u", "prefer"),
            ("host=h user=u sslmode = disable password = 'x=y'", "x=y"),
            (
                "host=h user=u password='postgres://?sslmode=no'",
                "postgres://?sslmode=no",
            ),
            (
                "postgres://u:p?sslmode=no@h/d?sslmode=disable",
                "p?sslmode=no",
            ),
        ] {
            let login = login(url).unwrap_or_else(|error| panic!("{error}"));
            let config = &login.config;
            assert_eq!(config.get_password(), Some(password.as_bytes()), "{url}");
            assert_eq!(config.get_user(), Some("u"), "{url}");
        }
    }
}
