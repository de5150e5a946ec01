//! Owns a server that a project script starts for the tests. It runs as long as this process holds a pipe
//! open, so it also stops if the tests are killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use crate::cluster::at;
use crate::project_file;

/// A running server.
pub struct Served {
    url: String,
    process: Child,
    conversation: Mutex<Conversation>,
}

/// The conversation with the script.
struct Conversation {
    /// Open while the server is needed. Closing it tells the server to stop.
    words: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Served {
    /// Starts what this script serves, and waits until it is ready.
    pub fn start(script: &str, arguments: &[&OsStr]) -> Result<Self, String> {
        let mut process = Command::new("python3")
            .arg(project_file(script))
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("install Python 3, which starts it: python3: {error}"))?;
        let words = process.stdin.take();
        let output = process.stdout.take().ok_or("its output is not a pipe")?;
        let answers = BufReader::new(output);
        let mut conversation = Conversation { words, answers };
        let line = conversation.answer()?;
        let url = line
            .strip_prefix("DATABASE_URL=")
            .ok_or_else(|| match line.as_str() {
                "" => format!("{script} said why above"),
                other => other.to_owned(),
            })?;
        Ok(Self {
            url: url.to_owned(),
            process,
            conversation: Mutex::new(conversation),
        })
    }

    /// Returns the URL of one of the server's databases.
    pub fn url(&self, database: &str) -> String {
        at(&self.url, database)
    }

    /// Sends a command to a script that was started with `--obey`, and waits until it is done.
    pub fn obey(&self, word: &str) {
        let mut conversation = self.conversation.lock().unwrap();
        let words = conversation.words.as_mut().expect("it runs");
        writeln!(words, "{word}").unwrap();
        assert_eq!(conversation.answer().as_deref(), Ok(word));
    }
}

impl Conversation {
    /// The script gives up by itself after a minute.
    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.map_err(|error| error.to_string())?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The signal to stop. The pipe also closes if this never runs.
        if let Ok(conversation) = self.conversation.get_mut() {
            conversation.words = None;
        }
        let _ = self.process.wait();
    }
}
