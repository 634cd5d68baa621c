//! The Date and Message-ID fields that a submitted message lacks (RFC 6409 section 8). They are put
//! before the message, which stays unchanged.
//!
//! Only field names are parsed, once the message is complete or its first bytes leave the memory. A
//! header longer than [`SEARCHED_BYTES_MAX`] is left as it is: its rest might contain the fields.

use mail::{QueueId, Timestamp};

/// The end of the last field and the empty line after it.
const HEADER_END: &[u8] = b"\r\n\r\n";
/// The limit for headers that are searched. With the end mark they are in the first 64 KiB.
pub(crate) const SEARCHED_BYTES_MAX: usize = 64 * 1024 - HEADER_END.len();

/// Which fields are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingFields {
    date: bool,
    message_id: bool,
}

impl MissingFields {
    /// Searches the first bytes of a message, which has CRLF line ends. `is_whole`: there are no
    /// more.
    pub(crate) fn find(start: &[u8], is_whole: bool) -> MissingFields {
        let header = match find_end(&start[..start.len().min(SEARCHED_BYTES_MAX + HEADER_END.len())]) {
            _ if start.starts_with(b"\r\n") => &[],
            Some(end) => &start[..end],
            None if is_whole && start.len() <= SEARCHED_BYTES_MAX => start,
            None => return MissingFields::default(),
        };
        MissingFields { date: !has_field(header, b"Date"), message_id: !has_field(header, b"Message-ID") }
    }

    /// Appends the fields. Returns the new Message-ID, if there is one.
    pub(crate) fn append_to(
        self,
        prefix: &mut Vec<u8>,
        id: QueueId,
        hostname: &str,
        now: Timestamp,
    ) -> Option<Box<str>> {
        if self.date {
            prefix.extend_from_slice(format!("Date: {}\r\n", now.to_rfc5322()).as_bytes());
        }
        if !self.message_id {
            return None;
        }
        let message_id = format!("<{}.{id}@{hostname}>", now.millis());
        prefix.extend_from_slice(format!("Message-ID: {message_id}\r\n").as_bytes());
        Some(message_id.into())
    }
}

fn find_end(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, HEADER_END)
}

/// Whether a line begins with this field name. Old messages have white space before the colon (RFC
/// 5322 section 4.5).
fn has_field(header: &[u8], name: &[u8]) -> bool {
    header.split(|&octet| octet == b'\n').any(|line| {
        let (word, rest) = line.split_at_checked(name.len()).unwrap_or((b"", b""));
        word.eq_ignore_ascii_case(name) && rest.trim_ascii_start().starts_with(b":")
    })
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    const DATE: &str = "Date: Thu, 1 Jan 1970 00:00:00 +0000\r\n";
    const ID: &str = "Message-ID: <0.1-0-11@mx.example.org>\r\n";

    /// What is put before a message.
    fn added(start: &str, is_whole: bool) -> String {
        let mut prefix = Vec::new();
        let id = QueueId::new(SpoolId::new(1), 0, 33);
        let missing = MissingFields::find(start.as_bytes(), is_whole);
        let message_id = missing.append_to(&mut prefix, id, "mx.example.org", Timestamp(0));
        assert_eq!(message_id.is_some(), missing.message_id);
        String::from_utf8(prefix).unwrap()
    }

    #[test]
    fn what_is_missing_is_added_once() {
        for (message, expected) in [
            ("Subject: x\r\n\r\nDate: in the body\r\n", [DATE, ID].concat()),
            ("Date: x\r\nMessage-Id: <y>\r\n\r\nz\r\n", String::new()),
            ("date : x\r\n\r\nz\r\n", ID.into()),
            ("MESSAGE-ID:\r\n <y>\r\n\r\n", DATE.into()),
            ("Subject: x\r\n\tDate: folded\r\nDated: y\r\n\r\nz", [DATE, ID].concat()),
            ("Subject: only a header\r\n", [DATE, ID].concat()),
            ("Date: x\r\n", ID.into()),
            ("\r\nDate: in the body\r\n", [DATE, ID].concat()),
            ("", [DATE, ID].concat()),
        ] {
            assert_eq!(added(message, true), expected, "{message:?}");
        }
    }

    /// The header may end beyond what is in memory.
    #[test]
    fn a_header_that_does_not_end_in_the_first_bytes_is_left_as_it_is() {
        assert_eq!(added("Subject: x\r\n", false), "");
        for octets in SEARCHED_BYTES_MAX - 5..SEARCHED_BYTES_MAX + 5 {
            let header = format!("X: {}", "x".repeat(octets - 3));
            let expected = if octets <= SEARCHED_BYTES_MAX { [DATE, ID].concat() } else { String::new() };
            for (message, is_whole) in [(header.clone() + "\r\n\r\nz\r\n", false), (header.clone(), true)] {
                assert_eq!(added(&message, is_whole), expected, "{octets}");
            }
        }
    }
}
