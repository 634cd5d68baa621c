//! Conditional and range requests (RFC 9110 sections 13 and 14): which response the client wants,
//! given what it has.

use mail::Timestamp;

use super::super::Method;
use super::date::HttpDate;
use super::ranges::{self, ByteRange, RangeSelection};
use super::resource::Resource;

const NAMES: [&str; 6] = ["if-match", "if-unmodified-since", "if-none-match", "if-modified-since", "range", "if-range"];
const IF_MATCH: usize = 0;
const IF_UNMODIFIED_SINCE: usize = 1;
const IF_NONE_MATCH: usize = 2;
const IF_MODIFIED_SINCE: usize = 3;
const RANGE: usize = 4;
const IF_RANGE: usize = 5;

/// The values of these fields, in the order of [`NAMES`]. Repeated fields are one list.
#[derive(Debug, Default)]
pub(super) struct Conditions([Option<Vec<u8>>; NAMES.len()]);

/// The response to a request for an existing resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection {
    Whole,
    /// At least one part.
    Parts(Vec<ByteRange>),
    NotModified,
    PreconditionFailed,
    RangeNotSatisfiable,
}

/// Notes a field if it is one of these. Most requests have none.
pub(super) fn note(conditions: &mut Option<Box<Conditions>>, name: &str, value: &[u8]) {
    let Some(place) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) else { return };
    let values = &mut conditions.get_or_insert_default().0[place];
    match values {
        None => *values = Some(value.to_vec()),
        Some(values) => values.extend(b", ".iter().chain(value)),
    }
}

impl Conditions {
    /// Evaluates the conditions in the order of RFC 9110 section 13.2.2.
    pub(super) fn select(&self, method: Method, resource: &Resource, now: &HttpDate) -> Selection {
        let has_changed_since = |place| self.date(place).map(|date| resource.modified() > date);
        let is_refused = match self.value(IF_MATCH) {
            Some(tags) => !has_tag(tags, resource.etag(), Comparison::Strong),
            None => has_changed_since(IF_UNMODIFIED_SINCE).unwrap_or(false),
        };
        if is_refused {
            return Selection::PreconditionFailed;
        }
        let is_known = match self.value(IF_NONE_MATCH) {
            Some(tags) => has_tag(tags, resource.etag(), Comparison::Weak),
            None => has_changed_since(IF_MODIFIED_SINCE).is_some_and(|changed| !changed),
        };
        if is_known {
            return Selection::NotModified;
        }
        match self.value(RANGE) {
            Some(range) if method == Method::Get && self.range_applies(resource, now) => {
                match ranges::select(range, resource.octets()) {
                    RangeSelection::Whole => Selection::Whole,
                    RangeSelection::Parts(parts) => Selection::Parts(parts),
                    RangeSelection::Nothing => Selection::RangeNotSatisfiable,
                }
            }
            _ => Selection::Whole,
        }
    }

    /// Whether If-Range allows a range: the client has parts of this very version. A date says so
    /// only if the resource could not change again within its second (RFC 9110 section 8.8.2.2).
    fn range_applies(&self, resource: &Resource, now: &HttpDate) -> bool {
        match self.value(IF_RANGE) {
            None => true,
            Some(tag) if tag.contains(&b'"') => has_tag(tag, resource.etag(), Comparison::Strong),
            Some(_) => {
                self.date(IF_RANGE) == Some(resource.modified()) && resource.modified().seconds() < now.seconds()
            }
        }
    }

    fn value(&self, place: usize) -> Option<&[u8]> {
        self.0[place].as_deref()
    }

    /// None if it is missing or invalid, and thus ignored.
    fn date(&self, place: usize) -> Option<Timestamp> {
        Timestamp::from_http_date(str::from_utf8(self.value(place)?).ok()?)
    }
}

/// How entity tags are compared (RFC 9110 section 8.8.3.2). Ours are strong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether a list of entity tags, or `*`, has this tag. A list is read up to its first error.
fn has_tag(list: &[u8], etag: &str, comparison: Comparison) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let mut rest = list;
    while let Some((is_weak, tag, after)) = next_tag(rest) {
        if tag == etag.as_bytes() && (!is_weak || comparison == Comparison::Weak) {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether the next tag of a list is weak, the tag with its quotes, and what follows it.
fn next_tag(list: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let start = list.iter().position(|octet| !matches!(octet, b' ' | b'\t' | b','))?;
    let list = &list[start..];
    let (is_weak, list) = list.strip_prefix(b"W/").map_or((false, list), |strong| (true, strong));
    let inner = list.strip_prefix(b"\"")?;
    let end = inner.iter().position(|octet| *octet == b'"')? + 2;
    Some((is_weak, &list[..end], &list[end..]))
}
