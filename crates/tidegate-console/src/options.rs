//! The options of a console, and which combinations of them are refused because they would let strangers in.

use std::net::SocketAddr;

use clap::Args;
use tidegate::Error;
use tidegate::config::read_secret_file;

use crate::link::Base;
use crate::settings::{Instance, Settings};
use crate::who::{Acting, Auth};

/// The options of a console, from flags or from the environment.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Options {
    /// How people sign in: token, with a link that is printed; proxy-header, at a proxy in front.
    #[arg(long, env = "TIDEGATE_CONSOLE_AUTH", default_value = "token", value_parser = ["token", "proxy-header"])]
    pub auth: String,
    /// For proxy-header: the header that names the person, such as X-Forwarded-User.
    #[arg(long, env = "TIDEGATE_CONSOLE_PROXY_HEADER", value_name = "NAME")]
    pub proxy_header: Option<String>,
    /// For proxy-header: a file with the secret that the proxy sends in X-Tidegate-Proxy-Secret, at least 32
    /// characters.
    #[arg(long, env = "TIDEGATE_CONSOLE_PROXY_SECRET_FILE", value_name = "FILE")]
    pub proxy_secret_file: Option<String>,
    /// What people may do: read, or act as well.
    #[arg(long, env = "TIDEGATE_CONSOLE_ALLOW", default_value = "read", value_parser = ["read", "act"])]
    pub allow: String,
    /// Only these people may act; needs --allow act.
    #[arg(
        long = "actor",
        env = "TIDEGATE_CONSOLE_ACTORS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub actors: Vec<String>,
    /// Host names to accept besides localhost, as browsers send them in Host.
    #[arg(
        long = "host",
        env = "TIDEGATE_CONSOLE_HOSTS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub hosts: Vec<String>,
    /// The path where the console is mounted, such as /queue.
    #[arg(long, env = "TIDEGATE_CONSOLE_BASE_PATH", value_name = "PATH")]
    pub base_path: Option<String>,
    /// The name of this installation, shown in a banner on every page.
    #[arg(long, env = "TIDEGATE_CONSOLE_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// The banner's colour: red, amber, green, blue, violet or grey.
    #[arg(long, env = "TIDEGATE_CONSOLE_COLOUR")]
    pub colour: Option<String>,
    /// A proxy or load balancer in front terminates TLS and sends X-Forwarded-Proto: https.
    #[arg(long, env = "TIDEGATE_CONSOLE_BEHIND_TLS")]
    pub behind_tls: bool,
    /// Hide payloads, results, progress and error details, even if the database login may read them.
    #[arg(long, env = "TIDEGATE_CONSOLE_WITHOUT_PAYLOADS")]
    pub without_payloads: bool,
}

fn config(name: &str, why: impl std::fmt::Display) -> Error {
    Error::Config(format!("--{name}: {why}"))
}

impl Options {
    /// Returns the settings for a console that listens at this address, or for a function, which has none.
    /// `operator` is the name that people have who sign in with `token`.
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub(crate) fn settings(
        &self,
        listen: Option<SocketAddr>,
        operator: Option<&str>,
    ) -> Result<Settings, Error> {
        self.check_reach(listen)?;
        let base = Base::parse(self.base_path.as_deref().unwrap_or_default());
        let colour = self.colour.as_deref();
        let instance = match (&self.instance, colour) {
            (Some(name), _) => Some(Instance::new(name, colour.unwrap_or("grey"))),
            (None, Some(_)) => return Err(config("colour", "must be given with --instance")),
            (None, None) => None,
        };
        Ok(Settings {
            acting: self.acting()?,
            hosts: listed(&self.hosts).map(str::to_owned).collect(),
            base: base.map_err(|why| config("base-path", why))?,
            instance: instance
                .transpose()
                .map_err(|why| config("instance", why))?,
            behind_tls: self.behind_tls,
            shows_content: !self.without_payloads,
            ..Settings::new(self.auth(operator)?)
        })
    }

    /// Refuses to serve other machines without authentication.
    fn check_reach(&self, listen: Option<SocketAddr>) -> Result<(), Error> {
        let is_local = listen.is_some_and(|listen| listen.ip().is_loopback());
        let why = match &*self.auth {
            "token" if !is_local => {
                "must be proxy-header beyond this machine, got token, whose link is printed here"
            }
            "iam" if listen.is_some() => {
                "must not be iam here: AWS verifies callers of a function alone"
            }
            _ => return Ok(()),
        };
        Err(config("auth", why))
    }

