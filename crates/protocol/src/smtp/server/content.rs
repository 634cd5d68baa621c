//! Passes message bytes from DATA and BDAT to the sink: ensures that every newline is CRLF, or
//! refuses or repairs the message; enforces the limits on sizes and Received lines; collects the
//! body flags.
//!
//! A bare CR or LF enables SMTP smuggling: some server on the way may take it for a newline, and
//! find another message after it. So none is passed on; if configured, each is converted to CRLF. A
//! NUL is first kept, removed or refused, as configured.
//!
//! The hot path checks a whole piece in a loop without branches, and passes it on unchanged.

use mail::{BodyFlags, Reply};
use memchr::{memchr, memchr2};

use super::header::HeaderScan;
use super::tolerance::NulPolicy;
use super::{BodySink, MessageEnd, SessionLimits, replies};

/// How to treat bytes that a message must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepairPolicy {
    pub(super) bare_newlines: BareNewlines,
    pub(super) nul: NulPolicy,
}

/// How to treat a bare CR or LF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareNewlines {
    /// Refuse the message.
    Refuse,
    /// Convert it to CRLF.
    Normalise,
}

/// Why the message is refused, whatever follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFault {
    /// It contains a bare CR or LF.
    BareNewline,
    /// It contains a NUL.
    Nul,
    /// It exceeds [`SessionLimits::message_octets_max`].
    TooBig,
    /// It exceeds [`SessionLimits::header_octets_max`].
    HeaderTooBig,
    /// It exceeds [`SessionLimits::received_max`].
    Loop,
}

impl ContentFault {
    /// The reply after the end of the data.
    pub(super) fn reply(self) -> Reply {
        match self {
            ContentFault::BareNewline => replies::BARE_NEWLINE,
            ContentFault::Nul => replies::NUL,
            ContentFault::TooBig => replies::MESSAGE_TOO_BIG,
            ContentFault::HeaderTooBig => replies::HEADER_TOO_BIG,
            ContentFault::Loop => replies::LOOP,
        }
    }
}

/// The state of the message after the bytes appended so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentState {
    octets: u64,
    header: HeaderScan,
    /// The previous byte. A message begins as if after a newline.
    previous: u8,
    dot_lines: bool,
    eight_bit: bool,
}

impl ContentState {
    /// The state of an empty message.
    pub(super) fn new() -> Self {
        ContentState { octets: 0, header: HeaderScan::default(), previous: b'\n', dot_lines: false, eight_bit: false }
    }

    /// The number of bytes passed to the sink.
    pub(super) fn octets(&self) -> u64 {
        self.octets
    }

