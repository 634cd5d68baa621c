//! The session of one client: answers its requests with files, and checks its logins.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mail::{MailEvent, Timestamp};
use net::{AdmittedClient, ConnectionHandler, FileRange, OutputPiece, run_on_disk_thread};
use protocol::http::server::{
    BasicCredentials, ErrorStatus, HttpDate, HttpOutput, HttpRequest, HttpResponse, HttpServer, encode_path,
};
use protocol::sasl::PasswordVerdict;
use rustix::io::Errno;

use super::HttpProtocol;
use super::files::{DiskWait, FindTime, Found};
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
    /// The file of the response that is being sent.
    file: Option<File>,
    /// Boxed: most listeners need no login.
    login: Option<Box<Login>>,
}

/// A login that succeeded.
struct Login {
    credentials: BasicCredentials,
    valid_until: Timestamp,
}

impl HttpSession {
    pub(super) fn new(listener: RetrievalListener<HttpProtocol>, client: AdmittedClient) -> HttpSession {
        let now = net::steady_now();
        // Hashes have random keys.
        let seed = RandomState::new().hash_one(now);
        let server = HttpServer::new(listener.protocol.server_config.clone(), now, seed);
        HttpSession { listener, client, server, file: None, login: None }
    }

    /// The response from the cache, which needs no question to anyone.
    fn cached_response(&self, request: &HttpRequest, now: Timestamp) -> Option<HttpResponse> {
        let HttpProtocol { settings, files, .. } = &self.listener.protocol;
        if settings.requires_login && !self.is_logged_in(request, now) {
            return None;
        }
        files.cached(&request.path, now).map(HttpResponse::Resource)
    }

    async fn respond(&mut self, request: HttpRequest) -> HttpResponse {
        match self.check_login(&request).await {
            Ok(()) => self.find_file(request).await,
            Err(status) => HttpResponse::Error(status),
        }
    }

    async fn find_file(&mut self, request: HttpRequest) -> HttpResponse {
        let HttpRequest { path, query, .. } = request;
        let path: Arc<[u8]> = path.into();
        let now = FindTime { steady: net::steady_now(), wall: SystemTime::now().into() };
        let files = &self.listener.protocol.files;
        let found = match files.find(&path, now, DiskWait::Never) {
            Err(Errno::AGAIN) => {
                let (files, path) = (files.clone(), path.clone());
                let find = move || files.find(&path, now, DiskWait::Allowed);
                run_on_disk_thread(find).await.and_then(|found| Ok(found?))
            }
            found => found.map_err(io::Error::from),
        };
        match found {
            Ok(Found::Small(file)) => HttpResponse::Resource(file.resource.clone()),
            Ok(Found::Large(resource, file)) => {
                self.file = Some(file);
                HttpResponse::Resource(Arc::new(resource))
            }
            Ok(Found::Folder) => HttpResponse::Moved(folder_location(&path, query.as_deref())),
            Ok(Found::Listing(page)) => HttpResponse::Page { html: page.into(), fields: "" },
            Ok(Found::Forbidden) => HttpResponse::Error(ErrorStatus::Forbidden),
            Ok(Found::Missing) => HttpResponse::Error(ErrorStatus::NotFound),
            Err(error) => {
                let path = path.escape_ascii();
                self.listener.context.operator_log.log_line(format_args!("cannot serve {path}: {error}"));
                HttpResponse::Error(ErrorStatus::Unavailable)
            }
        }
    }

    fn is_logged_in(&self, request: &HttpRequest, now: Timestamp) -> bool {
        let is_same = |login: &Login| request.authorization.as_ref() == Some(&login.credentials);
        self.login.as_ref().is_some_and(|login| now < login.valid_until && is_same(login))
    }

    /// Checks the credentials of a request, if they are required.
    async fn check_login(&mut self, request: &HttpRequest) -> Result<(), ErrorStatus> {
        let (context, settings) = (&self.listener.context, &self.listener.protocol.settings);
        if !settings.requires_login || self.is_logged_in(request, net::steady_now()) {
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
        let (result, refusal) = match verdict {
            PasswordVerdict::Accepted { .. } => ("ok", None),
            PasswordVerdict::Refused => ("refused", Some(ErrorStatus::Unauthorized)),
            PasswordVerdict::Throttled => ("throttled", Some(ErrorStatus::TooManyRequests)),
            PasswordVerdict::Unavailable => ("unavailable", Some(ErrorStatus::Unavailable)),
        };
        context.event_log.write(MailEvent::Login {
            client,
            helo: "".into(),
            user: user.clone(),
            mechanism: "BASIC",
            result,
        });
        if let Some(status) = refusal {
            return Err(status);
        }
        let valid_until = net::steady_now() + LOGIN_TIME_MAX;
        self.login = Some(Box::new(Login { credentials: credentials.clone(), valid_until }));
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
        self.server.handle_timeout(now);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        self.server.handle_stop();
    }

    async fn work(&mut self) {
        while self.server.has_work() {
            let now = net::steady_now();
            let Some(request) = with_date(|date| self.server.poll_request(now, date)) else { return };
            let response = match self.cached_response(&request, now) {
                Some(response) => response,
                // Boxed: a session reserves room for it all the time.
                None => Box::pin(self.respond(request)).await,
            };
            with_date(|date| self.server.handle_response(net::steady_now(), date, response));
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        match (self.server.output(), &self.file) {
            (HttpOutput::Bytes(bytes), _) => OutputPiece::Bytes(bytes),
            (HttpOutput::Pair(first, second), _) => OutputPiece::Pair(first, second),
            (HttpOutput::Head(bytes), _) => OutputPiece::Head(bytes),
            (HttpOutput::File { offset, octets }, Some(file)) => {
                let range = FileRange { file, offset, octets };
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
        if self.file.is_some() && !self.server.is_sending() {
            self.file = None;
        }
    }

    fn has_work(&self) -> bool {
        self.server.has_work()
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.server.deadline()
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

/// Where a folder is whose path has no final slash.
fn folder_location(path: &[u8], query: Option<&[u8]>) -> String {
    let query = query.map(|query| format!("?{}", String::from_utf8_lossy(query))).unwrap_or_default();
    format!("{}/{query}", encode_path(path))
}
