//! Owns the function under test: the real binary between a stub of the Runtime API and a real Postgres.

use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tempfile::NamedTempFile;
use tidegate::DrainReport;
use tokio::process::Child;

use crate::services::Services;
use crate::{Answer, Deadline, PATIENCE, RuntimeApi, TestDb, command, ended, project_file};

/// A deadline that does not matter.
pub const AMPLE: Deadline = Deadline::In(PATIENCE);

/// A running function; it ends with the test.
pub struct Function {
    pub api: RuntimeApi,
    pub process: Child,
    log: NamedTempFile,
    errors: NamedTempFile,
}

impl Function {
    pub async fn on(db: &TestDb, further: &[(&str, &str)]) -> Self {
        let settings = [&[("DATABASE_URL", db.url.as_str())], further].concat();
        Self::start(&settings).await
    }

    pub async fn with_services(db: &TestDb, services: &Services, further: &[(&str, &str)]) -> Self {
        let urls = services.variables();
        let urls: Vec<(&str, &str)> = urls.iter().map(|(name, url)| (*name, &**url)).collect();
        Self::on(db, &[&urls, further].concat()).await
    }

    pub async fn start(settings: &[(&str, &str)]) -> Self {
        let api = RuntimeApi::start().await;
        let (log, errors) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        let process = command("tidegate-function")
            .envs(api.variables())
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.reopen().unwrap())
            .stderr(errors.reopen().unwrap())
            .spawn()
            .unwrap();
        Self {
            api,
            process,
            log,
            errors,
        }
    }

    pub async fn invoke(&self, payload: &Value) -> Answer {
        self.api.invoke(payload.to_string(), AMPLE).await
    }

    /// A drain that must be answered with a report that adds up.
    pub async fn drain(&self, deadline: Deadline) -> DrainReport {
        report(self.api.invoke(r#"{"action": "drain"}"#, deadline).await)
    }

    /// What it wrote to stdout, which is the function's log.
    pub fn log(&self) -> Vec<Value> {
        self.output()
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }

    /// The same, as it was written.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.errors.path()).unwrap()
    }

    pub async fn end(&mut self) -> ExitStatus {
        let ended = ended("the function", self.process.wait());
        ended.await.unwrap()
    }
}

pub fn report(answer: Answer) -> DrainReport {
    assert!(!answer.is_error, "{answer:?}");
    let report: DrainReport = serde_json::from_value(answer.body).unwrap();
    assert!(report.is_balanced(), "{report:?}");
    report
}

pub fn fixture(name: &str) -> Value {
    let text = std::fs::read(project_file("events").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}
