//! Lines that come in pieces. They end in CRLF and nothing else; one that comes whole is not copied.

use memchr::memchr;

use super::Misbehaviour;

/// Octets of a line of a reply or a list, with its CRLF. RFC 1939 section 3 has 512; servers go beyond it.
pub const LINE_OCTETS_MAX: usize = 2048;

/// The beginning of a line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Reads the next line of `input`, which is cut by what was used of it, without its CRLF. None when all was used.
    pub(super) fn next<T>(
        &mut self,
        input: &mut &[u8],
        read: impl FnOnce(&[u8]) -> Result<T, Misbehaviour>,
    ) -> Result<Option<T>, Misbehaviour> {
        let Some(end) = memchr(b'\n', input) else {
            self.keep(input)?;
            *input = &[];
            return Ok(None);
        };
        let (line, rest) = input.split_at(end + 1);
        *input = rest;
        if self.partial.is_empty() {
            return read(whole(line)?).map(Some);
        }
        let mut kept = std::mem::take(&mut self.partial);
        kept.extend_from_slice(line);
        read(whole(&kept)?).map(Some)
    }

    fn keep(&mut self, beginning: &[u8]) -> Result<(), Misbehaviour> {
        if self.partial.len() + beginning.len() >= LINE_OCTETS_MAX {
            return Err(Misbehaviour::LineTooLong);
        }
        self.partial.extend_from_slice(beginning);
        Ok(())
    }
}

/// The line without its CRLF, if it is one.
fn whole(line: &[u8]) -> Result<&[u8], Misbehaviour> {
    if line.len() > LINE_OCTETS_MAX {
        return Err(Misbehaviour::LineTooLong);
    }
    let line = line.strip_suffix(b"\r\n").ok_or(Misbehaviour::BareNewline)?;
    if memchr(b'\r', line).is_some() { Err(Misbehaviour::BareNewline) } else { Ok(line) }
}
