//! The log: one line for each fact about mail, and for what happens to the server itself.
//!
//! Writing a line never blocks and never waits for the disk: [`Log`] puts it into memory, and a thread of its own
//! takes all that has gathered, formats it and writes it at once. What does not fit into memory is dropped and
//! counted, and the count becomes a line of its own as soon as there is room. A target that fails costs the lines
//! that it failed on, which are counted in the same way; it never stops the server. A file that was renamed is
//! written on until [`Log::reopen`].
//!
//! Nothing that a client said reaches the target as it came: see [`crate::line`].

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mail::{Fact, Journal, Timestamp};

use crate::config::{self, LogFormat, LogTarget};
use crate::line::{self, Level, Line};

/// Lines gather for so long before they are written together; the caller wakes nobody meanwhile.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// Events that are held when no more facts are: few, and they say why.
const EVENTS_RESERVED: usize = 1024;
/// Memory for lines that is kept from one turn to the next; a burst's is given back.
const LINES_KEPT_MAX: usize = 4096;
/// Formatted text is handed on in pieces of about this size.
const PIECE_OCTETS: usize = 64 << 10;

/// Where the log goes.
pub type Target = Box<dyn Write + Send>;

/// The log. Share it by `Arc`; it is closed when the last one is dropped, or by [`Log::close`].
pub struct Log {
    shared: Arc<Shared>,
    /// The target, where it is a file.
    file: Option<PathBuf>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the target and starts the thread that writes.
    pub fn open(config: &config::Log) -> io::Result<Log> {
        match &config.to {
            LogTarget::Stderr => Log::start(Box::new(io::stderr()), config.format, config.queue),
            LogTarget::File(path) => {
                let mut log = Log::start(Box::new(append(path)?), config.format, config.queue)?;
                log.file = Some(path.clone());
                Ok(log)
            }
        }
    }

    /// Starts the thread that writes to `target`; at most `lines_max` facts wait for it.
    pub fn start(target: Target, format: LogFormat, lines_max: usize) -> io::Result<Log> {
        let shared = Arc::new(Shared {
            gathered: Mutex::default(),
            arrived: Condvar::new(),
            lines_max,
            dropped: AtomicU64::new(0),
        });
        let mut writer = Writer { target, format, text: String::new(), shared: Arc::clone(&shared), told: 0 };
        let thread = thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(Log { shared, file: None, writer: Mutex::new(Some(thread)) })
    }

    /// Opens the file by its name again, for it may have been renamed, and lets go of the one that was open. Where
    /// that fails, the log goes on as it was. Without a file there is nothing to do.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.file {
            let target = append(path)?;
            self.shared.lock().target = Some(Box::new(target));
            self.shared.arrived.notify_one();
        }
        Ok(())
    }

    /// Logs something that happened to the server.
    pub fn event(&self, level: Level, text: &str, fields: &[(&'static str, &dyn Display)]) {
        let fields = fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let line = Line::Event { level, text: text.to_owned(), fields };
        self.shared.put(line, self.shared.lines_max.saturating_add(EVENTS_RESERVED));
    }

    /// Lines that were lost so far, for want of memory or because the target failed.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Writes what has gathered and stops; lines that come later are dropped.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.arrived.notify_one();
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It panics only if formatting does; then there is nothing left to write.
            let _ = thread.join();
        }
    }
}

impl Journal for Log {
    fn write(&self, fact: Fact) {
        self.shared.put(Line::Fact(fact), self.shared.lines_max);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

fn append(path: &Path) -> io::Result<File> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("opening the log {}: {error}", path.display()));
    OpenOptions::new().append(true).create(true).open(path).map_err(named)
}

