//! Owns the command line under test: the real binary, its settings, and how a run of it ended.

use std::process::Stdio;

use serde_json::Value;
use tidegate::DrainReport;
use tokio::io::AsyncWriteExt;

use crate::services::Services;
use crate::{TestDb, command, ended};

/// The program with the settings it will see.
pub struct Cli(Vec<(String, String)>);

/// How a run of it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Cli {
    pub fn on(db: &TestDb) -> Self {
        Self::at(&db.url)
    }

    pub fn at(url: &str) -> Self {
        Self::without_database().with("DATABASE_URL", url)
    }

    pub fn without_database() -> Self {
        Self(Vec::new())
    }

    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.0.push((variable.to_owned(), value.to_owned()));
        self
    }

    pub fn with_services(self, services: &Services) -> Self {
        self.with_all(services.variables())
    }

    pub fn with_all(mut self, settings: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        for (variable, value) in settings {
            self = self.with(variable, &value);
        }
        self
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "").await
    }

    pub async fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A program that does not read its input may have gone already.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        Ran::of(child).await
    }

    pub fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = command("tidegate");
        command
            .args(arguments)
            .envs(self.0.iter().map(|(variable, value)| (variable, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The document of a run that must succeed.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(&[arguments, &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.document()
    }

    pub async fn drain(&self, arguments: &[&str]) -> DrainReport {
        let document = self.json(&[&["drain"], arguments].concat()).await;
        let report: DrainReport = serde_json::from_value(document).unwrap();
        assert!(report.is_balanced(), "{report:?}");
        report
    }
}

impl Ran {
    pub async fn of(child: tokio::process::Child) -> Self {
        let ended = ended("the program", child.wait_with_output());
        let output = ended.await.unwrap();
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The one JSON document on stdout, one line.
    pub fn document(&self) -> Value {
        assert_eq!(self.stdout.matches('\n').count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that it failed with this code and says all of this on stderr.
    pub fn failed(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for text in says {
            assert!(self.stderr.contains(text), "{text:?} is not in {self:?}");
        }
    }
}

/// The verbs as `--help` lists them.
pub async fn verbs() -> Vec<String> {
    let help = Cli::without_database().run(&["--help"]).await;
    let verbs = commands_in(&help.stdout);
    assert!(verbs.len() >= 6, "{verbs:?}");
    verbs
}

/// The commands that a help text lists, apart from `help`.
pub fn commands_in(help: &str) -> Vec<String> {
    let (_, commands) = help.split_once("Commands:\n").unwrap_or_default();
    commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .map(ToOwned::to_owned)
        .collect()
}
