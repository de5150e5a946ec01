//! Owns how a test says that it cannot run here, for want of something that the machine lacks. It says so past the harness,
//! which shows nothing of a test that has not failed, and notes it where `make test` counts what was left out.

use std::fs::OpenOptions;
use std::io::Write;

/// The file that is noted in, if anybody counts.
const COUNTED_IN: &str = "TIDEGATE_SKIPPED_TO";

/// Notes that a test is left out: what it lacks, by the one word that `scripts/skips.py` counts under, and why.
pub fn skipped(lacks: &str, why: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    if let Some(path) = std::env::var_os(COUNTED_IN) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write, so that those of others do not come between.
        let line = format!("{lacks}\t{test}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("{COUNTED_IN}: {error}"));
    }
}
