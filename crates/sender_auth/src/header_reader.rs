//! Reads the header of a message that is not stored yet.

use std::io;

use filter::CheckedMessage;
use memchr::memmem;

use crate::message_header::MessageHeader;

/// The bytes that are read at first; most headers are shorter.
const FIRST_OCTETS: usize = 8 * 1024;

/// Reads the header, up to the first empty line or the end. Also returns where the body begins.
///
/// # Errors
///
/// The content cannot be read.
pub(crate) async fn read_header(message: &mut dyn CheckedMessage) -> io::Result<(MessageHeader, u64)> {
    let mut bytes = Vec::new();
    loop {
        let chunk = message.read_content(bytes.len() as u64).await?;
        if chunk.is_empty() {
            let end = bytes.len() as u64;
            return Ok((MessageHeader::parse(bytes), end));
        }
        // What is read grows with what there is, so that a long header is searched in few steps.
        let known = bytes.len();
        let count = chunk.len().min(FIRST_OCTETS.max(known));
        bytes.extend_from_slice(&chunk[..count]);
        if bytes.starts_with(b"\r\n") {
            return Ok((MessageHeader::parse(Vec::new()), 2));
        }
        let from = known.saturating_sub(EMPTY_LINE.len() - 1);
        if let Some(at) = memmem::find(&bytes[from..], EMPTY_LINE) {
            bytes.truncate(from + at + 2);
            let body_start = bytes.len() as u64 + 2;
            return Ok((MessageHeader::parse(bytes), body_start));
        }
    }
}

/// The end of the last field, and the empty line.
const EMPTY_LINE: &[u8] = b"\r\n\r\n";
