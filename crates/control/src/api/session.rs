//! The session of one client: decides who may make a request, and has it answered on another thread.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use mail::{Body, MailEvent, Timestamp};
use net::{AdmittedClient, ConnectionHandler, FileRange, OutputPiece};
use protocol::http::Method;
use protocol::http::server::{
    Content, Document, ErrorStatus, HttpDate, HttpOutput, HttpRequest, HttpResponse, HttpServer, RequestContent,
    Resource,
};

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;
use tokio::time::{sleep_until, timeout};

use super::answer::{self, ApiAnswer, ApiRequest, Problem};
use super::query::Query;
use super::routes::{self, EVENT_STREAM, NoRoute, Route};
use super::{ApiListener, PERMIT_WAIT_MAX};
use crate::handler::ControlHandler;
use crate::live::EventReader;
use crate::tokens::{Role, TokenChecker, TokenRefusal};

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const TOO_MANY: &str = "the server is busy with other requests of this API: try again later";
const WRONG_TOKEN: &str = "the token is wrong, has expired, or was revoked";
/// A stream of events ends after this time.
const STREAM_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Without events, the client gets a comment this often, and a client that is gone is noticed.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// How long a connection waits for an event before it looks at anything else.
const EVENT_WAIT: Duration = Duration::from_secs(1);
/// Events of this time are sent together: each part of a stream costs a system call and a wake-up, and
/// nobody reads faster.
const PART_EVERY: Duration = Duration::from_millis(200);
/// A part that is this long takes no further events.
const PART_OCTETS_MAX: usize = 64 << 10;

/// A session.
pub(super) struct ApiSession {
    listener: ApiListener,
    client: AdmittedClient,
    server: HttpServer,
    /// The message that is being sent.
    body: Option<Body>,
    /// The events that are being sent.
    events: Option<EventStream>,
}

/// A response, and what it sends beside its own bytes.
struct Response {
    http: HttpResponse,
    body: Option<Body>,
    events: Option<EventReader>,
}

impl From<HttpResponse> for Response {
    fn from(http: HttpResponse) -> Response {
        Response { http, body: None, events: None }
    }
}

/// A stream of events. It ends after some time, so that a token that was revoked is noticed; clients
/// connect again.
struct EventStream {
    reader: EventReader,
    ends_at: Instant,
    /// When the client last got anything.
    sent_at: Instant,
}

impl EventStream {
    fn new(reader: EventReader) -> EventStream {
        let now = Instant::now();
        EventStream { reader, ends_at: now + STREAM_TIME_MAX, sent_at: now }
    }

    /// The next part of the stream: empty if there was no event for a second. None: it has ended.
    async fn next_part(&mut self) -> Option<String> {
        if Instant::now() >= self.ends_at {
            return None;
        }
        sleep_until((self.sent_at + PART_EVERY).into()).await;
        // Between the waits, the connection sees that the server stops.
        let part = match timeout(EVENT_WAIT, self.reader.next()).await {
            Ok(event) => {
                let mut part = event?;
                while part.len() < PART_OCTETS_MAX
                    && let Some(event) = self.reader.next_waiting()
                {
                    part.push_str(&event);
                }
                part
            }
            Err(_) if self.sent_at.elapsed() >= HEARTBEAT_EVERY => ": still here\n\n".to_owned(),
            Err(_) => String::new(),
        };
        if !part.is_empty() {
            self.sent_at = Instant::now();
        }
        Some(part)
    }
}

impl ApiSession {
    pub(super) fn new(listener: ApiListener, client: AdmittedClient) -> ApiSession {
        let now = net::steady_now();
        // Hashes have random keys.
        let seed = RandomState::new().hash_one(now);
        let server = HttpServer::new(listener.server_config.clone(), now, seed);
        ApiSession { listener, client, server, body: None, events: None }
    }

    /// Answers a request: at once if its answer waits for nothing, else on a thread that may wait.
    async fn respond(&self, request: HttpRequest) -> Response {
        let ApiListener { api, settings, .. } = &self.listener;
        let handler = api.handler.current();
        let checks = RequestChecks {
            handler: handler.clone(),
            tokens: api.tokens.clone(),
            client: self.client.address,
            answers_for_host: settings
                .answers_for(request.content.as_ref().and_then(|content| content.host.as_deref())),
            page_entries_max: settings.page_entries_max,
        };
        let permits = api.permits(routes::request_group(request.method, &request.path));
        let answer = move || answer::answer(&handler, checks.admit(request)?);
        let answered = match permits {
            None => Ok(answer()),
            Some(permits) => match timeout(PERMIT_WAIT_MAX, permits.acquire_owned()).await {
                Ok(Ok(permit)) => answer_on_thread(permit, answer).await,
                // It is never closed.
                Ok(Err(_)) => return unavailable(),
                Err(_) => return problem_response(&Problem::new(ErrorStatus::Unavailable, TOO_MANY)).into(),
            },
        };
        match answered {
            Ok(Ok(answer)) => response(answer),
            Ok(Err(problem)) => problem_response(&problem).into(),
            Err(_) => unavailable(),
        }
    }
}

