//! Encodes the content of one part, or mends an encoding that contains octets it must not contain.
//! Lines have at most 76 characters if they are encoded here, and [`MENDED_COLUMNS_MAX`] otherwise.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Octets that make one line of base64 (RFC 2045 section 6.8).
const BASE64_LINE_OCTETS: usize = 57;
/// Columns of a line of quoted-printable before the `=` of a soft line break (RFC 2045 section 6.7).
const QUOTED_COLUMNS_MAX: usize = 75;
/// A longer line of an existing encoding is broken.
const MENDED_COLUMNS_MAX: usize = 900;

/// How a content is written.
#[derive(Debug)]
pub(super) enum Encoder {
    /// As it came.
    Verbatim,
    QuotedPrintable(QuotedPrintable),
    Base64(Base64Lines),
    MendedQuotedPrintable(MendedQuotedPrintable),
    MendedBase64(MendedBase64),
}

impl Encoder {
    /// Octets of a line, without its end.
    pub(super) fn handle_text(&mut self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            Encoder::Verbatim => out.extend_from_slice(text),
            Encoder::QuotedPrintable(encoder) => text.iter().for_each(|octet| encoder.handle_octet(*octet, out)),
            Encoder::Base64(encoder) => encoder.handle_octets(text, out),
            Encoder::MendedQuotedPrintable(encoder) => text.iter().for_each(|octet| encoder.handle_octet(*octet, out)),
            Encoder::MendedBase64(encoder) => text.iter().for_each(|octet| encoder.handle_octet(*octet, out)),
        }
    }

    /// The end of a line that belongs to the content: CRLF or LF.
    pub(super) fn handle_line_end(&mut self, end: &[u8], out: &mut Vec<u8>) {
        match self {
            Encoder::Verbatim => out.extend_from_slice(end),
            Encoder::QuotedPrintable(encoder) => encoder.handle_line_end(end, out),
            Encoder::Base64(encoder) => encoder.handle_octets(end, out),
            Encoder::MendedQuotedPrintable(encoder) => {
                *encoder = MendedQuotedPrintable::default();
                out.extend_from_slice(end);
            }
            Encoder::MendedBase64(encoder) => {
                *encoder = MendedBase64::default();
                out.extend_from_slice(end);
            }
        }
    }

    /// The content ends here: before a delimiter, which brings a line end, or with the message.
    pub(super) fn finish(&mut self, is_end_of_message: bool, out: &mut Vec<u8>) {
        match self {
            Encoder::QuotedPrintable(encoder) => encoder.finish(out),
            Encoder::Base64(encoder) => encoder.finish(is_end_of_message, out),
            Encoder::Verbatim | Encoder::MendedQuotedPrintable(_) | Encoder::MendedBase64(_) => {}
        }
    }
}

/// Quoted-printable (RFC 2045 section 6.7). White space waits for what follows it, since it must not
/// end a line.
#[derive(Debug, Default)]
pub(super) struct QuotedPrintable {
    column: usize,
    space: Option<u8>,
    /// The line began with a soft line break.
    is_continued: bool,
}

impl QuotedPrintable {
    fn handle_octet(&mut self, octet: u8, out: &mut Vec<u8>) {
        if let Some(space) = self.space.take() {
            self.write_literal(space, out);
        }
        match octet {
            b' ' | b'\t' => self.space = Some(octet),
            b'=' => self.write_escaped(octet, out),
            b'!'..=b'~' => self.write_literal(octet, out),
            _ => self.write_escaped(octet, out),
        }
    }

