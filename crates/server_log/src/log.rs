//! The log: a line for each mail event, and for each event of the server itself.
//!
//! Logging never blocks and never waits for the disk: [`Log`] keeps the line in memory, and a
//! thread takes all gathered lines, formats them and writes them together. Lines that do not fit
//! are dropped and counted, and the count is logged when there is room again. Only an act of an operator
//! waits for room before it begins, and its line is never dropped for lack of it. If the target fails,
//! the lines of that write are lost and counted too; the server never stops because of its log. If a file
//! fails, as on a full disk, lines about acts of operators go to standard error instead, so that who mends it
//! leaves a trace. A renamed file is written to until [`Log::reopen`].
//!
//! Text from clients is escaped: see [`crate::format`].

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mail::{EventLog, LogObserver, MailEvent, Timestamp};
use parking_lot::{Condvar, Mutex};

use crate::format::{LogEntry, write_line};
use crate::settings::{LogFormat, LogSettings, LogTarget};
use mail::{LogLevel, ServerLog};

/// How long lines gather before they are written together; callers do not wake the thread
/// meanwhile.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// Additional room for server events when the buffer is full of mail events: they are few, and
/// explain why.
const EVENTS_RESERVED: usize = 1024;
/// Line capacity kept between writes; more, after a burst, is freed.
const BUFFER_LINES_MAX: usize = 4096;
/// Formatted text is written in pieces of about this size.
const WRITE_OCTETS: usize = 64 << 10;

/// Where the log goes.
pub type LogOutput = Box<dyn Write + Send>;

/// The log. Share it by `Arc`; it is closed by [`Log::close`], or when the last one is dropped.
pub struct Log {
    shared: Arc<LogShared>,
    /// The target, if it is a file.
    file: Option<PathBuf>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the target and starts the writer thread.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(config: &LogSettings) -> io::Result<Log> {
        match &config.to {
            LogTarget::Stderr => Log::start(Box::new(io::stderr()), config.format, config.queue),
            LogTarget::File(path) => {
                let outputs = LogOutputs { target: Box::new(append(path)?), fallback: Some(Box::new(io::stderr())) };
                let mut log = Log::start_with(outputs, config.format, config.queue)?;
                log.file = Some(path.clone());
                Ok(log)
            }
        }
    }

    /// Starts the thread that writes to `target`; at most `lines_max` mail events wait for it.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(target: LogOutput, format: LogFormat, lines_max: usize) -> io::Result<Log> {
        Log::start_with(LogOutputs { target, fallback: None }, format, lines_max)
    }

    fn start_with(outputs: LogOutputs, format: LogFormat, lines_max: usize) -> io::Result<Log> {
        let shared = Arc::new(LogShared {
            state: Mutex::default(),
            arrived: Condvar::new(),
            taken: Condvar::new(),
            lines_max,
            dropped: AtomicU64::new(0),
            observer: OnceLock::new(),
        });
        let mut writer = LogWriter {
            outputs,
            format,
            text: String::new(),
            audit_text: String::new(),
            shared: Arc::clone(&shared),
            reported_drops: 0,
        };
        let thread = thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(Log { shared, file: None, writer: Mutex::new(Some(thread)) })
    }

    /// Opens the file again by its name, after it was renamed, and closes the old one. If that
    /// fails, the old file stays in use. Does nothing without a file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.file {
            let target = append(path)?;
            self.shared.state.lock().target = Some(Box::new(target));
            self.shared.arrived.notify_one();
        }
        Ok(())
    }

    /// From now on, this observer sees all lines. Call it once.
    pub fn set_observer(&self, observer: Arc<dyn LogObserver>) {
        // Only the first one is taken: a log has one owner, which sets it once.
        drop(self.shared.observer.set(observer));
    }

    /// Writes the gathered lines and stops; later lines are dropped.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.arrived.notify_one();
        let thread = self.writer.lock().take();
        if let Some(thread) = thread {
            // The thread panics only if formatting does; then there is nothing left to write.
            let _ = thread.join();
        }
    }
}

impl EventLog for Log {
    fn write(&self, fact: MailEvent) {
        self.shared.push(LogEntry::Mail(fact), false, self.shared.lines_max);
    }
}

impl ServerLog for Log {
    fn event(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        let fields = fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let line = LogEntry::Server { level, text: text.to_owned(), fields };
        self.shared.push(line, false, self.shared.lines_max.saturating_add(EVENTS_RESERVED));
    }

