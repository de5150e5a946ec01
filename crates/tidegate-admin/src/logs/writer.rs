//! Owns the way of log lines out of the process. Lines wait in a bounded queue for a thread that writes them,
//! so a pipe that nobody reads stops neither a drain nor its handlers. Lines that find no room are dropped,
//! and their number is logged in their place.
//!
//! The crate `tracing-appender` has such a queue, too. But it can only be flushed once, at the end of the
//! process, its bound is a number of lines of any length, and it does not log what it has dropped.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tidegate_core::config::environment;
use tidegate_core::error::Error;

/// The most bytes of lines that wait. Lines that are being written take as much again.
const MOST_WAITING: usize = 1 << 20;

/// How long the end of a process waits for the reader of its lines.
pub const PATIENCE: Duration = Duration::from_secs(1);

static LINES: Lines = Lines::new();

struct Lines {
    state: Mutex<LinesState>,
    changed: Condvar,
}

struct LinesState {
    waiting: Vec<u8>,
    /// How many lines found no room since the last time the thread took some.
    dropped: u64,
    is_writing: bool,
    /// A flush waited in vain, and nothing has been written since.
    is_blocked: bool,
    /// The thread that writes, once there is one.
    writer: Option<ThreadId>,
    /// What that thread itself logs: how many lines were dropped.
    own: Vec<u8>,
    /// What stands first in each line that is a JSON object.
    head: Vec<u8>,
}

/// Starts the thread that writes this process's log lines to `out`, and returns what makes writers to its
/// queue.
///
/// # Errors
/// [`Error::Config`] if there can be no further thread.
pub fn log_writer(out: impl Write + Send + 'static) -> Result<fn() -> LogWriter, Error> {
    let started = LINES.start(move || LINES.write_to(out));
    started.map_err(|error| Error::Config(format!("threads: {error}")))?;
    Ok(|| LogWriter(&LINES))
}

/// Writes a line that is never dropped to where log lines go, in their order: a metric, or why the program
/// failed. Before [`log_writer`], it goes to stderr.
pub fn write_line(text: &str) {
    if LINES.lock().writer.is_none() {
        return eprintln!("{text}");
    }
    LINES.push(format!("{text}\n").as_bytes(), usize::MAX);
}

/// Writes a line of metrics. Lambda drops lines below the level that it names in `AWS_LAMBDA_LOG_LEVEL`, and
/// takes a line without a level for `INFO`, so these have that level.
/// <https://docs.aws.amazon.com/lambda/latest/dg/monitoring-cloudwatchlogs-log-level.html>
pub fn write_metrics(line: &str) {
    let level = environment("AWS_LAMBDA_LOG_LEVEL");
    write_object(level.as_deref().unwrap_or("INFO"), line);
}

/// Writes a JSON object as a line of this level, as the log has them.
pub fn write_object(level: &str, object: &str) {
    let (at, fields) = (Timestamp::now(), object.trim_start_matches('{'));
    write_line(&format!(
        r#"{{"timestamp":"{at}","level":"{level}",{fields}"#
    ));
}

/// Begins each line from now on with this request's id, under the name that Lambda's own lines have for it.
/// Only lines that are JSON objects have it.
pub fn note_request(id: &str) {
    LINES.lock().head = format!(r#""requestId":{},"#, json!(id)).into_bytes();
}

/// Waits until all lines are written, but not longer than `limit`. Returns at once if the last call waited in
/// vain and nothing has been written since.
pub fn flush(limit: Duration) {
    LINES.flush(limit);
}

/// Flushes when it is dropped, for the end of a program's `main`.
pub struct FlushAtExit;

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        flush(PATIENCE);
    }
}

/// Takes one log line with each call of `write`.
pub struct LogWriter(&'static Lines);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.push(line, MOST_WAITING);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    const fn new() -> Self {
        let state = LinesState {
            waiting: Vec::new(),
            dropped: 0,
            is_writing: false,
            is_blocked: false,
            writer: None,
            own: Vec::new(),
            head: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut state = self.lock();
        let thread = std::thread::Builder::new().name("tidegate-logs".to_owned());
        state.writer = Some(thread.spawn(work)?.thread().id());
        Ok(())
    }

    fn push(&self, line: &[u8], most: usize) {
        let mut state = self.lock();
        if state.writer == Some(std::thread::current().id()) {
            return state.own.extend(line);
        }
        let was_idle = state.is_idle();
        let line = match line {
            [b'{', rest @ ..] => [b"{", &*state.head, rest].concat(),
            _ => line.to_vec(),
        };
        // A line that is longer than the queue finds room in an empty one.
        if state.waiting.is_empty() || state.waiting.len().saturating_add(line.len()) <= most {
            state.waiting.extend(line);
        } else {
            state.dropped += 1;
        }
        if was_idle {
            self.changed.notify_all();
        }
    }

    /// Writes lines for ever. An output that fails, such as a closed pipe, loses its lines.
    fn write_to(&self, mut out: impl Write) {
        loop {
            for line in self.next().split_inclusive(|byte| *byte == b'\n') {
                // Line by line: another process may write to the same pipe, which keeps only short writes
                // whole.
                let _ = out.write_all(line);
            }
            let _ = out.flush();
        }
    }

    /// Waits for lines and takes all that wait, with the number of those that were dropped behind them.
    fn next(&self) -> Vec<u8> {
        let mut state = self.lock();
        if state.is_writing {
            (state.is_writing, state.is_blocked) = (false, false);
            self.changed.notify_all();
        }
        let waited = self.changed.wait_while(state, |state| state.is_idle());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        let mut lines = std::mem::take(&mut state.waiting);
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        if dropped > 0 {
            tracing::error!(
                "{dropped} log lines were dropped, because nobody read them fast enough"
            );
            lines.append(&mut self.lock().own);
        }
        lines
    }

    fn flush(&self, limit: Duration) {
        let state = self.lock();
        if state.is_blocked {
            return;
        }
        let waited = self
            .changed
            .wait_timeout_while(state, limit, |state| !state.is_idle());
        let (mut state, ended) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_blocked = ended.timed_out();
    }
}

