//! The head of a reply: what it says of the body's length and of the connection. The syntax is `httparse`'s business;
//! what the fields mean together is decided here, and where they contradict each other nothing is.

use std::mem::MaybeUninit;

use super::chunked::Chunked;
use super::{HEAD_OCTETS_MAX, Method, Misbehaviour};

/// Fields of a head.
pub const FIELDS_MAX: usize = 64;
/// An empty line after a line.
pub(super) const END: &[u8] = b"\r\n\r\n";

/// What a driver wants to know of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// 200 to 599.
    pub status: u16,
    /// Content-Length, where the server says it; after HEAD no body of that length comes.
    pub length: Option<u64>,
    /// Whether the connection may be used again after this reply.
    pub is_kept: bool,
}

/// A head by itself, before it is known what it answers.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) status: u16,
    pub(super) length: Option<u64>,
    pub(super) is_kept: bool,
    is_chunked: bool,
}

/// Where a body ends.
#[derive(Debug)]
pub(super) enum Framing {
    /// After so many octets more.
    Length(u64),
    Chunked(Chunked),
    /// With the connection.
    UntilEnd,
}

impl Parsed {
    /// RFC 9112 section 6.3.
    pub(super) fn framing_after(&self, method: Method) -> Framing {
        if method == Method::Head || matches!(self.status, 204 | 304) {
            Framing::Length(0)
        } else if self.is_chunked {
            Framing::Chunked(Chunked::default())
        } else {
            self.length.map_or(Framing::UntilEnd, Framing::Length)
        }
    }
}

/// Reads a head with the empty line that ends it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, Misbehaviour> {
    if bytes.len() > HEAD_OCTETS_MAX {
        return Err(Misbehaviour::HeadTooLong);
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    // It takes an LF alone for the end of a line, so it may see an end that we do not.
    if !matches!(parsed, Ok(httparse::Status::Complete(used)) if used == bytes.len()) {
        return Err(Misbehaviour::NoHead);
    }
    let (Some(version), Some(status @ 100..=599)) = (response.version, response.code) else {
        return Err(Misbehaviour::NoHead);
    };
    let mut meaning = Meaning::default();
    response.headers.iter().try_for_each(|field| meaning.add(field))?;
    // RFC 9112 section 6.1: both at once, or chunks from HTTP/1.0, are how replies are smuggled.
    if meaning.is_chunked && (meaning.length.is_some() || version == 0) {
        return Err(Misbehaviour::Length);
    }
    // RFC 9112 section 9.3.
    let is_kept = !meaning.closes && (version == 1 || meaning.keeps);
    Ok(Parsed { status, length: meaning.length, is_kept, is_chunked: meaning.is_chunked })
}

/// The fields that matter, gathered.
#[derive(Default)]
struct Meaning {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps: bool,
}

impl Meaning {
    fn add(&mut self, field: &httparse::Header<'_>) -> Result<(), Misbehaviour> {
        if field.name.eq_ignore_ascii_case("content-length") {
            let length = number(field.value).ok_or(Misbehaviour::Length)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(Misbehaviour::Length);
            }
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            let is_alone = !std::mem::replace(&mut self.is_chunked, true);
            if !is_alone || !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Misbehaviour::Length);
            }
        } else if field.name.eq_ignore_ascii_case("connection") {
            for word in field.value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                self.closes |= word.eq_ignore_ascii_case(b"close");
                self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }
}

/// Digits and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    let is_sound = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_sound.then(|| str::from_utf8(digits).ok()?.parse().ok())?
}