/// Answers on a thread that may wait. The permit lasts as long as that takes, also if the client has gone.
async fn answer_on_thread(
    permit: OwnedSemaphorePermit,
    answer: impl FnOnce() -> Result<ApiAnswer, Problem> + Send + 'static,
) -> Result<Result<ApiAnswer, Problem>, JoinError> {
    let with_permit = move || {
        let answered = answer();
        drop(permit);
        answered
    };
    tokio::task::spawn_blocking(with_permit).await
}

/// What decides whether a request is let in.
struct RequestChecks {
    handler: Arc<ControlHandler>,
    tokens: Arc<TokenChecker>,
    client: IpAddr,
    /// Whether the server has the name by which it was called.
    answers_for_host: bool,
    page_entries_max: usize,
}

impl RequestChecks {
    /// The request, if it may be made.
    fn admit(&self, request: HttpRequest) -> Result<ApiRequest, Problem> {
        let HttpRequest { method, path, query, content, .. } = request;
        let content = content.map(|content| *content).unwrap_or_default();
        if !self.answers_for_host {
            let detail = "the server has no such name; see `hosts` in [api] of its configuration";
            return Err(Problem::new(ErrorStatus::MisdirectedRequest, detail));
        }
        let (route, names) = routes::find(method, &path).map_err(|none| match none {
            NoRoute::Path => Problem::new(ErrorStatus::NotFound, "no such path; see /api/v1/openapi.json"),
            NoRoute::Method { allow_field } => {
                let problem = Problem::new(ErrorStatus::MethodNotAllowed, "this path has another method");
                Problem { fields: allow_field, ..problem }
            }
        })?;
        let (caller, is_operator) = self.check_token(route, &String::from_utf8_lossy(&path), &content)?;
        if method == Method::Post {
            check_content_type(&content)?;
        }
        let query = Query::parse(query.as_deref().unwrap_or_default());
        let bad_query = |detail| Problem::new(ErrorStatus::BadRequest, detail);
        let query = query.map_err(bad_query)?;
        if route.query.is_empty() {
            query.expect_empty().map_err(bad_query)?;
        }
        let operation = route.operation;
        let content = content.octets;
        if method == Method::Post && route.content.is_none() {
            answer::expect_no_members(&content)?;
        }
        let page_entries_max = self.page_entries_max;
        Ok(ApiRequest { operation, names, query, content, caller, is_operator, page_entries_max })
    }

    /// Who makes the request, for the log, if they may; and whether they may operate the server.
    fn check_token(&self, route: &Route, path: &str, content: &RequestContent) -> Result<(String, bool), Problem> {
        let Some(role) = route.role else { return Ok((String::new(), false)) };
        let Some(token) = &content.bearer_token else {
            return Err(Problem::new(ErrorStatus::Unauthorized, "this path needs a token"));
        };
        let (steady, now) = (Duration::from_millis(net::steady_now().0), SystemTime::now().into());
        let owner = self.tokens.check(token.reveal(), self.client, steady, now);
        let owner = owner.map_err(|refusal| {
            if role == Role::Operate && matches!(refusal, TokenRefusal::Wrong { .. }) {
                let caller = format!("a wrong token from {}", self.client);
                self.handler.log_refused_order(&caller, path, WRONG_TOKEN);
            }
            self.refuse(refusal)
        })?;
        let caller = format!("token {} from {}", owner.name, self.client);
        if owner.role < role {
            let detail = format!("this path needs a token with the role {}", Role::Operate.name());
            self.handler.log_refused_order(&caller, path, &detail);
            return Err(Problem::new(ErrorStatus::Forbidden, detail));
        }
        Ok((caller, owner.role == Role::Operate))
    }

    /// Logs a token that is not accepted.
    fn refuse(&self, refusal: TokenRefusal) -> Problem {
        let intake = &self.handler.parts.intake;
        let (user, result, problem) = match refusal {
            TokenRefusal::Wrong { id } => (id, "refused", Problem::new(ErrorStatus::Unauthorized, WRONG_TOKEN)),
            TokenRefusal::Throttled => {
                let detail = "too many wrong tokens from this client";
                (String::new(), "throttled", Problem::new(ErrorStatus::TooManyRequests, detail))
            }
            TokenRefusal::Unavailable(error) => {
                intake.operator_log.log_line(format_args!("cannot read the tokens of the API: {error}"));
                let detail = "the tokens cannot be read; see the log of the server";
                (String::new(), "unavailable", Problem::new(ErrorStatus::Unavailable, detail))
            }
        };
        let (client, helo, user) = (Some(self.client), "".into(), user.into());
        intake.event_log.write(MailEvent::Login { client, helo, user, mechanism: "TOKEN", result });
        problem
    }
}

