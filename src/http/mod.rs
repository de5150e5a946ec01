//! Owns the HTTP interface. It accepts a medical job, returns the job and its entities, receives forms and
//! notices about them, and reports whether this process can work. Both shells, `tidegate serve` and the
//! function `tidegate-http`, use the same router. It does not know what a job does ([`crate::app`]) or how it
//! is queued ([`tidegate_core::queue`]).
//!
//! # Layout
//!
//! - `jobs`: `POST /jobs/{kind}` and `GET /jobs/{id}`
//! - `forms`: `GET /forms/{id}`, `POST /forms`, `/letters`, `/cancellations`, `/declines` and
//!   `/forms/{id}/viewed`
//! - `patients`: `GET /patients/{patient_id}/{entities}/{id}`, which the links of a job lead to, and the
//!   confirmation of approvals
//! - `posted`: the JSON of a request, and the transaction that does what it asks for
//! - `callers`: authentication and permissions of callers
//! - `links`: the ids in links to jobs, which cannot be guessed
//! - `answer`: the bodies about a job, by the table "Reading a job"
//! - `problem`: every refusal, in one format
//! - `health`: `GET /healthz`, `GET /readyz`
//! - `metrics`: `GET /metrics` for Prometheus, if it is turned on
//! - `limits`: what applies to every request: its id, log line, time limit and size limits
//! - [`verb`]: the router on a socket, as a verb of the command line; [`function`]: as a Lambda function
//!
//! Each kind has its own route and OpenAPI path, such as `/jobs/episode_create_job`. OpenAPI cannot
//! distinguish `POST /jobs/{kind}` from `GET /jobs/{id}`, because two templates with the same structure are
//! one path. Separate paths also let the document state the body of each kind.

mod answer;
mod callers;
mod forms;
pub mod function;
mod health;
mod jobs;
mod limits;
mod links;
mod metrics;
mod patients;
mod posted;
mod problem;
pub mod verb;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use tidegate_otel::Telemetry;

pub use callers::Access;
pub use callers::verb::{api_key, link_key};
pub use limits::{
    BODY_LIMIT, HEADER_BYTES, HEADER_COUNT, IN_FLIGHT, IN_FLIGHT_OF_ONE, LOOK_UPS_OF_ONE,
    REQUEST_TIMEOUT,
};
pub use metrics::Scrapes;
pub use problem::Problem;
pub use verb::serve;

use callers::{Gate, Scope};
use problem::Common;
use tidegate::chain::StartDrain;
use tidegate::connect::Client;
use tidegate::wake::Waker;
use tidegate::{Database, Error, Transaction};

/// Maximum time that a request waits for a free connection. After it, the answer asks the client to retry.
const CONNECTION_WAIT: Duration = Duration::from_secs(2);

/// Time limit to check whether a connection is alive. A live connection answers within milliseconds. A dead
/// one does not answer, and the request pays for the wait.
const SIGN_OF_LIFE_WAIT: Duration = Duration::from_millis(500);

/// The database cancels a statement after this time, in milliseconds. An abandoned request must not leave a
/// statement behind that waits for a lock.
const STATEMENT_TIMEOUT_MS: u32 = 5000;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate jobs and forms",
        description = "Accepts applications for grants, and notices about them. \
            Accepts jobs that change patients' medical records, and returns the state and result of each job. \
            A request for a job is answered with 202 at once, and the job is processed later. Jobs of one patient \
            are processed in the order in which they were accepted. Repeating a request while its job is pending \
            returns that job. No text may contain the character NUL.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/")),
    tags(
        (name = "jobs", description = "Accepting and reading jobs"),
        (name = "patients", description = "Reading entities that jobs created, and confirming approvals"),
        (name = "forms", description = "Submitting forms, and notices about them"),
        (name = "operation", description = "For operators of the service")
    )
)]
struct Document;

/// The state that requests share.
#[derive(Clone)]
struct Shared {
    database: Database,
    document: Arc<Described>,
}

/// The OpenAPI 3.1 document, generated from the routes and their types at the first request for it.
type Described = LazyLock<String, Box<dyn FnOnce() -> String + Send>>;

/// Builds the router over this database, for the callers that `access` permits, with all layers around the
/// routes.
pub fn router(database: Database, access: Access) -> Router {
    measured(database, access, Scrapes::Off)
}