impl LinesState {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.dropped == 0 && !self.is_writing
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    /// A reader that takes nothing until it is let.
    #[derive(Clone, Default)]
    struct SlowReader(Arc<(Mutex<Heard>, Condvar)>);

    #[derive(Default)]
    struct Heard {
        reads: bool,
        text: Vec<u8>,
    }

    impl SlowReader {
        fn read(&self) {
            self.0.0.lock().unwrap().reads = true;
            self.0.1.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().unwrap().text.clone()).unwrap()
        }
    }

    impl Write for SlowReader {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let (heard, changed) = &*self.0;
            let heard = heard.lock().unwrap();
            let mut heard = changed.wait_while(heard, |heard| !heard.reads).unwrap();
            heard.text.extend(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Lines on their way to this reader, from a thread that logs to them as a program does.
    fn lines_to(reader: &SlowReader) -> &'static Lines {
        let lines: &Lines = Box::leak(Box::new(Lines::new()));
        let out = reader.clone();
        let logs = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| LogWriter(lines))
            .finish();
        let work = || tracing::subscriber::with_default(logs, || lines.write_to(out));
        lines.start(work).unwrap();
        lines
    }

    /// Logs that many numbered lines of a hundred bytes.
    fn log(lines: &'static Lines, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let line = format!("{number:099}\n");
            LogWriter(lines).write_all(line.as_bytes()).unwrap();
        }
    }

    #[test]
    fn lines_that_are_read_are_all_written_in_order_and_a_flush_waits_for_them() {
        let reader = SlowReader::default();
        let lines = lines_to(&reader);
        reader.read();
        for round in 0..50 {
            log(lines, round * 100..(round + 1) * 100);
            lines.flush(Duration::from_mins(3));
            assert_eq!(reader.text().lines().count(), (round + 1) * 100);
        }
        let text = reader.text();
        let numbers = text.lines().map(|line| line.parse::<usize>().unwrap());
        assert!(numbers.eq(0..5000));
    }

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted_and_the_count_stands_in_their_place() {
        let reader = SlowReader::default();
        let lines = lines_to(&reader);
        // One line is being written, and the queue has room for this many.
        let (room, all) = (MOST_WAITING / 100, 2 * MOST_WAITING / 100);
        log(lines, 0..1);
        while !lines.lock().is_writing {
            std::thread::yield_now();
        }
        log(lines, 1..all);
        lines.push(b"a metric\n", usize::MAX);
        reader.read();
        lines.flush(Duration::from_mins(3));
        log(lines, all..all + 1);
        lines.flush(Duration::from_mins(3));
        let text = reader.text();
        let said: Vec<&str> = text.lines().collect();
        let numbers = said.iter().map_while(|line| line.parse::<usize>().ok());
        assert!(numbers.eq(0..=room), "the first ones, in order");
        assert_eq!(said[room + 1], "a metric");
        let dropped = format!("{} log lines were dropped", all - 1 - room);
        assert!(said[room + 2].contains(&dropped), "{}", said[room + 2]);
        assert_eq!(said[room + 3].parse::<usize>().unwrap(), all);
        assert_eq!(said.len(), room + 4);
    }

    #[test]
    fn a_flush_gives_up_on_a_reader_that_does_not_read_and_the_next_one_does_not_wait() {
        let reader = SlowReader::default();
        let lines = lines_to(&reader);
        log(lines, 0..10);
        let began = Instant::now();
        lines.flush(Duration::from_millis(200));
        assert!(began.elapsed() >= Duration::from_millis(200));
        // Only a call that does wait takes that long.
        lines.flush(Duration::from_mins(2));
        assert!(began.elapsed() < Duration::from_mins(1));
        reader.read();
        // Until the thread has written, a flush still counts as in vain.
        while lines.lock().is_blocked {
            std::thread::yield_now();
        }
        log(lines, 10..11);
        lines.flush(Duration::from_mins(3));
        assert_eq!(reader.text().lines().count(), 11);
    }
}
