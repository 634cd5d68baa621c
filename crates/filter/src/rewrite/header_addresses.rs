//! Where the addresses are in a field of the header (RFC 5322 section 3.4). What cannot be understood is
//! left alone: display names, comments, routes, and addresses with white space in them.

use std::ops::Range;

use mail::Address;

use super::AddressClass;
use crate::header;

/// The fields of both kinds are those of Postfix.
const SENDERS: [&str; 10] = [
    "From",
    "Sender",
    "Reply-To",
    "Resent-From",
    "Resent-Sender",
    "Return-Path",
    "Errors-To",
    "Mail-Followup-To",
    "Return-Receipt-To",
    "Disposition-Notification-To",
];
const RECIPIENTS: [&str; 8] =
    ["To", "Cc", "Bcc", "Resent-To", "Resent-Cc", "Resent-Bcc", "Resent-Reply-To", "Apparently-To"];

/// An address in a header.
pub(super) struct HeaderAddress {
    /// Its octets, from the start of the header.
    pub(super) place: Range<u64>,
    pub(super) address: Address,
    /// It is written without a domain.
    pub(super) is_completed: bool,
}

/// The addresses in a header, in order. Those without a domain are at `origin`.
pub(super) fn header_addresses(header: &[u8], origin: &str) -> Vec<(HeaderAddress, AddressClass)> {
    let (mut start, mut found) = (0, Vec::new());
    for field in header::fields(header) {
        let field_start = start;
        start += field.len();
        let Some(colon) = field.iter().position(|octet| *octet == b':') else { continue };
        let name = String::from_utf8_lossy(field[..colon].trim_ascii_end());
        let Some(class) = class_of(&name) else { continue };
        for place in address_places(&field[colon + 1..]) {
            let text = String::from_utf8_lossy(&field[colon + 1..][place.clone()]);
            let Ok(address) = Address::parse_lenient(&text, Some(origin)) else { continue };
            let first = (field_start + colon + 1 + place.start) as u64;
            let place = first..first + place.len() as u64;
            let is_completed = !text.contains('@');
            found.push((HeaderAddress { place, address, is_completed }, class));
        }
    }
    found
}

/// The class of the addresses in a field of this name.
fn class_of(name: &str) -> Option<AddressClass> {
    let is_in = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    match (is_in(&SENDERS), is_in(&RECIPIENTS)) {
        (true, _) => Some(AddressClass::HeaderSender),
        (_, true) => Some(AddressClass::HeaderRecipient),
        (false, false) => None,
    }
}

/// The places of the addresses in the value of a field, in order.
fn address_places(value: &[u8]) -> Vec<Range<usize>> {
    let mut reader = AddressReader { value, position: 0, found: Vec::new(), mailbox: Mailbox::default() };
    while reader.position < value.len() {
        reader.read_next();
    }
    reader.end_mailbox();
    reader.found
}

struct AddressReader<'a> {
    value: &'a [u8],
    position: usize,
    found: Vec<Range<usize>>,
    mailbox: Mailbox,
}

/// What was read since the last comma.
#[derive(Default)]
struct Mailbox {
    /// Words outside of angle brackets.
    words: Option<Range<usize>>,
    /// There is white space or a comment between words: they are a name.
    is_phrase: bool,
    /// It has an address in angle brackets.
    has_angle: bool,
}

