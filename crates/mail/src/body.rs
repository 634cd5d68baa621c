//! A message's bytes, by reference. A [`Body`] is a counted lease on a range that some room keeps: as long
//! as one is alive, the bytes under it do not change. Clone it to share the lease, drop it to give it back.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// Something that holds bytes and can be read at any place by several threads at once.
pub trait ByteSource: Send + Sync {
    /// Reads at `offset`, up to `buffer.len()` bytes; 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file under it, for zero-copy calls; None where there is no such file (simulated disks).
    fn file(&self) -> Option<&File>;
}

/// What is known of a body without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyFlags {
    /// Some line begins with a dot, so that the bytes of SMTP DATA are not the stored bytes.
    pub dot_lines: bool,
    /// Some byte is above 127.
    pub eight_bit: bool,
    /// The last two bytes are CR LF (an empty body counts as such).
    pub ends_in_crlf: bool,
}

/// A leased range: the message as it was on the wire, CRLF line ends, not dot-stuffed.
#[derive(Clone)]
pub struct Body {
    source: Arc<dyn ByteSource>,
    offset: u64,
    len: u64,
    digest: u32,
    flags: BodyFlags,
}

/// What a read of a damaged body reports.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    /// The device gave no bytes, or fewer than were promised.
    #[error("reading the body: {0}")]
    Unreadable(#[from] io::Error),
    /// The bytes are not those that were kept.
    #[error("the body's checksum is {found:08x}, it was kept with {expected:08x}")]
    Digest {
        /// The checksum of what was read.
        found: u32,
        /// The checksum that was kept.
        expected: u32,
    },
}

impl Body {
    /// A lease on `len` bytes of `source` from `offset`; `digest` is their CRC-32C.
    pub fn new(source: Arc<dyn ByteSource>, offset: u64, len: u64, digest: u32, flags: BodyFlags) -> Self {
        Body { source, offset, len, digest, flags }
    }

    /// How many bytes the message has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the message has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32C (Castagnoli) of the bytes, as computed when they were accepted.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// What is known of the bytes.
    pub fn flags(&self) -> BodyFlags {
        self.flags
    }

    /// The file and the place in it where the bytes are, for zero-copy calls.
    pub fn file_range(&self) -> Option<(&File, u64)> {
        self.source.file().map(|file| (file, self.offset))
    }

    /// Reads from `position` within the body, filling `buffer` or stopping at the body's end; returns how many
    /// bytes were read. A source that ends early is an error of kind `UnexpectedEof`.
    pub fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(position);
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut filled = 0;
        while filled < wanted {
            let place = self.offset + position + filled as u64;
            match self.source.read_at(&mut buffer[filled..wanted], place) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes, digest {:08x})", self.len, self.digest)
    }
}

impl ByteSource for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let count = buffer.len().min(self.len() - start);
        buffer[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }

    fn file(&self) -> Option<&File> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_reads_its_own_range_and_no_more() {
        let source: Arc<dyn ByteSource> = Arc::new(b"0123456789".to_vec());
        let body = Body::new(source, 2, 5, 0, BodyFlags::default());
        let mut buffer = [0; 8];
        assert_eq!(body.read_at(&mut buffer, 1).unwrap(), 4);
        assert_eq!(&buffer[..4], b"3456");
        assert_eq!(body.read_at(&mut buffer, 5).unwrap(), 0);
    }

    #[test]
    fn a_source_that_ends_early_is_an_error() {
        let body = Body::new(Arc::new(b"abc".to_vec()), 1, 5, 0, BodyFlags::default());
        let error = body.read_at(&mut [0; 8], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
