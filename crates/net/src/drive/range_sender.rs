//! Sends a range of a file to a client: by the kernel in clear text, or in chunks that are read and,
//! over TLS, encrypted. Neither waits for the disk on the thread of the sessions.

use std::io;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_cork;
use tokio::net::TcpStream;

use crate::file_range::{FileRange, try_send_file};
use crate::input::{READ_BYTES, with_input};
use crate::server_stream::ServerStream;

/// How much of a file is checked at once for being in memory.
const CACHE_CHECK_OCTETS: u64 = 1 << 20;

/// The shortest rest of a range for which the kernel is asked to send full segments only: without
/// that, sending large files takes up to 1.7 times the processor time. Each range that is longer costs
/// two system calls.
const CORK_OCTETS_MIN: u64 = 256 << 10;

/// Why a range cannot be sent.
pub(super) enum RangeError {
    /// The file cannot be read, or is shorter than the range (`UnexpectedEof`).
    File(io::Error),
    /// The socket is broken, or accepts no more (`WouldBlock`).
    Socket(io::Error),
}

/// What is known about a range while it is sent.
#[derive(Default)]
pub(super) struct RangeSender {
    /// The file is in memory up to this offset.
    cached_until: u64,
    /// The socket sends full segments only, until the range ends.
    is_corked: bool,
}

impl RangeSender {
    /// Sends some of the rest of the range, after what TLS has taken before; returns the number of
    /// its bytes that were sent, which may be 0.
    pub(super) async fn try_send(
        &mut self,
        stream: &mut ServerStream,
        rest: FileRange<'_>,
        is_copied: bool,
    ) -> Result<usize, RangeError> {
        if stream.has_unsent() {
            return stream.try_send(&[]).map_err(RangeError::Socket);
        }
        match stream {
            ServerStream::Plain(socket) if !is_copied => {
                if self.cached_until <= rest.offset {
                    let checked = rest.first(CACHE_CHECK_OCTETS);
                    if !checked.is_cached().map_err(RangeError::File)? {
                        checked.prefetch().await.map_err(RangeError::File)?;
                    }
                    self.cached_until = checked.end();
                }
                self.send_corked(socket, rest).map_err(RangeError::of_sendfile)
            }
            ServerStream::Plain(_) | ServerStream::Secure(_) => {
                try_send_chunk(stream, rest.first(READ_BYTES as u64)).await
            }
        }
    }

    /// Sends what is in memory. The last segment leaves with the end of the range.
    fn send_corked(&mut self, socket: &TcpStream, rest: FileRange<'_>) -> io::Result<usize> {
        if !self.is_corked && rest.octets >= CORK_OCTETS_MIN {
            set_tcp_cork(socket, true)?;
            self.is_corked = true;
        }
        let sent = try_send_file(socket, &[], rest.first(self.cached_until - rest.offset))?;
        if self.is_corked && sent as u64 == rest.octets {
            set_tcp_cork(socket, false)?;
        }
        Ok(sent)
    }
}

impl RangeError {
    /// One call reads and sends. A disk that fails, and a file of NFS that another host has deleted,
    /// have errors that no socket has.
    fn of_sendfile(error: io::Error) -> RangeError {
        let is_of_file = error.kind() == io::ErrorKind::UnexpectedEof
            || matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::STALE));
        if is_of_file { RangeError::File(error) } else { RangeError::Socket(error) }
    }
}

/// Reads a chunk, and sends what the socket accepts of it. TLS takes a whole chunk if nothing
/// waits in it.
async fn try_send_chunk(stream: &mut ServerStream, chunk: FileRange<'_>) -> Result<usize, RangeError> {
    let sent = with_input(|buffer| {
        let bytes = &mut buffer[..chunk.octets as usize];
        chunk.read_if_cached(bytes).map(|is_cached| is_cached.then(|| stream.try_send(bytes)))
    });
    let sent = match sent.map_err(RangeError::File)? {
        Some(sent) => sent,
        None => stream.try_send(&chunk.read().await.map_err(RangeError::File)?),
    };
    sent.map_err(RangeError::Socket)
}