impl AddressReader<'_> {
    fn read_next(&mut self) {
        let start = self.position;
        match self.value[start] {
            b'(' => self.position = after_comment(self.value, start),
            b' ' | b'\t' | b'\r' | b'\n' => self.position += 1,
            b',' | b';' => {
                self.end_mailbox();
                self.position += 1;
            }
            // The words before are the name of a group.
            b':' => {
                self.mailbox = Mailbox::default();
                self.position += 1;
            }
            b'<' => self.read_angle(),
            b'"' => self.add_word(after_closing(self.value, start, b'"')),
            b'[' => self.add_word(after_closing(self.value, start, b']')),
            _ => self.add_word(start + 1),
        }
    }

    /// Adds what is from the position to `end`.
    fn add_word(&mut self, end: usize) {
        let start = self.position;
        self.mailbox.words = match self.mailbox.words.take() {
            Some(words) => {
                self.mailbox.is_phrase |= words.end < start;
                Some(words.start..end)
            }
            None => Some(start..end),
        };
        self.position = end;
    }

    fn read_angle(&mut self) {
        let start = self.position + 1;
        let mut end = start;
        while end < self.value.len() && self.value[end] != b'>' {
            end = if self.value[end] == b'"' { after_closing(self.value, end, b'"') } else { end + 1 };
        }
        let inner = &self.value[start..end];
        let leading = inner.len() - inner.trim_ascii_start().len();
        let address = inner.trim_ascii();
        let is_plain = !address.is_empty() && !address.starts_with(b"@");
        if is_plain && !self.mailbox.has_angle && end < self.value.len() {
            self.found.push(start + leading..start + leading + address.len());
        }
        self.mailbox.has_angle = true;
        self.position = end + 1;
    }

    fn end_mailbox(&mut self) {
        let Mailbox { words, is_phrase, has_angle } = std::mem::take(&mut self.mailbox);
        self.found.extend(words.filter(|_| !is_phrase && !has_angle));
    }
}

/// The position after what ends with this octet, in which a backslash quotes the next octet.
fn after_closing(value: &[u8], start: usize, end: u8) -> usize {
    let mut position = start + 1;
    while position < value.len() {
        match value[position] {
            b'\\' => position += 2,
            octet if octet == end => return position + 1,
            _ => position += 1,
        }
    }
    value.len()
}

/// The position after a comment, which may contain others.
fn after_comment(value: &[u8], start: usize) -> usize {
    let (mut position, mut depth) = (start, 0_usize);
    while position < value.len() {
        match value[position] {
            b'\\' => position += 1,
            b'(' => depth += 1,
            b')' if depth == 1 => return position + 1,
            b')' => depth -= 1,
            _ => {}
        }
        position += 1;
    }
    value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(value: &str) -> Vec<&str> {
        address_places(value.as_bytes()).into_iter().map(|place| &value[place]).collect()
    }

    #[test]
    fn addresses_are_found_and_nothing_else() {
        for (value, expected) in [
            (" bob@a.example", &["bob@a.example"][..]),
            (" root", &["root"]),
            (" Bob B <bob@a.example>, \"x, y\" < c@b.example >", &["bob@a.example", "c@b.example"]),
            (" bob@a.example (a (b) c\\) , d)", &["bob@a.example"]),
            (" list: a@x.example, B <b@x.example>; ,c", &["a@x.example", "b@x.example", "c"]),
            (" \"a b\"@x.example,\r\n\t\"<\\\"\" <d@x.example>", &["\"a b\"@x.example", "d@x.example"]),
            (" a@[IPv6:2001:db8::1]", &["a@[IPv6:2001:db8::1]"]),
            (" <@a,@b:c@d>, <>, no address, a @ b", &[]),
            (" \"open <a@b", &["\"open <a@b"]),
            (" <a@b", &[]),
            (" (open a@b", &[]),
            ("", &[]),
        ] {
            assert_eq!(addresses(value), expected, "{value:?}");
        }
    }

    #[test]
    fn fields_have_a_class() {
        assert_eq!(class_of("from"), Some(AddressClass::HeaderSender));
        assert_eq!(class_of("RESENT-CC"), Some(AddressClass::HeaderRecipient));
        // A receipt went to the made-up address, and showed it.
        assert_eq!(class_of("Disposition-Notification-To"), Some(AddressClass::HeaderSender));
        assert_eq!(class_of("Resent-Reply-To"), Some(AddressClass::HeaderRecipient));
        assert_eq!(class_of("Subject"), None);
    }
}
