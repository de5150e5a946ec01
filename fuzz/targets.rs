//! Owns the properties that must hold for any input bytes. There is one target for each place where
//! bytes from outside are decoded. Test builds contain this module to replay `tests/fuzz/corpus/`.
//! Builds of `make fuzz` contain it so that libFuzzer can search for new inputs. The product does not
//! contain it.
//!
//! Every target checks that nothing panics, that an error names the fault, and that no error shows part
//! of a secret.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request as HttpRequest, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tidegate::trace::TraceContext;
use tidegate::{Database, DecodeError, DrainOptions, Error, Event, Lookup, config};
use tidegate_admin::{Actions, Request, TimeArg, logs, parse_time_arg};
use tidegate_core::progress::Progress;
use tidegate_core::{connect, queue};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{FromSql, Type};
use tower::Service;
use tracing_subscriber::filter::LevelFilter;

use crate::app::checks::intake::{Filter, Wanted};
use crate::app::medical::content::{
    Content, DiagnosticReportPackage, EncounterPackage, Procedure, ServiceRequest,
};
use crate::app::medical::signed::open;
use crate::app::submission::read;
use crate::app::{App, Event as AppEvent, forms, schema};

/// A target. It accepts any bytes, and panics if a property does not hold.
pub type Target = fn(&[u8]);

/// All targets, by the name of their corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("database_url", database_url),
    ("duration", duration),
    ("form", form),
    ("http", http),
    ("invocation", invocation),
    ("leased_row", leased_row),
    ("message", message),
    ("secret", secret),
    ("settings", settings),
    ("signed_content", signed_content),
    ("traceparent", traceparent),
];

/// Stands in for a secret. None of our messages contains this word.
const CANARY: &str = "canary";

/// The beginning of the year 10000, in Unix seconds.
const YEAR_10000: u64 = 253_402_300_800;

/// `DATABASE_URL`, with [`CANARY`] in place of each `PASSWORD` in the input. It must be read as the
/// driver reads it, and no error may contain the password.
fn database_url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let url = text.replace("PASSWORD", CANARY);
    for iam in [false, true] {
        let lookup = |name: &str| match name {
            "DATABASE_URL" => Some(url.clone()),
            "DATABASE_AUTH" if iam => Some("iam".to_owned()),
            _ => None,
        };
        if let Err(error) = Database::from_settings(&lookup, 1) {
            let error = format!("{error} {error:?}");
            assert!(error.contains("DATABASE_URL"), "{error}");
            // The TLS mode is not a secret, so an error may show an invalid one.
            let is_told = error.contains("sslmode: ");
            assert!(is_told || !error.contains(CANARY), "{error}");
        }
    }
    // Whatever the options are, the password must be the one that the driver reads.
    let by_driver: Result<tokio_postgres::Config, _> = url.parse();
    if let (Ok(ours), Ok(theirs)) = (connect::config_of_url(&url), by_driver) {
        assert_eq!(ours.get_password(), theirs.get_password(), "{url}");
        assert_eq!(ours.get_user(), theirs.get_user(), "{url}");
        assert_eq!(ours.get_dbname(), theirs.get_dbname(), "{url}");
        assert_eq!(ours.get_hosts(), theirs.get_hosts(), "{url}");
    }
}

/// Durations and times. An error says what is allowed, and a formatted value parses to the same value.
fn duration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match config::parse_duration(text) {
        Ok(duration) => {
            let shown = humantime::format_duration(duration).to_string();
            assert_eq!(config::parse_duration(&shown), Ok(duration), "{text:?}");
            assert!(std::time::Instant::now().checked_add(duration).is_some());
        }
        Err(error) => assert!(error.contains("500ms, 30s, 5m or 1h"), "{error}"),
    }
    match parse_time_arg(text) {
        Ok(TimeArg::At(time)) => {
            // An offset can lead beyond the years that can be formatted.
            let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
            if since_1970.is_ok_and(|since| since.as_secs() < YEAR_10000) {
                let shown = humantime::format_rfc3339_nanos(time).to_string();
                assert_eq!(parse_time_arg(&shown), Ok(TimeArg::At(time)), "{text:?}");
            }
        }
        Ok(TimeArg::Ago(ago)) => assert_eq!(config::parse_duration(text), Ok(ago)),
        Err(error) => assert!(error.contains("RFC 3339"), "{error}"),
    }
}

