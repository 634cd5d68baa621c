//! The subset of BER that LDAP uses (RFC 4511 section 5.1): definite lengths and single-octet tags.
//!
//! A [`BerReader`] parses untrusted octets into slices, or fails with [`Malformed`]. It never
//! recurses, allocates or panics. A [`BerWriter`] fills in the length of an element after its
//! content.

/// Octets that are not a valid LDAP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Universal tags (X.690 section 8).
pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTETS: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0a;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// The unread elements of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BerReader<'a>(&'a [u8]);

impl<'a> BerReader<'a> {
    /// Reads `octets` from the beginning.
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        BerReader(octets)
    }

    /// Whether all elements were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the next element, if any.
    pub(crate) fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Reads the next element: its tag and content.
    pub(crate) fn element(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let (tag, head, length) = header(self.0)?.ok_or(Malformed("truncated"))?;
        let content = self.0.get(head..).and_then(|rest| rest.get(..length)).ok_or(Malformed("truncated"))?;
        self.0 = &self.0[head + length..];
        Ok((tag, content))
    }

    /// Reads an element with this tag and returns its content.
    pub(crate) fn expect(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        match self.element()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(Malformed("unexpected element")),
        }
    }

    /// Reads an element with this tag and returns a reader of its content.
    pub(crate) fn nested(&mut self, tag: u8) -> Result<BerReader<'a>, Malformed> {
        self.expect(tag).map(BerReader)
    }

    /// Reads an element if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, Malformed> {
        match self.tag() {
            Some(next) if next == tag => self.expect(tag).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads a number from 0 to 2^31 - 1 with this tag (RFC 4511 section 4.1.1).
    pub(crate) fn number(&mut self, tag: u8) -> Result<u32, Malformed> {
        let octets = self.expect(tag)?;
        let significant = octets.iter().position(|&octet| octet != 0).map_or(&[][..], |first| &octets[first..]);
        let number = significant.iter().fold(0u64, |number, &octet| number << 8 & 0xff_ffff_ffff | u64::from(octet));
        match u32::try_from(number) {
            Ok(number) if !octets.is_empty() && significant.len() <= 4 && number <= i32::MAX as u32 => Ok(number),
            _ => Err(Malformed("number out of range")),
        }
    }
}

/// The tag, header length and content length of the first element; None if the header is
/// incomplete.
pub(crate) fn header(octets: &[u8]) -> Result<Option<(u8, usize, usize)>, Malformed> {
    let [tag, first, rest @ ..] = octets else { return Ok(None) };
    if tag & 0x1f == 0x1f {
        return Err(Malformed("tag of several octets"));
    }
    match first {
        0..=0x7f => Ok(Some((*tag, 2, usize::from(*first)))),
        0x80 => Err(Malformed("indefinite length")),
        // Lengths of more than eight octets are invalid. Leading zeroes are allowed.
        0x81..=0x88 => {
            let count = usize::from(first & 0x7f);
            let Some(length) = rest.get(..count) else { return Ok(None) };
            let length = length.iter().fold(0u64, |length, &octet| length << 8 | u64::from(octet));
            let length = usize::try_from(length).map_err(|_| Malformed("invalid length"))?;
            match length.checked_add(2 + count) {
                Some(_) => Ok(Some((*tag, 2 + count, length))),
                None => Err(Malformed("invalid length")),
            }
        }
        _ => Err(Malformed("invalid length")),
    }
}

/// Writes elements one after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct BerWriter(Vec<u8>);

impl BerWriter {
    /// Writes an element with this tag and content.
    pub(crate) fn octets(&mut self, tag: u8, content: &[u8]) {
        self.0.push(tag);
        self.length(content.len());
        self.0.extend_from_slice(content);
    }

    /// Writes an element with the content that `write` writes.
    pub(crate) fn nested(&mut self, tag: u8, write: impl FnOnce(&mut BerWriter)) {
        self.0.push(tag);
        let place = self.0.len();
        write(self);
        // The length comes before the content, and its size depends on the content.
        let mut head = BerWriter::default();
        head.length(self.0.len() - place);
        self.0.splice(place..place, head.0);
    }

