//! The server side of an HTTP/1.1 connection (RFC 9110, 9112). [`HttpServer`] finds the requests in
//! the input, asks its driver for each resource, and composes the response: conditions, ranges and
//! persistence are its business. Its output does not depend on how the input is split. Requests
//! are answered one at a time, in order. No error here is fatal: a client that violates the
//! protocol gets a status, and is disconnected where the next request cannot be found.
//!
//! # States
//!
//! | state   | waits for                | then                                                              |
//! |---------|--------------------------|-------------------------------------------------------------------|
//! | Head    | CRLF CRLF                | Body, or Request. Invalid or too long: Reply. Too slow: 408; idle: Closed |
//! | Body    | the end of the body      | Request, Reply (OPTIONS, 405). Too large: 413; too slow: 408              |
//! | Request | the driver to take it    | Answer                                                            |
//! | Answer  | the driver's response    | Sending                                                           |
//! | Reply   | the driver to ask for requests | Sending: a response without the driver                      |
//! | Sending | the output to be sent    | Head, with the input that came meanwhile; Closed if not kept. Too slow: Closed |
//! | Streaming | the driver's next part | Closed, when the driver ends the stream, the client reads too slowly, or no part came for an hour |
//! | Closed  | nothing                  | the end; further input is dropped                                 |
//!
//! The content of a request is skipped, and POST answered with 405, unless the driver takes content
//! ([`HttpServerConfig::takes_content`]). 400, 408, 413, 417, 431, 501 and 505 close the
//! connection, because what follows may not be a request. Between requests there is no buffer.

mod basic;
mod conditions;
mod content;
mod date;
mod head;
mod limits;
mod outbox;
mod ranges;
mod resource;
mod response;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

pub use super::Method;
pub use basic::BasicCredentials;
pub use content::RequestContent;
pub use date::HttpDate;
pub use head::FIELDS_MAX;
pub use limits::HttpServerLimits;
pub use outbox::HttpOutput;
pub use ranges::RANGES_MAX;
pub use resource::{Content, Resource};
pub use response::{Document, ErrorStatus, HttpResponse, NOT_ADMITTED};
pub use target::encode_path;

use conditions::Conditions;
use head::{Asked, BodyDecoder, HeadSearch, RequestHead};
use outbox::Outbox;
use response::{Persistence, ResponseWriter};
use target::Target;

/// The interim response that a client may wait for before it sends a body (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The longest pause between two parts of a stream.
const STREAM_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// What `Allow` says of a path; None: the path does not exist.
pub type AllowedMethods = fn(&[u8]) -> Option<&'static str>;

/// The configuration shared by the connections of a listener.
#[derive(Clone, Debug, Default)]
pub struct HttpServerConfig {
    /// What clients log in to, as browsers show it.
    pub realm: Box<str>,
    /// Whether requests have [`RequestContent`], POST is a method, clients log in with bearer tokens
    /// (RFC 6750), and errors are problem documents (RFC 9457).
    pub takes_content: bool,
    /// The `Allow` field of a path, with its CRLF, or None if there is no such path. Without this function
    /// all paths have the same methods.
    pub allowed_methods: Option<AllowedMethods>,
    /// Further fields of all responses, each with its CRLF.
    pub response_fields: &'static str,
    /// All limits.
    pub limits: HttpServerLimits,
}

/// A request that the driver answers by [`HttpServer::handle_response`].
#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// GET and HEAD make no difference to the driver. POST comes only to one that takes content.
    pub method: Method,
    /// Decoded, and in one spelling: it begins with a slash, and has no empty segment, no `.` or
    /// `..`, no NUL and no other control character. It may end with a slash, and may not be UTF-8.
    pub path: Box<[u8]>,
    /// What follows the question mark, as received.
    pub query: Option<Box<[u8]>>,
    /// The credentials, if they are valid ones of Basic authentication (RFC 7617).
    pub authorization: Option<BasicCredentials>,
    /// Only and always for a driver that takes content.
    pub content: Option<Box<RequestContent>>,
}

impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, query) = (self.path.escape_ascii(), self.query.as_deref().map(<[u8]>::escape_ascii));
        write!(f, "{} {path}", self.method.as_str())?;
        query.map_or(Ok(()), |query| write!(f, "?{query}"))?;
        self.authorization.as_ref().map_or(Ok(()), |credentials| write!(f, " {credentials:?}"))
    }
}

