//! The options of a console, from the command line or the environment. Refuses combinations that would let
//! strangers in.

use std::net::SocketAddr;

use tidegate::Error;

use crate::settings::Settings;
use crate::who::{Acting, Auth};

/// The options of a console.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The address to listen on; `None` for a function.
    pub listen: Option<SocketAddr>,
    /// `token`, `basic`, `proxy-header` or `iam`.
    pub auth: Option<String>,
    pub users_file: Option<String>,
    pub proxy_header: Option<String>,
    pub proxy_secret_file: Option<String>,
    pub allow: Option<String>,
    pub actors: Vec<String>,
    pub hosts: Vec<String>,
    pub base_path: Option<String>,
    pub instance: Option<String>,
    pub colour: Option<String>,
    pub behind_tls: bool,
    pub without_content: bool,
    /// The person who starts the console, for `token`.
    pub operator: Option<String>,
}

fn config(name: &str, why: impl std::fmt::Display) -> Error {
    Error::Config(format!("--{name}: {why}"))
}

impl Options {
    /// The settings.
    ///
    /// # Errors
    /// [`Error::Config`] names the option and what is allowed.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let auth = self.auth.as_deref().unwrap_or("token");
        self.check_reach(auth)?;
        let mut settings = Settings::new(self.auth(auth)?).acting(self.acting()?);
        for host in &self.hosts {
            settings = settings.host(host);
        }
        if let Some(path) = &self.base_path {
            settings = settings
                .base_path(path)
                .map_err(|why| config("base-path", why))?;
        }
        match (&self.instance, &self.colour) {
            (Some(name), colour) => {
                let colour = colour.as_deref().unwrap_or("grey");
                settings = settings
                    .instance(name, colour)
                    .map_err(|why| config("instance", why))?;
            }
            (None, Some(_)) => return Err(config("colour", "must be given with --instance")),
            (None, None) => {}
        }
        if self.behind_tls {
            settings = settings.behind_tls();
        }
        if self.without_content {
            settings = settings.without_content();
        }
        Ok(settings)
    }

    /// Refuses to send passwords in plaintext, and to serve other machines without authentication.
    fn check_reach(&self, auth: &str) -> Result<(), Error> {
        let is_local = self.listen.is_some_and(|listen| listen.ip().is_loopback());
        match auth {
            "token" | "basic" if is_local => Ok(()),
            "token" => Err(config(
                "auth",
                "must be basic or proxy-header beyond this machine, got token, whose link is printed here",
            )),
            "basic" if self.behind_tls => Ok(()),
            "basic" => Err(config(
                "auth",
                "must not be basic beyond this machine without --behind-tls: passwords would go over the network as they are",
            )),
            "iam" if self.listen.is_some() => Err(config(
                "auth",
                "must not be iam here: AWS verifies callers of a function alone",
            )),
            _ => Ok(()),
        }
    }

    fn auth(&self, auth: &str) -> Result<Auth, Error> {
        match auth {
            "token" => {
                let unnamed = || {
                    config(
                        "allow",
                        "act needs your name for the audit: set TIDEGATE_ACTOR or USER",
                    )
                };
                // The audit does not name people who only look.
                let reads = self.allow.as_deref().is_none_or(|allow| allow == "read");
                let operator = self.operator.as_deref();
                let operator = operator.or(reads.then_some("reader"));
                Ok(Auth::token(operator.ok_or_else(unnamed)?))
            }
            "basic" => {
                let file = self.users_file.as_deref();
                let file =
                    file.ok_or_else(|| config("users-file", "must be given with --auth basic"))?;
                Auth::basic(&read("users-file", file)?)
            }
            "proxy-header" => {
                let header = self.proxy_header.as_deref();
                let header = header.ok_or_else(|| {
                    config("proxy-header", "must be given with --auth proxy-header")
                })?;
                let file = self.proxy_secret_file.as_deref();
                let file = file.ok_or_else(|| {
                    config("proxy-secret-file", "must be given with --auth proxy-header: without a secret anybody could write the header")
                })?;
                Auth::proxy_header(header, &read("proxy-secret-file", file)?)
            }
            "iam" => Ok(Auth::iam()),
            other => Err(config(
                "auth",
                format!("must be token, basic, proxy-header or iam, got {other:?}"),
            )),
        }
    }

    fn acting(&self) -> Result<Acting, Error> {
        match (self.allow.as_deref(), self.actors.is_empty()) {
            (None | Some("read"), true) => Ok(Acting::Nobody),
            (None | Some("read"), false) => Err(config("actor", "must be given with --allow act")),
            (Some("act"), true) => Ok(Acting::Everybody),
            (Some("act"), false) => Ok(Acting::These(self.actors.iter().cloned().collect())),
            (Some(other), _) => Err(config(
                "allow",
                format!("must be read or act, got {other:?}"),
            )),
        }
    }
}

fn read(option: &str, path: &str) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| config(option, format!("{path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(auth: &str) -> Options {
        Options {
            listen: Some(([127, 0, 0, 1], 0).into()),
            auth: Some(auth.to_owned()),
            operator: Some("ada".to_owned()),
            ..Options::default()
        }
    }

    #[test]
    fn what_would_let_strangers_in_is_refused_by_name() {
        let far = |auth| Options {
            listen: Some(([0, 0, 0, 0], 8081).into()),
            ..local(auth)
        };
        let with = |options: Options, change: fn(&mut Options)| {
            let mut options = options;
            change(&mut options);
            options
        };
        for (options, named) in [
            (far("token"), "--auth"),
            (far("basic"), "--behind-tls"),
            (far("proxy-header"), "--proxy-header"),
            (
                with(far("proxy-header"), |o| {
                    o.proxy_header = Some("X-User".into());
                }),
                "--proxy-secret-file",
            ),
            (local("basic"), "--users-file"),
            (local("iam"), "--auth"),
            (local("none"), "--auth: must be token"),
            (
                with(local("token"), |o| {
                    o.operator = None;
                    o.allow = Some("act".into());
                }),
                "TIDEGATE_ACTOR",
            ),
            (
                with(local("token"), |o| o.allow = Some("all".into())),
                "--allow",
            ),
            (
                with(local("token"), |o| o.actors = vec!["ada".into()]),
                "--actor",
            ),
            (
                with(local("token"), |o| o.base_path = Some("ops".into())),
                "--base-path",
            ),
            (
                with(local("token"), |o| o.colour = Some("red".into())),
                "--colour",
            ),
            (
                with(local("token"), |o| {
                    o.instance = Some("p".into());
                    o.colour = Some("pink".into());
                }),
                "red, amber",
            ),
        ] {
            let error = options
                .settings()
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(error.contains(named), "{named}: {error:?}");
        }
    }

    #[test]
    fn nobody_may_act_unless_that_is_allowed() {
        let allowed = Options {
            allow: Some("act".to_owned()),
            ..local("token")
        };
        assert_eq!(allowed.settings().unwrap().acting, Acting::Everybody);
        assert_eq!(local("token").settings().unwrap().acting, Acting::Nobody);
    }
}