/// As [`router`], with metrics for Prometheus if there are to be any.
pub fn measured(database: Database, access: Access, scrapes: Scrapes) -> Router {
    let gate = Gate { database, access };
    let (mut routes, document) = documented(&gate).split_for_parts();
    let metrics = || metrics::route(gate.database.clone());
    match scrapes {
        Scrapes::Off => {}
        Scrapes::Open => routes = routes.merge(limits::uncached(limits::bounded(metrics()))),
        Scrapes::Known => routes = routes.merge(gate.before(Scope::METRICS, metrics())),
    }
    // Strings and maps always serialize.
    let text = Box::new(move || document.to_json().unwrap_or_default());
    let shared = Shared {
        database: gate.database,
        document: Arc::new(LazyLock::new(text)),
    };
    let mut routes = routes.with_state(shared);
    if gate.access.is_undecided() {
        routes = routes.layer(from_fn(limits::for_this_machine));
    }
    limits::around(routes)
}

/// Adds recording to the router, if traces are sent anywhere: what requests publish is recorded. The spans
/// are sent before the answer, because the process may be frozen after it.
pub fn recording(router: Router, telemetry: Option<Telemetry>) -> Router {
    let Some(telemetry) = telemetry else {
        return router;
    };
    let recorded = |State(telemetry): State<Telemetry>, request: Request, next: Next| async move {
        telemetry.recorded(next.run(request), || None).await
    };
    router.layer(from_fn_with_state(telemetry, recorded))
}

/// How a request that published an event starts a drain.
#[derive(Clone)]
struct Wakes {
    waker: Arc<Waker>,
    /// Whether the answer waits until a drain is started, because the process may be frozen after it.
    waits: bool,
}

/// Adds a wake-up to the router, if there is a `starter`: a POST that succeeds starts a drain. `waits` says
/// whether the answer waits until the drain is started.
pub fn waking(
    router: Router,
    database: &Database,
    starter: Option<Arc<dyn StartDrain>>,
    waits: bool,
) -> Router {
    let Some(starter) = starter else {
        return router;
    };
    let waker = Arc::new(Waker::new(database.clone(), starter));
    router.layer(from_fn_with_state(Wakes { waker, waits }, wake_behind))
}

async fn wake_behind(State(wakes): State<Wakes>, request: Request, next: Next) -> Response {
    let is_post = request.method() == Method::POST;
    let answer = next.run(request).await;
    if is_post && answer.status().is_success() {
        if !wakes.waits {
            wakes.waker.published();
        } else if let Err(error) = wakes.waker.wake().await {
            tracing::warn!(%error, "no drain could be started; the next scheduled drain handles the published events");
        }
    }
    answer
}

/// The router of a function with invalid settings. It answers every request with 503 and keeps running.
pub fn unconfigured() -> Router {
    limits::around(Router::new().fallback(|| async {
        Problem::unavailable("the settings of this service are not valid; its log says why")
    }))
}

/// The routes together with their documentation. Neither exists without the other.
fn documented(gate: &Gate) -> OpenApiRouter<Shared> {
    let mut routes = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(openapi))
        .merge(gate.before(Scope::JOBS, jobs::routes()))
        .merge(gate.before(Scope::JOBS, patients::routes()))
        .merge(gate.before(Scope::APPROVALS, patients::approvals()))
        .merge(gate.before(Scope::FORMS, forms::routes()))
        .merge(gate.before(Scope::LETTERS, forms::letters()));
    callers::describe(&gate.access, routes.get_openapi_mut());
    routes
}

/// Returns this document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operation",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value), Common)
)]
async fn openapi(State(shared): State<Shared>) -> impl IntoResponse {
    let text = String::clone(&shared.document);
    ([(CONTENT_TYPE, "application/json")], text)
}

/// A working connection of the pool, soon or not at all. If a function was frozen between two requests, its
/// connection may be dead. Then the request gets another one.
async fn connection(database: &Database) -> Result<Client, Error> {
    let client = database.pooled_within(CONNECTION_WAIT).await?;
    let answer = tokio::time::timeout(SIGN_OF_LIFE_WAIT, client.check_connection()).await;
    if matches!(answer, Ok(Ok(()))) {
        return Ok(client);
    }
    client.close();
    database.pooled_within(CONNECTION_WAIT).await
}

/// Opens a transaction that rolls back when dropped, for example when a client disconnects during its
/// request. The database limits the time of its statements.
async fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    let stage = "begin";
    let failed = |source| Error::Database { stage, source };
    let transaction = client.transaction().await.map_err(failed)?;
    let limit = format!("SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}");
    transaction.batch_execute(&limit).await.map_err(failed)?;
    Ok(transaction)
}
