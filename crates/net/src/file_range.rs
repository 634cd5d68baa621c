//! A range of a file: sent by the kernel without a copy, or read without blocking on the disk.
//!
//! `preadv2` with `RWF_NOWAIT` tells whether a page is cached; if the file system does not support
//! it, the page counts as not cached, and is read by one of a few blocking threads.
//!
//! A file that ends before the range does is [`io::ErrorKind::UnexpectedEof`], whether it was
//! always too short or was truncated meanwhile. Pages queued by `sendfile` stay pages of the file
//! until the peer has them: changing them in place changes what the peer gets.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use rustix::fs::sendfile;
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::disk_read::read_blocking;

/// The kernel reads ahead in runs of this size, so checking one page of each run is enough.
const READAHEAD_OCTETS: u64 = 128 << 10;

/// A range of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange<'a> {
    /// The file.
    pub file: &'a File,
    /// The start of the range.
    pub offset: u64,
    /// The length of the range, at least 1.
    pub octets: u64,
}

impl FileRange<'_> {
    /// The first octet after the range.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.octets
    }

    /// The start of the range, up to this length.
    pub(crate) fn first(self, octets_max: u64) -> Self {
        FileRange { octets: self.octets.min(octets_max), ..self }
    }

    /// Whether the range can be read without waiting. A page may be evicted before it is read; then
    /// one read waits.
    pub(crate) fn is_cached(&self) -> io::Result<bool> {
        let mut place = self.offset;
        while place < self.end() {
            let page = FileRange { offset: place, ..*self };
            if !page.read_if_cached(&mut [0])? {
                return Ok(false);
            }
            place = (place + 1).next_multiple_of(READAHEAD_OCTETS);
        }
        Ok(true)
    }

    /// Fills the buffer from the start of the range if the bytes are cached; returns whether they
    /// were. The range must be as long as the buffer.
    pub fn read_if_cached(&self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            let place = self.offset + filled as u64;
            match preadv2(self.file, &mut [IoSliceMut::new(&mut buffer[filled..])], place, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Brings the range into the page cache on a blocking thread.
    pub(crate) async fn prefetch(&self) -> io::Result<()> {
        let (offset, octets) = (self.offset, self.octets);
        let read = move |file: &File| prefetch(|buffer, place| file.read_at(buffer, place), offset, octets);
        read_blocking(|| self.file.try_clone(), read).await
    }

    /// Reads the range on a blocking thread.
    pub async fn read(&self) -> io::Result<Vec<u8>> {
        let (offset, octets) = (self.offset, self.octets as usize);
        let read = move |file: &File| {
            let mut bytes = vec![0; octets];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        };
        read_blocking(|| self.file.try_clone(), read).await
    }
}

/// Reads a range and drops the bytes, so that they are in the page cache. Blocks.
pub(crate) fn prefetch(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    octets: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; READAHEAD_OCTETS as usize];
    let mut place = offset;
    while place < offset + octets {
        match read_at(&mut bytes, place) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => place += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends bytes that are held back until some of a file follows them, or 200 ms; returns how many
/// the socket accepted.
pub(crate) fn try_send_head(stream: &TcpStream, head: &[u8]) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || Ok(send_head(stream, head)?))
}

/// Sends the head, held back until bytes of the file go with it, and then some of the file, if the
/// socket accepts it; returns how many bytes of both were sent.
pub(crate) fn try_send_file(stream: &TcpStream, head: &[u8], range: FileRange<'_>) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || send_file(stream, head, range))
}

fn send_file(stream: &TcpStream, head: &[u8], range: FileRange<'_>) -> io::Result<usize> {
    let mut sent = 0;
    if !head.is_empty() {
        sent = send_head(stream, head)?;
        if sent < head.len() {
            return Ok(sent);
        }
    }
    let mut offset = range.offset;
    let octets = usize::try_from(range.octets).unwrap_or(usize::MAX);
    match retry_on_intr(|| sendfile(stream, range.file, Some(&mut offset), octets)) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(sent + count),
        Err(Errno::AGAIN) if sent > 0 => Ok(sent),
        Err(error) => Err(error.into()),
    }
}

fn send_head(stream: &TcpStream, head: &[u8]) -> Result<usize, Errno> {
    retry_on_intr(|| send(stream, head, SendFlags::MORE | SendFlags::NOSIGNAL))
}