    /// Checks `bytes` and passes them on. Must not be called again after a fault.
    pub(super) fn append(
        &mut self,
        mut bytes: &[u8],
        repair: RepairPolicy,
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<(), ContentFault> {
        if repair.nul == NulPolicy::Keep {
            return self.append_lines(bytes, repair.bare_newlines, limits, sink);
        }
        while let Some(place) = memchr(b'\0', bytes) {
            self.append_lines(&bytes[..place], repair.bare_newlines, limits, sink)?;
            if repair.nul == NulPolicy::Refuse {
                return Err(ContentFault::Nul);
            }
            bytes = &bytes[place + 1..];
        }
        self.append_lines(bytes, repair.bare_newlines, limits, sink)
    }

    fn append_lines(
        &mut self,
        bytes: &[u8],
        bare: BareNewlines,
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<(), ContentFault> {
        let marks = ByteTraits::of(self.previous, bytes);
        match bare {
            _ if !marks.bare_newline => self.pass_to_sink(bytes, marks, limits, sink),
            BareNewlines::Normalise => self.append_normalised(bytes, limits, sink),
            BareNewlines::Refuse => {
                let prefix = ByteTraits::valid_prefix(self.previous, bytes);
                self.append_checked(prefix, limits, sink)?;
                Err(ContentFault::BareNewline)
            }
        }
    }

    /// Completes the message. Only the last BDAT chunk can end in a CR.
    pub(super) fn finish(
        &mut self,
        bare: BareNewlines,
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<MessageEnd, ContentFault> {
        match bare {
            _ if self.previous != b'\r' => {}
            BareNewlines::Refuse => return Err(ContentFault::BareNewline),
            BareNewlines::Normalise => self.append_checked(b"\n", limits, sink)?,
        }
        let flags =
            BodyFlags { dot_lines: self.dot_lines, eight_bit: self.eight_bit, ends_in_crlf: self.previous == b'\n' };
        Ok(MessageEnd { flags, octets: self.octets })
    }

    /// Passes on each CR immediately; adds an LF if none follows.
    fn append_normalised(
        &mut self,
        mut bytes: &[u8],
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<(), ContentFault> {
        while let Some(&first) = bytes.first() {
            if self.previous == b'\r' {
                self.append_checked(b"\n", limits, sink)?;
                bytes = &bytes[usize::from(first == b'\n')..];
                continue;
            }
            let plain = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
            self.append_checked(&bytes[..plain], limits, sink)?;
            if plain < bytes.len() {
                self.append_checked(b"\r", limits, sink)?;
            }
            // A bare LF stays in the input, and is passed on after the CR just added.
            bytes = &bytes[plain..];
            bytes = bytes.strip_prefix(b"\r").unwrap_or(bytes);
        }
        Ok(())
    }

    fn append_checked(
        &mut self,
        bytes: &[u8],
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<(), ContentFault> {
        self.pass_to_sink(bytes, ByteTraits::of(self.previous, bytes), limits, sink)
    }

    fn pass_to_sink(
        &mut self,
        bytes: &[u8],
        marks: ByteTraits,
        limits: &SessionLimits,
        sink: &mut impl BodySink,
    ) -> Result<(), ContentFault> {
        let after = self.after(bytes, marks);
        match after.exceeded_limit(limits) {
            None => {
                *self = after;
                sink.append(bytes);
                Ok(())
            }
            Some(fault) if bytes.len() <= 1 => Err(fault),
            // The first limit exceeded must not depend on how the input is split, so look closer.
            Some(_) => {
                let (left, right) = bytes.split_at(bytes.len() / 2);
                self.append_checked(left, limits, sink)?;
                self.append_checked(right, limits, sink)
            }
        }
    }

    /// The state after `bytes`.
    fn after(&self, bytes: &[u8], marks: ByteTraits) -> ContentState {
        let mut after = *self;
        after.octets += bytes.len() as u64;
        after.header.scan(bytes);
        after.previous = bytes.last().copied().unwrap_or(self.previous);
        after.dot_lines |= marks.dot_line;
        after.eight_bit |= marks.eight_bit;
        after
    }

    fn exceeded_limit(&self, limits: &SessionLimits) -> Option<ContentFault> {
        if self.octets > limits.message_octets_max {
            Some(ContentFault::TooBig)
        } else if self.header.octets() > limits.header_octets_max {
            Some(ContentFault::HeaderTooBig)
        } else if self.header.received() > limits.received_max {
            Some(ContentFault::Loop)
        } else {
            None
        }
    }
}

/// Properties of a piece of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByteTraits {
    bare_newline: bool,
    dot_line: bool,
    eight_bit: bool,
}

impl ByteTraits {
    /// Newlines are valid if, of any two neighbours, the second is LF exactly when the first is CR.
    /// Written without branches, on bytes only, so that the compiler vectorises it.
    fn of(previous: u8, bytes: &[u8]) -> ByteTraits {
        let Some(&first) = bytes.first() else { return ByteTraits::default() };
        let mut bare = u8::from(previous == b'\r') ^ u8::from(first == b'\n');
        let mut dot = u8::from(previous == b'\n') & u8::from(first == b'.');
        let mut bits = first;
        for (&left, &right) in bytes.iter().zip(&bytes[1..]) {
            bare |= u8::from(left == b'\r') ^ u8::from(right == b'\n');
            dot |= u8::from(left == b'\n') & u8::from(right == b'.');
            bits |= right;
        }
        ByteTraits { bare_newline: bare != 0, dot_line: dot != 0, eight_bit: bits >= 0x80 }
    }

    /// The bytes before the first sign of a bare CR or LF.
    fn valid_prefix(previous: u8, bytes: &[u8]) -> &[u8] {
        let lefts = std::iter::once(&previous).chain(bytes);
        let bare = lefts.zip(bytes).position(|(&left, &right)| (left == b'\r') != (right == b'\n'));
        &bytes[..bare.unwrap_or(bytes.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        pieces: &[&[u8]],
        bare: BareNewlines,
        limits: &SessionLimits,
    ) -> Result<(Vec<u8>, MessageEnd), ContentFault> {
        let (mut content, mut sink) = (ContentState::new(), Vec::new());
        for piece in pieces {
            content.append(piece, RepairPolicy { bare_newlines: bare, nul: NulPolicy::Keep }, limits, &mut sink)?;
        }
        content.finish(bare, limits, &mut sink).map(|end| (sink, end))
    }

    #[test]
    fn bare_newlines_are_converted_to_crlf_or_refused() {
        let limits = SessionLimits::default();
        for (input, mended) in [
            (&b"a\nb\rc\r\nd"[..], &b"a\r\nb\r\nc\r\nd"[..]),
            (b"\n.\n", b"\r\n.\r\n"),
            (b"\r\r\n\n", b"\r\n\r\n\r\n"),
            (b"a\r", b"a\r\n"),
            (b"\n\r", b"\r\n\r\n"),
        ] {
            for cut in 0..=input.len() {
                let pieces = [&input[..cut], &input[cut..]];
                assert_eq!(
                    run(&pieces, BareNewlines::Normalise, &limits).unwrap().0,
                    mended,
                    "{}",
                    input.escape_ascii()
                );
                assert_eq!(run(&pieces, BareNewlines::Refuse, &limits), Err(ContentFault::BareNewline));
            }
        }
    }

    #[test]
    fn the_flags_say_what_the_bytes_are_like_at_any_split() {
        for (input, dot_lines, eight_bit, ends_in_crlf) in [
            (&b""[..], false, false, true),
            (b"a.\r\n", false, false, true),
            (b".", true, false, false),
            (b"a\r\n.b\r\nc", true, false, false),
            (b"\xfc\r\n", false, true, true),
            (b"a\xfc", false, true, false),
        ] {
            let flags = BodyFlags { dot_lines, eight_bit, ends_in_crlf };
            for cut in 0..=input.len() {
                let pieces = [&input[..cut], &input[cut..]];
                let (_, end) = run(&pieces, BareNewlines::Refuse, &SessionLimits::default()).unwrap();
                assert_eq!(end, MessageEnd { flags, octets: input.len() as u64 }, "{}", input.escape_ascii());
            }
        }
    }

    #[test]
    fn the_first_fault_is_reported_at_any_split() {
        let limits = SessionLimits {
            message_octets_max: 40,
            header_octets_max: 30,
            received_max: 1,
            ..SessionLimits::default()
        };
        for (input, fault) in [
            (&b"Received: 1\r\nReceived: 2\r\n01234567890123456789\n"[..], ContentFault::Loop),
            (b"Received: 1\r\n01234567890123456789\r\nReceived: 2\n", ContentFault::HeaderTooBig),
            (b"\r\nReceived:\r\nReceived:\r\n01234567890123456789\n", ContentFault::TooBig),
            (b"\r\nReceived:\nReceived:\r\n01234567890123456789\n", ContentFault::BareNewline),
        ] {
            for size in 1..=input.len() {
                let pieces: Vec<&[u8]> = input.chunks(size).collect();
                assert_eq!(run(&pieces, BareNewlines::Refuse, &limits), Err(fault), "{}", input.escape_ascii());
            }
        }
    }
}
