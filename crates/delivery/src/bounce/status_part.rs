//! The second part of a notice, for programs: the fields of message/delivery-status (RFC 3464
//! section 2, with the requirements of RFC 3461 section 6.3) and of message/global-delivery-status
//! (RFC 6533 section 4).

use std::fmt;

use mail::{Address, EnhancedCode, Recipient, Reply};

use super::dsn_input::DsnComposeInput;
use super::notice_writer::{Charset, NoticeWriter, sanitize_foreign_text};
use super::report::{DsnAction, DsnKind, DsnRecipient, DsnReport};

/// The per-message fields, then the fields of each recipient, separated by empty lines.
pub(super) fn status_part(report: &DsnReport<'_>, context: &DsnComposeInput<'_>, charset: Charset) -> String {
    let mut text = NoticeWriter::default();
    if let Some(envid) = &report.envelope.envid {
        text.wrapped_line("Original-Envelope-Id:", " ", &sanitize_foreign_text(&decode_xtext(envid), Charset::Ascii));
    }
    text.line(format_args!("Reporting-MTA: dns; {}", sanitize_foreign_text(context.hostname, Charset::Ascii)));
    text.line(format_args!("X-Mailrace-Queue-ID: {}", context.original_id));
    text.line(format_args!("Arrival-Date: {}", report.envelope.accepted_at.to_rfc5322()));
    for entry in &report.entries {
        text.empty_line();
        write_recipient(&mut text, entry, context, charset);
    }
    text.into_string()
}

fn write_recipient(text: &mut NoticeWriter, entry: &DsnRecipient<'_>, context: &DsnComposeInput<'_>, charset: Charset) {
    write_original_recipient(text, entry.recipient, charset);
    text.line(format_args!("Final-Recipient: {}", TypedAddress(&entry.recipient.address)));
    text.line(format_args!("Action: {}", action_name(entry.action.kind())));
    text.line(format_args!("Status: {}", status_code(&entry.action)));
    if let Some(peer) = entry.peer {
        text.wrapped_line("Remote-MTA: dns;", " ", &sanitize_foreign_text(peer, Charset::Ascii));
    }
    if let Some(reply) = entry.action.reply() {
        text.wrapped_line("Diagnostic-Code: smtp;", " ", &sanitize_foreign_text(&reply.to_string(), charset));
    }
    if let Some(attempted_at) = context.attempted_at {
        text.line(format_args!("Last-Attempt-Date: {}", attempted_at.to_rfc5322()));
    }
    if let DsnAction::Delayed { until, .. } = entry.action {
        text.line(format_args!("Will-Retry-Until: {}", until.to_rfc5322()));
    }
}

/// RFC 3464 section 2.3.3.
fn action_name(kind: DsnKind) -> &'static str {
    match kind {
        DsnKind::Delivered => "delivered",
        DsnKind::Relayed => "relayed",
        DsnKind::Delayed => "delayed",
        DsnKind::Failed => "failed",
    }
}

/// Original-Recipient from ORCPT. Without ORCPT it is omitted, even if an alias was expanded (RFC
/// 3461 section 6.3).
fn write_original_recipient(text: &mut NoticeWriter, recipient: &Recipient, charset: Charset) {
    let Some((kind, address)) = recipient.orcpt.as_deref().and_then(|orcpt| orcpt.split_once(';')) else { return };
    if kind.eq_ignore_ascii_case("utf-8") {
        // RFC 6533 section 3: this type has its own encoding, which is kept.
        text.wrapped_line("Original-Recipient: utf-8;", " ", &sanitize_foreign_text(address, charset));
    } else if is_atom(kind) {
        text.wrapped_line(
            &format!("Original-Recipient: {kind};"),
            " ",
            &sanitize_foreign_text(&decode_xtext(address), charset),
        );
    }
}

/// An address with its type (RFC 3464 section 2.1.2, RFC 6533 section 3).
struct TypedAddress<'a>(&'a Address);

impl fmt::Display for TypedAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", if self.0.is_ascii() { "rfc822" } else { "utf-8" }, self.0)
    }
}

/// The status of a recipient (RFC 3464 section 2.3.4): the one in the reply if its class matches
/// the action.
fn status_code(action: &DsnAction<'_>) -> EnhancedCode {
    match action {
        DsnAction::Failed(reply) => failure_status(reply),
        DsnAction::Delayed { reply, .. } => {
            reply.enhanced.filter(|status| status.0 == 4).unwrap_or(EnhancedCode(4, 0, 0))
        }
        DsnAction::Delivered => EnhancedCode(2, 0, 0),
        DsnAction::Relayed { reply, .. } => {
            reply.enhanced.filter(|status| status.0 == 2).unwrap_or(EnhancedCode(2, 0, 0))
        }
    }
}

/// The status of a failure: the one in the reply if it is a failure, even a temporary one (the
/// message expired), otherwise derived from the reply code.
pub(super) fn failure_status(reply: &Reply) -> EnhancedCode {
    match reply.enhanced {
        Some(enhanced @ EnhancedCode(4 | 5, _, _)) => enhanced,
        _ if reply.is_transient() => EnhancedCode(4, 0, 0),
        _ => EnhancedCode(5, 0, 0),
    }
}

/// Decodes xtext (RFC 3461 section 4); invalid sequences are kept.
fn decode_xtext(encoded: &str) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let pair = tail.first_chunk().filter(|_| byte == b'+').and_then(decode_hex);
        bytes.push(pair.unwrap_or(byte));
        rest = if pair.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Two upper-case hexadecimal digits.
fn decode_hex(pair: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    Some(digit(pair[0])? << 4 | digit(pair[1])?)
}

fn is_atom(kind: &str) -> bool {
    !kind.is_empty() && kind.len() < 64 && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use mail::Timestamp;

    use super::*;

    #[test]
    fn xtext_is_decoded_and_what_is_none_stays() {
        for (encoded, plain) in [("a+2Bb", "a+b"), ("+3D+", "=+"), ("+3d", "+3d"), ("a+4", "a+4"), ("+C3+BC", "ü")] {
            assert_eq!(decode_xtext(encoded), plain);
        }
    }

    #[test]
    fn the_status_is_of_the_class_that_the_action_needs() {
        let reply = |code, enhanced| Reply { code, enhanced, text: "".into() };
        for (code, enhanced, failed, delayed, relayed) in [
            (550, Some(EnhancedCode(5, 1, 1)), "5.1.1", "4.0.0", "2.0.0"),
            (550, Some(EnhancedCode(2, 0, 0)), "5.0.0", "4.0.0", "2.0.0"),
            (451, Some(EnhancedCode(4, 7, 1)), "4.7.1", "4.7.1", "2.0.0"),
            (451, None, "4.0.0", "4.0.0", "2.0.0"),
            (250, Some(EnhancedCode(2, 1, 5)), "5.0.0", "4.0.0", "2.1.5"),
            (250, None, "5.0.0", "4.0.0", "2.0.0"),
        ] {
            let reply = &reply(code, enhanced);
            assert_eq!(status_code(&DsnAction::Failed(reply)).to_string(), failed);
            assert_eq!(status_code(&DsnAction::Delayed { reply, until: Timestamp(0) }).to_string(), delayed);
            assert_eq!(status_code(&DsnAction::Relayed { reply, dsn: false }).to_string(), relayed);
        }
        assert_eq!(status_code(&DsnAction::Delivered), EnhancedCode(2, 0, 0));
    }
}
