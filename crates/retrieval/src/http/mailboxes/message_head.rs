//! The main fields of a message, decoded for a page.

use std::sync::LazyLock;

use mail_parser::{Addr, Address, HeaderName, MessageParser};

/// Characters of a field that are shown; the rest is cut off.
const FIELD_CHARACTERS_MAX: usize = 1000;

/// Other fields are skipped.
static PARSER: LazyLock<MessageParser> = LazyLock::new(|| {
    MessageParser::new()
        .header_text(HeaderName::Subject)
        .header_address(HeaderName::From)
        .header_address(HeaderName::To)
        .header_address(HeaderName::Cc)
        .header_date(HeaderName::Date)
        .default_header_ignore()
});

/// Decoded fields without control characters, not escaped; empty if they are missing or invalid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MessageHead {
    pub(super) date: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) cc: String,
    pub(super) subject: String,
}

impl MessageHead {
    /// Parses the head of a message, or the beginning of one.
    pub(super) fn parse(message: &[u8]) -> MessageHead {
        let Some(message) = PARSER.parse_headers(message) else { return MessageHead::default() };
        let date = message.date().filter(|date| date.is_valid());
        MessageHead {
            date: date.map_or_else(String::new, mail_parser::DateTime::to_rfc822),
            from: addresses(message.from()),
            to: addresses(message.to()),
            cc: addresses(message.cc()),
            subject: message.subject().map_or_else(String::new, |subject| printable([subject])),
        }
    }
}

fn addresses(field: Option<&Address<'_>>) -> String {
    let Some(field) = field else { return String::new() };
    let separated = field.iter().enumerate().flat_map(|(index, address)| {
        let separator = if index == 0 { "" } else { ", " };
        std::iter::once(separator).chain(pieces(address))
    });
    printable(separated)
}

/// A display name and an address, or one of them.
fn pieces<'a>(address: &'a Addr<'_>) -> [&'a str; 4] {
    match (address.name(), address.address()) {
        (Some(name), Some(address)) => [name, " <", address, ">"],
        (name, address) => [name.or(address).unwrap_or_default(), "", "", ""],
    }
}

/// The first characters; control characters become spaces.
fn printable<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut characters = pieces.into_iter().flat_map(str::chars);
    let shown = characters.by_ref().take(FIELD_CHARACTERS_MAX);
    let mut text: String = shown.map(|character| if character.is_control() { ' ' } else { character }).collect();
    if characters.next().is_some() {
        text.push('\u{2026}');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded() {
        let head = MessageHead::parse(
            b"Received: from x\r\nSubject: =?utf-8?B?w6TDtsO8?= and\r\n more\r\nFrom: =?iso-8859-1?Q?J=FCrgen?= <j@x.org>\r\n\
              To: a@x.org, B <b@x.org>\r\nDate: Fri, 20 Nov 2026 10:11:12 +0100\r\n\r\nSubject: body\r\n",
        );
        assert_eq!(head.subject, "äöü and more");
        assert_eq!((&*head.from, &*head.to, &*head.cc), ("Jürgen <j@x.org>", "a@x.org, B <b@x.org>", ""));
        assert_eq!(head.date, "Fri, 20 Nov 2026 10:11:12 +0100");
    }

    #[test]
    fn what_is_missing_or_invalid_is_empty() {
        for message in [&b""[..], b"\r\n\r\nbody", b"no head", b"Date: tomorrow\r\nFrom:\r\nSubject:\r\n\r\n"] {
            assert_eq!(MessageHead::parse(message), MessageHead::default(), "{}", message.escape_ascii());
        }
    }

    #[test]
    fn control_characters_and_long_fields_are_not_shown() {
        let head = MessageHead::parse(b"Subject: =?utf-8?Q?a=0D=0Ab=1B[2J?=\r\n\r\n");
        assert_eq!(head.subject, "a  b [2J");
        let long = format!("Subject: {}\r\n\r\n", "ä".repeat(5000));
        let subject = MessageHead::parse(long.as_bytes()).subject;
        assert_eq!(subject.chars().count(), FIELD_CHARACTERS_MAX + 1);
    }
}
