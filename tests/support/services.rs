//! A stand-in for the services of the shipped systems, over real HTTP. It stores what it receives. It
//! recognizes a repetition by its idempotency key or its reference, and answers it like the real services. It
//! can be told to fail, see [`Mode`]. Other processes control it through `/control`.

#![allow(
    dead_code,
    reason = "included by the tests and by an example, and neither uses all of it"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The services, and the variables that contain their base URLs.
pub const SERVICES: [(&str, &str); 7] = [
    ("archive", "ARCHIVE_URL"),
    ("cases", "CASES_URL"),
    ("notifications", "NOTIFICATIONS_URL"),
    ("ai_check", "AI_CHECK_URL"),
    ("otp", "OTP_URL"),
    ("sms", "SMS_URL"),
    ("signature", "SIGNATURE_URL"),
];

/// A patient who cannot be reached: every notification is answered as by a service that is down.
pub const UNREACHABLE: &str = "00000000-0000-4000-8000-000000000000";

/// How a service behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Mode {
    /// It works.
    #[default]
    Up,
    /// It answers 503 and does nothing.
    Down,
    /// It answers 500 but does the work: the real answer is lost.
    Mute,
    /// It does the work, but answers slowly.
    Slow { delay_ms: u64 },
    /// It answers with a client error and does nothing.
    Refuse { status: u16 },
    /// It answers 429: it is overloaded, and states for how long.
    Busy { seconds: u64 },
    /// It answers 200 and repeats the request as one string, which a decoder that expects another type would
    /// quote.
    Echo,
    /// It does the work, and answers this status without a body.
    Empty { status: u16 },
    /// It does the work, and its answer lacks the field of this number.
    Lacks { nth: usize },
    /// It answers 200 with a NUL character: valid JSON, but Postgres cannot store it.
    Nul,
}

/// A received call.
#[derive(Debug, Clone, Serialize)]
pub struct Call {
    pub path: String,
    pub key: String,
    /// Its trace, if it had one.
    pub traceparent: Option<String>,
    pub reference: String,
    /// The credentials of the caller: `authorization`, or otherwise `x-api-key`.
    pub credentials: Option<String>,
    /// The status of the answer.
    pub status: u16,
    pub body: Value,
}

#[derive(Default)]
struct Service {
    mode: Mode,
    /// Paths with another mode than the rest of the service.
    path_modes: HashMap<String, Mode>,
    /// The required credentials. Others are answered with 401.
    wants: Option<String>,
    calls: Vec<Call>,
    /// The stored objects, by path and reference: the answer to the first call.
    kept: BTreeMap<String, Value>,
    by_key: HashMap<String, Value>,
}

struct Shared {
    services: Mutex<HashMap<&'static str, Service>>,
}

/// The running stand-in. It stops when dropped.
pub struct Services {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

impl Services {
    /// Starts a stand-in on a free port of the loopback interface.
    pub async fn start() -> Self {
        Self::on_port(0)
            .await
            .expect("a free port can be listened on")
    }

    /// Starts a stand-in on this port of the loopback interface. 0 means any free port.
    pub async fn on_port(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let services = SERVICES
            .iter()
            .map(|(name, _)| (*name, Service::default()))
            .collect();
        let shared = Arc::new(Shared {
            services: Mutex::new(services),
        });
        let routes = Router::new()
            .route("/control", get(tell))
            .route("/control/{service}", put(control))
            .route("/{service}/{path}", post(serve))
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(Self {
            address,
            shared,
            server: server.abort_handle(),
        })
    }

    /// Returns variables and base URLs, as the program reads them.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        SERVICES
            .iter()
            .map(|(name, variable)| (*variable, format!("http://{}/{name}", self.address)))
            .collect()
    }

    /// Returns the base URL in `variable`.
    pub fn setting(&self, variable: &str) -> Option<String> {
        self.variables()
            .into_iter()
            .find(|(name, _)| *name == variable)
            .map(|(_, url)| url)
    }

