//! The header of a message from a local program: its recipients, missing fields, and fields to
//! remove. Existing lines stay unchanged, byte for byte, or are removed whole; missing fields are
//! added before them (RFC 6409 section 8).

use std::fmt::Write as _;

/// A header field, with its continuation lines.
#[derive(Debug, PartialEq, Eq)]
struct HeaderField<'a> {
    /// As written, with its line ends.
    raw: &'a [u8],
    name: &'a [u8],
    /// The text after the colon.
    value: &'a [u8],
}

/// A message, split into header fields and body.
#[derive(Debug)]
pub(super) struct MessageHeader<'a> {
    fields: Vec<HeaderField<'a>>,
    /// The body, with the empty line before it, if any.
    rest: &'a [u8],
}

/// The fields to add if they are missing.
#[derive(Clone, Debug)]
pub(super) struct HeaderDefaults<'a> {
    /// The address for From, with the name if there is one.
    pub(super) from: &'a str,
    /// The author's name.
    pub(super) name: Option<&'a str>,
    /// Date, in the format of RFC 5322.
    pub(super) date: &'a str,
    /// Message-ID, without angle brackets.
    pub(super) message_id: &'a str,
}

/// Fields that other recipients must not see.
const BCC_FIELDS: [&str; 2] = ["Bcc", "Resent-Bcc"];
/// RFC 2047 section 2 limits an encoded word to 75 characters, 12 of which surround the text.
const ENCODED_WORD_BYTES_MAX: usize = 60;

impl<'a> MessageHeader<'a> {
    /// Splits a message in wire form. A `From ` line of an mbox file before the header is skipped.
    /// The header ends with the first line that cannot be part of it.
    pub(super) fn new(message: &'a [u8]) -> MessageHeader<'a> {
        let mut rest = after_mbox_line(message);
        let mut fields = Vec::new();
        while let Some(field) = HeaderField::parse_first(rest) {
            rest = &rest[field.raw.len()..];
            fields.push(field);
        }
        MessageHeader { fields, rest }
    }

    /// The values of the recipient fields: the Resent- fields if there are any (RFC 5322 section
    /// 3.6.6), else To, Cc and Bcc.
    pub(super) fn recipients(&self) -> impl Iterator<Item = &'a [u8]> {
        let resent = ["Resent-To", "Resent-Cc", "Resent-Bcc"];
        let names = if self.has_any(&resent) { resent } else { ["To", "Cc", "Bcc"] };
        self.fields.iter().filter(move |field| names.iter().any(|name| field.has_name(name))).map(|field| field.value)
    }

    fn has_any(&self, names: &[&str]) -> bool {
        self.fields.iter().any(|field| names.iter().any(|name| field.has_name(name)))
    }

    /// The message to send.
    pub(super) fn complete(&self, additions: &HeaderDefaults<'_>) -> Vec<u8> {
        let mut message = self.missing_fields(additions).into_bytes();
        message.reserve(self.fields.iter().map(|field| field.raw.len()).sum::<usize>() + self.rest.len() + 2);
        for field in self.fields.iter().filter(|field| !BCC_FIELDS.iter().any(|name| field.has_name(name))) {
            message.extend_from_slice(field.raw);
        }
        if !self.rest.starts_with(b"\r\n") {
            message.extend_from_slice(b"\r\n");
        }
        message.extend_from_slice(self.rest);
        message
    }

    fn missing_fields(&self, additions: &HeaderDefaults<'_>) -> String {
        let mut header = String::new();
        if !self.has_any(&["Date"]) {
            // Writing to a string never fails.
            let _ = write!(header, "Date: {}\r\n", additions.date);
        }
        if !self.has_any(&["From"]) {
            let _ = match additions.name.filter(|name| !name.is_empty()) {
                Some(name) => write!(header, "From: {}\r\n <{}>\r\n", phrase(name), additions.from),
                None => write!(header, "From: {}\r\n", additions.from),
            };
        }
        if !self.has_any(&["Message-ID"]) {
            let _ = write!(header, "Message-ID: <{}>\r\n", additions.message_id);
        }
        header
    }
}

