//! Scans the header of a message as it passes: counts its octets, and its Received lines to detect
//! loops (RFC 5321 section 6.3). The header ends at the first empty line. The input is what goes to
//! the sink, so all newlines are CRLF.

use memchr::memchr;

const RECEIVED: &[u8] = b"received:";

/// The state of the scan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderScan {
    octets: u64,
    received: u32,
    position: HeaderPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderPosition {
    /// At the start of a line; this many bytes match [`RECEIVED`].
    Name(u8),
    /// Further along a line.
    Line,
    /// After the empty line.
    Body,
}

impl Default for HeaderPosition {
    fn default() -> Self {
        HeaderPosition::Name(0)
    }
}

impl HeaderScan {
    /// Octets of the header so far.
    pub(super) fn octets(&self) -> u64 {
        self.octets
    }

    /// Received lines so far.
    pub(super) fn received(&self) -> u32 {
        self.received
    }

    /// Scans the next bytes of the message.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) {
        while self.position != HeaderPosition::Body
            && let Some(&first) = bytes.first()
        {
            let used = self.step(first, bytes);
            self.octets += used as u64;
            bytes = &bytes[used..];
        }
    }

    /// Takes one step; returns the number of bytes used.
    fn step(&mut self, first: u8, bytes: &[u8]) -> usize {
        match self.position {
            HeaderPosition::Name(0) if first == b'\r' => {
                self.position = HeaderPosition::Body;
                0
            }
            HeaderPosition::Name(matched) if first.to_ascii_lowercase() == RECEIVED[usize::from(matched)] => {
                let complete = usize::from(matched) + 1 == RECEIVED.len();
                self.received += u32::from(complete);
                self.position = if complete { HeaderPosition::Line } else { HeaderPosition::Name(matched + 1) };
                1
            }
            HeaderPosition::Name(_) => {
                self.position = HeaderPosition::Line;
                0
            }
            HeaderPosition::Line => match memchr(b'\n', bytes) {
                Some(place) => {
                    self.position = HeaderPosition::Name(0);
                    place + 1
                }
                None => bytes.len(),
            },
            HeaderPosition::Body => bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_lines_are_counted_up_to_the_empty_line_at_any_split() {
        let header =
            b"Received: a\r\n\tby received: b\r\nreCEIVED:\r\nReceive: x\r\nXReceived: y\r\nRe\r\nReceived:z\r\n";
        let message = [&header[..], b"\r\nReceived: in the body\r\n"].concat();
        for size in 1..=message.len() {
            let mut scan = HeaderScan::default();
            message.chunks(size).for_each(|piece| scan.scan(piece));
            assert_eq!((scan.received(), scan.octets()), (3, header.len() as u64), "pieces of {size}");
        }
    }
}
