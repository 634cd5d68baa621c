//! The header of a message, parsed once for all methods: where each field begins and ends, as bytes.
//!
//! Nothing is lost: every line belongs to a field, also one that is none. Lines end in CRLF, since
//! sessions refuse or repair others; only the last one may lack it.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::OnceLock;

use memchr::{memchr, memchr_iter};

/// A header and its fields from top to bottom.
#[derive(Debug)]
pub(crate) struct MessageHeader {
    bytes: Vec<u8>,
    fields: Vec<FieldPlace>,
    /// The numbers of all fields by name, and then from the top: made when a name is first searched for.
    by_name: OnceLock<Vec<usize>>,
}

/// Where a field is in the header.
#[derive(Clone, Debug)]
struct FieldPlace {
    /// With its CRLF.
    whole: Range<usize>,
    /// The end of the name, without white space before the colon; the start if there is no colon.
    name_end: usize,
    /// The first byte after the colon; the start if there is no colon.
    value_start: usize,
    /// Of the name in lower case.
    name_hash: u32,
}

/// A field of a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderField<'a> {
    /// The name as it was sent, without white space before the colon. Empty for a line that is no field.
    /// Contains a line break if the colon is on a continuation line: no name that anybody asks for.
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

    fn ordered(&self) -> OrderedName<'_> {
        OrderedName { hash: self.hash, name: &self.lower_case }
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
                (Some(b' ' | b'\t'), Some(field)) => field.extend(&bytes, end),
                _ => fields.push(FieldPlace::of_line(&bytes, start..end)),
            }
            start = end;
        }
        MessageHeader { bytes, fields, by_name: OnceLock::new() }
    }

    /// The number of fields.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The octets of all fields.
    pub(crate) fn octets(&self) -> usize {
        self.bytes.len()
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
    pub(crate) fn find(&self, name: &FieldName) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.find_before(name, self.len()).iter().copied()
    }

    /// The last field of this name before (above) a place; `before` is a number of a field.
    pub(crate) fn find_above(&self, name: &FieldName, before: usize) -> Option<usize> {
        self.find_before(name, before).last().copied()
    }

    /// In steps that grow with the logarithm of the number of fields: a signature may name hundreds,
    /// and a header may have tens of thousands.
    fn find_before(&self, name: &FieldName, before: usize) -> &[usize] {
        let by_name = self.by_name.get_or_init(|| self.sorted_by_name());
        let order = |number: usize| self.name_of(number).cmp(&name.ordered());
        let start = by_name.partition_point(|number| order(*number) == Ordering::Less);
        let found = &by_name[start..];
        &found[..found.partition_point(|number| *number < before && order(*number) == Ordering::Equal)]
    }

    fn sorted_by_name(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.len()).collect();
        numbers.sort_by(|one, other| self.name_of(*one).cmp(&self.name_of(*other)));
        numbers
    }

    /// The bytes of a field in the header, with its final CRLF.
    pub(crate) fn place(&self, number: usize) -> Range<usize> {
        self.fields[number].whole.clone()
    }

    fn name_of(&self, number: usize) -> OrderedName<'_> {
        let place = &self.fields[number];
        OrderedName { hash: place.name_hash, name: &self.bytes[place.whole.start..place.name_end] }
    }
}

/// A name in an order of its own, in which case does not matter: most names differ in their hash.
struct OrderedName<'a> {
    hash: u32,
    name: &'a [u8],
}

impl OrderedName<'_> {
    fn cmp(&self, other: &OrderedName<'_>) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| {
            let (one, two) = (self.name.iter(), other.name.iter());
            one.map(u8::to_ascii_lowercase).cmp(two.map(u8::to_ascii_lowercase))
        })
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

impl FieldPlace {
    fn of_line(bytes: &[u8], line: Range<usize>) -> FieldPlace {
        let start = line.start;
        let mut field = FieldPlace { whole: start..start, name_end: start, value_start: start, name_hash: 0 };
        field.extend(bytes, line.end);
        field
    }

    /// Adds a line. The colon may be on any of them, for readers that unfold a field first.
    fn extend(&mut self, bytes: &[u8], end: usize) {
        let has_colon = self.value_start > self.whole.start;
        let line = std::mem::replace(&mut self.whole.end, end)..end;
        if !has_colon && let Some(colon) = memchr(b':', &bytes[line.clone()]).map(|at| line.start + at) {
            let name = without_blanks_at_end(&bytes[self.whole.start..colon]);
            self.name_end = self.whole.start + name.len();
            self.value_start = colon + 1;
            self.name_hash = name_hash(name);
        }
    }
}

/// Without what RFC 5322 section 4.5 allows before the colon.
fn without_blanks_at_end(name: &[u8]) -> &[u8] {
    let len = name.iter().rposition(|octet| !b" \t".contains(octet)).map_or(0, |last| last + 1);
    &name[..len]
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
    fn a_colon_on_a_continuation_line_ends_no_name_that_is_asked_for() {
        let header = MessageHeader::parse(b"From\r\n : a\r\n b: c\r\nFrom \x0c: d\r\nFrom \t: e\r\n".to_vec());
        assert_eq!(names(&header)[0], ("From\r\n".into(), " a\r\n b: c".into()));
        assert_eq!(header.find(&FieldName::new(b"From")).collect::<Vec<_>>(), [2]);
        assert_eq!(header.fields().filter(|(_, field)| field.is_named(b"from")).count(), 1);
    }

    /// 256 names of nine signatures, in a header of 256 KiB: this once took hundreds of millions of steps.
    #[test]
    fn a_header_of_many_fields_is_searched_in_few_steps() {
        let header = MessageHeader::parse(b"a\r\n".repeat(80_000));
        let start = std::time::Instant::now();
        let names = (0..100_000).map(|number| FieldName::new(format!("x-{number}").as_bytes()));
        assert!(names.into_iter().all(|name| header.find_above(&name, header.len()).is_none()));
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn fields_are_found_by_name_from_the_bottom_up() {
        let header = MessageHeader::parse(b"To: 0\r\nCc: 1\r\ntO : 2\r\nT: 3\r\nTo: 4\r\nno field\r\n".to_vec());
        let name = FieldName::new(b"TO");
        assert_eq!(header.find(&name).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(
            [5, 4, 3, 2, 1, 0].map(|before| header.find_above(&name, before)),
            [Some(4), Some(2), Some(2), Some(0), Some(0), None]
        );
        assert_eq!(header.find_above(&FieldName::new(b"Bcc"), 6), None);
    }

    #[test]
    fn a_name_with_what_cannot_be_in_it_is_recognised() {
        for (line, is_like) in [
            ("From: x", true),
            ("FROM : x", true),
            ("Fr\0om: x", true),
            ("From\u{a0}: x", true),
            ("From\r\n : x", true),
            ("From\r\n\t\r\n : x", true),
            ("Fr\r\n om: x", true),
            ("From x\r\n : x", false),
            ("From\u{c}: x", true),
            ("Fro: x", false),
            ("X-From: x", false),
            ("From", false),
        ] {
            let header = MessageHeader::parse(line.as_bytes().to_vec());
            assert_eq!(header.field(0).resembles(b"from"), is_like, "{line:?}");
        }
    }
}
