//! The head of a request (RFC 9112 sections 2 to 7). `httparse` parses the syntax; this module
//! combines the fields, and rejects what other programs may understand in another way: lines that
//! end in a bare LF, two lengths, a length beside a transfer coding, several hosts.

use std::mem::MaybeUninit;

use memchr::{memchr_iter, memmem};

use super::super::Method;
use super::super::chunked::{ChunkedDecoder, Piece};
use super::super::field::{self, HEAD_END};
use super::basic::{self, BasicCredentials};
use super::conditions::{self, Conditions};
use super::content::{self, RequestContent};
use super::response::{ErrorStatus, Persistence};
use super::target::{self, Target};

/// Fields in a head (431).
pub const FIELDS_MAX: usize = 100;

/// The result of looking for the end of a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadSearch {
    /// It is not there yet.
    Partial,
    TooLong,
    /// The length of the head.
    Found(usize),
}

/// A valid head.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) asked: Asked,
    pub(super) persistence: Persistence,
    pub(super) body: Option<BodyDecoder>,
    /// The client waits for 100 before it sends the body.
    pub(super) awaits_continue: bool,
    pub(super) conditions: Option<Box<Conditions>>,
    pub(super) authorization: Option<BasicCredentials>,
    /// Only and always for a driver that takes content, which is not read yet.
    pub(super) content: Option<Box<RequestContent>>,
}

/// What a client asks for.
#[derive(Debug)]
pub(super) enum Asked {
    Resource(Method, Target),
    /// None: of the server as a whole (`*`), or the target is no path.
    Options(Option<Target>),
    /// None: the target is no path.
    OtherMethod(Option<Target>),
}

/// Finds the end of the body of a request.
#[derive(Debug)]
pub(super) enum BodyDecoder {
    /// This many octets are left.
    Length(u64),
    Chunked(ChunkedDecoder),
}

/// Looks for the end of a head. `scanned` is how much of the input was searched before.
pub(super) fn find_end(input: &[u8], scanned: &mut usize, octets_max: usize) -> HeadSearch {
    // An empty line before a request is ignored (RFC 9112 section 2.2).
    let start = if input.starts_with(b"\r\n") { 2 } else { 0 };
    let from = scanned.saturating_sub(HEAD_END.len() - 1).max(start);
    *scanned = input.len();
    match memmem::find(&input[from..], HEAD_END).map(|place| from + place + HEAD_END.len()) {
        Some(end) if end <= octets_max => HeadSearch::Found(end),
        None if input.len() < octets_max => HeadSearch::Partial,
        _ => HeadSearch::TooLong,
    }
}

/// Parses a head, including the empty line that ends it, for a driver that takes content or not.
pub(super) fn parse(head: &[u8], takes_content: bool) -> Result<RequestHead, ErrorStatus> {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    // httparse accepts a bare LF as a line end.
    if !memchr_iter(b'\n', head).all(|place| place > 0 && head[place - 1] == b'\r') {
        return Err(ErrorStatus::BadRequest);
    }
    let mut storage = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_request_with_uninit_headers(&mut request, head, &mut storage) {
        Ok(httparse::Status::Complete(used)) if used == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(ErrorStatus::HeadTooLarge),
        Err(httparse::Error::Version) if names_version(head) => return Err(ErrorStatus::VersionNotSupported),
        _ => return Err(ErrorStatus::BadRequest),
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(ErrorStatus::BadRequest);
    };
    let mut fields = Fields { content: takes_content.then(Box::default), ..Fields::default() };
    request.headers.iter().try_for_each(|field| fields.add(field))?;
    let is_modern = version == 1;
    if is_modern && !fields.has_host {
        return Err(ErrorStatus::BadRequest);
    }
    let body = fields.body(is_modern)?;
    Ok(RequestHead {
        asked: asked(method, target.as_bytes(), takes_content)?,
        persistence: fields.persistence(is_modern),
        awaits_continue: fields.expects && is_modern && body.is_some(),
        body,
        conditions: fields.conditions,
        authorization: fields.authorization,
        content: fields.content,
    })
}

