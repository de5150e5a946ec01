//! Writes metrics for Prometheus: to stdout, or to a file for `node_exporter`'s textfile collector.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use tidegate::Error;
use tidegate_admin::program::{Failure, Runtime};
use tidegate_admin::prometheus::{Format, down, metrics};

use crate::answer::Answer;

/// The file is readable by everyone, because the collector usually runs as another user.
const MODE: u32 = 0o644;

/// Fails if the database does not answer, but first writes metrics that say so.
pub async fn status(runtime: &Runtime, output: Option<&Path>) -> Result<Answer, Failure> {
    if let Some(path) = output {
        check(path)?;
    }
    let shown = metrics(&runtime.database, Format::Text).await;
    let text = match &shown {
        Ok(text) => text.clone(),
        Err(_) => down(Format::Text),
    };
    if let Some(path) = output {
        let written = replace(path, &text);
        written.map_err(|error| Error::Config(format!("--output: {}: {error}", path.display())))?;
        shown?;
        let name = path.display().to_string();
        return Ok(Answer::new(Value::Null, format!("written to {name}")));
    }
    if let Err(error) = shown {
        crate::answer::print(text.trim_end());
        return Err(error.into());
    }
    // The format has no escape for what a terminal takes for a command. No other reader does.
    if !std::io::stdout().is_terminal() {
        crate::answer::write(text.trim_end());
        return Ok(Answer::new(Value::Null, ""));
    }
    Ok(Answer::new(Value::Null, text))
}

/// Refuses a file that the collector would not read.
fn check(path: &Path) -> Result<(), Error> {
    if path.extension() == Some(OsStr::new("prom")) && path.file_stem().is_some() {
        return Ok(());
    }
    let text = format!("--output: must end in .prom, got {:?}", path.display());
    Err(Error::Invalid(text))
}

/// Replaces the file in one step, so that no reader sees half of it. The temporary file is in the same
/// folder, because a rename does not cross file systems. Its name does not end in .prom, so the collector
/// ignores it.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write(&part, text).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    // Independent of the process's umask.
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
