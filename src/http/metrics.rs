//! `GET /metrics`, for Prometheus: off unless requested, and no part of the OpenAPI document.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing;
use tidegate::{Database, Error, Lookup, config};
use tidegate_admin::prometheus::{Exporter, Format};
use utoipa_axum::router::OpenApiRouter;

/// The setting for whether there are metrics.
const METRICS: &str = "TIDEGATE_HTTP_METRICS";

/// Who may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scrapes {
    /// Nobody: there are none.
    Off,
    /// Whoever reaches the server, which serves this machine alone.
    Open,
    /// Callers whose credentials are good for `metrics`.
    Known,
}

impl Scrapes {
    /// Reads `TIDEGATE_HTTP_METRICS`, unless a flag says `always`. Where only this machine is served, metrics
    /// need no credential.
    ///
    /// # Errors
    /// [`Error::Config`] when the variable is neither `on` nor `off`.
    pub fn from_settings(
        lookup: Lookup<'_>,
        always: bool,
        is_loopback: bool,
    ) -> Result<Self, Error> {
        let is_on = config::read(lookup, METRICS, false, &[])?;
        Ok(match (is_on || always, is_loopback) {
            (false, _) => Self::Off,
            (true, true) => Self::Open,
            (true, false) => Self::Known,
        })
    }
}

pub(super) fn route<S: Clone + Send + Sync + 'static>(database: Database) -> OpenApiRouter<S> {
    let exporter = Arc::new(Exporter::new(database));
    OpenApiRouter::new().route("/metrics", routing::get(metrics).with_state(exporter))
}

/// A database that does not answer is reported as a metric, not as an error of this server.
async fn metrics(State(exporter): State<Arc<Exporter>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept);
    (
        [(CONTENT_TYPE, format.content_type())],
        exporter.answer(format).await,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_off_unless_they_are_asked_for_and_open_on_loopback_alone() {
        let scrapes = |value: Option<&str>, always, is_loopback| {
            let value = value.map(str::to_owned);
            Scrapes::from_settings(
                &|name| value.clone().filter(|_| name == METRICS),
                always,
                is_loopback,
            )
        };
        assert_eq!(scrapes(None, false, true).unwrap(), Scrapes::Off);
        assert_eq!(scrapes(None, true, true).unwrap(), Scrapes::Open);
        assert_eq!(scrapes(Some("on"), false, false).unwrap(), Scrapes::Known);
        let refused = scrapes(Some("yes"), true, true).unwrap_err().to_string();
        assert!(
            refused.contains("TIDEGATE_HTTP_METRICS: must be off or on"),
            "{refused}"
        );
    }
}
