//! The session of one client: checks its logins, and has its requests answered.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::time::{Duration, SystemTime};

use mail::{MailEvent, Timestamp};
use net::{AdmittedClient, ConnectionHandler, FileRange, OutputPiece};
use protocol::http::server::{
    BasicCredentials, Document, ErrorStatus, HttpDate, HttpOutput, HttpRequest, HttpResponse, HttpServer,
};
use protocol::sasl::PasswordVerdict;

use super::mailboxes::UserMailbox;
use super::{HttpContent, HttpProtocol, OpenFile, RequestTime, ResponseSource};
use crate::RetrievalListener;

/// How long a connection is logged in without asking again, as long as it sends the same credentials.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(60);

thread_local! {
    static DATE: RefCell<HttpDate> = RefCell::new(HttpDate::new(Timestamp(0)));
}

/// A session.
pub(super) struct HttpSession {
    listener: RetrievalListener<HttpProtocol>,
    client: AdmittedClient,
    server: HttpServer,
    /// What the response that is being sent comes from.
    source: ResponseSource,
    /// Boxed: most listeners need no login.
    login: Option<Box<Login>>,
}

/// A login that succeeded.
struct Login {
    credentials: BasicCredentials,
    valid_until: Timestamp,
    /// The mailbox of this user, and of no other one.
    mailbox: UserMailbox,
}

impl HttpSession {
    pub(super) fn new(listener: RetrievalListener<HttpProtocol>, client: AdmittedClient) -> HttpSession {
        let now = net::steady_now();
        // Hashes have random keys.
        let seed = RandomState::new().hash_one(now);
        let server = HttpServer::new(listener.protocol.server_config.clone(), now, seed);
        HttpSession { listener, client, server, source: ResponseSource::default(), login: None }
    }

    /// The response that needs no question to anyone: to a certificate authority, or from the cache.
    fn ready_response(&self, request: &HttpRequest, now: Timestamp) -> Option<HttpResponse> {
        self.challenge_response(request).or_else(|| self.cached_response(request, now))
    }

    /// The response to a certificate authority (RFC 8555 section 8.3). A token that is not ours may be
    /// the name of a file.
    fn challenge_response(&self, request: &HttpRequest) -> Option<HttpResponse> {
        let answer = self.listener.context.challenges.http_answer(&request.path)?;
        let (content_type, content) = ("application/octet-stream", answer.as_bytes().into());
        Some(HttpResponse::Document(Document { error: None, content_type, content, fields: "" }))
    }

    /// The response from the cache.
    fn cached_response(&self, request: &HttpRequest, now: Timestamp) -> Option<HttpResponse> {
        let HttpProtocol { settings, content, .. } = &self.listener.protocol;
        let HttpContent::Files(files) = content else { return None };
        if settings.content.requires_login() && !self.is_logged_in(request, now) {
            return None;
        }
        files.cached(&request.path, now).map(HttpResponse::Resource)
    }

    async fn respond(&mut self, request: HttpRequest) -> HttpResponse {
        if let Err(status) = self.check_login(&request).await {
            return HttpResponse::Error(status);
        }
        let (context, now) = (&self.listener.context, RequestTime::now());
        let answer = match (&self.listener.protocol.content, &mut self.login) {
            (HttpContent::Files(files), _) => files.respond(request, now, &*context.operator_log).await,
            (HttpContent::Mailboxes(mailboxes), Some(login)) => {
                mailboxes.respond(&mut login.mailbox, &request, now, context).await
            }
            // Mailboxes require a login, and it has succeeded.
            (HttpContent::Mailboxes(_), None) => HttpResponse::Error(ErrorStatus::Unauthorized).into(),
            (HttpContent::Nothing, _) => HttpResponse::Error(ErrorStatus::NotFound).into(),
        };
        self.source = answer.source;
        answer.response
    }

    fn is_logged_in(&self, request: &HttpRequest, now: Timestamp) -> bool {
        let is_same = |login: &Login| request.authorization.as_ref() == Some(&login.credentials);
        self.login.as_ref().is_some_and(|login| now < login.valid_until && is_same(login))
    }