/// A form and a grant as JSON. An error names the field and quotes nothing.
fn form(input: &[u8]) {
    let Ok(json) = serde_json::from_slice(input) else {
        return;
    };
    let read = [
        ("form", read::<forms::Form>(&json).err()),
        ("grant", read::<forms::Grant>(&json).err()),
    ];
    for (what, faults) in read {
        let Some(faults) = faults else { continue };
        let error = schema::refused(what, &faults).to_string();
        let named = ["form", "grant"];
        assert!(named.iter().any(|name| error.starts_with(name)), "{error}");
        let says = [": must ", ": is needed"];
        assert!(says.iter().any(|says| error.contains(says)), "{error}");
        assert!(!error.contains(CANARY), "{error}");
    }
}

/// A request as `METHOD PATH`, header lines, an empty line and the body. It goes to the real router,
/// with a database that does not exist. The router must never answer 500. Every refusal has the same
/// format, and none quotes the body.
fn http(input: &[u8]) {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let built = Builder::new_current_thread().enable_all().build();
        built.unwrap_or_else(|error| panic!("{error}"))
    });
    let Some((request, body)) = request(input) else {
        return;
    };
    let quotable = request.uri().to_string() + &format!("{:?}", request.headers());
    let (status, answer) = RUNTIME.block_on(async {
        let mut router = router();
        let Ok(response) = router.call(request).await;
        let status = response.status();
        let answer = to_bytes(response.into_body(), usize::MAX).await;
        (status, answer.unwrap_or_default())
    });
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR);
    if status.is_client_error() || status.is_server_error() {
        let answer = String::from_utf8_lossy(&answer);
        let told: Value = serde_json::from_str(&answer).unwrap_or_default();
        // A response to HEAD has no body.
        assert!(
            answer.is_empty() || told["error"]["type"].is_string(),
            "{answer}"
        );
        // Field names may appear, because they are the fault.
        let is_named = has_key_with_canary(&serde_json::from_slice(&body).unwrap_or_default());
        assert!(
            is_named || quotable.contains(CANARY) || !answer.contains(CANARY),
            "{answer}"
        );
    }
}

fn request(input: &[u8]) -> Option<(HttpRequest<Body>, Vec<u8>)> {
    let end = input.windows(2).position(|pair| pair == b"\n\n")?;
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 2..]);
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let mut request = HttpRequest::builder().method(method).uri(path);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(body.to_vec())).ok()?;
    Some((request, body.to_vec()))
}

fn router() -> Router {
    static ROUTER: LazyLock<Router> = LazyLock::new(|| {
        // Port 1 refuses connections at once.
        let database = Database::new("postgres://nobody@127.0.0.1:1/none", 1);
        let database = database.unwrap_or_else(|error| panic!("{error}"));
        crate::http::router(database, crate::http::Access::open())
    });
    ROUTER.clone()
}

fn has_key_with_canary(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains(CANARY) || has_key_with_canary(value)),
        Value::Array(items) => items.iter().any(has_key_with_canary),
        _ => false,
    }
}

