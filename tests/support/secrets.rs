//! A stand-in for Secrets Manager. It answers `GetSecretValue` for one secret as the test
//! specifies, and records the requests.
//! <https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html>

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The id of the secret.
const ID: &str = "night/database";

/// How requests for a version of the secret are answered. A version that is not set is answered as
/// missing.
#[derive(Debug, Clone)]
pub enum Version {
    /// With this text.
    Text(String),
    /// With bytes.
    Binary,
    /// The caller may not read it.
    Denied,
    /// With an invalid answer that quotes the secret.
    Nonsense,
    /// Never: the request hangs.
    Hanging,
}

#[derive(Default)]
struct Shared {
    versions: Mutex<HashMap<String, Version>>,
    asked: Mutex<Vec<String>>,
}

/// The running stand-in. It stops when dropped.
pub struct Secrets {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

impl Secrets {
    /// Starts a stand-in whose secret has this current version.
    pub async fn start(current: Version) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let routes = Router::new()
            .route("/", post(get_secret_value))
            .with_state(shared.clone());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        let secrets = Self {
            address,
            shared,
            server: server.abort_handle(),
        };
        secrets.set("AWSCURRENT", current);
        secrets
    }

    /// Sets the answer for the version of a stage from now on.
    pub fn set(&self, stage: &str, version: Version) {
        let mut versions = self.shared.versions.lock().unwrap();
        versions.insert(stage.to_owned(), version);
    }

    /// Returns the requested stages in order. For another secret it returns its id.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Returns the variables by which a program finds it.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = aws_variables();
        variables.extend([
            ("DATABASE_SECRET_ID", ID.to_owned()),
            (
                "AWS_ENDPOINT_URL_SECRETS_MANAGER",
                format!("http://{}", self.address),
            ),
        ]);
        variables
    }
}

/// Returns region and credentials, without any settings of the machine.
pub fn aws_variables() -> Vec<(&'static str, String)> {
    [
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "canary-of-aws"),
        ("AWS_CONFIG_FILE", "/dev/null"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("NO_PROXY", "127.0.0.1"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn get_secret_value(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let asked: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(headers["x-amz-target"], "secretsmanager.GetSecretValue");
    let signed = headers["authorization"].to_str().unwrap();
    super::begins(signed, "AWS4-HMAC-SHA256 ");
    let stage = match asked["SecretId"].as_str().unwrap() {
        ID => asked["VersionStage"].as_str().unwrap_or("none"),
        other => other,
    };
    let stage = stage.to_owned();
    shared.asked.lock().unwrap().push(stage.clone());
    let version = shared.versions.lock().unwrap().get(&stage).cloned();
    let named = json!({"ARN": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:night", "Name": ID,
                       "VersionId": "v", "VersionStages": [stage]});
    let answer = |field: &str, value: String| {
        let mut answer = named;
        answer[field] = Value::String(value);
        amz(StatusCode::OK, &answer.to_string())
    };
    match version {
        Some(Version::Text(text)) => answer("SecretString", text),
        Some(Version::Binary) => answer("SecretBinary", "Y2FuYXJ5".to_owned()),
        Some(Version::Nonsense) => amz(StatusCode::OK, "{\"SecretString\": \"canary"),
        Some(Version::Hanging) => std::future::pending().await,
        Some(Version::Denied) => refusal("AccessDeniedException", "night may not read it"),
        None => refusal("ResourceNotFoundException", "there is no such version"),
    }
}

fn refusal(code: &str, message: &str) -> Response {
    let body = json!({"__type": code, "message": message});
    amz(StatusCode::BAD_REQUEST, &body.to_string())
}

fn amz(status: StatusCode, body: &str) -> Response {
    let headers = [("content-type", "application/x-amz-json-1.1")];
    (status, headers, body.to_owned()).into_response()
}