    fn auth(&self, operator: Option<&str>) -> Result<Auth, Error> {
        match &*self.auth {
            "token" => {
                let unnamed = "act needs your name for the audit: set TIDEGATE_ACTOR or USER";
                // The audit does not name people who only look.
                let operator = operator.or((self.allow == "read").then_some("reader"));
                let operator = operator.ok_or_else(|| config("allow", unnamed))?;
                Ok(Auth::token(operator))
            }
            "proxy-header" => {
                let header = given("proxy-header", self.proxy_header.as_ref(), "proxy-header")?;
                let without = "proxy-header: without a secret anybody could write the header";
                let secret = self.proxy_secret_file.as_ref();
                let file = given("proxy-secret-file", secret, without)?;
                let secret = read_secret_file(file);
                let secret = secret.map_err(|why| config("proxy-secret-file", why))?;
                Auth::proxy_header(header, &secret)
            }
            "iam" => Ok(Auth::iam()),
            other => {
                let must = "must be token, proxy-header or iam";
                Err(config("auth", format!("{must}, got {other:?}")))
            }
        }
    }

    fn acting(&self) -> Result<Acting, Error> {
        match (&*self.allow, self.actors.is_empty()) {
            ("read", true) => Ok(Acting::Nobody),
            ("read", false) => Err(config("actor", "must be given with --allow act")),
            ("act", true) => Ok(Acting::Everybody),
            ("act", false) => {
                let these = listed(&self.actors).map(str::to_owned);
                Ok(Acting::These(these.collect()))
            }
            (other, _) => {
                let why = format!("must be read or act, got {other:?}");
                Err(config("allow", why))
            }
        }
    }
}

/// The entries of a list, without the spaces around its commas.
fn listed(list: &[String]) -> impl Iterator<Item = &str> {
    let entries = list.iter().map(|entry| entry.trim());
    entries.filter(|entry| !entry.is_empty())
}

fn given<'a>(option: &str, value: Option<&'a String>, with: &str) -> Result<&'a str, Error> {
    let missing = || config(option, format!("must be given with --auth {with}"));
    value.map(String::as_str).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(auth: &str) -> Options {
        Options {
            auth: auth.to_owned(),
            allow: "read".to_owned(),
            ..Options::default()
        }
    }

    fn refusal(options: &Options, listen: [u8; 4], operator: Option<&str>) -> String {
        let settings = options.settings(Some((listen, 8081).into()), operator);
        settings
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn what_would_let_strangers_in_is_refused_by_name() {
        let with = |auth, change: fn(&mut Options)| {
            let mut options = options(auth);
            change(&mut options);
            options
        };
        let (local, far) = ([127, 0, 0, 1], [0, 0, 0, 0]);
        for (listen, options, named) in [
            (far, options("token"), "--auth"),
            (far, options("proxy-header"), "--proxy-header"),
            (
                far,
                with("proxy-header", |o| o.proxy_header = Some("X-User".into())),
                "--proxy-secret-file",
            ),
            (local, options("basic"), "--auth: must be token"),
            (local, options("iam"), "--auth"),
            (local, options("none"), "--auth: must be token"),
            (local, with("token", |o| o.allow = "all".into()), "--allow"),
            (
                local,
                with("token", |o| o.actors = vec!["ada".into()]),
                "--actor",
            ),
            (
                local,
                with("token", |o| o.base_path = Some("ops".into())),
                "--base-path",
            ),
            (
                local,
                with("token", |o| o.colour = Some("red".into())),
                "--colour",
            ),
            (
                local,
                with("token", |o| {
                    o.instance = Some("p".into());
                    o.colour = Some("pink".into());
                }),
                "red, amber",
            ),
        ] {
            let error = refusal(&options, listen, Some("ada"));
            assert!(error.contains(named), "{named}: {error:?}");
        }
        let unnamed = refusal(&with("token", |o| o.allow = "act".into()), local, None);
        assert!(unnamed.contains("TIDEGATE_ACTOR"), "{unnamed}");
    }

    #[test]
    fn nobody_may_act_unless_that_is_allowed() {
        let acting = |options: Options| {
            let settings = options.settings(Some(([127, 0, 0, 1], 8081).into()), Some("ada"));
            settings.unwrap().acting
        };
        let allowed = Options {
            allow: "act".to_owned(),
            ..options("token")
        };
        assert_eq!(acting(allowed), Acting::Everybody);
        assert_eq!(acting(options("token")), Acting::Nobody);
    }
}
