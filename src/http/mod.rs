//! Owns the HTTP interface: accept a medical job, read it and what it made, take in forms and word about them, and tell
//! whether this process can work. One router for both shells, `tidegate serve` and the function
//! `tidegate-http`. It refuses to know what a job does ([`crate::app`]) and how it is queued
//! ([`tidegate::queue`]).
//!
//! # Layout
//!
//! - `jobs`: `POST /jobs/{kind}` and `GET /jobs/{id}`;
//! - `forms`: `POST /forms`, `/letters`, `/cancellations` and `/forms/{id}/viewed`;
//! - `patients`: `GET /patients/{patient_id}/{entities}/{id}`, where a job's links lead, and the confirmation of approvals;
//! - `callers`: who is let in, how callers are known, how often they may ask;
//! - `links`: the ids by which jobs are linked to, which nobody guesses;
//! - `answer`: the bodies, by the table "Reading a job";
//! - `problem`: every refusal, in one shape;
//! - `health`: `GET /healthz`, `GET /readyz`;
//! - `limits`: what surrounds every request: its id, its log line, its time, its size;
//! - `serve`: the router on a socket; [`verb`]: as a verb of the command line; [`function`]: as a Lambda function.
//!
//! The surprise: each kind has a route and an OpenAPI path of its own, `/jobs/episode_create_job` and
//! so on. OpenAPI cannot tell `POST /jobs/{kind}` from `GET /jobs/{id}`, for two templates of one shape
//! are one path; and only so does the document say which body belongs to which kind.

mod answer;
mod callers;
mod forms;
pub mod function;
mod health;
mod jobs;
mod limits;
mod links;
mod patients;
mod problem;
mod serve;
pub mod verb;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request, State};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio_postgres::{Client, Transaction};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use tidegate::connect::Pooled;
use tidegate::wake::Waker;
use tidegate::{Database, Error, Telemetry};

pub use callers::Access;
pub use callers::verb::{api_key, link_key};
pub use limits::{BODY_LIMIT, HEADER_BYTES, HEADER_COUNT, IN_FLIGHT, REQUEST_TIMEOUT};
pub use problem::Problem;
pub use serve::serve;

use callers::{Gate, Scope};
use problem::Common;

/// A request waits no longer for a free connection; then it is told to come again.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// A connection that is alive says so within milliseconds; one that is not says nothing, and the request
/// pays for the wait.
const SIGN_OF_LIFE_WAIT: Duration = Duration::from_millis(500);

/// The database ends a statement by itself after this, in milliseconds: a request that is given up must
/// not leave one behind that waits for a lock.
const STATEMENT_TIMEOUT_MS: u32 = 5000;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate jobs and forms",
        description = "Takes in applications for grants and word about them. \
            Accepts jobs that change patients' medical records and tells what became of them. \
            A job is answered with 202 at once and processed later; jobs of one patient are processed in \
            the order they were accepted. Repeating a request while its job is pending returns that job. \
            No text may hold the character NUL.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/")),
    tags(
        (name = "jobs", description = "Accepting and reading jobs"),
        (name = "patients", description = "What the jobs made, and approvals confirmed"),
        (name = "forms", description = "Handing in forms, and word about them"),
        (name = "operation", description = "For those who run the service")
    )
)]
struct Document;

/// What requests share.
#[derive(Clone)]
struct Shared {
    database: Database,
    document: Arc<Described>,
}

impl FromRef<Shared> for Database {
    fn from_ref(shared: &Shared) -> Self {
        shared.database.clone()
    }
}

/// The OpenAPI 3.1 document, generated from the routes and their types, and its text once somebody has asked for it.
struct Described {
    document: utoipa::openapi::OpenApi,
    text: OnceLock<String>,
}

/// The router over this database for those whom `access` lets in, and everything that surrounds a request.
pub fn router(database: Database, access: Access) -> Router {
    let gate = Gate { database, access };
    let (routes, document) = documented(&gate).split_for_parts();
    let text = OnceLock::new();
    let shared = Shared {
        database: gate.database,
        document: Arc::new(Described { document, text }),
    };
    limits::around(routes.with_state(shared))
}

