//! The settings of a console: authentication, who may act, host names, appearance.

use std::sync::Arc;

use axum::http::HeaderValue;

use crate::link::Base;
use crate::who::{Acting, Auth};

/// The settings of a console.
///
/// ```
/// use tidegate_console::{Acting, Auth, Base, Instance, Settings};
///
/// # fn settings() -> Result<Settings, String> {
/// let mut settings = Settings::new(Auth::given());
/// settings.acting = Acting::Everybody;
/// settings.hosts.push("ops.example.com".to_owned());
/// settings.base = Base::parse("/queue")?;
/// settings.instance = Some(Instance::new("production", "red")?);
/// # Ok(settings)
/// # }
/// ```
#[derive(Clone)]
pub struct Settings {
    pub(crate) auth: Arc<Auth>,
    /// Who may act.
    pub acting: Acting,
    /// Host names that requests may be for, with or without a port. Requests for other names are answered
    /// with 421; this machine's own names are always accepted.
    pub hosts: Vec<String>,
    /// The path that all links begin with. Nest the router at this path.
    pub base: Base,
    /// Which installation this is, for a banner.
    pub instance: Option<Instance>,
    /// Whether there must be TLS, which a proxy or load balancer in front terminates. It must send
    /// `X-Forwarded-Proto: https`; other requests are refused. Cookies are marked `Secure`.
    pub behind_tls: bool,
    /// Whether payloads, results, progress and error details are shown, if the database login may read them.
    pub shows_content: bool,
    /// The most database sessions. A request that has to wait for one for longer than two seconds is answered
    /// with 503.
    pub sessions: usize,
    /// Whether nothing runs between two requests, as in a Lambda function.
    pub(crate) is_frozen_between: bool,
}

/// The most database sessions of a console.
const SESSIONS: usize = 10;

/// Which of several installations this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
}

impl Instance {
    /// Names an installation. The colour is red, amber, green, blue, violet or grey.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn new(name: &str, colour: &str) -> Result<Self, String> {
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
        Ok(Self { name, colour })
    }
}

/// The colours that a banner may have.
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
}