impl<'a> HeaderField<'a> {
    /// The field at the start of the text.
    fn parse_first(text: &'a [u8]) -> Option<HeaderField<'a>> {
        let colon = text.iter().position(|byte| !(33..127).contains(byte) || *byte == b':')?;
        // Old programs put a space before the colon (RFC 5322 section 4.5).
        let gap = text[colon..].iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
        if colon == 0 || text[colon + gap] != b':' {
            return None;
        }
        let start = colon + gap + 1;
        let mut end = start + line_length(&text[start..]);
        while text[end..].starts_with(b" ") || text[end..].starts_with(b"\t") {
            end += line_length(&text[end..]);
        }
        Some(HeaderField { raw: &text[..end], name: &text[..colon], value: &text[start..end] })
    }

    fn has_name(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// Includes the line end.
fn line_length(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |place| place + 1)
}

fn after_mbox_line(message: &[u8]) -> &[u8] {
    match message.starts_with(b"From ") || message.starts_with(b">From ") {
        true => &message[line_length(message)..],
        false => message,
    }
}

/// A display name (RFC 5322), with non-ASCII text as encoded words (RFC 2047).
fn phrase(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let is_atom = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~ ".contains(c);
    if !name.is_ascii() {
        return encoded_words(&name);
    }
    if name.chars().all(is_atom) {
        return name;
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// White space between encoded words is ignored, so text can be split between any characters.
fn encoded_words(name: &str) -> String {
    let mut words = vec![String::new()];
    for character in name.chars() {
        let mut utf8 = [0; 4];
        let code: String = character.encode_utf8(&mut utf8).bytes().map(encoded_byte).collect();
        match words.last_mut() {
            Some(word) if word.len() + code.len() <= ENCODED_WORD_BYTES_MAX => word.push_str(&code),
            _ => words.push(code),
        }
    }
    words.iter().map(|word| format!("=?utf-8?q?{word}?=")).collect::<Vec<_>>().join("\r\n ")
}

/// RFC 2047 section 5 (3).
fn encoded_byte(byte: u8) -> String {
    match byte {
        b' ' => "_".into(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).into(),
        byte => format!("={byte:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDITIONS: HeaderDefaults<'_> =
        HeaderDefaults { from: "me@here", name: None, date: "DATE", message_id: "ID@here" };
    const ALL: &str = "Date: DATE\r\nFrom: me@here\r\nMessage-ID: <ID@here>\r\n";

    fn completed(message: &str) -> String {
        String::from_utf8(MessageHeader::new(message.as_bytes()).complete(&ADDITIONS)).unwrap()
    }

    #[test]
    fn what_is_missing_goes_before_what_is_there() {
        for (message, expected) in [
            ("Subject: x\r\n\r\nbody\r\n", format!("{ALL}Subject: x\r\n\r\nbody\r\n")),
            (
                "date: 1\r\nfrom : a\r\nMESSAGE-id:\r\n <x@y>\r\n\r\nb\r\n",
                "date: 1\r\nfrom : a\r\nMESSAGE-id:\r\n <x@y>\r\n\r\nb\r\n".into(),
            ),
            ("no header\r\nat all\r\n", format!("{ALL}\r\nno header\r\nat all\r\n")),
            ("\r\nbody\r\n", format!("{ALL}\r\nbody\r\n")),
            ("", format!("{ALL}\r\n")),
            ("To: x\r\n", format!("{ALL}To: x\r\n\r\n")),
            ("From a@b Mon Jan  1\r\nTo: x\r\n\r\n", format!("{ALL}To: x\r\n\r\n")),
            (" folded: first\r\n", format!("{ALL}\r\n folded: first\r\n")),
        ] {
            assert_eq!(completed(message), expected, "{message:?}");
        }
    }

    #[test]
    fn bcc_fields_are_removed() {
        let message = "To: a@b\r\nBcc: c@d,\r\n e@f\r\nSubject:  x \r\nresent-bcc: g@h\r\n\r\nBcc: stays\r\n";
        assert_eq!(completed(message), format!("{ALL}To: a@b\r\nSubject:  x \r\n\r\nBcc: stays\r\n"));
    }

    #[test]
    fn recipients_are_those_of_the_resending_where_there_is_one() {
        let named = |message: &'static str| {
            let draft = MessageHeader::new(message.as_bytes());
            draft.recipients().map(|value| String::from_utf8_lossy(value).trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(named("To: a\r\nCC: b\r\nBcc: c\r\nReply-To: d\r\n\r\nTo: e\r\n"), ["a", "b", "c"]);
        assert_eq!(named("Resent-To: x\r\nResent-bcc: y\r\nTo: a\r\n\r\n"), ["x", "y"]);
        assert_eq!(named("Resent-From: x\r\nTo: a\r\n\r\n"), ["a"]);
    }

    #[test]
    fn names_are_quoted_and_encoded_as_they_need_it() {
        assert_eq!(phrase("Cron Daemon"), "Cron Daemon");
        assert_eq!(phrase("J. \"R\" \\ Doe"), "\"J. \\\"R\\\" \\\\ Doe\"");
        assert_eq!(phrase("J\u{fc}rgen B"), "=?utf-8?q?J=C3=BCrgen_B?=");
        assert_eq!(phrase("a\r\nBcc: x"), "\"a  Bcc: x\"");
        let long = phrase(&"\u{20ac}".repeat(20));
        assert!(long.split("\r\n ").all(|word| word.len() <= 75 && word.ends_with("=AC?=")), "{long}");
    }

    proptest! {
        #[test]
        fn no_byte_of_a_line_changes(text in "((To|Bcc|Subject|From) ?:[ a-z@]{0,5}\r\n| x\r\n|\r\n|[a-z]\r\n){0,8}") {
            let completed = completed(&text);
            let without = |text: &str| {
                let draft = MessageHeader::new(text.as_bytes());
                let kept = draft.fields.iter().filter(|field| !field.has_name("Bcc")).map(|field| field.raw);
                (kept.collect::<Vec<_>>().concat(), draft.rest.to_vec())
            };
            let (fields, rest) = without(&text);
            let whole = completed.as_bytes();
            prop_assert!(whole.ends_with(&rest));
            prop_assert!(whole[..whole.len() - rest.len()].windows(fields.len().max(1)).any(|part| part == fields) || fields.is_empty());
        }

        #[test]
        fn no_bytes_are_too_much(message in proptest::collection::vec(prop_oneof![Just(b':'), Just(b'\n'), Just(b' '), any::<u8>()], 0..80)) {
            let draft = MessageHeader::new(&message);
            prop_assert!(draft.complete(&ADDITIONS).len() >= draft.rest.len());
        }
    }
}
