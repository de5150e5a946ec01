//! Owns what both a drain's report and the reports for operators tell: the state of the services, and the
//! kinds of events that will expire.

use serde::{Deserialize, Serialize};

/// The state of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It answers, as far as is known.
    #[cfg_attr(feature = "schema", schemars(title = "called"))]
    #[default]
    Closed,
    /// It does not answer. Events that need it wait until it is tried again.
    #[cfg_attr(feature = "schema", schemars(title = "down"))]
    Open,
    /// One event is being tried.
    Probing,
    /// An operator has stopped all calls.
    Paused,
}

/// A service as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ServiceStatus {
    /// Its name, as handlers give it.
    pub service: String,
    /// Whether it is called.
    pub state: ServiceState,
    /// How many events wait for it.
    pub waiting: u64,
    /// When it is tried again.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub retry_at: Option<String>,
    /// Since when it is in this state.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub since: String,
    /// How many calls in a row it has not answered.
    pub failures: u32,
    /// The code of the last failure.
    pub last_error: Option<String>,
    /// The most events that call it at once, over all drains.
    pub max_running: Option<u32>,
    /// The most events that start per second, over all drains.
    pub per_second: Option<f64>,
    /// How many of its places drains hold now.
    pub places: u32,
    /// The kinds of events that wait for it while it is not called.
    pub kinds: Vec<String>,
    /// When it last answered, as reported by a drain.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub answered_at: Option<String>,
    /// When the oldest waiting event was published.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub oldest: Option<String>,
}

/// Events of a kind that will pass their deadline before they are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExpiringKind {
    /// The kind.
    pub kind: String,
    /// The least number of such events.
    pub events: u64,
    /// The earliest of their deadlines, RFC 3339.
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub first_deadline: String,
}