/// One connection of one client.
///
/// Events come in by the `handle_*` methods, requests go out by
/// [`poll_request`](HttpServer::poll_request), bytes by [`output`](HttpServer::output). After each
/// event: take and answer requests until there are none, send the output, and close when
/// [`wants_close`](HttpServer::wants_close) is true and the output is sent. Once the output is sent,
/// there may be another request ([`has_work`](HttpServer::has_work)). Times are those of one clock
/// that never goes back; only the Date field has another one.
#[derive(Debug)]
pub struct HttpServer {
    config: Arc<HttpServerConfig>,
    state: State,
    /// Input that is not processed yet, from `backlog_used` on: part of a head, or what follows a
    /// request that is being answered.
    backlog: Vec<u8>,
    backlog_used: usize,
    outbox: Outbox,
    requests: u32,
    /// When the state began; in Head, when its first byte came; while sending, when the client last
    /// accepted bytes.
    since: Timestamp,
    boundary: u64,
    /// No further request is accepted.
    is_ending: bool,
}

#[derive(Debug)]
enum State {
    /// How many octets of the backlog were searched for the end of the head.
    Head {
        scanned: usize,
    },
    Body {
        decoder: BodyDecoder,
        octets_left: u64,
        next: Box<State>,
    },
    Request(HttpRequest, Exchange),
    Answer(Exchange),
    Reply(OwnReply, Exchange),
    Sending,
    Streaming,
    Closed,
}

impl State {
    /// Where the content of a request goes that waits for the end of its body; None: it is skipped.
    fn content(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            State::Request(request, _) => request.content.as_mut().map(|content| &mut content.octets),
            _ => None,
        }
    }
}

/// What the response to a request depends on.
#[derive(Debug)]
struct Exchange {
    method: Method,
    persistence: Persistence,
    conditions: Option<Box<Conditions>>,
}

