//! Owns where the progress bar of a drain stands. A log line that is written to the same terminal does not
//! tear it: the bar goes, the line is written, and the bar comes back.

use std::io::{Result, Write, stderr};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Says which bar stands on the terminal; `None` when there is none any more.
pub fn show(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Writes log lines to stderr, above the bar if there is one.
pub struct BesideBar;

impl Write for BesideBar {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        let bar = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || stderr().write_all(line).map(|()| line.len());
        match &*bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> Result<()> {
        stderr().flush()
    }
}
