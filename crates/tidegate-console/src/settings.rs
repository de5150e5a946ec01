//! Owns what a console is told when it is made: who is let in, who may act, by which names it is reached, how it looks.

use crate::link::Base;
use crate::who::{Acting, Auth};

/// What a console is told when it is made.
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
pub struct Settings {
    pub(crate) auth: Auth,
    pub(crate) acting: Acting,
    pub(crate) hosts: Vec<String>,
    pub(crate) base: Base,
    pub(crate) instance: Option<Instance>,
    pub(crate) behind_tls: bool,
    pub(crate) shows_content: bool,
}

/// Which of several installations this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub name: String,
    pub colour: &'static str,
}

/// Colours that a banner may have.
pub(crate) const COLOURS: [&str; 6] = ["red", "amber", "green", "blue", "violet", "grey"];

impl Settings {
    /// For those whom `auth` lets in, who may look and nothing else, on this machine's own names, at the root.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Self {
            auth,
            acting: Acting::Nobody,
            hosts: Vec::new(),
            base: Base::default(),
            instance: None,
            behind_tls: false,
            shows_content: true,
        }
    }

    /// The path and query of a link that lets one browser in, if that is how callers are known; below the base path.
    #[must_use]
    pub fn link(&self) -> Option<String> {
        self.auth.link()
    }

    /// With these people allowed to act.
    #[must_use]
    pub fn acting(mut self, acting: Acting) -> Self {
        self.acting = acting;
        self
    }

    /// Reached by this name too, as a browser sends it in `Host`: a name, or a name and a port. Requests for other names but this
    /// machine's own are answered 421.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into().to_ascii_lowercase());
        self
    }

    /// Mounted at this path: all links begin with it. The router itself does not; `Router::nest` it there.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn base_path(mut self, path: &str) -> Result<Self, String> {
        self.base = Base::parse(path)?;
        Ok(self)
    }

    /// With a banner that tells this installation from others: its name, and red, amber, green, blue, violet or grey.
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

    /// Reached through TLS alone: something in front ends it and says so with `X-Forwarded-Proto: https`. Cookies are sent through
    /// TLS alone then, and requests that have come without it are refused.
    #[must_use]
    pub fn behind_tls(mut self) -> Self {
        self.behind_tls = true;
        self
    }

    /// Shows no payload, result, progress or detail of an error, whatever the database's login may read.
    #[must_use]
    pub fn without_content(mut self) -> Self {
        self.shows_content = false;
        self
    }
}