/// A response that needs no resource.
#[derive(Clone, Copy, Debug)]
enum OwnReply {
    /// With the `Allow` field.
    Options(&'static str),
    /// With the `Allow` field.
    MethodNotAllowed(&'static str),
    Error(ErrorStatus),
}

impl HttpServer {
    /// A new connection. `seed` is random: it separates the parts of a response with several ranges,
    /// and must not be guessed by whoever wrote the content.
    pub fn new(config: Arc<HttpServerConfig>, now: Timestamp, seed: u64) -> HttpServer {
        HttpServer {
            config,
            state: State::Head { scanned: 0 },
            backlog: Vec::new(),
            backlog_used: 0,
            outbox: Outbox::default(),
            requests: 0,
            since: now,
            boundary: seed,
            is_ending: false,
        }
    }

    /// Bytes from the client.
    pub fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        if self.is_ending {
            return;
        }
        if self.backlog.is_empty() {
            let used = self.process(now, input);
            self.add_to_backlog(now, &input[used..]);
        } else {
            self.backlog.drain(..std::mem::take(&mut self.backlog_used));
            self.backlog.extend_from_slice(input);
            self.process_backlog(now);
        }
    }

    /// The client closed its side, or the connection broke.
    pub fn handle_disconnect(&mut self) {
        self.close();
    }

    /// A deadline has passed, perhaps an earlier one than the present.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let is_waited_for = match self.state {
            State::Head { .. } => !self.backlog.is_empty(),
            State::Body { .. } => true,
            _ => false,
        };
        if is_waited_for { self.refuse(ErrorStatus::RequestTimeout) } else { self.close() }
    }

    /// The server is shutting down: the present request is answered, and a stream ends.
    pub fn handle_stop(&mut self) {
        self.is_ending = true;
        if matches!(self.state, State::Head { .. } | State::Body { .. } | State::Streaming) {
            self.close();
        }
    }

    /// The next request; None if there is none until the next event. Responses that need no
    /// resource are composed here.
    pub fn poll_request(&mut self, now: Timestamp, date: &HttpDate) -> Option<HttpRequest> {
        if !self.has_work() {
            return None;
        }
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Request(request, exchange) => {
                self.state = State::Answer(exchange);
                Some(request)
            }
            State::Reply(reply, exchange) => {
                self.send(now, date, &exchange, |writer| match reply {
                    OwnReply::Options(allowed) => writer.options(allowed),
                    OwnReply::MethodNotAllowed(allowed) => writer.method_not_allowed(allowed),
                    OwnReply::Error(status) => writer.error(status),
                });
                None
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// The response to the last request.
    pub fn handle_response(&mut self, now: Timestamp, date: &HttpDate, response: HttpResponse) {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Answer(mut exchange) => {
                let is_stream = matches!(response, HttpResponse::Stream { .. });
                if is_stream {
                    exchange.persistence = Persistence::Close;
                }
                self.send(now, date, &exchange, |writer| writer.write(response, exchange.conditions.as_deref()));
                if is_stream && exchange.method != Method::Head {
                    self.state = State::Streaming;
                }
            }
            other => self.state = other,
        }
    }

    /// Whether a stream is open, and all its parts so far are sent.
    pub fn wants_part(&self) -> bool {
        matches!(self.state, State::Streaming) && self.outbox.is_empty()
    }

    /// The next part of a stream that wants one; other parts are dropped.
    pub fn handle_part(&mut self, now: Timestamp, part: Vec<u8>) {
        if self.wants_part() {
            (self.outbox, self.since) = (Outbox::with_bytes(part), now);
        }
    }

    /// The stream has ended.
    pub fn end_stream(&mut self) {
        if matches!(self.state, State::Streaming) {
            self.close();
        }
    }

    /// Whether [`poll_request`](HttpServer::poll_request) has something to do.
    pub fn has_work(&self) -> bool {
        matches!(self.state, State::Request(..) | State::Reply(..))
    }

    /// Whether a response is not completely sent.
    pub fn is_sending(&self) -> bool {
        matches!(self.state, State::Sending)
    }

    /// The next bytes for the client.
    pub fn output(&self) -> HttpOutput<'_> {
        self.outbox.output()
    }

    /// This many bytes of the output were sent; may be 0.
    pub fn handle_sent(&mut self, now: Timestamp, count: usize) {
        self.outbox.handle_sent(count);
        if !matches!(self.state, State::Sending | State::Streaming) {
            return;
        }
        if count > 0 {
            self.since = now;
        }
        if self.outbox.is_empty() && matches!(self.state, State::Sending) {
            self.end_response(now);
        }
    }

    /// When to call [`handle_timeout`](HttpServer::handle_timeout).
    pub fn deadline(&self) -> Option<Timestamp> {
        let limits = &self.config.limits;
        let time_max = match self.state {
            State::Head { .. } if self.requests > 0 && self.backlog.is_empty() => limits.idle_time_max,
            State::Head { .. } => limits.head_time_max,
            State::Body { .. } => limits.body_time_max,
            State::Streaming if self.outbox.is_empty() => STREAM_PAUSE_MAX,
            State::Sending | State::Streaming => limits.send_time_max,
            State::Request(..) | State::Answer(_) | State::Reply(..) | State::Closed => return None,
        };
        Some(self.since + time_max)
    }

    /// Whether to close the connection once the output is sent.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }
}

impl HttpServer {
    /// Processes input up to the end of a request; returns how much was used.
    fn process(&mut self, now: Timestamp, input: &[u8]) -> usize {
        let octets_max = self.config.limits.head_octets_max;
        let mut used = 0;
        while used < input.len() {
            let mut rest = &input[used..];
            match &mut self.state {
                State::Head { scanned } => match head::find_end(rest, scanned, octets_max) {
                    HeadSearch::Partial => break,
                    HeadSearch::TooLong => self.refuse(ErrorStatus::HeadTooLarge),
                    HeadSearch::Found(end) => {
                        used += end;
                        self.begin_request(now, &rest[..end]);
                    }
                },
                State::Body { decoder, octets_left, next } => {
                    let octets = rest.len();
                    match decoder.read(&mut rest, octets_left, next.content()) {
                        Ok(true) => self.state = std::mem::replace(&mut **next, State::Closed),
                        Ok(false) => {}
                        Err(status) => self.refuse(status),
                    }
                    used += octets - rest.len();
                }
                _ => break,
            }
        }
        used
    }

    fn process_backlog(&mut self, now: Timestamp) {
        let backlog = std::mem::take(&mut self.backlog);
        let before = self.backlog_used;
        let used = before + self.process(now, &backlog[before..]);
        if self.is_closing() || used == backlog.len() {
            self.backlog_used = 0;
        } else {
            (self.backlog, self.backlog_used) = (backlog, used);
        }
    }