    /// Writes a number with this tag.
    pub(crate) fn number(&mut self, tag: u8, number: u32) {
        let octets = number.to_be_bytes();
        // The first bit is the sign.
        let zeroes = octets.iter().take(3).take_while(|&&octet| octet == 0).count();
        let first = if octets[zeroes] & 0x80 != 0 { zeroes.checked_sub(1) } else { Some(zeroes) };
        match first {
            Some(first) => self.octets(tag, &octets[first..]),
            None => self.octets(tag, &[&[0], &octets[..]].concat()),
        }
    }

    /// Writes a boolean with this tag.
    pub(crate) fn boolean(&mut self, tag: u8, truth: bool) {
        self.octets(tag, &[if truth { 0xff } else { 0 }]);
    }

    /// Writes encoded elements.
    pub(crate) fn raw(&mut self, elements: &[u8]) {
        self.0.extend_from_slice(elements);
    }

    /// The encoded elements.
    pub(crate) fn into_octets(self) -> Vec<u8> {
        self.0
    }

    fn length(&mut self, length: usize) {
        match u8::try_from(length) {
            Ok(length) if length < 0x80 => self.0.push(length),
            _ => {
                let octets = length.to_be_bytes();
                let first = octets.iter().position(|&octet| octet != 0).unwrap_or(octets.len() - 1);
                self.0.push(0x80 | (octets.len() - first) as u8);
                self.0.extend_from_slice(&octets[first..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 70_000] {
            let content = vec![7; length];
            let mut writer = BerWriter::default();
            writer.nested(SEQUENCE, |writer| {
                writer.octets(OCTETS, &content);
                writer.boolean(BOOLEAN, true);
            });
            let octets = writer.into_octets();
            let mut reader = BerReader::new(&octets);
            let mut within = reader.nested(SEQUENCE).unwrap();
            assert_eq!(within.expect(OCTETS).unwrap(), content);
            assert_eq!(within.optional(SET), Ok(None));
            assert_eq!(within.optional(BOOLEAN), Ok(Some(&[0xff][..])));
            assert!(within.is_empty() && reader.is_empty());
            for cut in (0..octets.len()).step_by(997) {
                assert!(BerReader::new(&octets[..cut]).element().is_err());
            }
        }
    }

    #[test]
    fn numbers_are_signed_and_minimal_and_have_a_range() {
        for (number, octets) in [
            (0, &[2, 1, 0][..]),
            (127, &[2, 1, 127]),
            (128, &[2, 2, 0, 128]),
            (256, &[2, 2, 1, 0]),
            (i32::MAX as u32, &[2, 4, 0x7f, 0xff, 0xff, 0xff]),
        ] {
            let mut writer = BerWriter::default();
            writer.number(INTEGER, number);
            assert_eq!(writer.into_octets(), octets);
            assert_eq!(BerReader::new(octets).number(INTEGER), Ok(number));
        }
        for wrong in [&[2, 0][..], &[2, 4, 0x80, 0, 0, 0], &[2, 5, 1, 0, 0, 0, 0], &[2, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(BerReader::new(wrong).number(INTEGER).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn absurd_lengths_and_tags_are_refused_at_their_header() {
        for wrong in [
            &[0x30, 0x80, 0, 0][..],
            &[0x30, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0x30, 0xff],
            &[0x30, 0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x1f, 0x81, 0],
        ] {
            assert!(header(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(header(&[0x30, 0x84, 0, 0]), Ok(None));
        assert_eq!(header(&[0x30, 0x84, 0, 0, 1, 0]), Ok(Some((0x30, 6, 256))));
    }

    proptest::proptest! {
        #[test]
        fn any_octets_are_read_or_refused(octets in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let mut reader = BerReader::new(&octets);
            let mut before = octets.len() + 1;
            while let Ok((_, content)) = reader.element() {
                proptest::prop_assert!(reader.0.len() + content.len() < before);
                before = reader.0.len();
            }
            let _ = BerReader::new(&octets).number(INTEGER);
        }
    }
}
