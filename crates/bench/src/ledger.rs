//! The ledger: the messages that a server answered with 250, to check later that none was lost.
//!
//! A text file that only grows. Each run begins with a line `run 0123456789abcdef`, followed by a
//! line for each message, `SEQUENCE<TAB>RECIPIENT[<TAB>RECIPIENT...]`, with the accepted
//! recipients. Lines are written and synced in batches. If the *source* crashes, some lines are
//! lost; their messages then arrive unannounced, but no loss is reported that did not happen. An
//! incomplete last line is ignored. Writers never wait for the disk; if the disk fails or falls
//! behind, the ledger fails and the source must stop.

mod acknowledged;
mod line_writer;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crate::{BenchError, RunId};

pub use acknowledged::AcknowledgedMessages;
pub(crate) use line_writer::{Durability, LineWriter};

/// Begins the line that starts a run.
const RUN: &str = "run ";

/// An open ledger. Any thread may add messages; one thread writes them.
#[derive(Debug)]
pub struct LedgerWriter(LineWriter);

impl LedgerWriter {
    /// Starts a run in the ledger at `path`, which is created if it does not exist. Fails if
    /// another process has it open.
    pub fn open(path: &Path, run: RunId) -> Result<LedgerWriter, BenchError> {
        let what = format!("writing the ledger {}", path.display());
        let mut file = open_locked(path)?;
        let begun = begin_run(&mut file, path, run);
        begun.map_err(BenchError::system(&what))?;
        LineWriter::start(file, Durability::Synced, what).map(LedgerWriter)
    }

    /// Records that a message was answered 250 for these recipients (at least one). Never waits for
    /// the disk.
    pub fn record<'a>(&self, sequence: u64, recipients: impl Iterator<Item = &'a str>) {
        self.0.append(|lines| {
            // Writing to a Vec cannot fail.
            let _ = write!(lines, "{sequence}");
            for recipient in recipients {
                lines.push(b'\t');
                lines.extend_from_slice(recipient.as_bytes());
            }
            lines.push(b'\n');
        });
    }

    /// Whether writing has failed. Then nothing more must be sent; [`LedgerWriter::close`] returns
    /// the error.
    pub fn has_failed(&self) -> bool {
        self.0.failed()
    }

    /// Waits until everything is on disk.
    pub fn close(self) -> Result<(), BenchError> {
        self.0.close()
    }
}

/// Locks the file: a line belongs to the last run before it, so two sources must not write at a
/// time.
fn open_locked(path: &Path) -> Result<File, BenchError> {
    let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
    let file = opened.map_err(BenchError::system(format_args!("opening the ledger {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(BenchError::Unavailable(format!("another source is writing to the ledger {}", path.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(BenchError::system(format_args!("locking the ledger {}", path.display()))(error))
        }
    }
}

/// Removes an incomplete last line, which would otherwise join the next one, and starts the run.
fn begin_run(file: &mut File, path: &Path, run: RunId) -> io::Result<()> {
    let torn = torn_octets(file)?;
    let length = file.metadata()?.len();
    file.set_len(length - torn)?;
    writeln!(file, "{RUN}{run}")?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The length of an incomplete last line.
fn torn_octets(file: &mut File) -> io::Result<u64> {
    const PIECE: u64 = 64 * 1024;
    let length = file.metadata()?.len();
    let mut end = length;
    let mut piece = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(PIECE);
        file.seek(SeekFrom::Start(start))?;
        piece.clear();
        (&*file).take(end - start).read_to_end(&mut piece)?;
        if let Some(newline) = memchr::memrchr(b'\n', &piece) {
            return Ok(length - (start + newline as u64 + 1));
        }
        end = start;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &Path) -> Vec<(RunId, u64, Vec<String>)> {
        let acknowledged = AcknowledgedMessages::read(path).unwrap();
        let message = |number| {
            let (run, sequence) = acknowledged.run_and_sequence(number);
            (run, sequence, acknowledged.recipients(number).map(str::to_owned).collect())
        };
        (0..acknowledged.len()).map(message).collect()
    }

    fn write(path: &Path, run: u64, sequences: impl IntoIterator<Item = u64>) {
        let ledger = LedgerWriter::open(path, RunId(run)).unwrap();
        sequences.into_iter().for_each(|sequence| ledger.record(sequence, ["a@x.test", "b@x.test"].into_iter()));
        assert!(!ledger.has_failed());
        ledger.close().unwrap();
    }

    #[test]
    fn a_ledger_is_read_in_the_order_of_runs_and_sequence_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        write(&path, 0xabc, [2, 0]);
        write(&path, 0x1, [0]);
        let recipients = || vec!["a@x.test".to_owned(), "b@x.test".to_owned()];
        let expected = [(0xabc, 0), (0xabc, 2), (0x1, 0)].map(|(run, number)| (RunId(run), number, recipients()));
        assert_eq!(messages(&path), expected);
        let acknowledged = AcknowledgedMessages::read(&path).unwrap();
        assert_eq!(acknowledged.index_of(RunId(0xabc), 2), Some(1));
        assert_eq!(acknowledged.index_of(RunId(0xabc), 1), None);
        assert_eq!(acknowledged.index_of(RunId(2), 0), None);
    }

    #[test]
    fn a_torn_last_line_does_not_count_and_does_not_join_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        std::fs::write(&path, b"run 000000000000000a\n1\tu@x.test\n2\tu@x.te").unwrap();
        assert_eq!(messages(&path).len(), 1);
        write(&path, 0xb, [7]);
        let found: Vec<_> = messages(&path).into_iter().map(|(run, sequence, _)| (run.0, sequence)).collect();
        assert_eq!(found, [(0xa, 1), (0xb, 7)]);
    }

    #[test]
    fn threads_write_in_parallel_and_no_lines_are_mixed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let ledger = LedgerWriter::open(&path, RunId(1)).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let ledger = &ledger;
                scope.spawn(move || {
                    for sequence in 0..10_000 {
                        ledger.record(part * 10_000 + sequence, [format!("u{part}@x.test").as_str()].into_iter());
                    }
                });
            }
        });
        ledger.close().unwrap();
        let found = messages(&path);
        assert_eq!(found.len(), 40_000);
        for (number, (_, sequence, recipients)) in found.iter().enumerate() {
            assert_eq!((*sequence, recipients), (number as u64, &vec![format!("u{}@x.test", number / 10_000)]));
        }
    }

    #[test]
    fn one_source_at_a_time_writes_to_a_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let _first = LedgerWriter::open(&path, RunId(1)).unwrap();
        assert!(matches!(LedgerWriter::open(&path, RunId(2)), Err(BenchError::Unavailable(_))));
    }
}
