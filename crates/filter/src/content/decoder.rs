//! Decodes the content of a part while it is read (RFC 2045 sections 6.7 and 6.8). It is lenient, as
//! readers are: octets that are no code are skipped in base64, and stand for themselves in
//! quoted-printable.

use protocol::mime::DeclaredEncoding;

/// A content that is being decoded.
#[derive(Debug)]
pub(super) enum ContentDecoder {
    /// `7bit`, `8bit`, `binary`, and what is unknown.
    Identity,
    /// The codes of a group that is not complete.
    Base64 { bits: u32, codes: u8 },
    /// What follows `=` and is not complete.
    QuotedPrintable(Escape),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    None,
    Begun,
    First(u8),
}

impl ContentDecoder {
    pub(super) fn new(encoding: DeclaredEncoding) -> ContentDecoder {
        match encoding {
            DeclaredEncoding::Base64 => ContentDecoder::Base64 { bits: 0, codes: 0 },
            DeclaredEncoding::QuotedPrintable => ContentDecoder::QuotedPrintable(Escape::None),
            DeclaredEncoding::SevenBit | DeclaredEncoding::EightBit | DeclaredEncoding::Unknown => {
                ContentDecoder::Identity
            }
        }
    }

    pub(super) fn is_identity(&self) -> bool {
        matches!(self, ContentDecoder::Identity)
    }

    /// Decodes text within a line.
    pub(super) fn handle_text(&mut self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            ContentDecoder::Identity => out.extend_from_slice(text),
            ContentDecoder::Base64 { bits, codes } => {
                text.iter().for_each(|octet| handle_base64(*octet, bits, codes, out));
            }
            ContentDecoder::QuotedPrintable(escape) => {
                text.iter().for_each(|octet| *escape = handle_quoted(*octet, *escape, out));
            }
        }
    }

    /// Decodes a line end.
    pub(super) fn handle_line_end(&mut self, end: &[u8], out: &mut Vec<u8>) {
        match self {
            ContentDecoder::Identity => out.extend_from_slice(end),
            ContentDecoder::Base64 { .. } => {}
            // A soft line break: the line goes on.
            ContentDecoder::QuotedPrintable(escape @ Escape::Begun) => *escape = Escape::None,
            ContentDecoder::QuotedPrintable(escape) => {
                flush_escape(std::mem::replace(escape, Escape::None), out);
                out.extend_from_slice(end);
            }
        }
    }

    /// The content ends here.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            ContentDecoder::Identity => {}
            ContentDecoder::Base64 { bits, codes } => flush_group(bits, codes, out),
            ContentDecoder::QuotedPrintable(escape) => flush_escape(std::mem::replace(escape, Escape::None), out),
        }
    }
}

fn handle_base64(octet: u8, bits: &mut u32, codes: &mut u8, out: &mut Vec<u8>) {
    let code = match octet {
        b'A'..=b'Z' => octet - b'A',
        b'a'..=b'z' => octet - b'a' + 26,
        b'0'..=b'9' => octet - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => return flush_group(bits, codes, out),
        _ => return,
    };
    (*bits, *codes) = (*bits << 6 | u32::from(code), *codes + 1);
    if *codes == 4 {
        out.extend_from_slice(&bits.to_be_bytes()[1..]);
        (*bits, *codes) = (0, 0);
    }
}

/// A group of two or three codes has one or two octets.
fn flush_group(bits: &mut u32, codes: &mut u8, out: &mut Vec<u8>) {
    let aligned = (*bits << (6 * (4 - u32::from(*codes)))).to_be_bytes();
    out.extend_from_slice(&aligned[1..1 + usize::from(codes.saturating_sub(1))]);
    (*bits, *codes) = (0, 0);
}

fn handle_quoted(octet: u8, escape: Escape, out: &mut Vec<u8>) -> Escape {
    match (escape, octet) {
        (Escape::None, b'=') => Escape::Begun,
        (Escape::Begun, _) if octet.is_ascii_hexdigit() => Escape::First(octet),
        (Escape::First(first), _) if octet.is_ascii_hexdigit() => {
            out.push(hex_value(first) << 4 | hex_value(octet));
            Escape::None
        }
        (Escape::None, _) => {
            out.push(octet);
            Escape::None
        }
        (Escape::Begun | Escape::First(_), _) => {
            flush_escape(escape, out);
            handle_quoted(octet, Escape::None, out)
        }
    }
}

/// What looked like an escape and is none.
fn flush_escape(escape: Escape, out: &mut Vec<u8>) {
    match escape {
        Escape::None => {}
        Escape::Begun => out.push(b'='),
        Escape::First(first) => out.extend_from_slice(&[b'=', first]),
    }
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result with the text cut into pieces of this size.
    fn decoded(encoding: DeclaredEncoding, text: &str, size: usize) -> String {
        let (mut decoder, mut out) = (ContentDecoder::new(encoding), Vec::new());
        for (number, line) in text.split('\n').enumerate() {
            if number > 0 {
                decoder.handle_line_end(b"\n", &mut out);
            }
            line.as_bytes().chunks(size).for_each(|piece| decoder.handle_text(piece, &mut out));
        }
        decoder.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn contents_are_decoded_in_pieces_of_any_size() {
        for (encoding, text, expected) in [
            (DeclaredEncoding::Base64, "aGVs\nbG8=", "hello"),
            (DeclaredEncoding::Base64, "aGV sb!G8", "hello"),
            (DeclaredEncoding::Base64, "aA==aGk=", "hhi"),
            (DeclaredEncoding::Base64, "a", ""),
            (DeclaredEncoding::Base64, "====", ""),
            (DeclaredEncoding::QuotedPrintable, "=C3=a4=\nb\nc", "\u{e4}b\nc"),
            (DeclaredEncoding::QuotedPrintable, "=x =4 =4", "=x =4 =4"),
            (DeclaredEncoding::QuotedPrintable, "==41=4=41", "=A=4A"),
            (DeclaredEncoding::SevenBit, "=41\n", "=41\n"),
        ] {
            for size in 1..6 {
                assert_eq!(decoded(encoding, text, size), expected, "{text:?}");
            }
        }
    }
}
