//! Sends a range of a file to a client: by the kernel in clear text, or in chunks that are read and,
//! over TLS, encrypted. Neither waits for the disk on the thread of the sessions.

use std::io;

use crate::file_range::{FileRange, try_send_file};
use crate::input::{READ_BYTES, with_input};
use crate::server_stream::ServerStream;

/// How much of a file is checked at once for being in memory.
const CACHE_CHECK_OCTETS: u64 = 1 << 20;

/// What is known about a range while it is sent.
#[derive(Default)]
pub(super) struct RangeSender {
    /// The file is in memory up to this offset.
    cached_until: u64,
}

impl RangeSender {
    /// Sends some of the rest of the range, after what TLS has taken before; returns the number of
    /// its bytes that were sent, which may be 0. `WouldBlock`: the socket accepts no more.
    pub(super) async fn try_send(
        &mut self,
        stream: &mut ServerStream,
        rest: FileRange<'_>,
        is_copied: bool,
    ) -> io::Result<usize> {
        if stream.has_unsent() {
            return stream.try_send(&[]);
        }
        match stream {
            ServerStream::Plain(socket) if !is_copied => {
                if self.cached_until <= rest.offset {
                    let checked = rest.first(CACHE_CHECK_OCTETS);
                    if !checked.is_cached()? {
                        checked.prefetch().await?;
                    }
                    self.cached_until = checked.end();
                }
                try_send_file(socket, &[], rest.first(self.cached_until - rest.offset))
            }
            ServerStream::Plain(_) | ServerStream::Secure(_) => {
                try_send_chunk(stream, rest.first(READ_BYTES as u64)).await
            }
        }
    }
}

/// Reads a chunk, and sends what the socket accepts of it. TLS takes a whole chunk if nothing
/// waits in it.
async fn try_send_chunk(stream: &mut ServerStream, chunk: FileRange<'_>) -> io::Result<usize> {
    let sent = with_input(|buffer| {
        let bytes = &mut buffer[..chunk.octets as usize];
        Ok::<_, io::Error>(chunk.read_if_cached(bytes)?.then(|| stream.try_send(bytes)))
    })?;
    match sent {
        Some(sent) => sent,
        None => stream.try_send(&chunk.read().await?),
    }
}
