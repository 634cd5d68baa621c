//! Bodies too large for the log: each has a file of its own, written and synced by the session that
//! receives it, before its record joins a batch.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, write_all_at};

/// The name of the body file of the message `sequence`.
pub(crate) fn file_name(sequence: u64) -> String {
    format!("body-{sequence:016x}")
}

/// The sequence number in the name of a body file.
pub(crate) fn file_sequence(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("body-")?, 16).ok()
}

/// The length and checksum of a body in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpilledLength {
    pub(crate) len: u64,
    pub(crate) digest: u32,
}

/// Writes a body to a file. If it is dropped before [`SpillWriter::finish`], the file is removed.
pub struct SpillWriter {
    target: SpillFile,
    range: SpilledLength,
}

/// A durable body file. If it is dropped before it is submitted, the file is removed.
#[derive(Debug)]
pub struct SpilledBody {
    target: SpillFile,
    pub(crate) range: SpilledLength,
}

/// The file; removed on drop unless it was kept.
struct SpillFile {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    name: String,
    kept: bool,
}

impl SpillWriter {
    pub(crate) fn create(disk: Arc<dyn Disk>, sequence: u64) -> io::Result<Self> {
        let name = file_name(sequence);
        let file = disk.create(&name, 0)?;
        Ok(SpillWriter {
            target: SpillFile { disk, file, name, kept: false },
            range: SpilledLength { len: 0, digest: 0 },
        })
    }

    /// Appends to the body. Blocks: do not call it on a session's thread.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        write_all_at(&*self.target.file, &mut [IoSlice::new(bytes)], self.range.len)?;
        self.range.digest = crc32c::crc32c_append(self.range.digest, bytes);
        self.range.len += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file and its folder.
    pub fn finish(self) -> io::Result<SpilledBody> {
        self.target.file.sync()?;
        self.target.disk.sync_folder()?;
        Ok(SpilledBody { target: self.target, range: self.range })
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.range.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }
}

impl SpilledBody {
    /// Hands the file over to the log.
    pub(crate) fn keep(mut self) -> SpilledLength {
        self.target.kept = true;
        self.range
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        if !self.kept {
            // A file that stays is removed at the next start.
            let _ = self.disk.remove(&self.name);
        }
    }
}

impl std::fmt::Debug for SpillFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
