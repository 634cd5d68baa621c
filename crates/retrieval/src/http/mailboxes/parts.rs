//! The parts of a message (RFC 2046), found and decoded with the functions of `mail_parser`.
//!
//! Its own parser of whole messages is not used: a message can make it nest without bound, keep many
//! times the message in memory, and read the message again for each part. Here depth, parts and the
//! head of each part are limited, and each level of nesting reads the message once. An enclosed
//! message is one part, whose own parts are not listed.

use std::ops::Range;
use std::sync::LazyLock;

use mail_parser::decoders::base64::base64_decode;
use mail_parser::decoders::quoted_printable::quoted_printable_decode;
use mail_parser::parsers::MessageStream;
use mail_parser::{ContentType, HeaderName, Message, MessageParser, MimeHeaders};
use memchr::memchr_iter;

use super::attachment_name;

/// Multiparts within multiparts; a deeper one is a part as it is.
const DEPTH_MAX: usize = 16;
/// Octets of the head of a part that are read. Parsing the parameters of a field may take a time
/// that grows with the square of its length.
const PART_HEAD_OCTETS_MAX: usize = 4 << 10;
/// A longer content type is not passed on.
const CONTENT_TYPE_OCTETS_MAX: usize = 200;
/// The type of a part whose type cannot be passed on.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Other fields are skipped.
static PARSER: LazyLock<MessageParser> = LazyLock::new(|| {
    MessageParser::new()
        .header_content_type(HeaderName::ContentType)
        .header_content_type(HeaderName::ContentDisposition)
        .header_text(HeaderName::ContentTransferEncoding)
        .default_header_ignore()
});

/// The parts of a message, in their order.
#[derive(Debug, Default)]
pub(super) struct MessageParts {
    pub(super) parts: Vec<MessagePart>,
    /// There are more.
    pub(super) is_cut: bool,
}

/// A part that is no multipart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MessagePart {
    /// With its charset; safe in a field.
    pub(super) content_type: String,
    /// A harmless file name.
    pub(super) name: String,
    encoding: PartEncoding,
    /// Where its body is in the message.
    body: Range<usize>,
}

/// How a body is encoded (RFC 2045 section 6). Anything unknown is taken as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartEncoding {
    Identity,
    Base64,
    QuotedPrintable,
}

/// A search in a message.
struct PartSearch<'a> {
    message: &'a [u8],
    parts_max: usize,
    found: MessageParts,
}

impl MessageParts {
    /// Finds the parts of a message; its own head is read up to `head_octets_max`.
    pub(super) fn find(message: &[u8], head_octets_max: usize, parts_max: usize) -> MessageParts {
        let mut search = PartSearch { message, parts_max, found: MessageParts::default() };
        search.add(0..message.len(), head_octets_max, 0);
        search.found
    }
}

impl MessagePart {
    fn new(head: Option<&Message<'_>>, number: usize, body: Range<usize>) -> MessagePart {
        let content_type = head.and_then(|head| head.content_type());
        let media_type = content_type.map_or_else(|| "text/plain".to_owned(), media_type);
        let name = head.and_then(|head| head.attachment_name()).and_then(attachment_name::clean);
        MessagePart {
            name: name.unwrap_or_else(|| attachment_name::default_name(number, &media_type)),
            content_type: with_charset(media_type, content_type),
            encoding: PartEncoding::new(head.and_then(|head| head.content_transfer_encoding())),
            body,
        }
    }

    /// The octets of its body in the message, still encoded.
    pub(super) fn encoded_octets(&self) -> usize {
        self.body.len()
    }

    /// The decoded body; as it is if it is not encoded as its head says.
    pub(super) fn decode(&self, message: &[u8]) -> Vec<u8> {
        let body = message.get(self.body.clone()).unwrap_or_default();
        let decoded = match self.encoding {
            PartEncoding::Identity => None,
            PartEncoding::Base64 => base64_decode(body),
            PartEncoding::QuotedPrintable => quoted_printable_decode(body),
        };
        decoded.unwrap_or_else(|| body.to_vec())
    }
}

