//! Writes responses. The head of a whole resource is copied together from parts that were formatted
//! before; the others are rare enough to be formatted.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

use super::super::Method;
use super::HttpServerConfig;
use super::conditions::{Conditions, Selection};
use super::date::HttpDate;
use super::outbox::{Outbox, Part};
use super::ranges::ByteRange;
use super::resource::Resource;

/// What a client gets that is not admitted, before it has sent a request.
pub const NOT_ADMITTED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 60\r\n\
    Connection: close\r\n\r\n";
/// Octets of a head, for one allocation.
const HEAD_CAPACITY: usize = 384;
const HTML: &str = "text/html; charset=utf-8";
const PROBLEM: &str = "application/problem+json";
const NOSNIFF: &str = "X-Content-Type-Options: nosniff\r\n";

/// The answer to a request.
#[derive(Debug)]
pub enum HttpResponse {
    /// The resource, or the part or the status that the conditions of the request ask for. The
    /// driver keeps its file until the next request.
    Resource(Arc<Resource>),
    /// A page in HTML that is made for this response.
    Page {
        /// In UTF-8.
        html: Box<[u8]>,
        /// Further fields, each with its CRLF.
        fields: &'static str,
    },
    /// Content that is made for this response.
    Document(Document),
    /// Content that comes in parts ([`HttpServer::handle_part`](super::HttpServer::handle_part)) and ends
    /// with the connection (RFC 9112 section 6.3).
    Stream {
        /// Has no control characters.
        content_type: &'static str,
    },
    /// The resource is at another path, encoded by [`encode_path`](super::encode_path), with a query
    /// if the request had one.
    Moved(String),
    /// Refused.
    Error(ErrorStatus),
}

/// Content of any type, made for one response.
#[derive(Debug)]
pub struct Document {
    /// None: 200.
    pub error: Option<ErrorStatus>,
    /// Has no control characters.
    pub content_type: &'static str,
    /// The content.
    pub content: Box<[u8]>,
    /// Further fields, each with its CRLF.
    pub fields: &'static str,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorStatus {
    /// The request is malformed or ambiguous; the connection is closed.
    BadRequest,
    /// The client must log in.
    Unauthorized,
    /// Not for this client.
    Forbidden,
    /// There is nothing.
    NotFound,
    /// The method is none of those that OPTIONS names, or none for this path.
    MethodNotAllowed,
    /// The request did not come in time; the connection is closed.
    RequestTimeout,
    /// The resource is not the version that the client named.
    PreconditionFailed,
    /// The body of the request is too large, and the connection is closed; or what the driver would
    /// have to load for the response.
    ContentTooLarge,
    /// The content is of another type than the driver takes.
    UnsupportedMediaType,
    /// The expectation is unknown; the connection is closed.
    ExpectationFailed,
    /// The server does not answer for this host.
    MisdirectedRequest,
    /// The content is valid, and cannot be processed.
    UnprocessableContent,
    /// Too many failed logins.
    TooManyRequests,
    /// The head is too large; the connection is closed.
    HeadTooLarge,
    /// The transfer coding is unknown; the connection is closed.
    NotImplemented,
    /// A temporary failure.
    Unavailable,
    /// The version is neither 1.0 nor 1.1; the connection is closed.
    VersionNotSupported,
}

/// What a response says about the connection (RFC 9112 section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// It is kept, as usual.
    Keep,
    /// It is kept, as a client of HTTP/1.0 requested.
    KeepExplicitly,
    Close,
}

/// What responses depend on beside their content.
pub(super) struct ResponseWriter<'a> {
    pub(super) date: &'a HttpDate,
    pub(super) method: Method,
    pub(super) persistence: Persistence,
    pub(super) config: &'a HttpServerConfig,
    /// Separates the parts of a response, and must not be in them.
    pub(super) boundary: u64,
}

