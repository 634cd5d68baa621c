//! Converts the output of a program to the wire form of a message: LF, with all CR before it,
//! becomes CRLF, and so does a single CR in the body. In the header, where it could turn part of a
//! value into a new field, a single CR becomes a space. If a single dot ends the input, the rest is
//! not read.

use std::io::{self, BufRead};

/// Why the input was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum TextError {
    /// It exceeds the configured limit.
    #[error("the message is larger than {0} bytes (limits.message)")]
    TooLarge(u64),
    /// Reading failed.
    #[error("reading the message: {0}")]
    Read(#[from] io::Error),
}

/// Reads a message to the end of the input, or to a line with a single dot.
///
/// # Errors
///
/// It is larger than `octets_max` bytes in wire form, or cannot be read.
pub(super) fn read_message(input: impl BufRead, dot_ends: bool, octets_max: u64) -> Result<Vec<u8>, TextError> {
    let mut message = WireText::default();
    // Each line end may add one byte, so no more is read than can be accepted.
    let mut input = input.take(octets_max + 1);
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        if dot_ends && matches!(&*line, b"." | b".\n" | b".\r\n") {
            return Ok(message.bytes);
        }
        message.append_line(&line);
        if message.bytes.len() as u64 > octets_max {
            return Err(TextError::TooLarge(octets_max));
        }
        line.clear();
    }
    Ok(message.bytes)
}

/// Converts a whole text to wire form.
pub(super) fn to_wire(text: &[u8]) -> Vec<u8> {
    let mut message = WireText { bytes: Vec::with_capacity(text.len() + text.len() / 32 + 2), is_body: false };
    text.split_inclusive(|byte| *byte == b'\n').for_each(|line| message.append_line(line));
    message.bytes
}

/// A message under construction.
#[derive(Default)]
struct WireText {
    bytes: Vec<u8>,
    /// The empty line after the header was seen.
    is_body: bool,
}

impl WireText {
    /// Appends a line, or the last part of a text without a line end.
    fn append_line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let end = line.iter().rposition(|byte| *byte != b'\r').map_or(0, |place| place + 1);
        self.is_body |= end == 0;
        let newline: &[u8] = if self.is_body { b"\r\n" } else { b" " };
        for (number, part) in line[..end].split(|byte| *byte == b'\r').enumerate() {
            self.bytes.extend_from_slice(if number > 0 { newline } else { b"" });
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(input: &[u8], dot_ends: bool) -> Vec<u8> {
        read_message(input, dot_ends, 1000).unwrap()
    }

    #[test]
    fn line_ends_become_those_of_the_wire() {
        for (input, expected) in [
            (&b"a\nb\n"[..], &b"a\r\nb\r\n"[..]),
            (b"a\r\nb\r\n", b"a\r\nb\r\n"),
            (b"a\r\nb\n", b"a\r\nb\r\n"),
            (b"a", b"a\r\n"),
            (b"a\r\r\n", b"a\r\n"),
            (b"Subject: hi\rBcc: x\n\na\rb\n", b"Subject: hi Bcc: x\r\n\r\na\r\nb\r\n"),
            (b"a: b\r\r\r\n\r\r\n\rc", b"a: b\r\n\r\n\r\nc\r\n"),
            (b"", b""),
            (b"\n", b"\r\n"),
            (b"\xff\x00\n", b"\xff\x00\r\n"),
        ] {
            assert_eq!(taken(input, true), expected);
            assert_eq!(to_wire(input), expected);
        }
    }

    #[test]
    fn a_lone_dot_ends_the_input_unless_it_may_not() {
        for input in [&b"a\n.\nb\n"[..], b"a\r\n.\r\nb\n", b"a\n."] {
            assert_eq!(taken(input, true), b"a\r\n");
            assert!(taken(input, false).starts_with(b"a\r\n.\r\n"));
        }
        assert_eq!(taken(b"..\n.a\n. \n", true), b"..\r\n.a\r\n. \r\n");
    }

    #[test]
    fn what_is_too_large_is_not_cut_short() {
        assert_eq!(read_message(&b"1234567\n"[..], true, 9).unwrap().len(), 9);
        for input in [&b"12345678\n"[..], b"123456789012345", b"\n\n\n\n\n"] {
            assert!(matches!(read_message(input, true, 9), Err(TextError::TooLarge(9))), "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_line_ends_changes(text in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..60)) {
            let made = to_wire(&text);
            let plain = |bytes: &[u8]| bytes.iter().copied().filter(|byte| !b"\r\n ".contains(byte)).collect::<Vec<_>>();
            prop_assert_eq!(plain(&made), plain(&text));
            prop_assert!(made.is_empty() || made.ends_with(b"\r\n"));
            prop_assert_eq!(to_wire(&made), made);
        }
    }
}
