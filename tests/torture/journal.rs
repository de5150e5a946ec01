//! Owns what processes write down about themselves while they may be killed at any moment: one line a
//! fact, one write(2) a line, synced before the process goes on. What is in a journal has happened.
//!
//! The surprise: times are of the machine's monotonic clock, read past libc. All processes share it, and
//! neither a set clock nor libfaketime moves it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tidegate::DrainReport;

/// What a publisher is about to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Unique in a run; in the payload, so that a row is known without its id.
    pub key: String,
    pub group: Option<String>,
}

/// How a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Done,
    Retry,
    /// Its service does not answer: the event keeps its attempt, or loses it, as what the service answers others says.
    Unavailable,
    Reject,
}

/// A fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Record {
    /// A publish is about to be sent. Without one of the next two it is unknown what became of it.
    Trying { publish: String, events: Vec<Told> },
    /// It was committed.
    Acknowledged { publish: String, ids: Vec<i64> },
    /// It was certainly not committed.
    Refused { publish: String, error: String },
    /// The answer was lost.
    Unknown { publish: String, error: String },
    /// A handler starts.
    Started { id: i64, attempt: u32, key: String },
    /// It is about to return this.
    Ended {
        id: i64,
        attempt: u32,
        verdict: Verdict,
    },
    /// A drain ended.
    Reported { report: Box<DrainReport> },
    /// A drain ended because the database stayed away.
    Failed { error: String },
    /// The most memory that a worker had at once, told at its end.
    Grew { kilobytes: u64 },
    /// The test killed a process, or it killed itself, by its name.
    Killed { process: String },
    /// A process did not end when it was asked to.
    Straggled { process: String },
    /// The test stopped a process.
    Froze { process: String },
    /// The test let it go on.
    Thawed { process: String },
    /// The test stopped the server at once, as `pg_ctl stop -m immediate` does.
    ServerCrashed,
    /// The server is back.
    ServerStarted,
    /// The server's clock is that far from the true time.
    ClockSet { seconds: i64 },
}

/// A fact and when it was written down.
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
    /// Creates or continues one.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Self(Mutex::new(file.unwrap()))
    }

    /// Writes a fact down; it stays even if this process is killed on return.
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

/// A process's journal as it was left.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// The process's name.
    pub name: String,
    pub lines: Vec<Line>,
}

/// Reads a journal; a line that was cut off has not happened.
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

/// All journals of a folder.
pub fn read_all(folder: &Path) -> Vec<Left> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}
