//! Owns how a test reports that it cannot run, because the machine lacks something. The test harness shows no
//! output of successful tests, so this bypasses it. It also records the skip where `make test` counts skipped
//! tests.

use std::fs::OpenOptions;
use std::io::Write;

/// The file for the records, if skips are counted.
const COUNTED_IN: &str = "TIDEGATE_SKIPPED_TO";

/// Records that a test is skipped, with the reason and the missing item as one word. `scripts/stages.py`
/// counts by this word.
pub fn skipped(lacks: &str, why: &str) {
    let test = this_test();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    if let Some(path) = std::env::var_os(COUNTED_IN) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write, so that lines of other tests cannot be mixed in.
        let line = format!("{lacks}\t{test}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("{COUNTED_IN}: {error}"));
    }
}

/// Returns the name of the test that runs here. nextest runs each in a process of its own, whose thread need
/// not be named after it.
pub fn this_test() -> String {
    let thread = std::thread::current();
    let named = std::env::var("NEXTEST_TEST_NAME").ok();
    named.unwrap_or_else(|| thread.name().unwrap_or("a test").to_owned())
}
