//! Header fields as bytes: where the header ends, and the same header with one field changed.

use std::io;
use std::ops::Range;

use memchr::memchr;
pub use protocol::mime::header_len;
use protocol::mime::{HEADER_END, header_len_from};

use crate::check::CheckedMessage;
use crate::edit::Field;

/// A longer header is not read as a whole.
pub const HEADER_OCTETS_MAX: usize = 1 << 20;

/// Reads the header of the content, without the empty line after it. None: it has more than
/// [`HEADER_OCTETS_MAX`].
///
/// # Errors
///
/// The content cannot be read.
pub async fn read(message: &mut dyn CheckedMessage) -> io::Result<Option<Vec<u8>>> {
    let HeaderStart { octets, is_whole } = read_start(message).await?;
    Ok(is_whole.then_some(octets))
}

/// Reads the header as [`read`] does; of a longer one the octets up to the limit.
pub(crate) async fn read_as_far_as_allowed(message: &mut dyn CheckedMessage) -> io::Result<Vec<u8>> {
    let HeaderStart { mut octets, .. } = read_start(message).await?;
    octets.truncate(HEADER_OCTETS_MAX);
    Ok(octets)
}

struct HeaderStart {
    octets: Vec<u8>,
    is_whole: bool,
}

async fn read_start(message: &mut dyn CheckedMessage) -> io::Result<HeaderStart> {
    let mut octets = Vec::new();
    loop {
        let chunk = message.read_content(octets.len() as u64).await?;
        // What was searched before needs no second look, but for an end that was cut.
        let searched = octets.len().saturating_sub(HEADER_END.len() - 1);
        // In most messages the header is at hand as a whole, and what follows it is not copied.
        let at_hand = if octets.is_empty() { header_len(chunk, false) } else { None };
        octets.extend_from_slice(&chunk[..at_hand.unwrap_or(chunk.len()).min(HEADER_OCTETS_MAX + 1)]);
        let len = at_hand.or_else(|| header_len_from(&octets, searched, chunk.is_empty()));
        if len.is_some() || octets.len() > HEADER_OCTETS_MAX {
            octets.truncate(len.unwrap_or(octets.len()));
            let is_whole = len.is_some_and(|len| len <= HEADER_OCTETS_MAX);
            return Ok(HeaderStart { octets, is_whole });
        }
    }
}

/// Replaces or removes (None) an occurrence of a field, counted from 1. Returns whether it was found.
/// `occurrence` is lowered by the occurrences found, so that a search can go on elsewhere.
pub fn replace_field(header: &mut Vec<u8>, name: &str, occurrence: &mut usize, field: Option<&Field>) -> bool {
    let mut position = 0;
    while position < header.len() {
        let end = position + field_len(&header[position..]);
        if is_named(&header[position..end], name) {
            *occurrence = occurrence.saturating_sub(1);
            if *occurrence == 0 {
                header.splice(position..end, field.map_or("", Field::wire).bytes());
                return true;
            }
        }
        position = end;
    }
    false
}

/// Puts a field before the one that has `index` fields before it. Returns whether there are so many;
/// else nothing changes, and `index` is lowered by the fields found, so that a search can go on elsewhere.
pub fn insert_field(header: &mut Vec<u8>, index: &mut usize, field: &Field) -> bool {
    let mut position = 0;
    while *index > 0 && position < header.len() {
        position += field_len(&header[position..]);
        *index -= 1;
    }
    let is_found = *index == 0;
    if is_found {
        header.splice(position..position, field.wire().bytes());
    }
    is_found
}

/// The fields of a header, each with its folded lines and its final CRLF.
pub fn fields(header: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = header;
    std::iter::from_fn(move || {
        let (field, after) = rest.split_at(field_len(rest));
        rest = after;
        (!field.is_empty()).then_some(field)
    })
}

/// The header without the bytes in these places, which are in ascending order.
pub fn without_fields(header: &[u8], places: &[Range<usize>]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(header.len());
    let mut position = 0;
    for place in places {
        kept.extend_from_slice(header.get(position..place.start).unwrap_or_default());
        position = place.end.max(position);
    }
    kept.extend_from_slice(header.get(position..).unwrap_or_default());
    kept
}