impl PartEncoding {
    fn new(name: Option<&str>) -> PartEncoding {
        let name = name.unwrap_or_default().trim();
        if name.eq_ignore_ascii_case("base64") {
            PartEncoding::Base64
        } else if name.eq_ignore_ascii_case("quoted-printable") {
            PartEncoding::QuotedPrintable
        } else {
            PartEncoding::Identity
        }
    }
}

impl PartSearch<'_> {
    /// Adds a part, or those of a multipart.
    fn add(&mut self, part: Range<usize>, head_octets_max: usize, depth: usize) {
        let bytes = &self.message[part.clone()];
        let body_start = body_start(bytes);
        let body = part.start + body_start..part.end;
        let head = PARSER.parse_headers(&bytes[..body_start.min(head_octets_max)]);
        let content_type = head.as_ref().and_then(|head| head.content_type());
        let multipart = content_type.filter(|found| found.ctype() == "multipart" && depth < DEPTH_MAX);
        if let Some(boundary) = multipart.and_then(|found| found.attribute("boundary"))
            && self.add_parts_of(&body, boundary.as_bytes(), depth + 1)
        {
            return;
        }
        if self.found.parts.len() >= self.parts_max {
            self.found.is_cut = true;
            return;
        }
        let number = self.found.parts.len() + 1;
        self.found.parts.push(MessagePart::new(head.as_ref(), number, body));
    }

    /// Adds the parts between boundaries; false if there is no boundary. Those of the enclosing
    /// multipart are not seen: they are outside of the body.
    fn add_parts_of(&mut self, body: &Range<usize>, boundary: &[u8], depth: usize) -> bool {
        let message = self.message;
        let mut stream = MessageStream::new(&message[body.clone()]);
        if !stream.seek_next_part(boundary) {
            return false;
        }
        while !self.found.is_cut && !stream.is_multipart_end() && !stream.is_eof() {
            let start = body.start + stream.offset();
            let (end, is_followed) = stream.seek_part_end(Some(boundary));
            self.add(start..(body.start + end).max(start), PART_HEAD_OCTETS_MAX, depth);
            if !is_followed {
                break;
            }
        }
        true
    }
}

/// Where the body of a message or part begins: behind its first empty line.
fn body_start(part: &[u8]) -> usize {
    let mut line = 0;
    for end in memchr_iter(b'\n', part) {
        if matches!(&part[line..end], b"" | b"\r") {
            return end + 1;
        }
        line = end + 1;
    }
    part.len()
}

/// The type and subtype, in lower case.
fn media_type(content_type: &ContentType<'_>) -> String {
    let (main, sub) = (content_type.ctype(), content_type.subtype().unwrap_or_default());
    match is_token(main) && is_token(sub) && main.len() + sub.len() < CONTENT_TYPE_OCTETS_MAX {
        true => format!("{main}/{sub}").to_ascii_lowercase(),
        false => UNKNOWN_TYPE.to_owned(),
    }
}

fn with_charset(media_type: String, content_type: Option<&ContentType<'_>>) -> String {
    let charset = content_type.and_then(|content_type| content_type.attribute("charset"));
    match charset.filter(|charset| is_token(charset) && charset.len() < CONTENT_TYPE_OCTETS_MAX) {
        Some(charset) => format!("{media_type}; charset={charset}"),
        None => media_type,
    }
}