    /// Checks the credentials of a request, if they are required.
    async fn check_login(&mut self, request: &HttpRequest) -> Result<(), ErrorStatus> {
        let (context, settings) = (&self.listener.context, &self.listener.protocol.settings);
        if !settings.content.requires_login() || self.is_logged_in(request, net::steady_now()) {
            return Ok(());
        }
        self.login = None;
        let is_secure = self.client.security.is_some();
        let Some(checker) = context.credentials.as_ref().filter(|_| is_secure || settings.clear_text_logins) else {
            return Err(ErrorStatus::Forbidden);
        };
        let Some(credentials) = &request.authorization else { return Err(ErrorStatus::Unauthorized) };
        let BasicCredentials { user, password } = credentials;
        let client = Some(self.client.address);
        let verdict = checker.answer_password(user, password, client, &*context.operator_log).await;
        let (result, accepted) = match verdict {
            PasswordVerdict::Accepted { user } => ("ok", Ok(user)),
            PasswordVerdict::Refused => ("refused", Err(ErrorStatus::Unauthorized)),
            PasswordVerdict::Throttled => ("throttled", Err(ErrorStatus::TooManyRequests)),
            PasswordVerdict::Unavailable => ("unavailable", Err(ErrorStatus::Unavailable)),
        };
        context.event_log.write(MailEvent::Login {
            client,
            helo: "".into(),
            user: user.clone(),
            mechanism: "BASIC",
            result,
        });
        let mailbox = UserMailbox::new(accepted?);
        let valid_until = net::steady_now() + LOGIN_TIME_MAX;
        self.login = Some(Box::new(Login { credentials: credentials.clone(), valid_until, mailbox }));
        Ok(())
    }
}

impl ConnectionHandler for HttpSession {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.server.handle_input(now, input);
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.server.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(login) = &mut self.login {
            login.mailbox.expire(now);
        }
        self.server.handle_timeout(now);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        self.server.handle_stop();
    }

    async fn work(&mut self) {
        while self.server.has_work() {
            let now = net::steady_now();
            let Some(request) = with_date(|date| self.server.poll_request(now, date)) else { return };
            let response = match self.ready_response(&request, now) {
                Some(response) => response,
                // Boxed: a session reserves room for it all the time.
                None => Box::pin(self.respond(request)).await,
            };
            self.listener.context.counters.count_response(matches!(response, HttpResponse::Error(_)));
            with_date(|date| self.server.handle_response(net::steady_now(), date, response));
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        match (self.server.output(), &self.source.file) {
            (HttpOutput::Bytes(bytes), _) => OutputPiece::Bytes(bytes),
            (HttpOutput::Pair(first, second), _) => OutputPiece::Pair(first, second),
            (HttpOutput::Head(bytes), _) => OutputPiece::Head(bytes),
            (HttpOutput::File { offset, octets }, Some(open)) => {
                let range = FileRange { file: &open.file, offset, octets };
                match self.listener.protocol.settings.sendfile {
                    true => OutputPiece::File(range),
                    false => OutputPiece::FileCopy(range),
                }
            }
            // A resource in a file comes with its file.
            (HttpOutput::File { .. }, None) => OutputPiece::Bytes(&[]),
        }
    }

    fn handle_sent(&mut self, count: usize) {
        self.server.handle_sent(net::steady_now(), count);
        if !self.server.is_sending() {
            self.source = ResponseSource::default();
        }
    }

    fn handle_file_failed(&mut self, error: &io::Error) {
        let Some(OpenFile { path, .. }) = &self.source.file else { return };
        let user = self.login.as_ref().map(|login| format!(" to user {:?}", login.credentials.user));
        let user = user.unwrap_or_default();
        self.listener.context.operator_log.log_line(format_args!("cannot serve {path}{user}: {error}"));
    }

    fn has_work(&self) -> bool {
        self.server.has_work()
    }

    /// Also when to forget the listing of a mailbox.
    fn deadline(&self) -> Option<Timestamp> {
        let deadline = self.server.deadline()?;
        let expiry = self.login.as_ref().and_then(|login| login.mailbox.expiry());
        Some(expiry.map_or(deadline, |expiry| expiry.min(deadline)))
    }

    fn wants_close(&self) -> bool {
        self.server.wants_close()
    }
}

/// Calls this with the current date. It must not call this again.
fn with_date<T>(work: impl FnOnce(&HttpDate) -> T) -> T {
    DATE.with_borrow_mut(|date| {
        date.advance(SystemTime::now().into());
        work(date)
    })
}