/// An invocation. An error begins with the name of the field or with `invocation`.
fn invocation(input: &[u8]) {
    let Ok(payload) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let only_drain = |name: &str| (name == "TIDEGATE_ACTIONS").then(|| "drain".to_owned());
    let decode = |lookup: Lookup<'_>, payload| {
        Actions::from_setting(lookup, &[], true).and_then(|actions| actions.request(payload))
    };
    let allowed = decode(&only_drain, payload.clone());
    assert!(matches!(
        allowed,
        Ok(Request::Drain(_)) | Err(Error::Invalid(_))
    ));
    match decode(&|_| None, payload) {
        Ok(Request::Drain(asked)) => {
            let options = asked.over(&tidegate::DrainOptions::default());
            assert!(options.budget < Duration::MAX);
        }
        Ok(Request::Cleanup(asked)) => {
            let options = asked.over(Duration::from_secs(1), None);
            assert!(options.budget < Duration::MAX);
        }
        Ok(_) => {}
        Err(error) => {
            let error = error.to_string();
            let named = ["invocation: ", "action: "];
            assert!(named.iter().any(|name| error.starts_with(name)), "{error}");
            assert!(error.len() > "invocation: ".len(), "{error}");
        }
    }
}

/// A leased row, as lines: its kind, its publish time (microseconds from 2000, as Postgres sends them,
/// or `infinity`), its trace header and its progress. The rest is the payload.
fn leased_row(input: &[u8]) {
    let mut lines = input.splitn(5, |byte| *byte == b'\n');
    let mut text = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (kind, published, header, progress) = (text(), text(), text(), text());
    let payload = lines.next();
    let published = match published.as_str() {
        "infinity" => i64::MAX,
        "-infinity" => i64::MIN,
        number => number.parse().unwrap_or(0),
    };
    let published = SystemTime::from_sql(&Type::TIMESTAMPTZ, &published.to_be_bytes());
    assert!(published.is_ok_and(|time| format!("{time:?}").len() > 1));
    if let Some(position) = TraceContext::parse(&header) {
        assert_eq!(position.child().trace_id(), position.trace_id());
    }
    if let Some(progress) = queue::progress(progress.as_bytes()) {
        let stored = serde_json::to_vec(&progress).unwrap_or_default();
        let again: Option<Progress> = queue::progress(&stored);
        let again = again.and_then(|progress| serde_json::to_vec(&progress).ok());
        assert_eq!(again, Some(stored));
    }
    match AppEvent::decode(&kind, payload) {
        Ok(event) => {
            let stored = event.encode().map(|json| json.get().to_owned());
            let stored = stored.unwrap_or_else(|error| panic!("{kind}: {error}"));
            let again = AppEvent::decode(&kind, Some(stored.as_bytes()));
            let again = again.ok().and_then(|event| event.encode().ok());
            assert_eq!(again.map(|json| json.get().to_owned()), Some(stored));
            assert_eq!(event.kind(), kind);
        }
        Err(DecodeError::UnknownKind(unknown)) => assert_eq!(unknown, kind),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(&kind) && !error.contains(CANARY), "{error}");
        }
    }
}

/// A bus message. An error names the field and quotes nothing.
fn message(input: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    if let Err(error) = Wanted::in_message(&Filter::default(), &message) {
        let error = error.to_string();
        let named = [
            "message",
            "triggerId",
            "applicationId",
            "dueAt",
            "startBefore",
        ];
        assert!(named.iter().any(|name| error.starts_with(name)), "{error}");
        assert!(!error.contains(CANARY), "{error}");
    }
}

/// A secret, first unchanged, then with [`CANARY`] appended to each of its texts in turn. No error may
/// show it.
fn secret(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let login = connect::config_of_secret(text);
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
        let error = login.err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("JSON object")));
        return;
    };
    match login {
        Ok(config) => {
            let password = fields["password"].as_str().map(str::as_bytes);
            assert_eq!(config.get_password(), password);
        }
        Err(error) => {
            let error = error.to_string();
            let known = ["username", "password", "host", "port", "dbname", "sslmode"];
            let more = ["ca_pem", "engine"];
            let mut known = known.iter().chain(&more);
            assert!(
                known.any(|name| error.contains(&format!("{name}: "))),
                "{error}"
            );
        }
    }
    for (name, value) in &fields {
        let mut changed = fields.clone();
        changed[name] = match value {
            Value::String(text) => Value::String(format!("{text}{CANARY}")),
            other => Value::String(format!("{other}{CANARY}")),
        };
        let text = Value::Object(changed).to_string();
        if let Err(error) = connect::config_of_secret(&text) {
            let error = format!("{error} {error:?}");
            assert!(!error.contains(CANARY), "{error}");
        }
    }
}