/// What the callers and the thread share.
struct Shared {
    gathered: Mutex<Gathered>,
    arrived: Condvar,
    lines_max: usize,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Gathered {
    lines: Vec<(Timestamp, Line)>,
    /// Where lines go from now on.
    target: Option<Target>,
    /// The thread sleeps until somebody wakes it.
    asleep: bool,
    closed: bool,
}

impl Shared {
    fn put(&self, line: Line, lines_max: usize) {
        let now = Timestamp::from(SystemTime::now());
        let mut gathered = self.lock();
        if gathered.closed || gathered.lines.len() >= lines_max {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        gathered.lines.push((now, line));
        let wake = std::mem::take(&mut gathered.asleep);
        drop(gathered);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Waits for lines and swaps them into `lines`, which comes empty, and takes a new target if there is one; false
    /// when the log is closed and all is written.
    fn take(&self, lines: &mut Vec<(Timestamp, Line)>, target: &mut Target) -> bool {
        let mut gathered = self.lock();
        while gathered.lines.is_empty() && gathered.target.is_none() && !gathered.closed {
            gathered.asleep = true;
            gathered = self.arrived.wait(gathered).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut gathered.lines, lines);
        if let Some(new) = gathered.target.take() {
            *target = new;
        }
        !(gathered.closed && lines.is_empty())
    }

    /// Lets lines gather; ends early when the log is closed.
    fn gather(&self) {
        let gathered = self.lock();
        let open = |gathered: &mut Gathered| !gathered.closed;
        drop(self.arrived.wait_timeout_while(gathered, GATHER_TIME, open).unwrap_or_else(PoisonError::into_inner));
    }

    /// A panic elsewhere leaves whole lines behind, so the log goes on.
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own: where text goes, and how it is made.
struct Writer {
    target: Target,
    format: LogFormat,
    text: String,
    shared: Arc<Shared>,
    /// How many of the dropped lines the log has told of.
    told: u64,
}

impl Writer {
    fn run(&mut self) {
        let mut lines = Vec::new();
        while self.shared.take(&mut lines, &mut self.target) {
            self.write_all(&mut lines);
            lines.shrink_to(LINES_KEPT_MAX);
            self.shared.gather();
        }
    }

    /// Writes the lines, then how many are missing.
    fn write_all(&mut self, lines: &mut Vec<(Timestamp, Line)>) {
        let mut unwritten = 0;
        for (time, line) in lines.drain(..) {
            line::write(&mut self.text, self.format, time, &line);
            unwritten += 1;
            if self.text.len() >= PIECE_OCTETS {
                self.hand_on(std::mem::take(&mut unwritten));
            }
        }
        self.hand_on(unwritten);
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        if dropped > self.told {
            let fields = vec![("lines", (dropped - self.told).to_string())];
            let line = Line::Event { level: Level::Warning, text: "log lines were dropped".into(), fields };
            line::write(&mut self.text, self.format, Timestamp::from(SystemTime::now()), &line);
            if self.hand_on(0) {
                self.told = dropped;
            }
        }
    }

    /// Gives the text, which holds `lines` lines, to the target; they count as dropped where it fails.
    fn hand_on(&mut self, lines: u64) -> bool {
        let result = self.target.write_all(self.text.as_bytes()).and_then(|()| self.target.flush());
        self.text.clear();
        if result.is_err() {
            self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
        }
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A target that keeps what it gets.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A target that tells of each write and waits for a permit, which may be an error; without a giver all may pass.
    struct Gate {
        entered: mpsc::Sender<()>,
        permits: mpsc::Receiver<io::Result<()>>,
        kept: Kept,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.is_empty() {
                return Ok(0);
            }
            self.entered.send(()).ok();
            self.permits.recv().unwrap_or(Ok(()))?;
            self.kept.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn fact() -> Fact {
        Fact::SetAside { id: None, what: "x".into() }
    }

    #[test]
    fn closing_writes_all_that_was_logged() {
        let kept = Kept::default();
        let log = Log::start(Box::new(kept.clone()), LogFormat::Text, 100_000).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| log.write(fact())));
            }
        });
        log.close();
        assert_eq!(kept.text().lines().count(), 20_000);
        assert_eq!(log.dropped(), 0);
        log.write(fact());
        assert_eq!(log.dropped(), 1);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_count_is_a_line() {
        // Declared first and so dropped last: where the test fails, the thread finds its permit gone and ends.
        let log;
        let (entered, writes) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let kept = Kept::default();
        log = Log::start(Box::new(Gate { entered, permits, kept: kept.clone() }), LogFormat::Text, 10).unwrap();
        log.write(fact());
        // The thread is inside its first write: nothing is taken out until it gets its permit.
        writes.recv().unwrap();
        (0..15).for_each(|_| log.write(fact()));
        log.event(Level::Info, "stop", &[]);
        assert_eq!(log.dropped(), 5);
        drop(permit);
        log.close();
        let text = kept.text();
        assert_eq!(text.matches("set_aside").count(), 11);
        assert!(text.contains("info message=stop"), "{text}");
        assert_eq!(text.matches("warning message=\"log lines were dropped\" lines=5\n").count(), 1, "{text}");
        assert_eq!(text.lines().count(), 13, "{text}");
    }

    #[test]
    fn a_target_that_fails_for_a_while_loses_only_the_lines_of_that_while() {
        // Declared first and so dropped last: where the test fails, the thread finds its permit gone and ends.
        let log;
        let (entered, writes) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let kept = Kept::default();
        log = Log::start(Box::new(Gate { entered, permits, kept: kept.clone() }), LogFormat::Text, 10).unwrap();
        permit.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        log.write(fact());
        writes.recv().unwrap();
        drop(permit);
        // The count of the lost line is the next write.
        writes.recv_timeout(Duration::from_secs(10)).unwrap();
        log.write(fact());
        log.close();
        assert_eq!(log.dropped(), 1);
        assert_eq!(kept.text().matches("set_aside").count(), 1);
        assert!(kept.text().contains("lines=1"));
    }

    #[test]
    fn a_file_is_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let config = config::Log { to: LogTarget::File(path.clone()), ..config::Log::default() };
        Log::open(&config).unwrap().event(Level::Info, "start", &[("pid", &1)]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("before\n2") && text.ends_with("Z info message=start pid=1\n"), "{text}");
    }
    #[test]
    fn a_file_that_was_renamed_is_left_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rotated) = (folder.path().join("log"), folder.path().join("log.1"));
        let config = config::Log { to: LogTarget::File(path.clone()), ..config::Log::default() };
        let log = Log::open(&config).unwrap();
        std::fs::rename(&path, &rotated).unwrap();
        log.reopen().unwrap();
        log.event(Level::Info, "after", &[]);
        log.close();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("Z info message=after\n"));
        assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "");
    }

    #[test]
    fn a_file_that_cannot_be_opened_again_is_written_on() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rotated) = (folder.path().join("log"), folder.path().join("log.1"));
        let config = config::Log { to: LogTarget::File(path.clone()), ..config::Log::default() };
        let log = Log::open(&config).unwrap();
        std::fs::rename(&path, &rotated).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(log.reopen().is_err());
        log.event(Level::Info, "after", &[]);
        log.close();
        assert!(std::fs::read_to_string(&rotated).unwrap().ends_with("Z info message=after\n"));
    }
}
