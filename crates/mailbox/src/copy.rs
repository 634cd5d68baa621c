//! Copies a message into a file: its header, then its body in chunks, through one buffer that is
//! reused.
//!
//! The body's checksum is computed over the bytes as they are read. A copy that fails may have
//! written part of a file; the caller removes it.

use std::io::Write;

use mail::{Body, BodyError};

use crate::name::Sizes;
use crate::{DeliverError, LineEnds};

/// Bytes of a large body in memory at a time. Most messages are written in one call, header
/// included.
const CHUNK_OCTETS: usize = 256 * 1024;

pub(crate) struct MessageCopier {
    line_ends: LineEnds,
    buffer: Vec<u8>,
}

impl MessageCopier {
    pub(crate) fn new(line_ends: LineEnds) -> Self {
        MessageCopier { line_ends, buffer: Vec::new() }
    }

    /// Writes header and body to `file`, and verifies the checksum of the body.
    pub(crate) fn copy(&mut self, header: &[u8], body: &Body, file: &mut impl Write) -> Result<Sizes, DeliverError> {
        let mut sizes = Sizes { file: 0, crlf: header.len() as u64 + body.len() };
        let mut position = 0;
        let mut digest = 0;
        self.buffer.clear();
        self.buffer.extend_from_slice(header);
        loop {
            let start = self.buffer.len();
            position += self.read_chunk(body, position)?;
            digest = crc32c::crc32c_append(digest, &self.buffer[start..]);
            let is_last = position == body.len();
            let carry = self.convert_line_ends(is_last);
            file.write_all(&self.buffer)?;
            sizes.file += self.buffer.len() as u64;
            self.buffer.clear();
            if is_last {
                break;
            }
            self.buffer.extend(carry);
        }
        if digest != body.digest() {
            return Err(BodyError::Digest { found: digest, expected: body.digest() }.into());
        }
        Ok(sizes)
    }

    /// Appends the next chunk of the body to the buffer; returns its size in bytes.
    fn read_chunk(&mut self, body: &Body, position: u64) -> Result<u64, BodyError> {
        let start = self.buffer.len();
        let left = usize::try_from(body.len() - position).unwrap_or(usize::MAX);
        self.buffer.resize(start + left.min(CHUNK_OCTETS), 0);
        Ok(body.read_at(&mut self.buffer[start..], position)? as u64)
    }

    /// Converts the line ends in the buffer. A CR at the end of a chunk may be half of a line end:
    /// it is returned, and goes before the next chunk.
    fn convert_line_ends(&mut self, is_last: bool) -> Option<u8> {
        match self.line_ends {
            LineEnds::Crlf => None,
            LineEnds::Lf => {
                let carry = if is_last { None } else { self.buffer.pop_if(|&mut byte| byte == b'\r') };
                drop_carriage_returns(&mut self.buffer);
                carry
            }
        }
    }
}

/// Replaces every CRLF by LF; any other CR stays.
fn drop_carriage_returns(bytes: &mut Vec<u8>) {
    let (mut read, mut written) = (0, 0);
    while let Some(run) = memchr::memchr(b'\r', &bytes[read..]) {
        let ends_line = bytes.get(read + run + 1) == Some(&b'\n');
        let keep = if ends_line { run } else { run + 1 };
        bytes.copy_within(read..read + keep, written);
        written += keep;
        read += run + 1;
    }
    bytes.copy_within(read.., written);
    bytes.truncate(written + bytes.len() - read);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use mail::BodyFlags;
    use proptest::prelude::*;

    use super::*;

    fn body_of(bytes: &[u8]) -> Body {
        Body::new(Arc::new(bytes.to_vec()), 0, bytes.len() as u64, crc32c::crc32c(bytes), BodyFlags::default())
    }

    fn copy_to_vec(line_ends: LineEnds, header: &[u8], body: &[u8]) -> (Vec<u8>, Sizes) {
        let mut out = Vec::new();
        let sizes = MessageCopier::new(line_ends).copy(header, &body_of(body), &mut out).unwrap();
        (out, sizes)
    }

    #[test]
    fn an_empty_message_is_its_header() {
        assert_eq!(copy_to_vec(LineEnds::Crlf, b"A: b\r\n", b""), (b"A: b\r\n".to_vec(), Sizes { file: 6, crlf: 6 }));
        assert_eq!(copy_to_vec(LineEnds::Lf, b"", b""), (Vec::new(), Sizes::default()));
    }

    #[test]
    fn a_line_end_split_over_two_chunks_is_converted() {
        for before in [CHUNK_OCTETS - 2, CHUNK_OCTETS - 1, CHUNK_OCTETS, 2 * CHUNK_OCTETS - 1] {
            let text = format!("{}\r\nend\r\n", "x".repeat(before));
            let (out, sizes) = copy_to_vec(LineEnds::Lf, b"", text.as_bytes());
            assert!(out == text.replace("\r\n", "\n").as_bytes(), "{before} bytes before the line end");
            assert_eq!(sizes, Sizes { file: text.len() as u64 - 2, crlf: text.len() as u64 });
        }
    }

    #[test]
    fn a_full_device_is_reported_as_a_full_mailbox() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = MessageCopier::new(LineEnds::Crlf).copy(b"A: b\r\n", &body_of(b"x"), &mut full).unwrap_err();
        assert!(matches!(error, DeliverError::Full(_)), "{error:?}");
    }

    proptest! {
        #[test]
        fn lf_mode_drops_the_cr_of_each_line_end_and_nothing_else(text in "[a\r\n]{0,200}", header in "(X: y\r\n){0,2}") {
            let (out, sizes) = copy_to_vec(LineEnds::Lf, header.as_bytes(), text.as_bytes());
            let whole = header + &text;
            prop_assert_eq!(&out, &whole.replace("\r\n", "\n").into_bytes());
            prop_assert_eq!(sizes, Sizes { file: out.len() as u64, crlf: whole.len() as u64 });
        }
    }
}
