//! The greylist's file: a [`Record`] a line, appended by a thread of its own every few seconds, and
//! written anew when it has grown to twice what it has to say.
//!
//! A crash loses what was not written yet, a few seconds; a power loss, what the kernel had not written.
//! Lines that cannot be read are left out and logged, and the file is then written anew. A file that
//! cannot be written is logged, and everything is written at a later try; the greylist works without it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, SystemTime};

use mail::OperatorLog;

use super::record::{LINE_OCTETS_MAX, Record};
use super::state::{GreylistState, Unwritten};
use super::{GreylistMemory, GreylistSettings};

/// How often the file is written.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// A file that is this much longer than twice its content is written anew.
const SPARE_OCTETS: u64 = 1 << 20;

/// A file and the thread that writes it. When this is dropped, the thread writes what is left, and ends.
pub struct GreylistFile {
    path: PathBuf,
    memory: Arc<GreylistMemory>,
    _stop: Sender<()>,
}

impl GreylistFile {
    /// Reads the file, if there is one, and starts the thread.
    ///
    /// # Errors
    ///
    /// The file or its folder cannot be read or written, or the system has no thread left.
    pub fn open(path: &Path, settings: &GreylistSettings, log: Arc<dyn OperatorLog>) -> io::Result<GreylistFile> {
        let memory = Arc::new(GreylistMemory::default());
        let mut writer = FileWriter::new(path.to_owned(), memory.clone());
        let unreadable = writer.load(settings, seconds_since_1970(SystemTime::now()))?;
        if unreadable > 0 {
            log.log_line(format_args!("{}: left out {unreadable} damaged lines", path.display()));
        }
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new().name("greylist".into()).spawn(move || writer.run(&stopped, &*log))?;
        Ok(GreylistFile { path: path.to_owned(), memory, _stop: stop })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known.
    pub fn memory(&self) -> &Arc<GreylistMemory> {
        &self.memory
    }
}

/// Times before 1970 count as 1970.
pub(super) fn seconds_since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

struct FileWriter {
    path: PathBuf,
    memory: Arc<GreylistMemory>,
    /// None: it is opened with the next record.
    file: Option<File>,
    octets: u64,
    /// Its octets when it was written anew.
    fresh_octets: u64,
}

impl FileWriter {
    fn new(path: PathBuf, memory: Arc<GreylistMemory>) -> FileWriter {
        FileWriter { path, memory, file: None, octets: 0, fresh_octets: 0 }
    }

    /// Writes until nothing can be said any more.
    fn run(mut self, stopped: &Receiver<()>, log: &dyn OperatorLog) {
        loop {
            let is_stopped = stopped.recv_timeout(WRITE_INTERVAL) != Err(RecvTimeoutError::Timeout);
            if let Err(error) = self.write() {
                log.log_line(format_args!("cannot write the greylist {}: {error}", self.path.display()));
            }
            if is_stopped {
                return;
            }
        }
    }