    fn wait_for_room(&self, longest: Duration) -> bool {
        self.shared.wait_for_room(longest)
    }

    fn audit(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        let fields = fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
        self.shared.push(LogEntry::Server { level, text: text.to_owned(), fields }, true, usize::MAX);
    }

    fn lines_dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

fn append(path: &Path) -> io::Result<File> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()));
    OpenOptions::new().append(true).create(true).open(path).map_err(named)
}

/// Shared by callers and the thread.
struct LogShared {
    state: Mutex<LogState>,
    arrived: Condvar,
    /// The thread has taken the lines.
    taken: Condvar,
    lines_max: usize,
    dropped: AtomicU64,
    observer: OnceLock<Arc<dyn LogObserver>>,
}

/// A line that is to be written.
struct GatheredLine {
    time: Timestamp,
    entry: LogEntry,
    /// It is about an act of an operator.
    is_audit: bool,
}

/// Where lines go.
struct LogOutputs {
    target: LogOutput,
    /// Takes lines about acts of operators while the target fails; None: they are lost like the others.
    fallback: Option<LogOutput>,
}

#[derive(Default)]
struct LogState {
    lines: Vec<GatheredLine>,
    /// The new target after a reopen.
    target: Option<LogOutput>,
    /// The thread sleeps until it is notified.
    asleep: bool,
    closed: bool,
}

