//! Bodies too large for the log: each has a file of its own, written and synced by the session that
//! receives it, before its record joins a batch.
//!
//! The file begins with a hole of [`PREFIX_BYTES_MAX`] bytes (sparse: it takes no space), because
//! the prefix is known only when the body is complete. It is written so that it ends where the body
//! begins, and both are one range.

use std::io::{self, IoSlice};
use std::sync::Arc;

use mail::{Body, BodyFlags};

use crate::disk::{Disk, DiskFile, write_all_at};
use crate::segment::FileLease;

/// The maximum length of the prefix of a body in a file; the body begins at this offset.
pub const PREFIX_BYTES_MAX: u64 = 64 << 10;

/// The bytes that are copied at once to a new file.
const COPIED_BYTES: usize = 64 << 10;

/// The name of the body file of the message `sequence`.
pub(crate) fn file_name(sequence: u64) -> String {
    format!("body-{sequence:016x}")
}

/// The sequence number in the name of a body file.
pub(crate) fn file_sequence(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("body-")?, 16).ok()
}

/// Where prefix and body are in a file of their own, and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpilledRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) digest: u32,
}

impl SpilledRange {
    /// The length of the file.
    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Why a body could not be completed in its file.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The prefix is longer than [`PREFIX_BYTES_MAX`].
    #[error("the prefix has {bytes} bytes, but only {PREFIX_BYTES_MAX} fit before a body in a file")]
    PrefixTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The disk reported an error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<SpillError> for io::Error {
    fn from(error: SpillError) -> Self {
        match error {
            SpillError::Io(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// Writes a body to a file. If it is dropped before [`SpillWriter::finish`], the file is removed.
pub struct SpillWriter {
    target: SpillFile,
    /// The length and checksum of the body so far.
    len: u64,
    digest: u32,
}

/// A durable body file. If it is dropped before it is submitted, the file is removed.
#[derive(Debug)]
pub struct SpilledBody {
    target: SpillFile,
    pub(crate) range: SpilledRange,
    pub(crate) prefix_len: u32,
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
        SpillWriter::create_file(disk, file_name(sequence))
    }

    fn create_file(disk: Arc<dyn Disk>, name: String) -> io::Result<Self> {
        let file = disk.create(&name, 0)?;
        Ok(SpillWriter { target: SpillFile { disk, file, name, kept: false }, len: 0, digest: 0 })
    }

    /// Appends to the body. Blocks: do not call it on a session's thread.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        write_all_at(&*self.target.file, &mut [IoSlice::new(bytes)], PREFIX_BYTES_MAX + self.len)?;
        self.digest = crc32c::crc32c_append(self.digest, bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Reads up to `buffer.len()` bytes of what was appended, from `offset` within the body; returns
    /// 0 at its end. Blocks like [`SpillWriter::append`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        if wanted == 0 {
            return Ok(0);
        }
        self.target.file.read_at(&mut buffer[..wanted], PREFIX_BYTES_MAX + offset)
    }

    /// Replaces the first `count` bytes of the body by `start`, in a new file of the same name.
    /// Blocks for as long as the rest takes to copy.
    pub fn replace_start(mut self, count: u64, start: &[u8]) -> io::Result<SpillWriter> {
        let SpillFile { disk, name, .. } = &self.target;
        let (disk, name) = (disk.clone(), name.clone());
        // The old bytes can be read for as long as the file is open.
        disk.remove(&name)?;
        self.target.kept = true;
        let mut replaced = SpillWriter::create_file(disk, name)?;
        replaced.append(start)?;
        let (mut position, mut chunk) = (count, vec![0; COPIED_BYTES]);
        loop {
            match self.read_at(&mut chunk, position)? {
                0 => return Ok(replaced),
                read => {
                    replaced.append(&chunk[..read])?;
                    position += read as u64;
                }
            }
        }
    }

    /// Writes `prefix` before the body, and syncs the file and its folder.
    pub fn finish(self, prefix: &[u8]) -> Result<SpilledBody, SpillError> {
        let prefix_len = u32::try_from(prefix.len()).ok().filter(|len| u64::from(*len) <= PREFIX_BYTES_MAX);
        let prefix_len = prefix_len.ok_or(SpillError::PrefixTooLong { bytes: prefix.len() })?;
        let len = u64::from(prefix_len) + self.len;
        // A file without content has no hole either.
        let start = if len == 0 { 0 } else { PREFIX_BYTES_MAX - u64::from(prefix_len) };
        let file = &self.target.file;
        if !prefix.is_empty() {
            write_all_at(&**file, &mut [IoSlice::new(prefix)], start)?;
        }
        file.sync()?;
        self.target.disk.sync_folder()?;
        let digest = crc32c::crc32c_combine(crc32c::crc32c(prefix), self.digest, self.len as usize);
        Ok(SpilledBody { target: self.target, range: SpilledRange { start, len, digest }, prefix_len })
    }

    /// Bytes of the body written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl SpilledBody {
    /// Hands the file over to the log.
    pub(crate) fn keep(mut self) -> SpilledRange {
        self.target.kept = true;
        self.range
    }

    /// Prefix and body, for a reader beside the log.
    pub(crate) fn content(&self, flags: BodyFlags) -> Body {
        let SpilledRange { start, len, digest } = self.range;
        Body::new(Arc::new(FileLease(self.target.file.clone())), start, len, digest, flags)
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