    /// Sets the mode of a service from now on.
    pub fn set(&self, service: &str, mode: Mode) {
        self.shared.with(service, |service| {
            service.mode = mode;
            service.path_modes.clear();
        });
    }

    /// Sets the mode of one path of a service, independent of the rest.
    pub fn set_path(&self, service: &str, path: &str, mode: Mode) {
        self.shared.with(service, |service| {
            service.path_modes.insert(path.to_owned(), mode);
        });
    }

    /// Sets the credentials that a service requires from now on.
    pub fn want(&self, service: &str, credentials: &str) {
        self.shared.with(service, |service| {
            service.wants = Some(credentials.to_owned());
        });
    }

    /// Returns the calls of a service, in order.
    pub fn calls(&self, service: &str) -> Vec<Call> {
        self.shared.with(service, |service| service.calls.clone())
    }

    /// Returns the handlers that have made calls, each with its service. The idempotency key contains the
    /// name of the handler.
    pub fn callers(&self) -> BTreeSet<(String, &'static str)> {
        let handler = |call: Call| call.key.split('-').nth(3).unwrap_or_default().to_owned();
        let of_service = |(name, _): &(&'static str, _)| {
            let name = *name;
            let calls = self.calls(name).into_iter();
            calls.map(move |call| (handler(call), name))
        };
        SERVICES.iter().flat_map(of_service).collect()
    }

    /// Returns `path reference` of all objects that a service stores, sorted.
    pub fn kept(&self, service: &str) -> Vec<String> {
        self.shared
            .with(service, |service| service.kept.keys().cloned().collect())
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Service>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, service: &str, work: impl FnOnce(&mut Service) -> T) -> T {
        work(
            self.lock()
                .get_mut(service)
                .expect("the service is one of SERVICES"),
        )
    }
}

type Reply = (StatusCode, Json<Value>);

/// `POST /{service}/{path}`: the calls of the program.
async fn serve(
    State(shared): State<Arc<Shared>>,
    Path((name, path)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let mut told = HeaderMap::new();
    let key = headers
        .get("Idempotency-Key")
        .and_then(|key| key.to_str().ok());
    let traceparent = headers
        .get("traceparent")
        .and_then(|header| header.to_str().ok());
    let credentials = ["authorization", "x-api-key"]
        .into_iter()
        .find_map(|name| headers.get(name)?.to_str().ok());
    let (mode, (status, Json(mut answer))) = {
        let mut services = shared.lock();
        let Some(service) = services.get_mut(name.as_str()) else {
            return refusal(404, "no such service").into_response();
        };
        let request = Request {
            path: &path,
            key: key.unwrap_or_default(),
            traceparent,
            credentials,
            body,
        };
        service.take(&name, request)
    };
    if let Mode::Slow { delay_ms } = mode {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    }
    if let (Mode::Lacks { nth }, Value::Object(fields)) = (mode, &mut answer)
        && let Some(field) = fields.keys().nth(nth).cloned()
    {
        fields.remove(&field);
    }
    if let Mode::Busy { seconds } = mode {
        told.insert(RETRY_AFTER, seconds.into());
    }
    match mode {
        Mode::Empty { status } => status_of(status).into_response(),
        _ => (told, (status, Json(answer))).into_response(),
    }
}

/// The request of a program.
struct Request<'a> {
    path: &'a str,
    key: &'a str,
    traceparent: Option<&'a str>,
    credentials: Option<&'a str>,
    body: Value,
}