/// A page of another site can only send other types without the permission of this one.
fn check_content_type(content: &RequestContent) -> Result<(), Problem> {
    let content_type = content.content_type.as_deref().unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case(JSON) {
        true => Ok(()),
        false => Err(Problem::new(ErrorStatus::UnsupportedMediaType, "expected Content-Type: application/json")),
    }
}

fn response(answer: ApiAnswer) -> Response {
    let document = |content_type, content: Vec<u8>| {
        let content = content.into();
        HttpResponse::Document(Document { error: None, content_type, content, fields: "" }).into()
    };
    match answer {
        ApiAnswer::Json(json) => document(JSON, json),
        ApiAnswer::Text { content_type, text } => document(content_type, text.into_bytes()),
        ApiAnswer::Content { id, body, accepted_at } => {
            let resource = Resource::new(Content::File { octets: body.len() }, &id, accepted_at, "message/rfc822");
            let disposition = format!("attachment; filename=\"{id}.eml\"");
            let resource = resource.with_field("Content-Disposition", &disposition);
            Response { body: Some(body), ..HttpResponse::Resource(Arc::new(resource)).into() }
        }
        ApiAnswer::Events(reader) => {
            let stream = HttpResponse::Stream { content_type: EVENT_STREAM };
            Response { events: Some(reader), ..stream.into() }
        }
    }
}

fn problem_response(problem: &Problem) -> HttpResponse {
    let fields = match problem.status {
        ErrorStatus::Unauthorized => "WWW-Authenticate: Bearer realm=\"mailrace\"\r\n",
        ErrorStatus::TooManyRequests | ErrorStatus::Unavailable => "Retry-After: 60\r\n",
        _ => problem.fields,
    };
    let content = problem.to_json().into();
    HttpResponse::Document(Document { error: Some(problem.status), content_type: PROBLEM, content, fields })
}

fn unavailable() -> Response {
    problem_response(&Problem::new(ErrorStatus::Unavailable, "the server is stopping")).into()
}

fn date() -> HttpDate {
    HttpDate::new(SystemTime::now().into())
}

impl ConnectionHandler for ApiSession {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.server.handle_input(now, input);
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.server.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.server.handle_timeout(now);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        self.server.handle_stop();
    }

    async fn work(&mut self) {
        while self.server.has_work() {
            let Some(request) = self.server.poll_request(net::steady_now(), &date()) else { return };
            // Boxed: a session reserves room for it all the time.
            let Response { http, body, events } = Box::pin(self.respond(request)).await;
            (self.body, self.events) = (body, events.map(EventStream::new));
            self.server.handle_response(net::steady_now(), &date(), http);
        }
        if self.server.wants_part() {
            match &mut self.events {
                Some(events) => match Box::pin(events.next_part()).await {
                    Some(part) => self.server.handle_part(net::steady_now(), part.into_bytes()),
                    None => self.server.end_stream(),
                },
                None => self.server.end_stream(),
            }
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        match (self.server.output(), self.body.as_ref().and_then(Body::file_range)) {
            (HttpOutput::Bytes(bytes), _) => OutputPiece::Bytes(bytes),
            (HttpOutput::Pair(first, second), _) => OutputPiece::Pair(first, second),
            (HttpOutput::Head(bytes), _) => OutputPiece::Head(bytes),
            // Copied: once the last byte is on its way, the message can be finished and overwritten.
            (HttpOutput::File { offset, octets }, Some((file, start))) => {
                OutputPiece::FileCopy(FileRange { file, offset: start + offset, octets })
            }
            // The disk of a running server has files.
            (HttpOutput::File { .. }, None) => OutputPiece::Bytes(&[]),
        }
    }

    fn handle_sent(&mut self, count: usize) {
        self.server.handle_sent(net::steady_now(), count);
        if !self.server.is_sending() {
            self.body = None;
        }
    }

    fn handle_file_failed(&mut self, error: &io::Error) {
        let handler = self.listener.api.handler.current();
        let line = format_args!("cannot send a message by the API to {}: {error}", self.client.address);
        handler.parts.intake.operator_log.log_line(line);
    }

    fn has_work(&self) -> bool {
        self.server.has_work() || self.server.wants_part()
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.server.deadline()
    }

    fn wants_close(&self) -> bool {
        self.server.wants_close()
    }
}
