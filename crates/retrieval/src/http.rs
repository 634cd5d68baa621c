//! Files by HTTP/1.1: [`HttpProtocol`], its settings, and what its sessions share.
//!
//! | request | response |
//! |---|---|
//! | a file of at most 64 KiB | its bytes, from a cache that checks each file once a second |
//! | a larger file | opened for this response, and sent by the kernel |
//! | a folder without the final slash | 301 |
//! | a folder | its index file; else a listing, or 403 |
//! | a hidden name, a way out of the root, a pipe or a device | 404 |
//! | without valid credentials, if they are required | 401, 403 in clear text, 429 if throttled, 503 |
//!
//! A response is a snapshot of one file: never part of one version and part of another, except that
//! a large file may be overwritten in place while it is sent. A file that becomes shorter than
//! announced ends its connection.
//!
//! The thread of a session never waits for the disk: a path that is not in the kernel's caches is
//! looked up, and read, by a disk thread.

mod files;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler};
use protocol::http::server::{HttpServerConfig, HttpServerLimits};

use crate::{RetrievalListener, RetrievalProtocol};

pub use files::HttpSetupError;

use files::FileStore;
use session::HttpSession;

/// What a client gets that is not admitted, before it has sent a request.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 60\r\n\
    Connection: close\r\n\r\n";

/// The settings of a listener that serves files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// The folder of the files. No path leads out of it, except for what is mounted in it.
    pub files: PathBuf,
    /// The files that stand for their folder, the first one that exists.
    pub index: Vec<Box<str>>,
    /// Whether a folder without such a file is listed.
    pub lists_folders: bool,
    /// Whether large files are sent without a copy in clear text. Then they must not be overwritten
    /// in place: a client could get a mixture of both versions.
    pub sendfile: bool,
    /// Whether clients must log in.
    pub requires_login: bool,
    /// What they log in to, as browsers show it.
    pub realm: Box<str>,
    /// Whether they may do so in clear text.
    pub clear_text_logins: bool,
    /// The cache of small files.
    pub cache: FileCacheSettings,
    /// What a client may send, and how long it may take.
    pub limits: HttpServerLimits,
}

/// The settings of the cache of small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCacheSettings {
    /// How long a file is served without looking whether it has changed.
    pub time: Duration,
    /// Files in the cache. 0 disables it.
    pub entries_max: usize,
    /// Their octets.
    pub octets_max: usize,
}

impl Default for FileCacheSettings {
    fn default() -> Self {
        FileCacheSettings { time: Duration::from_secs(1), entries_max: 8192, octets_max: 64 << 20 }
    }
}

impl HttpSettings {
    /// The defaults for the files in this folder.
    pub fn new(files: PathBuf) -> HttpSettings {
        HttpSettings {
            files,
            index: vec!["index.html".into()],
            lists_folders: false,
            sendfile: true,
            requires_login: false,
            realm: "files".into(),
            clear_text_logins: false,
            cache: FileCacheSettings::default(),
            limits: HttpServerLimits::default(),
        }
    }
}

/// Files by HTTP. Clones share the folder and the cache.
#[derive(Clone)]
pub struct HttpProtocol {
    settings: Arc<HttpSettings>,
    server_config: Arc<HttpServerConfig>,
    files: Arc<FileStore>,
}

impl HttpProtocol {
    /// Opens the folder, which stays the same one even if it is renamed.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or the kernel cannot confine paths to it.
    pub fn new(settings: HttpSettings) -> Result<HttpProtocol, HttpSetupError> {
        let files = Arc::new(FileStore::open(&settings)?);
        let server_config = HttpServerConfig { realm: settings.realm.clone(), limits: settings.limits };
        Ok(HttpProtocol { settings: Arc::new(settings), server_config: Arc::new(server_config), files })
    }
}

impl RetrievalProtocol for HttpProtocol {
    fn refusal_reply(&self, _reason: AdmissionRefusal) -> Vec<u8> {
        REFUSAL.to_vec()
    }

    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send {
        HttpSession::new(listener, client)
    }
}
