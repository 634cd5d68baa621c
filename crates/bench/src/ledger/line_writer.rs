//! Appends lines to a file from a thread of its own, so that callers never wait for the disk.
//!
//! Lines collect while a batch is written, and for [`BATCH_EVERY`] more; then they are written
//! together, and synced if requested. If a write fails, or more than [`PENDING_OCTETS_MAX`] wait
//! for the disk, the writer has failed for good: waiting lines are lost, and later ones are
//! ignored.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::BenchError;

/// The time from one batch to the next. More syncs would disturb the disk under measurement.
const BATCH_EVERY: Duration = Duration::from_millis(200);
/// Bytes that may wait for the disk: the lines of a million messages and more.
const PENDING_OCTETS_MAX: usize = 64 << 20;

/// Whether written lines must survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Each batch is synced.
    Synced,
    /// Nothing is synced.
    Relaxed,
}

/// Writes lines to a file; shared by any number of threads.
#[derive(Debug)]
pub(crate) struct LineWriter {
    shared: Arc<LineWriterState>,
    writer: Option<JoinHandle<io::Result<()>>>,
    /// For a fault: `writing the ledger run.ledger`.
    what: String,
}

#[derive(Debug, Default)]
struct LineWriterState {
    pending: Mutex<PendingLines>,
    closing: Condvar,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct PendingLines {
    lines: Vec<u8>,
    is_closing: bool,
    fell_behind: bool,
}

impl LineWriter {
    /// Starts the thread; writes at the current position of `file`.
    pub(crate) fn start(file: File, durability: Durability, what: String) -> Result<LineWriter, BenchError> {
        let shared = Arc::new(LineWriterState::default());
        let thread_state = shared.clone();
        let named = thread::Builder::new().name("line-writer".into());
        let writer =
            named.spawn(move || thread_state.write_to(&file, durability)).map_err(BenchError::system(&what))?;
        Ok(LineWriter { shared, writer: Some(writer), what })
    }

    /// Lets `write` append complete lines to the next batch.
    pub(crate) fn append(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.failed() {
            return;
        }
        let mut pending = self.shared.pending.lock();
        write(&mut pending.lines);
        if pending.lines.len() > PENDING_OCTETS_MAX {
            pending.fell_behind = true;
            self.shared.failed.store(true, Relaxed);
        }
    }

    /// Whether the writer has failed; [`LineWriter::close`] returns the error.
    pub(crate) fn failed(&self) -> bool {
        self.shared.failed.load(Relaxed)
    }

    /// Waits until all lines are written.
    pub(crate) fn close(mut self) -> Result<(), BenchError> {
        let written = self.finish();
        written.map_err(BenchError::system(&self.what))
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.shared.pending.lock().is_closing = true;
        self.shared.closing.notify_one();
        writer.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        // A caller that needs the error calls `close`.
        let _ = self.finish();
    }
}

impl LineWriterState {
    /// The thread's main function.
    fn write_to(&self, file: &File, durability: Durability) -> io::Result<()> {
        let written = self.write_batches(file, durability);
        if written.is_err() {
            self.failed.store(true, Relaxed);
        }
        written
    }

    fn write_batches(&self, mut file: &File, durability: Durability) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            let is_last = self.next_batch(&mut batch)?;
            if !batch.is_empty() {
                file.write_all(&batch)?;
                if durability == Durability::Synced {
                    file.sync_data()?;
                }
                batch.clear();
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Waits for the next batch, and swaps the full buffer for the empty one. Returns whether it is
    /// the last batch.
    fn next_batch(&self, batch: &mut Vec<u8>) -> io::Result<bool> {
        let mut pending = self.pending.lock();
        self.closing.wait_while_for(&mut pending, |pending| !pending.is_closing, BATCH_EVERY);
        if pending.fell_behind {
            return Err(io::Error::other("the disk is too slow"));
        }
        std::mem::swap(&mut pending.lines, batch);
        Ok(pending.is_closing)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn a_disk_error_fails_the_writer_and_close_returns_it() {
        for durability in [Durability::Synced, Durability::Relaxed] {
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let writer = LineWriter::start(full, durability, "writing".into()).unwrap();
            writer.append(|lines| lines.extend_from_slice(b"a line\n"));
            let fault = writer.close().unwrap_err();
            assert!(matches!(&fault, BenchError::System { error, .. } if error.kind() == io::ErrorKind::StorageFull));
        }
    }

    #[test]
    fn a_writer_that_falls_behind_has_failed_and_takes_no_more_lines() {
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let writer = LineWriter::start(null, Durability::Relaxed, "writing".into()).unwrap();
        writer.append(|lines| lines.resize(PENDING_OCTETS_MAX + 1, b'\n'));
        assert!(writer.failed());
        writer.append(|_| panic!("a failed writer took more lines"));
        assert!(writer.close().is_err());
    }
}
