//! The files of a folder: looked up, cached if they are small, and listed.
//!
//! A response is a snapshot of one file: never part of one version and part of another, except that
//! a large file may be overwritten in place while it is sent. A file that becomes shorter than
//! announced ends its connection.

mod content_type;
mod file_cache;
mod file_root;
mod file_store;
mod listing;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mail::OperatorLog;
use net::run_on_disk_thread;
use protocol::http::server::{ErrorStatus, HttpRequest, HttpResponse, encode_path};
use rustix::io::Errno;

use super::file_version::DiskWait;
use super::{ContentResponse, OpenFile, RequestTime, ResponseSource};

pub use file_root::HttpSetupError;

pub(super) use file_store::FileStore;

use file_store::Found;

/// Which files are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// Their folder. No path leads out of it, except for what is mounted in it.
    pub folder: PathBuf,
    /// The files that stand for their folder, the first one that exists.
    pub index: Vec<Box<str>>,
    /// Whether a folder without such a file is listed.
    pub lists_folders: bool,
    /// Whether clients must log in.
    pub requires_login: bool,
    /// The cache of small files.
    pub cache: FileCacheSettings,
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

impl FileSettings {
    /// The defaults for the files in this folder.
    pub fn new(folder: PathBuf) -> FileSettings {
        FileSettings {
            folder,
            index: vec!["index.html".into()],
            lists_folders: false,
            requires_login: false,
            cache: FileCacheSettings::default(),
        }
    }
}

impl Default for FileCacheSettings {
    fn default() -> Self {
        FileCacheSettings { time: Duration::from_secs(1), entries_max: 8192, octets_max: 64 << 20 }
    }
}

impl FileStore {
    /// Answers a request. What is not in the kernel's caches is looked up and read by a disk thread.
    pub(super) async fn respond(
        self: &Arc<Self>,
        request: HttpRequest,
        now: RequestTime,
        log: &dyn OperatorLog,
    ) -> ContentResponse {
        let HttpRequest { path, query, .. } = request;
        let path: Arc<[u8]> = path.into();
        let found = match self.find(&path, now, DiskWait::Never) {
            Err(Errno::AGAIN) => {
                let (files, path) = (self.clone(), path.clone());
                let find = move || files.find(&path, now, DiskWait::Allowed);
                run_on_disk_thread(find).await.and_then(|found| Ok(found?))
            }
            found => found.map_err(io::Error::from),
        };
        let response = match found {
            Ok(Found::Small(file)) => HttpResponse::Resource(file.resource.clone()),
            Ok(Found::Large(resource, file)) => {
                let file = OpenFile { file, path: path.escape_ascii().to_string().into() };
                let source = ResponseSource { file: Some(file), ..ResponseSource::default() };
                return ContentResponse { response: HttpResponse::Resource(Arc::new(resource)), source };
            }
            Ok(Found::Folder) => HttpResponse::Moved(folder_location(&path, query.as_deref())),
            Ok(Found::Listing(page)) => HttpResponse::Page { html: page.into(), fields: "" },
            Ok(Found::Forbidden) => HttpResponse::Error(ErrorStatus::Forbidden),
            Ok(Found::Missing) => HttpResponse::Error(ErrorStatus::NotFound),
            Err(error) => {
                log.log_line(format_args!("cannot serve {}: {error}", path.escape_ascii()));
                HttpResponse::Error(ErrorStatus::Unavailable)
            }
        };
        response.into()
    }
}

/// Where a folder is whose path has no final slash.
fn folder_location(path: &[u8], query: Option<&[u8]>) -> String {
    let query = query.map(|query| format!("?{}", String::from_utf8_lossy(query))).unwrap_or_default();
    format!("{}/{query}", encode_path(path))
}
