//! The message made from a report: a multipart/report (RFC 6522) with CRLF line ends.
//!
//! | part | for | type | with non-ASCII addresses or headers (RFC 6533) |
//! |---|---|---|---|
//! | 1 | people: which address, what the server answered, what to do | text/plain | in UTF-8 |
//! | 2 | programs | message/delivery-status | message/global-delivery-status |
//! | 3 | the message, or its header | message/rfc822, text/rfc822-headers | message/global, message/global-headers |
//!
//! Text from other hosts (replies, host names, ENVID, ORCPT) is stripped of control characters and
//! wrapped, so it can form neither a header field nor a line over 998 octets. The returned message
//! is copied unchanged.

use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, DsnReturn, Envelope, QueueId, Recipient, Timestamp};

use super::dsn_input::DsnComposeInput;
use super::notice_writer::{Charset, NoticeWriter};
use super::report::DsnReport;
use super::{status_part, text_part};

/// A notice, to be queued like any message and sent to [`DsnReport::to`] with a null reverse-path.
#[derive(Debug, PartialEq, Eq)]
pub struct Dsn {
    /// Header and body.
    pub content: Vec<u8>,
    /// The flags of `content`.
    pub flags: BodyFlags,
    /// The header or the report is in UTF-8.
    pub smtputf8: bool,
    /// The client that sent the original message is trusted.
    pub trusted: bool,
}

impl DsnReport<'_> {
    /// Composes the notice.
    pub fn compose(&self, context: &DsnComposeInput<'_>) -> Dsn {
        let international = self.is_international();
        let returned_message = ReturnedMessage::new(self, context);
        let explanation = text_part::text_part(self, context, returned_message.portion);
        let status =
            status_part::status_part(self, context, if international { Charset::Utf8 } else { Charset::Ascii });
        let parts = [explanation.as_bytes(), status.as_bytes(), returned_message.bytes];
        let eight_bit = !parts.iter().all(|part| part.is_ascii());
        let boundary = boundary(context.id, &parts);
        let report_type = if international { "global-delivery-status" } else { "delivery-status" };

        let mut text = NoticeWriter::default();
        text_part::write_header(&mut text, self, context);
        text.line(format_args!("MIME-Version: 1.0"));
        text.line(format_args!("Content-Type: multipart/report; report-type={report_type};"));
        text.line(format_args!("\tboundary=\"{boundary}\""));
        text.end_of_header(eight_bit);
        text.line(format_args!("--{boundary}"));
        let charset = if explanation.is_ascii() { "us-ascii" } else { "utf-8" };
        text.line(format_args!("Content-Type: text/plain; charset={charset}"));
        text.end_of_header(!explanation.is_ascii());
        text.append(&explanation);
        // The line end before a boundary belongs to the boundary (RFC 2046 section 5.1.1), so each
        // part gets one more.
        text.line(format_args!("\r\n--{boundary}"));
        text.line(format_args!("Content-Type: message/{report_type}"));
        text.end_of_header(!status.is_ascii());
        text.append(&status);
        text.line(format_args!("\r\n--{boundary}"));
        text.line(format_args!("Content-Type: {}", returned_message.media_type));
        text.end_of_header(!returned_message.bytes.is_ascii());

        let mut content = text.into_string().into_bytes();
        content.extend_from_slice(returned_message.bytes);
        content.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let flags =
            BodyFlags { dot_lines: has_dot_lines(&content), eight_bit: !content.is_ascii(), ends_in_crlf: true };
        let smtputf8 = international || returned_message.international;
        Dsn { content, flags, smtputf8, trusted: self.envelope.client.trusted }
    }
}

impl Dsn {
    /// The envelope of the notice: from this host, with a null sender. `recipients` are what
    /// [`DsnReport::to`] resolved to; their delivery causes no further notice (RFC 3461 section
    /// 6.1).
    pub fn envelope(&self, hostname: &str, now: Timestamp, recipients: Vec<Recipient>) -> Envelope {
        let silent = |recipient| Recipient { notify: DsnNotify::NEVER, ..recipient };
        Envelope {
            sender: None,
            recipients: recipients.into_iter().map(silent).collect(),
            accepted_at: now,
            client: ClientInfo { address: None, helo: hostname.into(), trusted: self.trusted },
            body_type: if self.flags.eight_bit { BodyType::EightBitMime } else { BodyType::SevenBit },
            smtputf8: self.smtputf8,
            ret: None,
            envid: None,
            content_filter: false,
        }
    }
}

struct ReturnedMessage<'a> {
    bytes: &'a [u8],
    portion: DsnReturn,
    media_type: &'static str,
    /// The header contains UTF-8 (RFC 6532).
    international: bool,
}

impl<'a> ReturnedMessage<'a> {
    fn new(report: &DsnReport<'_>, context: &DsnComposeInput<'a>) -> Self {
        let whole = context.original;
        let header = header_of(whole);
        let is_whole = whole.len() as u64 == context.octets;
        let portion = if is_whole { report.returned_portion(context.octets) } else { DsnReturn::Headers };
        let international = report.envelope.smtputf8 && !header.is_ascii();
        let (bytes, media_type) = match (portion, international) {
            (DsnReturn::Full, false) => (whole, "message/rfc822"),
            (DsnReturn::Full, true) => (whole, "message/global"),
            (DsnReturn::Headers, false) => (header, "text/rfc822-headers"),
            (DsnReturn::Headers, true) => (header, "message/global-headers"),
        };
        ReturnedMessage { bytes, portion, media_type, international }
    }
}

/// The lines before the empty line; of a truncated header, its complete lines.
fn header_of(message: &[u8]) -> &[u8] {
    if message.starts_with(b"\r\n") {
        return &[];
    }
    let last_line_end = || message.iter().rposition(|&byte| byte == b'\n').map_or(0, |place| place + 1);
    let end = message.windows(4).position(|window| window == b"\r\n\r\n").map(|place| place + 2);
    &message[..end.unwrap_or_else(last_line_end)]
}

fn has_dot_lines(content: &[u8]) -> bool {
    content.windows(2).any(|window| window == b"\n.")
}

/// A string that occurs in none of the parts, not even within a line.
fn boundary(id: QueueId, parts: &[&[u8]]) -> String {
    let occurs = |boundary: &String| {
        let boundary = boundary.as_bytes();
        parts.iter().any(|part| part.windows(boundary.len()).any(|window| window == boundary))
    };
    let mut boundaries = (0u64..).map(|n| format!("=_{id}_{n}_="));
    boundaries.find(|boundary| !occurs(boundary)).expect("a finite text cannot contain every boundary")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_ends_before_the_empty_line() {
        for (message, header) in [
            ("A: 1\r\nB: 2\r\n\r\nbody\r\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1\r\nB: 2\r\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1\r\nB: cut o", "A: 1\r\n"),
            ("\r\nbody\r\n\r\n", ""),
            ("", ""),
        ] {
            assert_eq!(header_of(message.as_bytes()), header.as_bytes(), "{message:?}");
        }
    }

    #[test]
    fn a_boundary_that_occurs_is_not_taken() {
        let id = QueueId::new(mail::SpoolId::new(1), 0, 2);
        let first = boundary(id, &[]);
        let hostile = format!("x{first}x");
        let second = boundary(id, &[b"", hostile.as_bytes()]);
        assert_ne!(first, second);
        assert!(!hostile.contains(&second));
    }
}
