//! The head of a response: the length of the body, and whether the connection persists. `httparse`
//! parses the syntax; this module combines the fields and rejects contradictions.

use std::mem::MaybeUninit;

use super::super::chunked::ChunkedDecoder;
use super::super::field;
use super::{HEAD_OCTETS_MAX, HttpViolation, Method};

/// Fields in a head.
pub const FIELDS_MAX: usize = 64;

/// The parts of a head that the driver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 200 to 599.
    pub status: u16,
    /// Content-Length, if given; after HEAD no body of that length follows.
    pub length: Option<u64>,
    /// Whether the connection can be reused after this response.
    pub is_kept: bool,
}

/// A parsed head, independent of its request.
#[derive(Debug)]
pub(super) struct ParsedHead {
    pub(super) status: u16,
    pub(super) length: Option<u64>,
    pub(super) is_kept: bool,
    is_chunked: bool,
}

/// How the end of the body is found.
#[derive(Debug)]
pub(super) enum Framing {
    /// After this many more octets.
    Length(u64),
    Chunked(ChunkedDecoder),
    /// At the end of the connection.
    UntilEnd,
}

impl ParsedHead {
    /// RFC 9112 section 6.3.
    pub(super) fn framing_after(&self, method: Method) -> Framing {
        if method == Method::Head || matches!(self.status, 204 | 304) {
            Framing::Length(0)
        } else if self.is_chunked {
            Framing::Chunked(ChunkedDecoder::default())
        } else {
            self.length.map_or(Framing::UntilEnd, Framing::Length)
        }
    }
}

/// Parses a head, including the empty line that ends it.
pub(super) fn parse(bytes: &[u8]) -> Result<ParsedHead, HttpViolation> {
    if bytes.len() > HEAD_OCTETS_MAX {
        return Err(HttpViolation::HeadTooLong);
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    // httparse accepts a bare LF as a line end, so it may find another end.
    if !matches!(parsed, Ok(httparse::Status::Complete(used)) if used == bytes.len()) {
        return Err(HttpViolation::NoHead);
    }
    let (Some(version), Some(status @ 100..=599)) = (response.version, response.code) else {
        return Err(HttpViolation::NoHead);
    };
    let mut meaning = HeaderFields::default();
    response.headers.iter().try_for_each(|field| meaning.add(field))?;
    // Both together, or chunks from HTTP/1.0, are used for response smuggling (RFC 9112 section
    // 6.1).
    if meaning.is_chunked && (meaning.length.is_some() || version == 0) {
        return Err(HttpViolation::Length);
    }
    // RFC 9112 section 9.3.
    let is_kept = !meaning.closes && (version == 1 || meaning.keeps);
    Ok(ParsedHead { status, length: meaning.length, is_kept, is_chunked: meaning.is_chunked })
}

/// The values of the relevant fields.
#[derive(Default)]
struct HeaderFields {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps: bool,
}

impl HeaderFields {
    fn add(&mut self, field: &httparse::Header<'_>) -> Result<(), HttpViolation> {
        if field.name.eq_ignore_ascii_case("content-length") {
            let length = field::number(field.value).ok_or(HttpViolation::Length)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(HttpViolation::Length);
            }
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            let is_alone = !std::mem::replace(&mut self.is_chunked, true);
            if !is_alone || !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(HttpViolation::Length);
            }
        } else if field.name.eq_ignore_ascii_case("connection") {
            for word in field::list(field.value) {
                self.closes |= word.eq_ignore_ascii_case(b"close");
                self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }
}