    /// Keeps what was not used of the first bytes after a request.
    fn add_to_backlog(&mut self, now: Timestamp, rest: &[u8]) {
        if rest.is_empty() || self.is_closing() {
            return;
        }
        self.backlog.extend_from_slice(rest);
        // The time for the first head begins with the connection.
        if matches!(self.state, State::Head { .. }) && self.requests > 0 {
            self.since = now;
        }
    }

    /// Whether what follows is not processed.
    fn is_closing(&self) -> bool {
        match &self.state {
            State::Request(_, exchange) | State::Answer(exchange) | State::Reply(_, exchange) => {
                self.is_ending || exchange.persistence == Persistence::Close
            }
            State::Streaming | State::Closed => true,
            State::Head { .. } | State::Body { .. } | State::Sending => self.is_ending,
        }
    }

    fn begin_request(&mut self, now: Timestamp, bytes: &[u8]) {
        self.requests += 1;
        let RequestHead { asked, mut persistence, body, awaits_continue, conditions, authorization, content } =
            match head::parse(bytes, self.config.takes_content) {
                Ok(head) => head,
                Err(status) => return self.refuse(status),
            };
        let octets_left = self.config.limits.body_octets_max;
        if matches!(body, Some(BodyDecoder::Length(octets)) if octets > octets_left) {
            return self.refuse(ErrorStatus::ContentTooLarge);
        }
        if self.requests >= self.config.limits.requests_max {
            persistence = Persistence::Close;
        }
        let method = if let Asked::Resource(method, _) = asked { method } else { Method::Get };
        let exchange = Exchange { method, persistence, conditions };
        let next = match asked {
            Asked::Resource(method, Target { path, query }) => {
                State::Request(HttpRequest { method, path, query, authorization, content }, exchange)
            }
            Asked::Options(target) => State::Reply(self.reply_for_path(target, OwnReply::Options), exchange),
            Asked::OtherMethod(target) => {
                State::Reply(self.reply_for_path(target, OwnReply::MethodNotAllowed), exchange)
            }
        };
        self.state = match body {
            None => next,
            Some(decoder) => {
                self.since = now;
                if awaits_continue {
                    self.outbox = Outbox::with_bytes(CONTINUE.to_vec());
                }
                State::Body { decoder, octets_left, next: Box::new(next) }
            }
        };
    }

    /// A reply with the methods of a path, or an error if there is no such path.
    fn reply_for_path(&self, target: Option<Target>, reply: fn(&'static str) -> OwnReply) -> OwnReply {
        match (self.config.allowed_methods, target) {
            (Some(allowed_methods), Some(target)) => {
                allowed_methods(&target.path).map_or(OwnReply::Error(ErrorStatus::NotFound), reply)
            }
            _ => reply(response::all_methods(self.config.takes_content)),
        }
    }

    /// Answers with an error, and closes the connection.
    fn refuse(&mut self, status: ErrorStatus) {
        self.is_ending = true;
        (self.backlog, self.backlog_used) = (Vec::new(), 0);
        let exchange = Exchange { method: Method::Get, persistence: Persistence::Close, conditions: None };
        self.state = State::Reply(OwnReply::Error(status), exchange);
    }

    /// Composes a response, behind an interim one that is not sent yet.
    fn send(
        &mut self,
        now: Timestamp,
        date: &HttpDate,
        exchange: &Exchange,
        write: impl FnOnce(&ResponseWriter<'_>) -> Outbox,
    ) {
        self.is_ending |= exchange.persistence == Persistence::Close;
        let persistence = if self.is_ending { Persistence::Close } else { exchange.persistence };
        self.boundary = self.boundary.wrapping_add(1);
        let (config, boundary) = (&*self.config, self.boundary);
        let writer = ResponseWriter { date, method: exchange.method, persistence, config, boundary };
        let response = write(&writer);
        let earlier = std::mem::replace(&mut self.outbox, response);
        self.outbox.put_before(earlier);
        (self.state, self.since) = (State::Sending, now);
    }

    /// The client has the response.
    fn end_response(&mut self, now: Timestamp) {
        if self.is_ending {
            return self.close();
        }
        (self.state, self.since) = (State::Head { scanned: 0 }, now);
        if !self.backlog.is_empty() {
            self.process_backlog(now);
        }
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.is_ending = true;
        self.outbox = Outbox::default();
        (self.backlog, self.backlog_used) = (Vec::new(), 0);
    }
}
