//! A stub of the Lambda Runtime API. It passes invocations to one function process and receives its
//! answers. <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// AWS's maximum size of an answer, in bytes.
const ANSWER_LIMIT: usize = 6 * 1024 * 1024;

/// The ARN of the invoked function.
pub const FUNCTION_ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:tidegate";

/// The trace of each invocation. It is not sampled.
pub const TRACE: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0;Lineage=1:a87bd80c:0";

/// The deadline of an invocation.
#[derive(Debug, Clone, Copy)]
pub enum Deadline {
    /// This long after it was passed to the function.
    In(Duration),
    /// At this many milliseconds since 1970.
    At(u64),
}

/// An answer that the function posted.
#[derive(Debug)]
pub struct Answer {
    /// Whether it was posted to the error route.
    pub is_error: bool,
    pub body: Value,
    /// The time from passing the invocation to the answer.
    pub took: Duration,
}

struct Invocation {
    id: String,
    trace: String,
    payload: Vec<u8>,
    deadline: Deadline,
    answer: oneshot::Sender<Answer>,
}

struct Shared {
    waiting: tokio::sync::Mutex<mpsc::UnboundedReceiver<Invocation>>,
    handed_out: Mutex<HashMap<String, (Instant, oneshot::Sender<Answer>)>>,
}

/// The running stub. It stops when dropped.
pub struct RuntimeApi {
    address: SocketAddr,
    invocations: mpsc::UnboundedSender<Invocation>,
    count: AtomicUsize,
    server: AbortHandle,
}

impl RuntimeApi {
    /// Starts a stub on a free port of the loopback interface.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("a free port can be listened on");
        let address = listener.local_addr().expect("it has an address");
        let (invocations, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            waiting: waiting.into(),
            handed_out: Mutex::default(),
        });
        let routes = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route(
                "/2018-06-01/runtime/invocation/{id}/response",
                post(response),
            )
            .route("/2018-06-01/runtime/invocation/{id}/error", post(error))
            .layer(DefaultBodyLimit::max(ANSWER_LIMIT))
            .with_state(shared);
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            address,
            invocations,
            count: AtomicUsize::new(0),
            server: server.abort_handle(),
        }
    }

    /// Returns the variables by which a function finds its runtime.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_LAMBDA_RUNTIME_API", self.address.to_string()),
            ("AWS_LAMBDA_FUNCTION_NAME", "tidegate-function".to_owned()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256".to_owned()),
            ("AWS_LAMBDA_FUNCTION_VERSION", "1".to_owned()),
        ]
    }

    /// Invokes the function and returns its answer.
    ///
    /// # Panics
    /// If there is no answer within [`super::PATIENCE`].
    pub async fn invoke(&self, payload: impl Into<Vec<u8>>, deadline: Deadline) -> Answer {
        self.invoke_in(TRACE, payload, deadline).await
    }

    /// Invokes the function with this trace header, in which Lambda counts how many functions have invoked
    /// each other.
    ///
    /// # Panics
    /// If there is no answer within [`super::PATIENCE`].
    pub async fn invoke_in(
        &self,
        trace: &str,
        payload: impl Into<Vec<u8>>,
        deadline: Deadline,
    ) -> Answer {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let invocation = Invocation {
            id: format!("request-{number}"),
            trace: trace.to_owned(),
            payload: payload.into(),
            deadline,
            answer,
        };
        assert!(self.invocations.send(invocation).is_ok(), "the stub runs");
        let answer = super::ended("an invocation", answered).await;
        answer.expect("the stub runs")
    }
}

impl Drop for RuntimeApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let Some(invocation) = shared.waiting.lock().await.recv().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let deadline = match invocation.deadline {
        Deadline::At(milliseconds) => milliseconds,
        Deadline::In(time) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let deadline = now.expect("it is later than 1970") + time;
            u64::try_from(deadline.as_millis()).expect("it is earlier than the year 500 million")
        }
    };
    let headers = [
        ("lambda-runtime-aws-request-id", invocation.id.clone()),
        ("lambda-runtime-deadline-ms", deadline.to_string()),
        (
            "lambda-runtime-invoked-function-arn",
            FUNCTION_ARN.to_owned(),
        ),
        ("lambda-runtime-trace-id", invocation.trace),
        ("content-type", "application/json".to_owned()),
    ];
    let handed_out = (Instant::now(), invocation.answer);
    shared
        .handed_out
        .lock()
        .expect("nobody panics with it")
        .insert(invocation.id, handed_out);
    (headers, invocation.payload).into_response()
}

async fn response(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    shared.answered(&id, false, &body)
}

async fn error(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert!(
        headers.contains_key("lambda-runtime-function-error-type"),
        "{headers:?}"
    );
    shared.answered(&id, true, &body)
}

impl Shared {
    fn answered(&self, id: &str, is_error: bool, body: &[u8]) -> Response {
        let handed_out = self
            .handed_out
            .lock()
            .expect("nobody panics with it")
            .remove(id);
        let Some((since, answer)) = handed_out else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        // A test that has stopped waiting does not need the answer.
        let _ = answer.send(Answer {
            is_error,
            body: serde_json::from_slice(body).unwrap_or_default(),
            took: since.elapsed(),
        });
        (StatusCode::ACCEPTED, Json(serde_json::json!({}))).into_response()
    }
}