impl ErrorStatus {
    /// The code and its phrase, as in a status line.
    pub fn text(self) -> &'static str {
        match self {
            ErrorStatus::BadRequest => "400 Bad Request",
            ErrorStatus::Unauthorized => "401 Unauthorized",
            ErrorStatus::Forbidden => "403 Forbidden",
            ErrorStatus::NotFound => "404 Not Found",
            ErrorStatus::MethodNotAllowed => "405 Method Not Allowed",
            ErrorStatus::RequestTimeout => "408 Request Timeout",
            ErrorStatus::PreconditionFailed => "412 Precondition Failed",
            ErrorStatus::ContentTooLarge => "413 Content Too Large",
            ErrorStatus::UnsupportedMediaType => "415 Unsupported Media Type",
            ErrorStatus::ExpectationFailed => "417 Expectation Failed",
            ErrorStatus::MisdirectedRequest => "421 Misdirected Request",
            ErrorStatus::UnprocessableContent => "422 Unprocessable Content",
            ErrorStatus::TooManyRequests => "429 Too Many Requests",
            ErrorStatus::HeadTooLarge => "431 Request Header Fields Too Large",
            ErrorStatus::NotImplemented => "501 Not Implemented",
            ErrorStatus::Unavailable => "503 Service Unavailable",
            ErrorStatus::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// The `Allow` field of a driver without methods by path.
pub(super) fn all_methods(takes_content: bool) -> &'static str {
    match takes_content {
        true => "Allow: GET, HEAD, POST, OPTIONS\r\n",
        false => "Allow: GET, HEAD, OPTIONS\r\n",
    }
}

impl ResponseWriter<'_> {
    /// A response of the driver.
    pub(super) fn write(&self, response: HttpResponse, conditions: Option<&Conditions>) -> Outbox {
        match response {
            HttpResponse::Resource(resource) => self.resource(resource, conditions),
            HttpResponse::Page { html, fields } => self.content("200 OK", HTML, fields, &html),
            HttpResponse::Document(Document { error, content_type, content, fields }) => {
                self.content(error.map_or("200 OK", ErrorStatus::text), content_type, fields, &content)
            }
            HttpResponse::Stream { content_type } => {
                let mut head = self.begin("200 OK");
                write_text(&mut head, format_args!("Content-Type: {content_type}\r\n{NOSNIFF}"));
                Outbox::with_bytes(self.end(head))
            }
            HttpResponse::Moved(location) => {
                let location = format!("Location: {location}\r\n");
                self.content("301 Moved Permanently", HTML, &location, &error_page("301 Moved Permanently"))
            }
            HttpResponse::Error(status) => self.error(status),
        }
    }

    pub(super) fn error(&self, status: ErrorStatus) -> Outbox {
        let fields = match status {
            ErrorStatus::Unauthorized => {
                format!("WWW-Authenticate: Basic realm=\"{}\", charset=\"UTF-8\"\r\n", quoted(&self.config.realm))
            }
            ErrorStatus::MethodNotAllowed => all_methods(self.config.takes_content).to_owned(),
            ErrorStatus::TooManyRequests | ErrorStatus::Unavailable => "Retry-After: 60\r\n".to_owned(),
            _ => String::new(),
        };
        self.error_with(status.text(), &fields)
    }

    /// The response to a method that the path has not; `allowed` is the `Allow` field.
    pub(super) fn method_not_allowed(&self, allowed: &str) -> Outbox {
        self.error_with(ErrorStatus::MethodNotAllowed.text(), allowed)
    }

    fn error_with(&self, status: &str, fields: &str) -> Outbox {
        match self.config.takes_content {
            true => self.content(status, PROBLEM, fields, &problem(status)),
            false => self.content(status, HTML, fields, &error_page(status)),
        }
    }

    /// The response to OPTIONS; `allowed` is the `Allow` field.
    pub(super) fn options(&self, allowed: &str) -> Outbox {
        let mut head = self.begin("204 No Content");
        head.extend_from_slice(allowed.as_bytes());
        Outbox::with_bytes(self.end(head))
    }

    fn resource(&self, resource: Arc<Resource>, conditions: Option<&Conditions>) -> Outbox {
        let selection = conditions.map(|conditions| conditions.select(self.method, &resource, self.date));
        match selection.unwrap_or(Selection::Whole) {
            Selection::Whole => {
                let mut head = self.begin("200 OK");
                head.extend_from_slice(resource.whole_fields());
                let octets = if self.method == Method::Head { 0 } else { resource.octets() };
                Outbox::with_range(self.end(head), resource, ByteRange { offset: 0, octets })
            }
            Selection::Parts(parts) => match parts[..] {
                [part] => self.part(resource, part),
                _ => self.multipart(resource, &parts),
            },
            Selection::NotModified => {
                let mut head = self.begin("304 Not Modified");
                head.extend_from_slice(resource.validators());
                Outbox::with_bytes(self.end(head))
            }
            Selection::PreconditionFailed => self.error(ErrorStatus::PreconditionFailed),
            Selection::RangeNotSatisfiable => {
                let fields = format!("Content-Range: bytes */{}\r\n", resource.octets());
                self.error_with("416 Range Not Satisfiable", &fields)
            }
        }
    }