    /// Reads the file. Returns the number of damaged lines; if there are any, the file is written anew, so
    /// that a line that was cut off does not spoil the next one.
    fn load(&mut self, settings: &GreylistSettings, now: u64) -> io::Result<u64> {
        let mut state = self.memory.state.lock();
        match File::open(&self.path) {
            Ok(file) => {
                let Loaded { octets, unreadable } = load(BufReader::new(file), &mut state, settings, now)?;
                (self.octets, self.fresh_octets) = (octets, octets / 2);
                drop(state);
                if unreadable > 0 {
                    self.rewrite()?;
                }
                Ok(unreadable)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Writes what is not in the file yet.
    fn write(&mut self) -> io::Result<()> {
        if self.octets > 2 * self.fresh_octets + SPARE_OCTETS {
            return self.rewrite();
        }
        let unwritten = self.memory.state.lock().take_unwritten();
        let written = match &unwritten {
            Unwritten::Records(records) if records.is_empty() => Ok(()),
            Unwritten::Records(records) => self.append(&lines(records)),
            Unwritten::All(records) => self.replace(&lines(records)),
        };
        written.inspect_err(|_| {
            self.file = None;
            self.memory.state.lock().demand_rewrite();
        })
    }

    fn rewrite(&mut self) -> io::Result<()> {
        self.memory.state.lock().demand_rewrite();
        self.fresh_octets = self.octets;
        self.write()
    }

    fn append(&mut self, lines: &str) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().create(true).append(true).open(&self.path)?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(lines.as_bytes())?;
            self.octets += lines.len() as u64;
        }
        Ok(())
    }

    /// The new file is durable before it replaces the old one.
    fn replace(&mut self, lines: &str) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        (self.file, self.octets, self.fresh_octets) = (None, lines.len() as u64, lines.len() as u64);
        Ok(())
    }
}

/// What a file held.
#[derive(Debug, PartialEq, Eq)]
struct Loaded {
    octets: u64,
    unreadable: u64,
}

/// A line that is too long for a record is damaged, however long it is.
fn load(
    mut reader: impl BufRead,
    state: &mut GreylistState,
    settings: &GreylistSettings,
    now: u64,
) -> io::Result<Loaded> {
    let (mut loaded, mut line) = (Loaded { octets: 0, unreadable: 0 }, Vec::new());
    loop {
        line.clear();
        let octets = reader.by_ref().take(LINE_OCTETS_MAX as u64).read_until(b'\n', &mut line)?;
        if octets == 0 {
            return Ok(loaded);
        }
        loaded.octets += octets as u64;
        match line.strip_suffix(b"\n").and_then(Record::parse) {
            Some(record) => state.restore(record, settings, now),
            None => loaded.unreadable += 1,
        }
    }
}

fn lines(records: &[Record]) -> String {
    let mut lines = String::new();
    records.iter().for_each(|record| record.write(&mut lines));
    lines
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::state::{GreylistVerdict, Triplet};
    use super::*;
    use crate::key_digest::KeyDigest;

    const NOW: u64 = 1_700_000_000;

    fn triplet(number: u32) -> Triplet {
        let number = number.to_string();
        Triplet { key: KeyDigest::of(&[&number]), client: KeyDigest::of(&["client", &number]) }
    }

    /// The greylist as a start finds it, and the number of damaged lines.
    fn start(folder: &TempDir) -> (FileWriter, u64) {
        let mut writer = FileWriter::new(folder.path().join("greylist"), Arc::default());
        let unreadable = writer.load(&GreylistSettings::default(), NOW).unwrap();
        (writer, unreadable)
    }

    fn check(writer: &FileWriter, number: u32, now: u64) -> GreylistVerdict {
        writer.memory.state.lock().check(triplet(number), &GreylistSettings::default(), now).0
    }

    #[test]
    fn a_restart_goes_on_where_the_last_run_ended() {
        let folder = TempDir::new().unwrap();
        let (mut writer, _) = start(&folder);
        (1..=3).for_each(|number| assert_eq!(check(&writer, number, NOW), GreylistVerdict::Deferred));
        writer.write().unwrap();
        assert_eq!(check(&writer, 1, NOW + 300), GreylistVerdict::Passed);
        writer.write().unwrap();
        let (again, unreadable) = start(&folder);
        assert_eq!((unreadable, again.octets), (0, writer.octets));
        assert_eq!(check(&again, 1, NOW + 301), GreylistVerdict::Known);
        assert_eq!(check(&again, 2, NOW + 301), GreylistVerdict::Passed);
        assert_eq!(check(&again, 4, NOW + 301), GreylistVerdict::Deferred);
    }

    #[test]
    fn a_cut_file_loses_its_last_line_and_is_mended() {
        let folder = TempDir::new().unwrap();
        let (mut writer, _) = start(&folder);
        (1..=3).for_each(|number| _ = check(&writer, number, NOW));
        writer.write().unwrap();
        let whole = fs::read(folder.path().join("greylist")).unwrap();
        for cut in [whole.len() - 1, whole.len() - 20, whole.len() / 3 * 2 + 1] {
            fs::write(folder.path().join("greylist"), &whole[..cut]).unwrap();
            let (mended, unreadable) = start(&folder);
            assert_eq!((unreadable, mended.memory.state.lock().entry_counts()), (1, [2, 0, 0]));
            assert_eq!(start(&folder).1, 0, "the file was not written anew");
        }
    }

    #[test]
    fn garbage_is_left_out_whatever_its_length() {
        let folder = TempDir::new().unwrap();
        let (mut writer, _) = start(&folder);
        check(&writer, 1, NOW);
        writer.write().unwrap();
        let line = fs::read(folder.path().join("greylist")).unwrap();
        for garbage in [&b"\0\0\0\n"[..], &[b'x'; 1000], &[0xff; 127], b"w p c\n\n\n"] {
            fs::write(folder.path().join("greylist"), [garbage, b"\n", &line, garbage].concat()).unwrap();
            let (mended, unreadable) = start(&folder);
            assert!(unreadable > 0);
            assert_eq!(mended.memory.state.lock().entry_counts(), [1, 0, 0]);
        }
    }

    #[test]
    fn a_file_that_has_grown_is_written_anew() {
        let folder = TempDir::new().unwrap();
        let (mut writer, _) = start(&folder);
        for number in 0..30_000 {
            check(&writer, number % 10, NOW + u64::from(number) * 4000);
            if number % 1000 == 0 {
                writer.write().unwrap();
            }
        }
        writer.write().unwrap();
        assert!(writer.octets < 2 * SPARE_OCTETS, "{} octets", writer.octets);
        assert_eq!(fs::metadata(folder.path().join("greylist")).unwrap().len(), writer.octets);
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("below").join("greylist");
        let mut writer = FileWriter::new(path.clone(), Arc::default());
        assert_eq!(writer.load(&GreylistSettings::default(), NOW).unwrap(), 0);
        assert_eq!(check(&writer, 1, NOW), GreylistVerdict::Deferred);
        assert!(writer.write().is_err());
        fs::create_dir(folder.path().join("below")).unwrap();
        writer.write().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }
}
