//! Bodies too large for the log: a file of their own, written and synced by the session that receives them
//! before their record joins a batch.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, write_all_at};

/// The name of the file that holds the body of the message `sequence`.
pub(crate) fn file_name(sequence: u64) -> String {
    format!("body-{sequence:016x}")
}

/// The message whose body a file of this name holds.
pub(crate) fn file_sequence(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("body-")?, 16).ok()
}

/// A body in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpilledRange {
    pub(crate) len: u64,
    pub(crate) digest: u32,
}

/// A body under way to its file. Dropped before [`Spill::finish`], it takes the file with it.
pub struct Spill {
    target: Target,
    range: SpilledRange,
}

/// A body that is in its file, durably. Dropped before it is submitted, it takes the file with it.
#[derive(Debug)]
pub struct Spilled {
    target: Target,
    pub(crate) range: SpilledRange,
}

/// The file; removed on drop unless somebody has taken charge of it.
struct Target {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    name: String,
    kept: bool,
}

impl Spill {
    pub(crate) fn create(disk: Arc<dyn Disk>, sequence: u64) -> io::Result<Self> {
        let name = file_name(sequence);
        let file = disk.create(&name, 0)?;
        Ok(Spill { target: Target { disk, file, name, kept: false }, range: SpilledRange { len: 0, digest: 0 } })
    }

    /// Writes more of the body. Blocks; not to be called where sessions run.
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
    pub fn finish(self) -> io::Result<Spilled> {
        self.target.file.sync()?;
        self.target.disk.sync_folder()?;
        Ok(Spilled { target: self.target, range: self.range })
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

impl Spilled {
    /// From here on the log decides over the file.
    pub(crate) fn keep(mut self) -> SpilledRange {
        self.target.kept = true;
        self.range
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.kept {
            // What stays behind is swept at the next start.
            let _ = self.disk.remove(&self.name);
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
