//! Lines for a file, written by a thread of its own, so that whoever has something to note never waits for the disk.
//!
//! Lines gather while those before them are written, and for [`BATCH_EVERY`] more; then they are written together, and
//! synced where that was asked for. A disk that refuses, or falls [`PENDING_OCTETS_MAX`] behind, fails the scribe for
//! good; what waits then is lost, and what is noted later is not taken.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Fault;

/// From the end of one batch to the next one. Syncing more often would disturb the disk that is being measured.
const BATCH_EVERY: Duration = Duration::from_millis(200);
/// Lines that wait for the disk: those of a million messages and more. Beyond, the scribe has failed.
const PENDING_OCTETS_MAX: usize = 64 << 20;

/// Whether what is written must survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Each batch is synced.
    Synced,
    /// The system writes it when it likes.
    Relaxed,
}

/// Writes lines. Any thread may note some.
#[derive(Debug)]
pub(crate) struct Scribe {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<io::Result<()>>>,
    /// For a fault: `writing the ledger run.ledger`.
    what: String,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    closing: Condvar,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct Pending {
    lines: Vec<u8>,
    is_closing: bool,
    fell_behind: bool,
}

impl Scribe {
    /// Writes to `file`, from where it stands.
    pub(crate) fn start(file: File, durability: Durability, what: String) -> Result<Scribe, Fault> {
        let shared = Arc::new(Shared::default());
        let writing = shared.clone();
        let named = thread::Builder::new().name("scribe".into());
        let writer = named.spawn(move || writing.write_to(&file, durability)).map_err(Fault::system(&what))?;
        Ok(Scribe { shared, writer: Some(writer), what })
    }

    /// Has `write` append whole lines to what waits.
    pub(crate) fn note(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.failed() {
            return;
        }
        let mut pending = self.shared.pending();
        write(&mut pending.lines);
        if pending.lines.len() > PENDING_OCTETS_MAX {
            pending.fell_behind = true;
            self.shared.failed.store(true, Relaxed);
        }
    }

    /// Whether nothing is written any more; [`Scribe::close`] says why.
    pub(crate) fn failed(&self) -> bool {
        self.shared.failed.load(Relaxed)
    }

    /// Waits until all is written.
    pub(crate) fn close(mut self) -> Result<(), Fault> {
        let written = self.finish();
        written.map_err(Fault::system(&self.what))
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.shared.pending().is_closing = true;
        self.shared.closing.notify_one();
        writer.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        // Who wanted to know would have closed it.
        let _ = self.finish();
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        // Appending lines cannot panic half-way.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's life.
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

    /// Gathers for a while, and changes the full buffer for the empty one. Says whether nothing comes after it.
    fn next_batch(&self, batch: &mut Vec<u8>) -> io::Result<bool> {
        let waited = self.closing.wait_timeout_while(self.pending(), BATCH_EVERY, |pending| !pending.is_closing);
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if pending.fell_behind {
            return Err(io::Error::other("the disk does not keep up"));
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
    fn a_disk_that_refuses_fails_the_scribe_and_its_closing_says_why() {
        for durability in [Durability::Synced, Durability::Relaxed] {
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let scribe = Scribe::start(full, durability, "writing".into()).unwrap();
            scribe.note(|lines| lines.extend_from_slice(b"a line\n"));
            let fault = scribe.close().unwrap_err();
            assert!(matches!(&fault, Fault::System { error, .. } if error.kind() == io::ErrorKind::StorageFull));
        }
    }

    #[test]
    fn who_falls_behind_has_failed_and_takes_no_more() {
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let scribe = Scribe::start(null, Durability::Relaxed, "writing".into()).unwrap();
        scribe.note(|lines| lines.resize(PENDING_OCTETS_MAX + 1, b'\n'));
        assert!(scribe.failed());
        scribe.note(|_| panic!("nothing more is taken"));
        assert!(scribe.close().is_err());
    }
}
