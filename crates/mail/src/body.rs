//! The bytes of a message, by reference. A [`Body`] is a reference-counted lease on a range of a
//! [`ByteSource`]: while any clone exists, the bytes under it do not change. Clone it to share the
//! lease, drop it to release it.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// A source of bytes that several threads can read at any offset.
pub trait ByteSource: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; returns 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The underlying file, for zero-copy calls; None if there is none (simulated disks).
    fn file(&self) -> Option<&File>;
}

/// Properties of a body that are known without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyFlags {
    /// A line begins with a dot, so SMTP DATA sends other bytes than are stored.
    pub dot_lines: bool,
    /// A byte is above 127.
    pub eight_bit: bool,
    /// The last two bytes are CRLF; true for an empty body.
    pub ends_in_crlf: bool,
}

/// A leased range: the message with CRLF line ends, not dot-stuffed.
#[derive(Clone)]
pub struct Body {
    /// What stands in memory for the first bytes; the range is what follows it.
    start: Option<Arc<[u8]>>,
    source: Arc<dyn ByteSource>,
    offset: u64,
    len: u64,
    digest: u32,
    flags: BodyFlags,
}

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The device returned an error, or fewer bytes than expected.
    #[error("unable to read the message body: {0}")]
    Unreadable(#[from] io::Error),
    /// The bytes differ from those that were stored.
    #[error("message body damaged: checksum {found:08x}, expected {expected:08x}")]
    Digest {
        /// The checksum of the bytes read.
        found: u32,
        /// The checksum that was stored.
        expected: u32,
    },
}

impl Body {
    /// A lease on `len` bytes of `source` from `offset`; `digest` is their CRC-32C.
    pub fn new(source: Arc<dyn ByteSource>, offset: u64, len: u64, digest: u32, flags: BodyFlags) -> Self {
        Body { start: None, source, offset, len, digest, flags }
    }

    /// The same message with other bytes, in memory, for its first `stored` ones; `digest` is the CRC-32C of
    /// all of it. No line of `start` may begin with a dot unless one did before.
    pub fn with_start(&self, stored: u64, start: Vec<u8>, digest: u32) -> Body {
        debug_assert!(self.start.is_none(), "a start is replaced once");
        let stored = stored.min(self.len);
        Body {
            source: self.source.clone(),
            offset: self.offset + stored,
            len: self.len - stored + start.len() as u64,
            digest,
            flags: BodyFlags { eight_bit: self.flags.eight_bit || !start.is_ascii(), ..self.flags },
            start: Some(start.into()),
        }
    }

    /// The size of the message in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32C (Castagnoli) of the bytes, computed when the message was accepted.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// The properties of the bytes.
    pub fn flags(&self) -> BodyFlags {
        self.flags
    }

    /// The bytes in memory that stand for the first ones; mostly there are none.
    pub fn start(&self) -> &[u8] {
        self.start.as_deref().unwrap_or_default()
    }

    /// The file, and the offset in it of what follows [`start`](Body::start), for zero-copy calls.
    pub fn file_range(&self) -> Option<(&File, u64)> {
        self.source.file().map(|file| (file, self.offset))
    }

    /// Fills `buffer` from `position` within the body, or stops at the end of the body; returns the
    /// number of bytes read. A source that ends early is an error of kind `UnexpectedEof`.
    pub fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(position);
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut filled = self.read_start(&mut buffer[..wanted], position);
        while filled < wanted {
            let place = self.offset + position + filled as u64 - self.start().len() as u64;
            match self.source.read_at(&mut buffer[filled..wanted], place) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    /// Fills `buffer` from `position` within [`start`](Body::start); returns the number of bytes read, which
    /// is 0 behind it.
    pub fn read_start(&self, buffer: &mut [u8], position: u64) -> usize {
        let start = usize::try_from(position).ok().and_then(|position| self.start().get(position..));
        let start = start.unwrap_or_default();
        let count = start.len().min(buffer.len());
        buffer[..count].copy_from_slice(&start[..count]);
        count
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
    fn a_replaced_start_is_followed_by_the_rest_of_the_range() {
        let source: Arc<dyn ByteSource> = Arc::new(b"..abcdef..".to_vec());
        let body = Body::new(source, 2, 6, 0, BodyFlags::default()).with_start(2, "\u{fc}-A".into(), 7);
        let (all, octets) = ("\u{fc}-Acdef".as_bytes(), body.len() as usize);
        assert_eq!((octets, body.digest(), body.flags().eight_bit), (all.len(), 7, true));
        for first in 0..=octets {
            for count in 0..=octets + 1 - first {
                let mut buffer = vec![0; count];
                let read = body.read_at(&mut buffer, first as u64).unwrap();
                assert_eq!(&buffer[..read], &all[first..octets.min(first + count)], "{count} from {first}");
            }
        }
    }

    #[test]
    fn a_source_that_ends_early_is_an_error() {
        let body = Body::new(Arc::new(b"abc".to_vec()), 1, 5, 0, BodyFlags::default());
        let error = body.read_at(&mut [0; 8], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
