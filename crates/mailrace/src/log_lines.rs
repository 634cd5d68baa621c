//! Reads a log line by line, in memory that does not depend on its size.

use std::io::{self, BufRead};

/// Longer lines are ignored.
pub(crate) const LINE_OCTETS_MAX: usize = 64 << 10;

/// Reads the next line without its end; a line that is too long is skipped. False at the end of the
/// log.
pub(crate) fn next_line(log: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let (mut is_too_long, mut has_any) = (false, false);
    loop {
        let piece = log.fill_buf()?;
        let end = piece.iter().position(|octet| *octet == b'\n');
        let length = end.map_or(piece.len(), |end| end + 1);
        has_any |= length > 0;
        is_too_long |= line.len() + length > LINE_OCTETS_MAX;
        if !is_too_long {
            line.extend_from_slice(&piece[..end.unwrap_or(length)]);
        }
        let is_over = end.is_some() || piece.is_empty();
        log.consume(length);
        if is_over {
            if is_too_long {
                line.clear();
            }
            return Ok(has_any);
        }
    }
}
