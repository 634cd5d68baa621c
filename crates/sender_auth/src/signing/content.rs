//! A message read in pieces, between which other sessions of the thread go on.

use std::io;

use filter::{CheckedMessage, header};

use crate::message_header::MessageHeader;

/// Bytes that are processed at once: what is made of them stays in the processor's cache.
pub(super) const PIECE_BYTES_MAX: usize = 32 * 1024;
/// A message with a longer header is not signed.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The header of the whole message, with what was put before the content, and the position of the body
/// in the content. None: the header is too long.
pub(super) async fn read_header(message: &mut dyn CheckedMessage) -> io::Result<Option<(MessageHeader, u64)>> {
    let mut bytes = Vec::new();
    loop {
        let chunk = message.read_content(bytes.len() as u64).await?;
        let is_whole = chunk.is_empty();
        // The content may be in memory as a whole.
        bytes.extend_from_slice(&chunk[..chunk.len().min(PIECE_BYTES_MAX)]);
        let header_len = header::header_len(&bytes, is_whole);
        if header_len.unwrap_or(bytes.len()) > HEADER_BYTES_MAX {
            return Ok(None);
        }
        if let Some(len) = header_len {
            let has_empty_line = bytes[len..].starts_with(b"\r\n");
            bytes.truncate(len);
            bytes.splice(..0, message.prefix().iter().copied());
            return Ok(Some((MessageHeader::parse(bytes), len as u64 + if has_empty_line { 2 } else { 0 })));
        }
    }
}

/// Passes on the content from a position to its end.
pub(super) async fn read_content(
    message: &mut dyn CheckedMessage,
    start: u64,
    mut take: impl FnMut(&[u8]) + Send,
) -> io::Result<()> {
    let mut position = start;
    loop {
        let chunk = message.read_content(position).await?;
        if chunk.is_empty() {
            return Ok(());
        }
        let piece = &chunk[..chunk.len().min(PIECE_BYTES_MAX)];
        let has_more = piece.len() < chunk.len();
        take(piece);
        position += piece.len() as u64;
        if has_more {
            tokio::task::yield_now().await;
        }
    }
}
