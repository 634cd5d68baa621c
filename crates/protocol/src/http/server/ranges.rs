//! Byte ranges (RFC 9110 section 14).
//!
//! A client may request many ranges that overlap, to make a small request cost a large response
//! (CVE-2011-3192). Ranges that have more octets than the resource, or more than [`RANGES_MAX`]
//! ranges, are answered with the whole resource; ranges that touch are joined.

use super::super::field;

/// Ranges of one request.
pub const RANGES_MAX: usize = 16;

/// A part of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub(super) offset: u64,
    pub(super) octets: u64,
}

/// What a Range field selects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RangeSelection {
    /// The field is ignored.
    Whole,
    /// At least one, none of which touches another one.
    Parts(Vec<ByteRange>),
    /// Nothing: all of them begin behind the end.
    Nothing,
}

impl ByteRange {
    fn end(self) -> u64 {
        self.offset + self.octets
    }

    fn touches(self, other: ByteRange) -> bool {
        self.offset <= other.end() && other.offset <= self.end()
    }

    fn join(self, other: ByteRange) -> ByteRange {
        let offset = self.offset.min(other.offset);
        ByteRange { offset, octets: self.end().max(other.end()) - offset }
    }
}

/// Selects from a resource of this length.
pub(super) fn select(value: &[u8], octets: u64) -> RangeSelection {
    const UNIT: &[u8] = b"bytes=";
    let Some((unit, list)) = value.split_at_checked(UNIT.len()) else { return RangeSelection::Whole };
    if !unit.eq_ignore_ascii_case(UNIT) {
        return RangeSelection::Whole;
    }
    let (mut parts, mut count, mut selected) = (Vec::new(), 0, 0_u64);
    for text in field::list(list).filter(|text| !text.is_empty()) {
        count += 1;
        match parse(text, octets) {
            Some(part) if count <= RANGES_MAX => {
                selected = selected.saturating_add(part.octets);
                add(&mut parts, part);
            }
            _ => return RangeSelection::Whole,
        }
    }
    match count {
        0 => RangeSelection::Whole,
        _ if parts.is_empty() => RangeSelection::Nothing,
        _ if selected > octets => RangeSelection::Whole,
        _ => RangeSelection::Parts(parts),
    }
}

/// `0-99`, `100-` or `-50`. A range of no octets selects nothing; None if it is invalid.
fn parse(text: &[u8], octets: u64) -> Option<ByteRange> {
    let dash = text.iter().position(|octet| *octet == b'-')?;
    let (first, last) = (&text[..dash], &text[dash + 1..]);
    if first.is_empty() {
        let suffix = field::number(last)?.min(octets);
        return Some(ByteRange { offset: octets - suffix, octets: suffix });
    }
    let first = field::number(first)?;
    let end = match last {
        b"" => octets,
        _ => field::number(last).filter(|last| first <= *last)?.saturating_add(1).min(octets),
    };
    Some(ByteRange { offset: first, octets: end.saturating_sub(first) })
}

/// Adds a part, joined with those that it touches, at the place of the first of them.
fn add(parts: &mut Vec<ByteRange>, part: ByteRange) {
    if part.octets == 0 {
        return;
    }
    let (mut joined, mut place) = (part, parts.len());
    while let Some(found) = parts.iter().position(|other| other.touches(joined)) {
        joined = joined.join(parts.remove(found));
        place = place.min(found);
    }
    parts.insert(place.min(parts.len()), joined);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, octets: u64) -> Vec<(u64, u64)> {
        match select(text.as_bytes(), octets) {
            RangeSelection::Parts(parts) => parts.iter().map(|part| (part.offset, part.octets)).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn ranges_are_cut_to_the_resource() {
        assert_eq!(parts("bytes=0-0", 100), [(0, 1)]);
        assert_eq!(parts("Bytes=10-", 100), [(10, 90)]);
        assert_eq!(parts("bytes=-10", 100), [(90, 10)]);
        assert_eq!(parts("bytes=-1000", 100), [(0, 100)]);
        assert_eq!(parts("bytes=50-18446744073709551615", 100), [(50, 50)]);
        assert_eq!(parts("bytes= 0-1 ,, 8-9,", 100), [(0, 2), (8, 2)]);
        assert_eq!(parts("bytes=100-, 5-6", 100), [(5, 2)]);
    }

    #[test]
    fn ranges_that_touch_are_joined_and_keep_their_order() {
        assert_eq!(parts("bytes=50-59,0-9", 100), [(50, 10), (0, 10)]);
        assert_eq!(parts("bytes=0-9,10-19", 100), [(0, 20)]);
        assert_eq!(parts("bytes=60-69,0-9,20-29,10-19", 100), [(60, 10), (0, 30)]);
        assert_eq!(parts("bytes=20-29,0-9,5-24", 100), [(0, 30)]);
    }

    #[test]
    fn floods_of_ranges_get_the_whole() {
        let many: String = (0..=RANGES_MAX).map(|place| format!("{}-{},", place * 4, place * 4)).collect();
        for text in ["bytes=0-,1-,2-", "bytes=0-99,0-0", &format!("bytes={many}")] {
            assert_eq!(select(text.as_bytes(), 100), RangeSelection::Whole, "{text}");
        }
    }

    #[test]
    fn invalid_ranges_are_ignored_and_distant_ones_select_nothing() {
        for text in [
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-4",
            "bytes=1",
            "bytes=0-1-2",
            "bytes=0-1,x",
            "bytes=+1-2",
            "bytes=18446744073709551616-",
            "lines=0-1",
            "",
        ] {
            assert_eq!(select(text.as_bytes(), 100), RangeSelection::Whole, "{text}");
        }
        for text in ["bytes=100-", "bytes=100-200,300-", "bytes=-0"] {
            assert_eq!(select(text.as_bytes(), 100), RangeSelection::Nothing, "{text}");
        }
        for text in ["bytes=0-", "bytes=-1"] {
            assert_eq!(select(text.as_bytes(), 0), RangeSelection::Nothing, "{text}");
        }
    }
}
