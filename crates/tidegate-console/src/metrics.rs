//! Serves the queue's figures to Prometheus, to everybody who may see the pages.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use tidegate_admin::prometheus::Format;

use crate::shared::ConsoleState;

pub(crate) async fn metrics(
    State(shared): State<Arc<ConsoleState>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept);
    let text = shared.exporter.answer(format).await;
    ([(CONTENT_TYPE, format.content_type())], text)
}