    fn part(&self, resource: Arc<Resource>, part: ByteRange) -> Outbox {
        let mut head = self.begin("206 Partial Content");
        head.extend_from_slice(resource.part_fields());
        write_text(&mut head, format_args!("Content-Length: {}\r\n{}", part.octets, content_range(&resource, part)));
        Outbox::with_range(self.end(head), resource, part)
    }

    /// RFC 9110 section 14.6.
    fn multipart(&self, resource: Arc<Resource>, parts: &[ByteRange]) -> Outbox {
        let boundary = format!("{:016x}", self.boundary);
        let head_of = |part: &ByteRange| {
            let (content_type, range) = (resource.content_type(), content_range(&resource, *part));
            format!("\r\n--{boundary}\r\nContent-Type: {content_type}\r\n{range}\r\n").into_bytes()
        };
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        let mut pieces: VecDeque<(Vec<u8>, ByteRange)> = parts.iter().map(|part| (head_of(part), *part)).collect();
        pieces.push_back((end, ByteRange::default()));
        let octets: u64 = pieces.iter().map(|(head, part)| head.len() as u64 + part.octets).sum();
        let mut head = self.begin("206 Partial Content");
        head.extend_from_slice(resource.multipart_fields());
        let content_type = format_args!("Content-Type: multipart/byteranges; boundary={boundary}\r\n");
        write_text(&mut head, format_args!("{content_type}Content-Length: {octets}\r\n"));
        if let Some((first, _)) = pieces.front_mut() {
            first.splice(..0, self.end(head));
        }
        let parts = pieces.into_iter().map(|(bytes, range)| Part::new(bytes, range)).collect();
        Outbox::with_parts(parts, resource)
    }

    /// A response with content of its own, which a HEAD request gets only the length of.
    fn content(&self, status: &str, content_type: &str, fields: &str, content: &[u8]) -> Outbox {
        let mut head = self.begin(status);
        let length = content.len();
        let kind = format_args!("Content-Type: {content_type}\r\n{NOSNIFF}");
        write_text(&mut head, format_args!("Content-Length: {length}\r\n{kind}{fields}"));
        let mut bytes = self.end(head);
        if self.method != Method::Head {
            bytes.extend_from_slice(content);
        }
        Outbox::with_bytes(bytes)
    }

    /// The status line and the Date field.
    fn begin(&self, status: &str) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_CAPACITY);
        head.extend_from_slice(b"HTTP/1.1 ");
        head.extend_from_slice(status.as_bytes());
        head.extend_from_slice(b"\r\nDate: ");
        head.extend_from_slice(self.date.as_bytes());
        head.extend_from_slice(b"\r\n");
        head
    }

    /// What all responses have, the Connection field, and the end of the head.
    fn end(&self, mut head: Vec<u8>) -> Vec<u8> {
        head.extend_from_slice(self.config.response_fields.as_bytes());
        head.extend_from_slice(match self.persistence {
            Persistence::Keep => b"\r\n",
            Persistence::KeepExplicitly => b"Connection: keep-alive\r\n\r\n",
            Persistence::Close => b"Connection: close\r\n\r\n",
        });
        head
    }
}

fn content_range(resource: &Resource, part: ByteRange) -> String {
    format!("Content-Range: bytes {}-{}/{}\r\n", part.offset, part.offset + part.octets - 1, resource.octets())
}

fn error_page(status: &str) -> Vec<u8> {
    format!("<!DOCTYPE html>\n<title>{status}</title>\n<h1>{status}</h1>\n").into_bytes()
}

/// A problem document without more than the status (RFC 9457 section 4.2.1).
fn problem(status: &str) -> Vec<u8> {
    let (code, title) = status.split_once(' ').unwrap_or((status, ""));
    format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code}}}\n").into_bytes()
}

/// The content of a quoted string (RFC 9110 section 5.6.4); control characters are dropped.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars().filter(|character| !character.is_control()) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted
}

fn write_text(head: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = head.write_fmt(text);
}