impl Service {
    /// Does the work that the mode permits, and records the call.
    fn take(&mut self, name: &str, request: Request<'_>) -> (Mode, Reply) {
        let Request {
            path,
            key,
            traceparent,
            credentials,
            body,
        } = request;
        let mut mode = self.path_modes.get(path).copied().unwrap_or(self.mode);
        if body["patient_id"] == UNREACHABLE {
            mode = Mode::Down;
        }
        let reference = body["reference"].as_str().unwrap_or_default().to_owned();
        let known = self.wants.is_none() || self.wants.as_deref() == credentials;
        let reply = match mode {
            _ if !known => refusal(401, "who are you?"),
            Mode::Down => refusal(503, "down"),
            Mode::Refuse { status } => refusal(status, "refused"),
            Mode::Busy { .. } => refusal(429, "busy"),
            Mode::Echo => (StatusCode::OK, Json(Value::String(body.to_string()))),
            Mode::Nul => (StatusCode::OK, Json(json!({ "verdict": "\0" }))),
            Mode::Mute => {
                let _ = self.keep(name, path, key, &reference);
                refusal(500, "lost")
            }
            Mode::Up | Mode::Slow { .. } | Mode::Empty { .. } | Mode::Lacks { .. } => {
                self.keep(name, path, key, &reference)
            }
        };
        self.calls.push(Call {
            path: path.to_owned(),
            key: key.to_owned(),
            traceparent: traceparent.map(ToOwned::to_owned),
            credentials: credentials.map(ToOwned::to_owned),
            reference,
            status: reply.0.as_u16(),
            body,
        });
        (mode, reply)
    }

    fn keep(&mut self, name: &str, path: &str, key: &str, reference: &str) -> Reply {
        if key.is_empty() || reference.is_empty() {
            return refusal(422, "an Idempotency-Key and a reference are needed");
        }
        if let Some(answer) = self.by_key.get(key) {
            return (StatusCode::OK, Json(answer.clone()));
        }
        let kept_as = format!("{path} {reference}");
        if let Some(answer) = self.kept.get(&kept_as) {
            return match name {
                "archive" => (StatusCode::CONFLICT, Json(answer.clone())),
                "notifications" => (StatusCode::OK, Json(json!({ "result": "duplicate" }))),
                _ => (StatusCode::OK, Json(answer.clone())),
            };
        }
        let answer = answer(name, reference);
        self.kept.insert(kept_as, answer.clone());
        self.by_key.insert(key.to_owned(), answer.clone());
        (StatusCode::CREATED, Json(answer))
    }
}

/// The answer to a new reference. Ids are derived from the reference, so a restarted stand-in does not issue
/// an id twice.
pub fn answer(name: &str, reference: &str) -> Value {
    let mut hasher = DefaultHasher::new();
    reference.hash(&mut hasher);
    let id = hasher.finish();
    match name {
        "archive" => {
            json!({ "document_id": format!("D-{id:016x}"), "journal_id": format!("J-{id:016x}") })
        }
        "cases" => {
            json!({ "case_number": format!("C-{id:016x}"), "measure_id": format!("M-{id:016x}") })
        }
        "ai_check" => json!({ "verdict": "pass", "check_id": format!("A-{id:016x}") }),
        _ => json!({ "result": "created" }),
    }
}

fn refusal(status: u16, error: &str) -> Reply {
    (status_of(status), Json(json!({ "error": error })))
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST)
}

/// `PUT /control/{service}` with a [`Mode`], such as `{"mode":"slow","delay_ms":500}`.
async fn control(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Json(mode): Json<Mode>,
) -> Reply {
    let mut services = shared.lock();
    let Some(service) = services.get_mut(name.as_str()) else {
        return refusal(404, "no such service");
    };
    service.mode = mode;
    service.path_modes.clear();
    (StatusCode::OK, Json(json!({ "service": name, "is": mode })))
}

/// `GET /control`: the mode of each service, its stored objects, and the number of its calls.
async fn tell(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let told = shared
        .lock()
        .iter()
        .map(|(name, service)| {
            let kept: Vec<&String> = service.kept.keys().collect();
            let state = json!({ "is": service.mode, "calls": service.calls.len(), "kept": kept });
            ((*name).to_owned(), state)
        })
        .collect();
    Json(Value::Object(told))
}