/// Whether the third word is a version.
fn names_version(head: &[u8]) -> bool {
    head.split(|octet| *octet == b' ').nth(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

fn asked(method: &str, target: &[u8], takes_content: bool) -> Result<Asked, ErrorStatus> {
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" if takes_content => Method::Post,
        "OPTIONS" => return Ok(Asked::Options(target::parse(target))),
        _ => return Ok(Asked::OtherMethod(target::parse(target))),
    };
    let target = target::parse(target).ok_or(ErrorStatus::BadRequest)?;
    Ok(Asked::Resource(method, target))
}

/// The values of the relevant fields.
#[derive(Default)]
struct Fields {
    has_host: bool,
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps: bool,
    expects: bool,
    conditions: Option<Box<Conditions>>,
    authorization: Option<BasicCredentials>,
    content: Option<Box<RequestContent>>,
}

impl Fields {
    fn add(&mut self, field: &httparse::Header<'_>) -> Result<(), ErrorStatus> {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("host") {
            let is_second = std::mem::replace(&mut self.has_host, true);
            if is_second || !target::is_host(field.value) {
                return Err(ErrorStatus::BadRequest);
            }
        } else if is("content-length") {
            // The same length twice is also refused: a proxy may have taken it for a list.
            let length = field::number(field.value).ok_or(ErrorStatus::BadRequest)?;
            if self.length.replace(length).is_some() {
                return Err(ErrorStatus::BadRequest);
            }
        } else if is("transfer-encoding") {
            self.add_coding(field.value)?;
        } else if is("connection") {
            for word in field::list(field.value) {
                self.closes |= word.eq_ignore_ascii_case(b"close");
                self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is("expect") {
            self.expects = field.value.eq_ignore_ascii_case(b"100-continue");
            if !self.expects {
                return Err(ErrorStatus::ExpectationFailed);
            }
        } else if is("authorization") {
            self.authorization = basic::parse(field.value);
        } else {
            conditions::note(&mut self.conditions, field.name, field.value);
        }
        match &mut self.content {
            Some(content) => add_to_content(content, field),
            None => Ok(()),
        }
    }

    fn add_coding(&mut self, value: &[u8]) -> Result<(), ErrorStatus> {
        if std::mem::replace(&mut self.is_chunked, true) {
            return Err(ErrorStatus::BadRequest);
        }
        if value.eq_ignore_ascii_case(b"chunked") { Ok(()) } else { Err(ErrorStatus::NotImplemented) }
    }

    /// RFC 9112 section 6.3. Both lengths together, or chunks in HTTP/1.0, are used for request
    /// smuggling (section 6.1).
    fn body(&self, is_modern: bool) -> Result<Option<BodyDecoder>, ErrorStatus> {
        match (self.is_chunked, self.length) {
            (true, None) if is_modern => Ok(Some(BodyDecoder::Chunked(ChunkedDecoder::default()))),
            (true, _) => Err(ErrorStatus::BadRequest),
            (false, None | Some(0)) => Ok(None),
            (false, Some(octets)) => Ok(Some(BodyDecoder::Length(octets))),
        }
    }

    fn persistence(&self, is_modern: bool) -> Persistence {
        match (self.closes, is_modern, self.keeps) {
            (false, true, _) => Persistence::Keep,
            (false, false, true) => Persistence::KeepExplicitly,
            _ => Persistence::Close,
        }
    }
}

/// Notes a field that a driver needs that takes content. A field that must not be repeated, and is, has
/// no meaning that all programs agree on.
fn add_to_content(content: &mut RequestContent, field: &httparse::Header<'_>) -> Result<(), ErrorStatus> {
    let text = || str::from_utf8(field.value).map(|text| Some(text.into())).map_err(|_| ErrorStatus::BadRequest);
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    if is("host") {
        content.host = text()?;
    } else if is("content-type") {
        if content.content_type.is_some() {
            return Err(ErrorStatus::BadRequest);
        }
        content.content_type = text()?;
    } else if is("authorization") {
        if content.bearer_token.is_some() {
            return Err(ErrorStatus::BadRequest);
        }
        content.bearer_token = content::parse_bearer(field.value);
    }
    Ok(())
}

impl BodyDecoder {
    /// Takes octets of the body from the front of the input, at most `octets_left` and one more, and
    /// adds the content to `content`; returns whether the body has ended.
    pub(super) fn read(
        &mut self,
        input: &mut &[u8],
        octets_left: &mut u64,
        content: Option<&mut Vec<u8>>,
    ) -> Result<bool, ErrorStatus> {
        let bound = usize::try_from(octets_left.saturating_add(1)).map_or(input.len(), |bound| bound.min(input.len()));
        let mut rest = &input[..bound];
        let has_ended = self.take(&mut rest, content)?;
        let taken = bound - rest.len();
        *octets_left = octets_left.checked_sub(taken as u64).ok_or(ErrorStatus::ContentTooLarge)?;
        *input = &input[taken..];
        Ok(has_ended)
    }

    fn take(&mut self, input: &mut &[u8], mut content: Option<&mut Vec<u8>>) -> Result<bool, ErrorStatus> {
        match self {
            BodyDecoder::Length(octets) => {
                let taken = (*octets).min(input.len() as u64);
                let (body, rest) = input.split_at(taken as usize);
                content.into_iter().for_each(|content| content.extend_from_slice(body));
                *input = rest;
                *octets -= taken;
                Ok(*octets == 0)
            }
            BodyDecoder::Chunked(decoder) => loop {
                match decoder.next(input).map_err(|_| ErrorStatus::BadRequest)? {
                    Some(Piece::Body(body)) => content.iter_mut().for_each(|content| content.extend_from_slice(body)),
                    Some(Piece::End) => return Ok(true),
                    None => return Ok(false),
                }
            },
        }
    }
}