    fn handle_line_end(&mut self, end: &[u8], out: &mut Vec<u8>) {
        self.finish(out);
        if end == b"\r\n" {
            out.extend_from_slice(end);
            *self = QuotedPrintable::default();
        } else {
            end.iter().for_each(|octet| self.write_escaped(*octet, out));
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(space) = self.space.take() {
            self.write_escaped(space, out);
        }
    }

    fn write_literal(&mut self, octet: u8, out: &mut Vec<u8>) {
        self.make_room(1, out);
        // A soft line break must not make a delimiter.
        if octet == b'-' && self.column == 0 && self.is_continued {
            return self.write_escaped(octet, out);
        }
        out.push(octet);
        self.column += 1;
    }

    fn write_escaped(&mut self, octet: u8, out: &mut Vec<u8>) {
        self.make_room(3, out);
        escape(octet, out);
        self.column += 3;
    }

    fn make_room(&mut self, columns: usize, out: &mut Vec<u8>) {
        if self.column + columns > QUOTED_COLUMNS_MAX {
            out.extend_from_slice(b"=\r\n");
            (self.column, self.is_continued) = (0, true);
        }
    }
}

/// `=` and two digits, in upper case.
fn escape(octet: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'=', DIGITS[usize::from(octet >> 4)], DIGITS[usize::from(octet & 15)]]);
}

/// Base64 in lines (RFC 2045 section 6.8). A line end separates two lines; the last line has one only
/// at the end of the message.
#[derive(Debug, Default)]
pub(super) struct Base64Lines {
    waiting: Vec<u8>,
    has_lines: bool,
}

impl Base64Lines {
    fn handle_octets(&mut self, mut octets: &[u8], out: &mut Vec<u8>) {
        while self.waiting.len() + octets.len() > BASE64_LINE_OCTETS {
            let (line, rest) = octets.split_at(BASE64_LINE_OCTETS - self.waiting.len());
            self.waiting.extend_from_slice(line);
            octets = rest;
            self.write_line(out);
        }
        self.waiting.extend_from_slice(octets);
    }

    fn write_line(&mut self, out: &mut Vec<u8>) {
        if self.has_lines {
            out.extend_from_slice(b"\r\n");
        }
        let start = out.len();
        out.resize(start + self.waiting.len().div_ceil(3) * 4, 0);
        let written = BASE64.encode_slice(&self.waiting, &mut out[start..]);
        debug_assert_eq!(written.ok(), Some(out.len() - start));
        self.waiting.clear();
        self.has_lines = true;
    }

    fn finish(&mut self, is_end_of_message: bool, out: &mut Vec<u8>) {
        if !self.waiting.is_empty() {
            self.write_line(out);
        }
        if self.has_lines && is_end_of_message {
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Quoted-printable with 8-bit octets, which readers take as they are: they are escaped.
#[derive(Debug, Default)]
pub(super) struct MendedQuotedPrintable {
    column: usize,
    /// This many octets of an escape follow, which must not be broken.
    escape_octets: u8,
}

impl MendedQuotedPrintable {
    fn handle_octet(&mut self, octet: u8, out: &mut Vec<u8>) {
        if self.column >= MENDED_COLUMNS_MAX && self.escape_octets == 0 {
            out.extend_from_slice(b"=\r\n");
            self.column = 0;
        }
        self.escape_octets = if octet == b'=' { 2 } else { self.escape_octets.saturating_sub(1) };
        // A hyphen at the start of a line could make a delimiter.
        if octet == 0 || octet > 127 || (octet == b'-' && self.column == 0) {
            escape(octet, out);
            self.column += 3;
        } else {
            out.push(octet);
            self.column += 1;
        }
    }
}

/// Base64 with octets that are not of its alphabet, which readers ignore: they are replaced by
/// another such octet.
#[derive(Debug, Default)]
pub(super) struct MendedBase64 {
    column: usize,
}

impl MendedBase64 {
    fn handle_octet(&mut self, octet: u8, out: &mut Vec<u8>) {
        if self.column >= MENDED_COLUMNS_MAX {
            out.extend_from_slice(b"\r\n");
            self.column = 0;
        }
        // A hyphen here could make a delimiter.
        let is_replaced = octet == 0 || octet > 127 || (octet == b'-' && self.column == 0);
        out.push(if is_replaced { b'?' } else { octet });
        self.column += 1;
    }
}
