//! HTTP/1.1: [`HttpProtocol`], its settings, and what its sessions share. A listener serves the files
//! of a folder ([`FileSettings`]), or to each user who logs in the messages of the user's mailbox
//! ([`MailboxSettings`]), or nothing. Before that, each answers certificate authorities
//! ([`net::ChallengeStore`]).
//!
//! | request for a file | response |
//! |---|---|
//! | a file of at most 64 KiB | its bytes, from a cache that checks each file once a second |
//! | a larger file | opened for this response, and sent by the kernel |
//! | a folder without the final slash | 301 |
//! | a folder | its index file; else a listing, or 403 |
//! | a hidden name, a way out of the root, a pipe or a device | 404 |
//! | without valid credentials, if they are required | 401, 403 in clear text, 429 if throttled, 503 |
//!
//! | request in a mailbox | response |
//! |---|---|
//! | `/`, `/?page=2` | a page with a hundred messages, newest first |
//! | `/UID.eml` | the message as it is stored |
//! | `/UID/` (301 without the slash) | a page with its main fields and its parts |
//! | `/UID/N/NAME` | part N, decoded; 413 of a message that is too large |
//! | without valid credentials | 401, 403 in clear text, 429 if throttled, 503 |
//! | of a user without mailbox, or with one on another host; the mailbox is unavailable | 404, 403; 503 |
//!
//! The thread of a session never waits for the disk: what is not in the kernel's caches is looked up,
//! and read, by a disk thread.

mod file_version;
mod files;
mod html;
mod mailboxes;
mod session;

use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

use mail::Timestamp;
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler};
use protocol::http::server::{HttpResponse, HttpServerConfig, HttpServerLimits, NOT_ADMITTED};
use tokio::sync::OwnedSemaphorePermit;

use crate::{RetrievalListener, RetrievalProtocol};

pub use files::{FileCacheSettings, FileSettings, HttpSetupError};
pub use mailboxes::{MailboxLimits, MailboxSettings, PAGE_MESSAGES_MAX};

use files::FileStore;
use mailboxes::MailboxStore;
use session::HttpSession;

/// The settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// What it serves.
    pub content: ContentSettings,
    /// Whether large files are sent without a copy in clear text. Then they must not be overwritten
    /// in place: a client could get a mixture of both versions.
    pub sendfile: bool,
    /// What users log in to, as browsers show it.
    pub realm: Box<str>,
    /// Whether they may do so in clear text.
    pub clear_text_logins: bool,
    /// What a client may send, and how long it may take.
    pub limits: HttpServerLimits,
}

/// What a listener serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSettings {
    /// The files of a folder, the same ones to everyone.
    Files(FileSettings),
    /// To each user the user's own mailbox.
    Mailboxes(MailboxSettings),
    /// Nothing but answers to certificate authorities.
    Nothing,
}

impl HttpSettings {
    /// The defaults for this content.
    pub fn new(content: ContentSettings) -> HttpSettings {
        let realm = match content {
            ContentSettings::Files(_) | ContentSettings::Nothing => "files",
            ContentSettings::Mailboxes(_) => "mailbox",
        };
        HttpSettings {
            content,
            sendfile: true,
            realm: realm.into(),
            clear_text_logins: false,
            limits: HttpServerLimits::default(),
        }
    }
}

impl ContentSettings {
    /// Whether clients must log in.
    pub fn requires_login(&self) -> bool {
        match self {
            ContentSettings::Files(files) => files.requires_login,
            ContentSettings::Mailboxes(_) => true,
            ContentSettings::Nothing => false,
        }
    }
}

/// HTTP with the settings of a listener. Clones share the content with its caches.
#[derive(Clone)]
pub struct HttpProtocol {
    settings: Arc<HttpSettings>,
    server_config: Arc<HttpServerConfig>,
    content: HttpContent,
}

#[derive(Clone)]
enum HttpContent {
    Files(Arc<FileStore>),
    Mailboxes(Arc<MailboxStore>),
    Nothing,
}

impl HttpProtocol {
    /// Opens the folder of files, which stays the same one even if it is renamed.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or the kernel cannot confine paths to it.
    pub fn new(settings: HttpSettings) -> Result<HttpProtocol, HttpSetupError> {
        let content = match &settings.content {
            ContentSettings::Files(files) => HttpContent::Files(Arc::new(FileStore::open(files)?)),
            ContentSettings::Mailboxes(mailboxes) => {
                HttpContent::Mailboxes(Arc::new(MailboxStore::new(mailboxes.clone())))
            }
            ContentSettings::Nothing => HttpContent::Nothing,
        };
        let server_config =
            HttpServerConfig { realm: settings.realm.clone(), limits: settings.limits, ..HttpServerConfig::default() };
        Ok(HttpProtocol { settings: Arc::new(settings), server_config: Arc::new(server_config), content })
    }
}

impl RetrievalProtocol for HttpProtocol {
    fn refusal_reply(&self, _reason: AdmissionRefusal) -> Vec<u8> {
        NOT_ADMITTED.to_vec()
    }

    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send {
        HttpSession::new(listener, client)
    }
}

/// When a request is answered.
#[derive(Clone, Copy, Debug)]
struct RequestTime {
    /// Of the clock that measures how long something is trusted.
    steady: Timestamp,
    /// Of the clock of the file system; not after any read.
    wall: Timestamp,
}

impl RequestTime {
    fn now() -> RequestTime {
        RequestTime { steady: net::steady_now(), wall: SystemTime::now().into() }
    }
}

/// The answer to a request.
struct ContentResponse {
    response: HttpResponse,
    source: ResponseSource,
}

/// What has to last until a response is sent.
#[derive(Default)]
struct ResponseSource {
    /// The file of a resource that is not in memory.
    file: Option<OpenFile>,
    /// The right to have it in memory, if that is limited.
    _memory: Option<OwnedSemaphorePermit>,
}

/// A file that is being sent.
struct OpenFile {
    file: File,
    /// The path that it was asked for by, for the log.
    path: Box<str>,
}

impl From<HttpResponse> for ContentResponse {
    fn from(response: HttpResponse) -> ContentResponse {
        ContentResponse { response, source: ResponseSource::default() }
    }
}
