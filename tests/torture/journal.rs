//! Owns the records that processes write about themselves while they may be killed at any moment: one line
//! and one write(2) for each fact, synced before the process continues. Everything in a journal has happened.
//!
//! Times are read from the machine's monotonic clock, bypassing libc. All processes share this clock, and
//! neither setting the clock nor libfaketime changes it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tidegate::DrainReport;

/// An event that a publisher is about to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Unique in a run. It is in the payload, so that a row can be identified without its id.
    pub key: String,
    pub group: Option<String>,
}

/// How a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Done,
    Retry,
    /// Its service did not answer. The event keeps its attempt, or loses it if the service answers other
    /// events.
    Unavailable,
    Reject,
}

/// A recorded fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Record {
    /// A publish is about to be sent. Without one of the next two facts, its result is unknown.
    Trying { publish: String, events: Vec<Told> },
    /// It was committed.
    Acknowledged { publish: String, ids: Vec<i64> },
    /// It was certainly not committed.
    Refused { publish: String, error: String },
    /// The answer was lost.
    Unknown { publish: String, error: String },
    /// A handler starts.
    Started { id: i64, attempt: u32, key: String },
    /// A handler is about to return this.
    Ended {
        id: i64,
        attempt: u32,
        verdict: Verdict,
    },
    /// A drain ended.
    Reported { report: Box<DrainReport> },
    /// A drain ended because the database could not be reached.
    Failed { error: String },
    /// The peak memory of a worker, recorded at its end.
    Grew { kilobytes: u64 },
    /// The named process was killed by the test or by itself.
    Killed { process: String },
    /// A process did not end when it was asked to.
    Straggled { process: String },
    /// The test froze a process.
    Froze { process: String },
    /// The test thawed it.
    Thawed { process: String },
    /// The test stopped the server immediately, like `pg_ctl stop -m immediate`.
    ServerCrashed,
    /// The server is running again.
    ServerStarted,
    /// The server's clock differs from the true time by this much.
    ClockSet { seconds: i64 },
}

/// A fact and the time of its recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds of the machine's monotonic clock.
    pub at: u64,
    #[serde(flatten)]
    pub record: Record,
}

/// A journal being written.
pub struct Journal(Mutex<File>);

impl Journal {
    /// Creates or continues a journal.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Self(Mutex::new(file.unwrap()))
    }

    /// Records a fact. The record survives even if this process is killed when the call returns.
    pub fn write(&self, record: Record) {
        let mut file = self.0.lock().unwrap();
        let line = Line {
            at: monotonic(),
            record,
        };
        let mut text = serde_json::to_vec(&line).unwrap();
        text.push(b'\n');
        file.write_all(&text).unwrap();
        file.sync_data().unwrap();
    }
}

/// Nanoseconds of the clock that all processes of the machine share.
pub fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The journal of a process, as it was left.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// The process's name.
    pub name: String,
    pub lines: Vec<Line>,
}

/// Reads a journal. A truncated line has not happened.
pub fn read(path: &Path) -> Left {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    Left {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        lines: whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    }
}

/// Reads all journals in a folder.
pub fn read_all(folder: &Path) -> Vec<Left> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}
