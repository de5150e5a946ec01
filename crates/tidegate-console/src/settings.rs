//! The settings of a console: authentication, who may act, host names, appearance.

use std::sync::Arc;

use axum::http::HeaderValue;

use crate::link::Base;
use crate::who::{Acting, Auth};

/// The settings of a console.
///
/// ```
/// use tidegate_console::{Acting, Auth, Settings};
///
/// # fn settings() -> Result<Settings, String> {
/// let settings = Settings::new(Auth::given())
///     .acting(Acting::Everybody)
///     .host("ops.example.com")
///     .base_path("/queue")?
///     .instance("production", "red")?;
/// # Ok(settings)
/// # }
/// ```
#[derive(Clone)]
pub struct Settings {
    pub(crate) auth: Arc<Auth>,
    pub(crate) acting: Acting,
    pub(crate) hosts: Vec<String>,
    pub(crate) base: Base,
    pub(crate) instance: Option<Instance>,
    pub(crate) behind_tls: bool,
    pub(crate) shows_content: bool,
    pub(crate) sessions: usize,
    /// Whether nothing runs between two requests, as in a Lambda function.
    pub(crate) is_frozen_between: bool,
}

/// The most database sessions of a console.
const SESSIONS: usize = 10;

/// Which of several installations this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub name: String,
    pub colour: &'static str,
}

/// Colours that a banner may have.
pub(crate) const COLOURS: [&str; 6] = ["red", "amber", "green", "blue", "violet", "grey"];

impl Settings {
    /// Settings with this authentication. Access is read-only, and only this machine's own host names are
    /// accepted.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Self {
            auth: Arc::new(auth),
            acting: Acting::Nobody,
            hosts: Vec::new(),
            base: Base::default(),
            instance: None,
            behind_tls: false,
            shows_content: true,
            sessions: SESSIONS,
            is_frozen_between: false,
        }
    }

    /// Returns the path and query of a sign-in link, below the base path, if [`Auth::token`] is used.
    #[must_use]
    pub fn link(&self) -> Option<String> {
        self.auth.link()
    }

    /// A cookie of the console, which no script reads and no other site causes to be sent.
    pub(crate) fn cookie(
        &self,
        name: &str,
        value: &str,
        seconds: Option<u32>,
    ) -> Option<HeaderValue> {
        let path = self.base.cookie_path();
        let age = seconds.map(|seconds| format!("; Max-Age={seconds}"));
        let age = age.unwrap_or_default();
        let secure = if self.behind_tls { "; Secure" } else { "" };
        let line = format!("{name}={value}; Path={path}{age}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&line).ok()
    }

    /// Allows these people to act.
    #[must_use]
    pub fn acting(mut self, acting: Acting) -> Self {
        self.acting = acting;
        self
    }

    /// Accepts requests for this host name, with or without a port. Requests for unknown names are answered
    /// with 421; this machine's own names are always accepted.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into().to_ascii_lowercase());
        self
    }

    /// Sets the path that all links begin with. Nest the router at this path.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn base_path(mut self, path: &str) -> Result<Self, String> {
        self.base = Base::parse(path)?;
        Ok(self)
    }

    /// Shows a banner with this name. The colour is red, amber, green, blue, violet or grey.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn instance(mut self, name: &str, colour: &str) -> Result<Self, String> {
        if !(1..=40).contains(&name.chars().count()) {
            return Err(format!(
                "the name must have 1 to 40 characters, got {name:?}"
            ));
        }
        let known = COLOURS.into_iter().find(|known| *known == colour);
        let colour = known.ok_or_else(|| {
            let list = COLOURS.join(", ");
            format!("the colour must be one of {list}, got {colour:?}")
        })?;
        let name = name.to_owned();
        self.instance = Some(Instance { name, colour });
        Ok(self)
    }

    /// Requires TLS, which a proxy or load balancer in front terminates. It must send `X-Forwarded-Proto:
    /// https`; other requests are refused. Cookies are marked `Secure`.
    #[must_use]
    pub fn behind_tls(mut self) -> Self {
        self.behind_tls = true;
        self
    }

    /// Limits the console's database sessions; 10 by default. A request that has to wait for one for longer
    /// than two seconds is answered with 503.
    #[must_use]
    pub fn sessions(mut self, most: usize) -> Self {
        self.sessions = most;
        self
    }

    /// Hides payloads, results, progress and error details, even if the database login may read them.
    #[must_use]
    pub fn without_content(mut self) -> Self {
        self.shows_content = false;
        self
    }
}