/// Settings, as `NAME=value` lines. An error names a setting that is set.
fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let lines = || text.lines().filter_map(|line| line.split_once('='));
    let lookup = |name: &str| {
        let found = lines().find(|(known, value)| *known == name && !value.is_empty());
        // The file is not read, because another target covers its content.
        let found = found.filter(|(name, _)| *name != "DATABASE_CA_FILE");
        found.map(|(_, value)| value.to_owned())
    };
    let errors = [
        DrainOptions::from_settings(&lookup).err(),
        logs::log_filter(&lookup, LevelFilter::INFO).err(),
        Actions::from_setting(&lookup, &[], true).err(),
        App::from_settings(&lookup).err(),
        lines()
            .any(|(name, _)| name == "DATABASE_SECRET_ID")
            .then(|| Database::from_settings(&lookup, 1).err())
            .flatten(),
    ];
    for error in errors.into_iter().flatten() {
        let error = error.to_string();
        let is_named = lines().any(|(name, _)| error.contains(name));
        assert!(is_named || error.contains("DATABASE_"), "{error}");
    }
}

/// A signed content, read as each shape: once as it appears in a payload, and once before base64
/// encoding. A refusal quotes nothing.
fn signed_content(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let is_named = has_key_with_canary(&serde_json::from_slice(input).unwrap_or_default());
    for signed_data in [&*text, &*STANDARD.encode(input)] {
        for told in [
            faults_as::<EncounterPackage>(signed_data),
            faults_as::<DiagnosticReportPackage>(signed_data),
            faults_as::<Procedure>(signed_data),
            faults_as::<ServiceRequest>(signed_data),
        ] {
            assert!(is_named || !told.contains(CANARY), "{told}");
        }
    }
}

/// The faults of a content that is read as this shape, as JSON.
fn faults_as<T: Content>(signed_data: &str) -> String {
    let faults = match open::<T>(signed_data) {
        Ok(signed) => serde_json::to_string(&signed.faults_of_new(uuid::Uuid::nil())),
        Err(refusal) => serde_json::to_string(refusal.faults()),
    };
    faults.unwrap_or_default()
}

/// A trace header. An accepted header must be formatted as a header that is accepted too.
fn traceparent(input: &[u8]) {
    let Ok(header) = std::str::from_utf8(input) else {
        return;
    };
    if let Some(position) = TraceContext::parse(header) {
        let written = position.to_string();
        assert_eq!(TraceContext::parse(&written), Some(position.clone()));
        let child = position.child();
        assert!(TraceContext::parse(&child.to_string()).is_some());
        assert!(header.is_ascii());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::panic::catch_unwind;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kept_input_is_fine_and_every_target_has_some() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
        let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let folders = fs::read_dir(&corpus).unwrap();
        let folders: BTreeSet<String> =
            folders.map(|entry| named(&entry.unwrap().path())).collect();
        let targets = TARGETS.iter().map(|(name, _)| (*name).to_owned());
        assert_eq!(folders, targets.collect());
        for (name, target) in TARGETS {
            let files: Vec<_> = fs::read_dir(corpus.join(name)).unwrap().collect();
            assert!(!files.is_empty(), "{name}");
            for file in files {
                let path = file.unwrap().path();
                let input = fs::read(&path).unwrap();
                let ended = catch_unwind(|| target(&input));
                assert!(ended.is_ok(), "{}", path.display());
            }
        }
    }
}
