//! Owns how tests start the package's binaries: without the settings of this process, and never
//! outliving the test.

use std::path::{Path, PathBuf};

use tokio::process::{Child, Command};

use crate::services::SERVICES;

/// Returns a command for one of the package's binaries. It sees only the settings that the test
/// gives it. It is killed when its [`Child`] is dropped.
pub fn command(name: &str) -> Command {
    let mut command = Command::new(binary(name));
    for (variable, _) in std::env::vars_os() {
        if is_setting(&variable.to_string_lossy()) {
            command.env_remove(variable);
        }
    }
    command.kill_on_drop(true);
    command
}

/// The schema is the whole run's: see `make unit SCHEMA=acme`.
fn is_setting(variable: &str) -> bool {
    ["TIDEGATE_", "DATABASE_", "AWS_", "OTEL_", "PG"]
        .iter()
        .any(|prefix| variable.starts_with(prefix) && variable != "TIDEGATE_SCHEMA")
        || SERVICES.iter().any(|(_, name)| *name == variable)
}

/// Returns the path of one of the package's binaries. Cargo builds them together with the tests, one folder
/// above them.
///
/// # Panics
/// If the package has no binary with this name.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent);
    let binary = folder.expect("a test is in a folder").join(name);
    assert!(binary.exists(), "no binary {name:?} in this package");
    binary
}

/// Asks a process to end, like a service manager.
pub fn terminate(child: &Child) {
    let id = child.id().expect("the process still runs").to_string();
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &id])
        .status()
        .expect("kill is there");
    assert!(sent.success());
}
