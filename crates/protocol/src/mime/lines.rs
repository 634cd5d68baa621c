//! Splits a message into lines, and lines that are too long into fragments. Where the input is split
//! makes no difference: a fragment ends at a line end, or after [`FRAGMENT_OCTETS_MAX`].

use memchr::memchr;

/// Octets of a fragment, with its line end. A delimiter and the name of a field fit into one.
pub const FRAGMENT_OCTETS_MAX: usize = 1024;

/// A line, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFragment<'a> {
    /// The octets before the line end.
    pub text: &'a [u8],
    /// CRLF or LF; empty if the line continues, or the message ends here.
    pub end: &'static [u8],
    /// The line begins here.
    pub is_start: bool,
}

/// Holds the beginning of a fragment until the rest comes.
#[derive(Debug)]
pub(super) struct LineReader {
    held: Vec<u8>,
    is_start: bool,
}

impl LineReader {
    pub(super) fn new() -> LineReader {
        LineReader { held: Vec::new(), is_start: true }
    }

    pub(super) fn handle_input(&mut self, mut input: &[u8], take: &mut impl FnMut(LineFragment<'_>)) {
        while !input.is_empty() {
            let room = input.len().min(FRAGMENT_OCTETS_MAX - self.held.len());
            let line = memchr(b'\n', &input[..room]).map(|place| place + 1);
            let is_full = self.held.len() + room == FRAGMENT_OCTETS_MAX;
            let (piece, rest) = input.split_at(line.unwrap_or(room));
            input = rest;
            if line.is_none() && !is_full {
                self.held.extend_from_slice(piece);
            } else if self.held.is_empty() {
                self.pass_on(piece, take);
            } else {
                let mut fragment = std::mem::take(&mut self.held);
                fragment.extend_from_slice(piece);
                self.pass_on(&fragment, take);
            }
        }
    }

    /// The message ends here.
    pub(super) fn finish(&mut self, take: &mut impl FnMut(LineFragment<'_>)) {
        let text = std::mem::take(&mut self.held);
        if !text.is_empty() {
            take(LineFragment { text: &text, end: b"", is_start: self.is_start });
        }
    }

    /// A CR at the end of a fragment may be half of a line end, and waits for the next octet.
    fn pass_on(&mut self, fragment: &[u8], take: &mut impl FnMut(LineFragment<'_>)) {
        let (text, end): (&[u8], &'static [u8]) = match fragment {
            [text @ .., b'\r', b'\n'] => (text, b"\r\n"),
            [text @ .., b'\n'] => (text, b"\n"),
            [text @ .., b'\r'] => {
                self.held.push(b'\r');
                (text, b"")
            }
            text => (text, b""),
        };
        take(LineFragment { text, end, is_start: self.is_start });
        self.is_start = !end.is_empty();
    }
}