impl LogShared {
    fn push(&self, entry: LogEntry, is_audit: bool, lines_max: usize) {
        let time = Timestamp::from(SystemTime::now());
        let mut state = self.state.lock();
        if state.closed || state.lines.len() >= lines_max {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.lines.push(GatheredLine { time, entry, is_audit });
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Waits for lines, swaps them into the empty `lines`, and takes a new target if there is one;
    /// false when the log is closed and everything is written.
    fn take(&self, lines: &mut Vec<GatheredLine>, target: &mut LogOutput) -> bool {
        let mut state = self.state.lock();
        while state.lines.is_empty() && state.target.is_none() && !state.closed {
            state.asleep = true;
            self.arrived.wait(&mut state);
        }
        std::mem::swap(&mut state.lines, lines);
        self.taken.notify_all();
        if let Some(new) = state.target.take() {
            *target = new;
        }
        !(state.closed && lines.is_empty())
    }

    /// Waits for room for one more line, at most for this time.
    fn wait_for_room(&self, longest: Duration) -> bool {
        let mut state = self.state.lock();
        let is_full = |state: &mut LogState| !state.closed && state.lines.len() >= self.lines_max;
        self.taken.wait_while_for(&mut state, is_full, longest);
        !state.closed && state.lines.len() < self.lines_max
    }

    /// Waits for more lines; ends early when the log is closed.
    fn wait_for_more(&self) {
        let mut state = self.state.lock();
        let open = |state: &mut LogState| !state.closed;
        self.arrived.wait_while_for(&mut state, open, BATCH_DELAY);
    }
}

/// The writer thread.
struct LogWriter {
    outputs: LogOutputs,
    format: LogFormat,
    text: String,
    /// The lines of `text` that are about acts of operators.
    audit_text: String,
    shared: Arc<LogShared>,
    /// How many dropped lines have been reported.
    reported_drops: u64,
}

impl LogWriter {
    fn run(&mut self) {
        let mut lines = Vec::new();
        while self.shared.take(&mut lines, &mut self.outputs.target) {
            self.write_all(&mut lines);
            lines.shrink_to(BUFFER_LINES_MAX);
            self.shared.wait_for_more();
        }
    }

    /// Writes the lines, then the number of dropped ones.
    fn write_all(&mut self, lines: &mut Vec<GatheredLine>) {
        self.show_observer(lines);
        let mut unwritten = 0;
        for GatheredLine { time, entry, is_audit } in lines.drain(..) {
            let start = self.text.len();
            write_line(&mut self.text, self.format, time, &entry);
            if is_audit {
                self.audit_text.push_str(&self.text[start..]);
            }
            unwritten += 1;
            if self.text.len() >= WRITE_OCTETS {
                self.write_text(std::mem::take(&mut unwritten));
            }
        }
        self.write_text(unwritten);
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        if dropped > self.reported_drops {
            let fields = vec![("lines", (dropped - self.reported_drops).to_string())];
            let line = LogEntry::Server { level: LogLevel::Warning, text: "log lines were dropped".into(), fields };
            write_line(&mut self.text, self.format, Timestamp::from(SystemTime::now()), &line);
            if self.write_text(0) {
                self.reported_drops = dropped;
            }
        }
    }

    /// Passes the lines to the observer, if it wants any.
    fn show_observer(&self, lines: &[GatheredLine]) {
        let Some(observer) = self.shared.observer.get().filter(|observer| observer.is_watching()) else { return };
        let mut text = String::new();
        for GatheredLine { time, entry, .. } in lines {
            text.clear();
            write_line(&mut text, LogFormat::Json, *time, entry);
            observer.observe(&text);
        }
    }

    /// Writes the text, which holds `lines` lines; they count as dropped if that fails, also those that then go
    /// to the fallback.
    fn write_text(&mut self, lines: u64) -> bool {
        let LogOutputs { target, fallback } = &mut self.outputs;
        let result = target.write_all(self.text.as_bytes()).and_then(|()| target.flush());
        if result.is_err() {
            self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
            if let Some(fallback) = fallback.as_mut().filter(|_| !self.audit_text.is_empty()) {
                // There is no other place.
                let _ = fallback.write_all(self.audit_text.as_bytes()).and_then(|()| fallback.flush());
            }
        }
        self.text.clear();
        self.audit_text.clear();
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A target that keeps what is written.
    #[derive(Clone, Default)]
    struct MemoryTarget(Arc<Mutex<Vec<u8>>>);

    impl MemoryTarget {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for MemoryTarget {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A target that reports each write and waits for a permit, which may be an error; without a
    /// sender, all writes pass.
    struct GatedTarget {
        entered: mpsc::Sender<()>,
        permits: mpsc::Receiver<io::Result<()>>,
        kept: MemoryTarget,
    }

    impl Write for GatedTarget {
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

    fn fact() -> MailEvent {
        MailEvent::SetAside { id: None, detail: "x".into() }
    }

    #[test]
    fn closing_writes_all_that_was_logged() {
        let kept = MemoryTarget::default();
        let log = Log::start(Box::new(kept.clone()), LogFormat::Text, 100_000).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| log.write(fact())));
            }
        });
        log.close();
        assert_eq!(kept.text().lines().count(), 20_000);
        assert_eq!(log.lines_dropped(), 0);
        log.write(fact());
        assert_eq!(log.lines_dropped(), 1);
    }

    /// Takes lines while it has room.
    #[derive(Default)]
    struct TestObserver(Mutex<Vec<String>>);

    impl LogObserver for TestObserver {
        fn is_watching(&self) -> bool {
            self.0.lock().len() < 2
        }

        fn observe(&self, line: &str) {
            self.0.lock().push(line.to_owned());
        }
    }

    #[test]
    fn an_observer_sees_lines_as_json_while_it_watches() {
        let (kept, observer) = (MemoryTarget::default(), Arc::new(TestObserver::default()));
        let log = Log::start(Box::new(kept.clone()), LogFormat::Text, 10).unwrap();
        log.set_observer(observer.clone());
        for number in 0..3 {
            log.event(LogLevel::Info, "number", &[("is", &number)]);
            while kept.text().lines().count() <= number {
                thread::yield_now();
            }
        }
        log.close();
        let seen = observer.0.lock().clone();
        assert_eq!(seen.len(), 2);
        assert!(seen[1].starts_with('{') && seen[1].ends_with("\"is\":\"1\"}\n"), "{seen:?}");
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_count_is_a_line() {
        // Declared first and so dropped last: if the test fails, the thread finds its permit gone
        // and ends.
        let log;
        let (entered, writes) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let kept = MemoryTarget::default();
        log = Log::start(Box::new(GatedTarget { entered, permits, kept: kept.clone() }), LogFormat::Text, 10).unwrap();
        log.write(fact());
        // The thread is in its first write and takes no lines until it gets its permit.
        writes.recv().unwrap();
        (0..15).for_each(|_| log.write(fact()));
        log.event(LogLevel::Info, "stop", &[]);
        assert_eq!(log.lines_dropped(), 5);
        drop(permit);
        log.close();
        let text = kept.text();
        assert_eq!(text.matches("set_aside").count(), 11);
        assert!(text.contains("info message=stop"), "{text}");
        assert_eq!(text.matches("warning message=\"log lines were dropped\" lines=5\n").count(), 1, "{text}");
        assert_eq!(text.lines().count(), 13, "{text}");
    }

    #[test]
    fn an_act_waits_for_room_and_its_line_is_not_dropped() {
        // Declared first and so dropped last: if the test fails, the thread finds its permit gone
        // and ends.
        let log;
        let (entered, writes) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let kept = MemoryTarget::default();
        log = Log::start(Box::new(GatedTarget { entered, permits, kept: kept.clone() }), LogFormat::Text, 1).unwrap();
        log.write(fact());
        writes.recv().unwrap();
        assert!(log.wait_for_room(Duration::ZERO));
        log.write(fact());
        assert!(!log.wait_for_room(Duration::from_millis(1)));
        log.audit(LogLevel::Info, "act", &[]);
        assert_eq!(log.lines_dropped(), 0);
        drop(permit);
        assert!(log.wait_for_room(Duration::from_secs(10)));
        log.close();
        assert!(kept.text().contains("info message=act") && !log.wait_for_room(Duration::ZERO), "{}", kept.text());
    }

    #[test]
    fn a_failing_target_loses_only_the_lines_of_that_time() {
        // Declared first and so dropped last: if the test fails, the thread finds its permit gone
        // and ends.
        let log;
        let (entered, writes) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let kept = MemoryTarget::default();
        log = Log::start(Box::new(GatedTarget { entered, permits, kept: kept.clone() }), LogFormat::Text, 10).unwrap();
        permit.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        log.write(fact());
        writes.recv().unwrap();
        drop(permit);
        // The next write is the count of the lost line.
        writes.recv_timeout(Duration::from_secs(10)).unwrap();
        log.write(fact());
        log.close();
        assert_eq!(log.lines_dropped(), 1);
        assert_eq!(kept.text().matches("set_aside").count(), 1);
        assert!(kept.text().contains("lines=1"));
    }

    /// An operator who makes room on a full disk must leave a trace.
    #[test]
    fn a_line_about_an_act_goes_to_the_fallback_while_the_target_fails() {
        struct FullDisk;

        impl Write for FullDisk {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let fallback = MemoryTarget::default();
        let outputs = LogOutputs { target: Box::new(FullDisk), fallback: Some(Box::new(fallback.clone())) };
        let log = Log::start_with(outputs, LogFormat::Text, 10).unwrap();
        log.write(fact());
        log.audit(LogLevel::Info, "act", &[("by", &"anna")]);
        log.event(LogLevel::Info, "other", &[]);
        log.close();
        let text = fallback.text();
        assert!(text.ends_with(" info message=act by=anna\n"), "{text}");
        assert_eq!((text.lines().count(), log.lines_dropped()), (1, 3));

        let (target, unused) = (MemoryTarget::default(), MemoryTarget::default());
        let outputs = LogOutputs { target: Box::new(target.clone()), fallback: Some(Box::new(unused.clone())) };
        let log = Log::start_with(outputs, LogFormat::Text, 10).unwrap();
        log.audit(LogLevel::Info, "act", &[]);
        log.close();
        assert_eq!((target.text().lines().count(), unused.text().as_str()), (1, ""));
    }

    #[test]
    fn a_file_is_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let config = LogSettings { to: LogTarget::File(path.clone()), ..LogSettings::default() };
        Log::open(&config).unwrap().event(LogLevel::Info, "start", &[("pid", &1)]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("before\n2") && text.ends_with("Z info message=start pid=1\n"), "{text}");
    }
    #[test]
    fn a_file_that_was_renamed_is_left_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rotated) = (folder.path().join("log"), folder.path().join("log.1"));
        let config = LogSettings { to: LogTarget::File(path.clone()), ..LogSettings::default() };
        let log = Log::open(&config).unwrap();
        std::fs::rename(&path, &rotated).unwrap();
        log.reopen().unwrap();
        log.event(LogLevel::Info, "after", &[]);
        log.close();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("Z info message=after\n"));
        assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "");
    }

    #[test]
    fn a_file_that_cannot_be_opened_again_is_written_on() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rotated) = (folder.path().join("log"), folder.path().join("log.1"));
        let config = LogSettings { to: LogTarget::File(path.clone()), ..LogSettings::default() };
        let log = Log::open(&config).unwrap();
        std::fs::rename(&path, &rotated).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(log.reopen().is_err());
        log.event(LogLevel::Info, "after", &[]);
        log.close();
        assert!(std::fs::read_to_string(&rotated).unwrap().ends_with("Z info message=after\n"));
    }
}