/// With what requests publish recorded for traces, if they are sent anywhere. They are sent before the answer: behind it the
/// process may be frozen.
pub fn recording(router: Router, telemetry: Option<Telemetry>) -> Router {
    let Some(telemetry) = telemetry else {
        return router;
    };
    let recorded = |State(telemetry): State<Telemetry>, request: Request, next: Next| async move {
        telemetry.recorded(next.run(request)).await
    };
    router.layer(from_fn_with_state(telemetry, recorded))
}

/// How a drain is woken behind a request that has published something.
#[derive(Clone)]
pub struct Wakes {
    waker: Arc<Waker>,
    /// The process may be frozen as soon as it has answered: the answer waits until a drain is started.
    waits: bool,
}

impl Wakes {
    /// Wakes this function, in the background or before the answer.
    #[must_use]
    pub fn function(database: &Database, arn: Option<String>, waits: bool) -> Option<Self> {
        let waker = Arc::new(Waker::function(database.clone(), arn?));
        Some(Self { waker, waits })
    }
}

/// The router, which wakes drains if it is to.
pub fn waking(router: Router, wakes: Option<Wakes>) -> Router {
    match wakes {
        Some(wakes) => router.layer(from_fn_with_state(wakes, wake_behind)),
        None => router,
    }
}

async fn wake_behind(State(wakes): State<Wakes>, request: Request, next: Next) -> Response {
    let is_post = request.method() == Method::POST;
    let answer = next.run(request).await;
    if is_post && answer.status().is_success() {
        if !wakes.waits {
            wakes.waker.published();
        } else if let Err(error) = wakes.waker.wake().await {
            tracing::warn!(%error, "no drain could be woken; the next tick finds what was published");
        }
    }
    answer
}

/// The router of a function whose settings do not hold: it says so, to everyone, and goes on living.
pub fn unconfigured() -> Router {
    limits::around(Router::new().fallback(|| async {
        Problem::unavailable("this service is not configured; its log says why")
    }))
}

/// Routes together with their documentation: there is no way to have one without the other.
fn documented(gate: &Gate) -> OpenApiRouter<Shared> {
    let mut routes = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi))
        .merge(gate.before(Scope::Jobs, jobs::routes()))
        .merge(gate.before(Scope::Jobs, patients::routes()))
        .merge(gate.before(Scope::Forms, forms::routes()))
        .merge(gate.before(Scope::Letters, forms::letters()));
    callers::describe(&gate.access, routes.get_openapi_mut());
    routes
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operation",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value), Common)
)]
async fn openapi(State(shared): State<Shared>) -> impl IntoResponse {
    let Described { document, text } = &*shared.document;
    // Strings and maps always serialize.
    let text = text.get_or_init(|| document.to_json().unwrap_or_default());
    ([(CONTENT_TYPE, "application/json")], text.clone())
}

/// A connection of the pool that answers, soon or not at all. A function that was frozen between two
/// requests may find its connection dead; then there is another.
async fn connection(database: &Database) -> Result<Pooled, Error> {
    let client = database.pooled_within(CONNECTION_WAIT).await?;
    let answer = tokio::time::timeout(SIGN_OF_LIFE_WAIT, client.check_connection()).await;
    if matches!(answer, Ok(Ok(()))) {
        return Ok(client);
    }
    drop(Pooled::take(client));
    database.pooled_within(CONNECTION_WAIT).await
}

/// Opens a transaction that rolls back when dropped, as it is when a client goes away in the middle
/// of its request, and whose statements the database itself ends in time.
async fn begin(client: &mut Pooled) -> Result<Transaction<'_>, Error> {
    let stage = "begin";
    let failed = |source| Error::Database { stage, source };
    let client: &mut Client = client;
    let transaction = client.transaction().await.map_err(failed)?;
    let limit = format!("SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}");
    transaction.batch_execute(&limit).await.map_err(failed)?;
    Ok(transaction)
}
