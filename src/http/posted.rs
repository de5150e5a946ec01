//! Owns how a request with a body is read, which is JSON from a caller that the gate has let in, and the one
//! transaction that does what the request asks for.

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use futures_util::future::BoxFuture;
use serde_json::Value;
use tidegate::trace::{self, TraceContext};
use tidegate::{Database, Error, Transaction};

use super::callers::Caller;
use super::problem::Problem;
use super::{Shared, begin, connection};

/// A request with JSON in its body.
pub(super) struct Posted {
    /// The caller that the gate has let in.
    pub caller: Caller,
    /// The content of the body.
    pub json: Value,
    database: Database,
    trace: Option<TraceContext>,
}

impl FromRequest<Shared> for Posted {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Problem> {
        let failed = || Problem::of(StatusCode::INTERNAL_SERVER_ERROR);
        let caller = request.extensions().get().copied().ok_or_else(failed)?;
        let headers = request.headers();
        // A request without a trace context, or with a malformed one, has no trace.
        let trace = headers.get("traceparent");
        let trace = trace.and_then(|header| TraceContext::parse(header.to_str().ok()?));
        let is_json = is_json(headers);
        let body: Bytes = request.extract().await.map_err(|_| failed())?;
        if !is_json {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let must = "the content type must be application/json";
            return Err(Problem::new(status, "unsupported_media_type", must));
        }
        Ok(Self {
            caller,
            json: json(&body)?,
            database: shared.database.clone(),
            trace,
        })
    }
}

impl Posted {
    /// Does the work in a transaction, under the trace of the request, and commits it. A connection that was
    /// lost leaves the pool.
    pub(super) async fn committed<T>(
        &self,
        work: impl for<'a> FnOnce(&'a Transaction<'a>) -> BoxFuture<'a, Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let mut client = connection(&self.database).await?;
        let committed = async {
            let transaction = begin(&mut client).await?;
            let done = work(&transaction).await?;
            let stage = "commit";
            let committed = transaction.commit().await;
            committed.map_err(|source| Error::Database { stage, source })?;
            Ok(done)
        };
        let committed = trace::within(self.trace.clone(), committed).await;
        if committed.as_ref().is_err_and(Error::is_connection_lost) {
            client.close();
        }
        committed
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let essence = content_type.and_then(|text| text.split(';').next());
    essence.is_some_and(|text| text.trim().eq_ignore_ascii_case("application/json"))
}

fn json(body: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        // The parser's own text may quote the body. The position does not.
        let (line, column) = (error.line(), error.column());
        let message = format!("the body is not JSON: line {line}, column {column}");
        Problem::new(StatusCode::BAD_REQUEST, "malformed_json", message)
    })
}
