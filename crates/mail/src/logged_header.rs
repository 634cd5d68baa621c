//! Finds the header fields to log in the first bytes of a message.
//!
//! Reads at most [`SEARCHED_OCTETS_MAX`], and stops at the end of the header or when all fields are
//! found. Lines are found with memchr, and only the values are copied, cut to
//! [`LoggedHeader::VALUE_OCTETS_MAX`]. Malformed fields are skipped, never an error.

use memchr::{memchr, memchr2};

/// Fields that end beyond this are not found. Trace fields come first in a header, and are seldom
/// half as long.
const SEARCHED_OCTETS_MAX: usize = 16 * 1024;
/// Marks a value that was cut.
const CUT_MARK: &str = "...";

/// Header fields for the log: unfolded and cut to [`LoggedHeader::VALUE_OCTETS_MAX`], otherwise as
/// the client wrote them. They may contain any character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeader {
    /// The first Message-ID (RFC 5322 section 3.6.4).
    pub message_id: Option<Box<str>>,
    /// The first Subject, RFC 2047 encoded words undecoded; None also if subjects are not logged.
    pub subject: Option<Box<str>>,
}

impl LoggedHeader {
    /// Octets of a value that are logged. A longer value is cut at a character boundary and ends in
    /// `...`.
    pub const VALUE_OCTETS_MAX: usize = 256;
}

/// The first Message-ID of a message and, if wanted, the first Subject.
pub fn find_logged_header(message: &[u8], with_subject: bool) -> LoggedHeader {
    let searched = &message[..message.len().min(SEARCHED_OCTETS_MAX)];
    let (mut found, mut rest) = (LoggedHeader::default(), searched);
    while let Some(field) = next_field(&mut rest) {
        match field[0] | 0x20 {
            b'm' if found.message_id.is_none() => found.message_id = value_of(field, b"message-id"),
            b's' if with_subject && found.subject.is_none() => found.subject = value_of(field, b"subject"),
            _ => continue,
        }
        if found.message_id.is_some() && (found.subject.is_some() || !with_subject) {
            break;
        }
    }
    found
}

/// Takes the next field, with its continuation lines, off `rest`. None at the end of the header or
/// if the field is incomplete. A field is never empty.
fn next_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    if matches!(rest.first(), None | Some(b'\r' | b'\n')) {
        return None;
    }
    let mut end = memchr(b'\n', rest)? + 1;
    while matches!(rest.get(end), Some(b' ' | b'\t')) {
        end += memchr(b'\n', &rest[end..])? + 1;
    }
    let (field, after) = rest.split_at(end);
    *rest = after;
    Some(field)
}

/// The value of a field with this name, given in lower case. Old messages have white space before
/// the colon (RFC 5322 section 4.5).
fn value_of(field: &[u8], name: &[u8]) -> Option<Box<str>> {
    let (word, rest) = field.split_at_checked(name.len())?;
    let value = rest.trim_ascii_start().strip_prefix(b":")?;
    word.eq_ignore_ascii_case(name).then(|| display_value(value.trim_ascii()))
}

/// An unfolded value (RFC 5322 section 2.2.3), cut to the logged length.
fn display_value(value: &[u8]) -> Box<str> {
    const ROOM: usize = LoggedHeader::VALUE_OCTETS_MAX + 1;
    // Exactly the capacity of a value that is neither folded nor cut.
    let mut octets = Vec::with_capacity(value.len().min(ROOM));
    let mut rest = value;
    while !rest.is_empty() {
        let end = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        octets.extend_from_slice(&rest[..end.min(ROOM - octets.len())]);
        rest = &rest[rest.len().min(end + 1)..];
    }
    let is_cut = octets.len() == ROOM;
    if is_cut {
        octets.truncate(start_of_last(&octets));
        octets.extend_from_slice(CUT_MARK.as_bytes());
    }
    match String::from_utf8(octets) {
        Ok(text) => text.into(),
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into(),
    }
}

/// The start of the last character, if this is UTF-8, in which a character has up to four octets.
fn start_of_last(octets: &[u8]) -> usize {
    let last = octets.len() - 1;
    let starts = |at: &usize| octets[*at] & 0xc0 != 0x80;
    (last.saturating_sub(3)..=last).rev().find(starts).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = LoggedHeader::VALUE_OCTETS_MAX;

    fn found(message: &str) -> (Option<String>, Option<String>) {
        let LoggedHeader { message_id, subject } = find_logged_header(message.as_bytes(), true);
        (message_id.map(String::from), subject.map(String::from))
    }

    #[test]
    fn fields_are_found_in_the_header_alone_and_unfolded() {
        for (message, id, subject) in [
            ("Received: x\r\n\tby y\r\nMESSAGE-ID: <a@b>\r\nsubject:\r\n hi\r\n\tthere\r\n\r\n", "<a@b>", "hi\tthere"),
            ("Message-Id : <a@b>\r\nMessage-ID: <c@d>\r\nSubject: =?utf-8?q?x?=\r\n", "<a@b>", "=?utf-8?q?x?="),
            ("X: y\r\n Subject: folded\r\nMessage-IDs: no\r\nSubjects: no\r\n\r\nSubject: body\r\n", "-", "-"),
            ("Subject: not whole", "-", "-"),
            ("\r\nSubject: body\r\n", "-", "-"),
            ("Subject:\r\nMessage-ID:\r\n\r\n", "", ""),
            ("", "-", "-"),
        ] {
            let expected = [id, subject].map(|text| (text != "-").then(|| text.to_owned()));
            assert_eq!(found(message), expected.into(), "{message:?}");
        }
    }

    #[test]
    fn a_subject_that_is_not_wanted_is_not_copied() {
        let header = find_logged_header(b"Subject: secret\r\nMessage-ID: <a@b>\r\n\r\n", false);
        assert_eq!(header, LoggedHeader { message_id: Some("<a@b>".into()), subject: None });
    }

    #[test]
    fn a_long_value_is_cut_at_a_character_and_says_so() {
        let subject = |text: &str| found(&format!("Subject: {text}\r\n\r\n")).1.unwrap();
        assert_eq!(subject(&"x".repeat(MAX)), "x".repeat(MAX));
        assert_eq!(subject(&"x".repeat(MAX + 1)), format!("{}...", "x".repeat(MAX)));
        // Each has three octets, and 256 is not a multiple of three.
        assert_eq!(subject(&"\u{20ac}".repeat(MAX)), format!("{}...", "\u{20ac}".repeat(MAX / 3)));
    }

    #[test]
    fn what_is_no_utf_8_is_shown_as_far_as_it_is() {
        let header = find_logged_header(b"Subject: caf\xe9 au lait\r\n\r\n", true);
        assert_eq!(header.subject.as_deref(), Some("caf\u{fffd} au lait"));
        let header = find_logged_header(&[b"Subject: ", &[0xbf; 2 * MAX][..], b"\r\n\r\n"].concat(), true);
        assert_eq!(header.subject.map(|text| text.chars().count()), Some(MAX + CUT_MARK.len()));
    }

    #[test]
    fn a_header_is_searched_so_far_and_no_further() {
        let after = |octets: usize| format!("X: {}\r\nSubject: y\r\n\r\n", "x".repeat(octets));
        assert_eq!(found(&after(SEARCHED_OCTETS_MAX - 17)).1.as_deref(), Some("y"));
        assert_eq!(found(&after(SEARCHED_OCTETS_MAX - 16)).1, None);
    }
}