/// The length of the first field, with its continuation lines.
fn field_len(header: &[u8]) -> usize {
    let mut end = 0;
    while let Some(line_end) = memchr(b'\n', &header[end..]) {
        end += line_end + 1;
        if !matches!(header.get(end), Some(b' ' | b'\t')) {
            return end;
        }
    }
    header.len()
}

/// Whether a field has this name, in any case. Old messages have white space before the colon (RFC 5322 section 4.5), but no line break.
pub fn is_named(field: &[u8], name: &str) -> bool {
    let (word, rest) = field.split_at_checked(name.len()).unwrap_or((b"", b""));
    let after_blanks = rest.iter().find(|octet| !b" \t".contains(octet));
    word.eq_ignore_ascii_case(name.as_bytes()) && after_blanks == Some(&b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "A: 1\r\nB: 2\r\n\tfolded\r\na : 3\r\nAB: 4\r\n";

    fn replaced(name: &str, occurrence: usize, field: Option<&Field>) -> (String, bool, usize) {
        let (mut header, mut left) = (HEADER.as_bytes().to_vec(), occurrence);
        let found = replace_field(&mut header, name, &mut left, field);
        (String::from_utf8(header).unwrap(), found, left)
    }

    #[test]
    fn one_occurrence_is_replaced_or_removed_with_its_folded_lines() {
        let field = Field::new("X", "y").unwrap();
        let (header, found, _) = replaced("a", 1, Some(&field));
        assert_eq!((&*header, found), ("X: y\r\nB: 2\r\n\tfolded\r\na : 3\r\nAB: 4\r\n", true));
        let (header, found, _) = replaced("A", 2, None);
        assert_eq!((&*header, found), ("A: 1\r\nB: 2\r\n\tfolded\r\nAB: 4\r\n", true));
        let (header, found, _) = replaced("B", 1, None);
        assert_eq!((&*header, found), ("A: 1\r\na : 3\r\nAB: 4\r\n", true));
        assert_eq!(replaced("A", 3, None), (HEADER.into(), false, 1));
        assert_eq!(replaced("folded", 1, None), (HEADER.into(), false, 1));
    }

    #[test]
    fn a_colon_on_a_continuation_line_makes_no_field() {
        for (header, is_found) in [("A\r\n : 1\r\n", false), ("A\x0c: 1\r\n", false), ("A \t: 1\r\n", true)] {
            let mut changed = header.as_bytes().to_vec();
            assert_eq!(replace_field(&mut changed, "A", &mut 1, None), is_found, "{header:?}");
        }
    }

    #[test]
    fn fields_are_removed_at_their_places() {
        let removed = |places: &[Range<usize>]| String::from_utf8(without_fields(HEADER.as_bytes(), places)).unwrap();
        assert_eq!(removed(&[6..21, 28..35]), "A: 1\r\na : 3\r\n");
        assert_eq!(removed(&[0..21, 21..35]), "");
        assert_eq!(removed(&[]), HEADER);
        assert_eq!(removed(&[6..12, 30..99]), [&HEADER[..6], &HEADER[12..30]].concat());
    }

    #[test]
    fn a_field_is_inserted_after_a_number_of_others() {
        let field = Field::new("X", "y").unwrap();
        let inserted = |index: usize| {
            let (mut header, mut left) = (HEADER.as_bytes().to_vec(), index);
            let found = insert_field(&mut header, &mut left, &field);
            (String::from_utf8(header).unwrap(), found, left)
        };
        assert_eq!(inserted(0), (format!("X: y\r\n{HEADER}"), true, 0));
        assert_eq!(inserted(2).0, "A: 1\r\nB: 2\r\n\tfolded\r\nX: y\r\na : 3\r\nAB: 4\r\n");
        assert_eq!(inserted(4), (format!("{HEADER}X: y\r\n"), true, 0));
        assert_eq!(inserted(6), (HEADER.into(), false, 2));
        assert_eq!(fields(HEADER.as_bytes()).nth(1), Some(&b"B: 2\r\n\tfolded\r\n"[..]));
    }
}
