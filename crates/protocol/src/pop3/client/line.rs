//! Assembles lines that arrive in pieces. They end only in CRLF; a line that arrives whole is not
//! copied.

use memchr::memchr;

use super::Pop3Violation;

/// Octets of a line of a reply or list, with its CRLF. RFC 1939 section 3 has 512; servers exceed
/// it.
pub const LINE_OCTETS_MAX: usize = 2048;

/// The beginning of an incomplete line.
#[derive(Debug, Default)]
pub(super) struct LineReader {
    partial: Vec<u8>,
}

impl LineReader {
    /// Passes the next line of `input`, without its CRLF, to `read` and advances `input` past it.
    /// None at the end of the input.
    pub(super) fn next<T>(
        &mut self,
        input: &mut &[u8],
        read: impl FnOnce(&[u8]) -> Result<T, Pop3Violation>,
    ) -> Result<Option<T>, Pop3Violation> {
        let Some(end) = memchr(b'\n', input) else {
            self.keep(input)?;
            *input = &[];
            return Ok(None);
        };
        let (line, rest) = input.split_at(end + 1);
        *input = rest;
        if self.partial.is_empty() {
            return read(strip_crlf(line)?).map(Some);
        }
        let mut kept = std::mem::take(&mut self.partial);
        kept.extend_from_slice(line);
        read(strip_crlf(&kept)?).map(Some)
    }

    fn keep(&mut self, beginning: &[u8]) -> Result<(), Pop3Violation> {
        if self.partial.len() + beginning.len() >= LINE_OCTETS_MAX {
            return Err(Pop3Violation::LineTooLong);
        }
        self.partial.extend_from_slice(beginning);
        Ok(())
    }
}

/// Strips the CRLF of a complete line.
fn strip_crlf(line: &[u8]) -> Result<&[u8], Pop3Violation> {
    if line.len() > LINE_OCTETS_MAX {
        return Err(Pop3Violation::LineTooLong);
    }
    let line = line.strip_suffix(b"\r\n").ok_or(Pop3Violation::BareNewline)?;
    if memchr(b'\r', line).is_some() { Err(Pop3Violation::BareNewline) } else { Ok(line) }
}
