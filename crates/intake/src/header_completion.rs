//! Adds the Date and Message-ID fields that a submitted message lacks (RFC 6409 section 8). The
//! header is held back until it is complete, then passed on unchanged with the missing fields in
//! front.
//!
//! Only field names are parsed. A header longer than [`HELD_BYTES_MAX`] is passed on as it is: its
//! rest might contain the fields.

use mail::{QueueId, Timestamp};

/// The limit for headers that are held back.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// The end of the last field and the empty line after it.
const HEADER_END: &[u8] = b"\r\n\r\n";

/// A header being received.
pub(crate) struct HeaderCompletion {
    held: Vec<u8>,
    date: Timestamp,
    message_id: String,
}

impl HeaderCompletion {
    /// For the message with this queue ID.
    pub(crate) fn new(id: QueueId, hostname: &str, now: Timestamp) -> HeaderCompletion {
        let message_id = format!("<{}.{id}@{hostname}>", now.millis());
        HeaderCompletion { held: Vec::new(), date: now, message_id }
    }

    /// Takes the next bytes of the message, which has CRLF line ends. Returns true when the header
    /// is complete or too long: call [`HeaderCompletion::finish`] then.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        // The end mark may have begun in earlier bytes.
        let from = self.held.len().saturating_sub(HEADER_END.len() - 1);
        self.held.extend_from_slice(bytes);
        // An end mark that begins beyond the limit does not count, and one that begins before it
        // must not be cut.
        let is_too_long = self.held.len() > HELD_BYTES_MAX + HEADER_END.len();
        self.held.starts_with(b"\r\n") || find_end(&self.held[from..]).is_some() || is_too_long
    }

    /// Returns the missing fields followed by all bytes received; also used at the end of a message
    /// without a body.
    pub(crate) fn finish(self, ended: bool) -> Vec<u8> {
        let header = match find_end(&self.held) {
            _ if self.held.starts_with(b"\r\n") => &[],
            Some(end) if end <= HELD_BYTES_MAX => &self.held[..end],
            None if ended && self.held.len() <= HELD_BYTES_MAX => &self.held[..],
            // Where the header was cut must not affect what is added.
            _ => return self.held,
        };
        let mut whole = Vec::with_capacity(self.held.len() + 128);
        if !has_field(header, b"Date") {
            whole.extend_from_slice(format!("Date: {}\r\n", self.date.to_rfc5322()).as_bytes());
        }
        if !has_field(header, b"Message-ID") {
            whole.extend_from_slice(format!("Message-ID: {}\r\n", self.message_id).as_bytes());
        }
        whole.extend_from_slice(&self.held);
        whole
    }
}

fn find_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(HEADER_END.len()).position(|window| window == HEADER_END)
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

    /// The message as written, when received in pieces of this size.
    fn completed(message: &str, size: usize) -> String {
        let completion = || HeaderCompletion::new(QueueId::new(SpoolId::new(1), 0, 33), "mx.example.org", Timestamp(0));
        let (mut completion, mut out) = (Some(completion()), Vec::new());
        for piece in message.as_bytes().chunks(size) {
            match &mut completion {
                Some(header) => {
                    if header.append(piece) {
                        out.extend(completion.take().unwrap().finish(false));
                    }
                }
                None => out.extend_from_slice(piece),
            }
        }
        out.extend(completion.into_iter().flat_map(|header| header.finish(true)));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_missing_is_added_once_and_nothing_is_touched_at_any_split() {
        for (message, added) in [
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
            for size in 1..=message.len().max(1) {
                assert_eq!(completed(message, size), format!("{added}{message}"), "{message:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_header_that_is_too_long_to_be_held_goes_on_as_it_is() {
        let message = format!("X: {}\r\nDate: y\r\n\r\nz\r\n", "x".repeat(2 * HELD_BYTES_MAX));
        for size in [1000, 4096, message.len()] {
            assert!(completed(&message, size) == message, "in pieces of {size}");
        }
    }

    /// The empty line after such a header may cross the limit.
    #[test]
    fn how_a_header_of_about_the_limit_is_cut_makes_no_difference() {
        for octets in HELD_BYTES_MAX - 5..HELD_BYTES_MAX + 5 {
            let header = format!("X: {}", "x".repeat(octets - 3));
            let message = format!("{header}\r\n\r\nz\r\n");
            let added = if octets <= HELD_BYTES_MAX { [DATE, ID].concat() } else { String::new() };
            for size in [message.len(), octets, octets + 1, octets + 2, octets + 3, octets + 4, HELD_BYTES_MAX, 4096] {
                assert!(completed(&message, size) == format!("{added}{message}"), "{octets} in pieces of {size}");
            }
        }
    }
}
