//! Owns worker processes that may die: the test binary itself, started again for one ignored test.

use std::process::{Child, Command, Stdio};

use tidegate::DrainReport;

use crate::TestDb;

/// A worker process; ends with the test.
pub struct Worker(Child);

impl Worker {
    /// One that runs this ignored test on the database, with these variables more.
    pub fn of(test: &str, db: &TestDb, variables: &[(&str, String)]) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env("DATABASE_URL", &db.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Waits for its end; all that it printed.
    pub fn output(mut self) -> String {
        let mut output = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        std::io::Read::read_to_string(stdout, &mut output).unwrap();
        self.0.wait().unwrap();
        output
    }

    /// Waits for its end; the report it printed, if it came that far.
    pub fn report(self) -> Option<DrainReport> {
        let output = self.output();
        let report = output
            .lines()
            .find_map(|line| line.split_once("REPORT "))?
            .1;
        Some(serde_json::from_str(report).unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
