//! The header of a message, parsed once for all methods: where each field begins and ends, as bytes.
//!
//! Nothing is lost: every line belongs to a field, also one that is none. Lines end in CRLF, since
//! sessions refuse or repair others; only the last one may lack it.

use std::ops::Range;

use memchr::{memchr, memchr_iter};

/// A header and its fields from top to bottom.
#[derive(Debug)]
pub(crate) struct MessageHeader {
    bytes: Vec<u8>,
    fields: Vec<FieldPlace>,
}

/// Where a field is in the header.
#[derive(Clone, Debug)]
struct FieldPlace {
    /// With its CRLF.
    whole: Range<usize>,
    /// The end of the name, without white space before the colon; the start if there is no colon.
    name_end: usize,
    /// The first byte after the colon.
    value_start: usize,
    /// Of the name in lower case.
    name_hash: u32,
}

/// A field of a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderField<'a> {
    /// The name as it was sent, without white space before the colon. Empty for a line that is no field.
    pub(crate) name: &'a [u8],
    /// What follows the colon, without the final CRLF.
    pub(crate) value: &'a [u8],
    /// Name, colon and value, without the final CRLF.
    pub(crate) line: &'a [u8],
}

/// A field name to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldName {
    lower_case: Box<[u8]>,
    hash: u32,
}

impl FieldName {
    pub(crate) fn new(name: &[u8]) -> FieldName {
        FieldName { lower_case: name.to_ascii_lowercase().into(), hash: name_hash(name) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.lower_case
    }
}

impl MessageHeader {
    /// Parses a header: the bytes before the empty line.
    pub(crate) fn parse(bytes: Vec<u8>) -> MessageHeader {
        let mut fields: Vec<FieldPlace> = Vec::with_capacity(32);
        let mut start = 0;
        for end in memchr_iter(b'\n', &bytes).map(|at| at + 1).chain(Some(bytes.len())) {
            let line = &bytes[start..end];
            match (line.first(), fields.last_mut()) {
                (None, _) => break,
                (Some(b' ' | b'\t'), Some(field)) => field.whole.end = end,
                _ => fields.push(field_place(&bytes, start..end)),
            }
            start = end;
        }
        MessageHeader { bytes, fields }
    }

    /// The number of fields.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The field with this number, counted from 0 at the top.
    pub(crate) fn field(&self, number: usize) -> HeaderField<'_> {
        let place = &self.fields[number];
        let end = place.value_start + without_crlf(&self.bytes[place.value_start..place.whole.end]).len();
        HeaderField {
            name: &self.bytes[place.whole.start..place.name_end],
            value: &self.bytes[place.value_start..end],
            line: &self.bytes[place.whole.start..end],
        }
    }

    /// All fields with their numbers, from the top.
    pub(crate) fn fields(&self) -> impl DoubleEndedIterator<Item = (usize, HeaderField<'_>)> {
        (0..self.fields.len()).map(|number| (number, self.field(number)))
    }

    /// The numbers of the fields of this name, from the top.
    pub(crate) fn find<'a>(&'a self, name: &'a FieldName) -> impl DoubleEndedIterator<Item = usize> + 'a {
        let is_it = |number: &usize| self.is_named(*number, name);
        (0..self.fields.len()).filter(is_it)
    }

    /// The last field of this name before (above) a place; `before` is a number of a field.
    pub(crate) fn find_above(&self, name: &FieldName, before: usize) -> Option<usize> {
        (0..before).rev().find(|number| self.is_named(*number, name))
    }

    /// The bytes of a field in the header, with its final CRLF.
    pub(crate) fn place(&self, number: usize) -> Range<usize> {
        self.fields[number].whole.clone()
    }

    fn is_named(&self, number: usize, name: &FieldName) -> bool {
        let place = &self.fields[number];
        place.name_hash == name.hash
            && self.bytes[place.whole.start..place.name_end].eq_ignore_ascii_case(&name.lower_case)
    }
}

impl HeaderField<'_> {
    /// Whether a reader that ignores what cannot be in a name could take this for a field of that name
    /// (in lower case): `Fr\0om:`, `From\t:`.
    pub(crate) fn resembles(&self, name: &[u8]) -> bool {
        let letters = self.name.iter().filter(|octet| octet.is_ascii_graphic()).map(u8::to_ascii_lowercase);
        self.name.len() >= name.len() && letters.eq(name.iter().copied())
    }

    /// Whether this is a field of that name, written as RFC 5322 allows (section 4.5 included).
    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

fn field_place(bytes: &[u8], whole: Range<usize>) -> FieldPlace {
    let line = without_crlf(&bytes[whole.clone()]);
    let Some(colon) = memchr(b':', line) else {
        let start = whole.start;
        return FieldPlace { whole, name_end: start, value_start: start, name_hash: 0 };
    };
    let name = line[..colon].trim_ascii_end();
    FieldPlace {
        name_end: whole.start + name.len(),
        value_start: whole.start + colon + 1,
        name_hash: name_hash(name),
        whole,
    }
}

fn without_crlf(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// FNV-1a of the name in lower case: most names differ in it.
fn name_hash(name: &[u8]) -> u32 {
    name.iter()
        .fold(0x811c_9dc5, |hash, octet| (hash ^ u32::from(octet.to_ascii_lowercase())).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(header: &MessageHeader) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        header.fields().map(|(_, field)| (text(field.name), text(field.value))).collect()
    }

    #[test]
    fn every_line_belongs_to_a_field() {
        let header = MessageHeader::parse(b"A: 1\r\nb :2\r\n\tfolded\r\nno field\r\nFrom:\r\nlast: x".to_vec());
        let expected = [("A", " 1"), ("b", "2\r\n\tfolded"), ("", "no field"), ("From", ""), ("last", " x")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(names(&header), expected);
        assert_eq!(header.find(&FieldName::new(b"B")).collect::<Vec<_>>(), [1]);
        assert_eq!(header.find_above(&FieldName::new(b"a"), 1), Some(0));
        assert_eq!(header.find_above(&FieldName::new(b"a"), 0), None);
        assert_eq!(MessageHeader::parse(Vec::new()).len(), 0);
        assert_eq!(names(&MessageHeader::parse(b" x: y\r\nz: 1\r\n".to_vec())).len(), 2);
    }

    #[test]
    fn a_name_with_what_cannot_be_in_it_is_recognised() {
        for (line, is_like) in [
            ("From: x", true),
            ("FROM : x", true),
            ("Fr\0om: x", true),
            ("From\u{a0}: x", true),
            ("Fro: x", false),
            ("X-From: x", false),
            ("From", false),
        ] {
            let header = MessageHeader::parse(line.as_bytes().to_vec());
            assert_eq!(header.field(0).resembles(b"from"), is_like, "{line:?}");
        }
    }
}
