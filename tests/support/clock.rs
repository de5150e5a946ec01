//! Owns the wall clock that a process under test sees. It is libfaketime's clock, which can jump while the
//! process runs.

use std::path::PathBuf;
use std::process::Command;

use crate::project_file;
use crate::skip::skipped;

/// libfaketime, and the file from which it reads the time, in a folder that the server's user can read.
pub struct Clock {
    folder: tempfile::TempDir,
}

impl Clock {
    /// Returns `None` and prints the reason if libfaketime is not available.
    pub fn get() -> Option<Self> {
        let script = project_file("scripts/tools.py");
        let found = Command::new("python3")
            .args([script.as_os_str(), "libfaketime".as_ref()])
            .output()
            .unwrap();
        if !found.status.success() {
            skipped("libfaketime", String::from_utf8_lossy(&found.stderr).trim());
            return None;
        }
        let library = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        // Not inside the project folder, which the server's user may not be able to read.
        let folder = tempfile::Builder::new()
            .prefix("tidegate-clock-")
            .tempdir_in("/tmp")
            .unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let clock = Self { folder };
        std::fs::copy(library, clock.library()).unwrap();
        clock.set(0);
        Some(clock)
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libfaketime.so")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// Takes effect when the clock is next read. The file is never half written.
    pub fn set(&self, seconds: i64) {
        let part = self.folder.path().join("part");
        std::fs::write(&part, format!("{seconds:+}s\n")).unwrap();
        std::fs::rename(part, self.file()).unwrap();
    }

    pub fn variables(&self) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library().display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            // Waits that use the monotonic clock must continue to work, because a real monotonic clock does
            // not jump.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
