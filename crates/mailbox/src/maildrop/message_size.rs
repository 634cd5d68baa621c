//! The size of a message as a POP3 client sees it: with CRLF line ends.
//!
//! A line feed without a carriage return before it counts as two octets. Anything else counts as it
//! is, also a carriage return alone: so does Dovecot count, and so is the message sent.

use std::io::{self, Read};

/// Read at a time.
const CHUNK_OCTETS: usize = 64 << 10;

/// Reads to the end; returns the size with CRLF line ends.
pub(super) fn measure(mut file: impl Read) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK_OCTETS];
    let (mut octets, mut last) = (0, 0);
    loop {
        let filled = match file.read(&mut chunk) {
            Ok(0) => return Ok(octets),
            Ok(filled) => &chunk[..filled],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        octets += filled.len() as u64 + bare_line_feeds(last, filled);
        last = filled[filled.len() - 1];
    }
}

/// Line feeds without a carriage return; `last` is the byte before the chunk.
fn bare_line_feeds(last: u8, chunk: &[u8]) -> u64 {
    let before = |at: usize| if at == 0 { last } else { chunk[at - 1] };
    memchr::memchr_iter(b'\n', chunk).filter(|&at| before(at) != b'\r').count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives few bytes at a time, so that line ends are split.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let octets = self.1.min(buffer.len());
            self.0.read(&mut buffer[..octets])
        }
    }

    proptest! {
        #[test]
        fn each_bare_line_feed_counts_twice(text in "[a\r\n]{0,60}", step in 1usize..5) {
            let converted = text.replace("\r\n", "\n").replace('\n', "\r\n");
            prop_assert_eq!(measure(Slow(text.as_bytes(), step)).unwrap(), converted.len() as u64);
        }
    }
}