/// Whether this is a token (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet);
    !text.is_empty() && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "From: a@x.org\nContent-Type: multipart/mixed; boundary=\"out\"\n\npreamble\n--out\n\
        Content-Type: multipart/alternative; boundary=in\n\n--in\n\ntext\n--in\nContent-Type: TEXT/HTML; charset=utf-8\n\
        Content-Transfer-Encoding: Quoted-Printable\n\n<p>=C3=A4=\nb\n--in--\n\n--out\n\
        Content-Type: application/pdf; name*=UTF-8''%C3%A4.pdf\nContent-Transfer-Encoding: base64\n\naGVs\nbG8=\n--out\n\
        Content-Type: message/rfc822\nContent-Disposition: attachment; filename=\"=?utf-8?Q?=C3=BC?=.eml\"\n\n\
        Subject: inner\nContent-Type: multipart/mixed; boundary=deep\n\n--deep\n\nx\n--deep--\n--out--\nepilogue\n";

    fn find(message: &[u8]) -> MessageParts {
        MessageParts::find(message, 32 << 10, 100)
    }

    /// The name, type and decoded text of each part.
    fn contents(message: &str) -> Vec<(String, String, String)> {
        let content = |part: MessagePart| {
            let text = String::from_utf8(part.decode(message.as_bytes())).unwrap();
            (part.name, part.content_type, text)
        };
        find(message.as_bytes()).parts.into_iter().map(content).collect()
    }

    #[test]
    fn the_parts_of_all_levels_are_found_and_decoded() {
        let inner = "Subject: inner\nContent-Type: multipart/mixed; boundary=deep\n\n--deep\n\nx\n--deep--";
        let expected = [
            ("part-1.txt", "text/plain", "text"),
            ("part-2.html", "text/html; charset=utf-8", "<p>\u{e4}b"),
            ("\u{e4}.pdf", "application/pdf", "hello"),
            ("\u{fc}.eml", "message/rfc822", inner),
        ];
        let expected = expected.map(|(name, kind, text)| (name.to_owned(), kind.to_owned(), text.to_owned()));
        assert_eq!(contents(MESSAGE), expected);
        let with_crlf = contents(&MESSAGE.replace('\n', "\r\n"));
        let texts: Vec<_> = with_crlf.iter().map(|(_, _, text)| text.replace("\r\n", "\n")).collect();
        assert_eq!(texts, expected.map(|(_, _, text)| text));
    }

    #[test]
    fn what_is_no_multipart_is_one_part() {
        let one = |message: &str| {
            let mut parts = contents(message);
            assert_eq!(parts.len(), 1, "{message}");
            parts.remove(0)
        };
        let part = |name: &str, kind: &str, text: &str| (name.to_owned(), kind.to_owned(), text.to_owned());
        assert_eq!(one("Subject: a\n\nb\n"), part("part-1.txt", "text/plain", "b\n"));
        assert_eq!(one("\nb\n"), part("part-1.txt", "text/plain", "b\n"));
        assert_eq!(one("no head"), part("part-1.txt", "text/plain", ""));
        let without_boundary = "Content-Type: multipart/mixed; boundary=none\n\nb\n";
        assert_eq!(one(without_boundary), part("part-1.bin", "multipart/mixed", "b\n"));
        let not_base64 = "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\nnot <base64>\n";
        assert_eq!(one(not_base64), part("part-1.txt", "text/plain", "not <base64>\n"));
        let hostile = "Content-Type: text/\"html\r\n x; charset=\"a\r\n b\"\n\nx";
        let (_, kind, _) = one(hostile);
        assert!(!kind.contains(['\r', '\n', '"', ' ']), "{kind:?}");
    }

    /// A message of a few megabytes must neither overflow the stack nor take minutes.
    #[test]
    fn hostile_structures_are_cut() {
        let nested_messages = "Content-Type: message/rfc822\n\n".repeat(100_000);
        assert_eq!(find(nested_messages.as_bytes()).parts.len(), 1);
        let deep = |level: usize| format!("Content-Type: multipart/mixed; boundary=b{level}x\n\n--b{level}x\n");
        let nested_multiparts: String = (0..20_000).map(deep).collect();
        let found = find(nested_multiparts.as_bytes());
        assert_eq!(found.parts.len(), 1);
        let without_boundaries = "--out\nContent-Type: multipart/mixed; boundary=none\n\n".repeat(50_000);
        let many = format!("Content-Type: multipart/mixed; boundary=out\n\n{without_boundaries}");
        let found = find(many.as_bytes());
        assert!(found.is_cut && found.parts.len() == 100, "{}", found.parts.len());
        let long_head = format!("Content-Type: text/plain; {}\n\nx", "a*1=b; ".repeat(500_000));
        assert_eq!(find(long_head.as_bytes()).parts.len(), 1);
        let empty = format!("Content-Type: multipart/mixed; boundary=b\n\n{}", "--b\n".repeat(1_000_000));
        assert!(find(empty.as_bytes()).is_cut);
    }
}
