//! Finds what a path stands for: looks it up in the folder, and reads small files.

use std::fs::File;
use std::sync::Arc;

use mail::Timestamp;
use protocol::http::server::{Content, Resource};
use rustix::fs::Stat;
use rustix::io::Errno;

use super::content_type::content_type;
use super::file_cache::{FileCache, SmallFile};
use super::file_root::{FileRoot, HttpSetupError, OpenedPath};
use super::{FileSettings, listing};
use crate::http::RequestTime;
use crate::http::file_version::{self, DiskWait, FileVersion};

/// The folder and the cache.
pub(in crate::http) struct FileStore {
    root: FileRoot,
    cache: FileCache,
    index: Vec<Box<str>>,
    lists_folders: bool,
}

/// What a path stands for.
pub(super) enum Found {
    Small(Arc<SmallFile>),
    Large(Resource, File),
    /// A folder, but the path has no final slash.
    Folder,
    Listing(Vec<u8>),
    /// A folder that is not listed, or no permission to read.
    Forbidden,
    Missing,
}

/// What a search depends on beside its path.
struct Search<'a> {
    /// What the path led to before.
    known: Option<&'a Arc<SmallFile>>,
    wall: Timestamp,
    wait: DiskWait,
}

impl FileStore {
    pub(in crate::http) fn open(settings: &FileSettings) -> Result<FileStore, HttpSetupError> {
        Ok(FileStore {
            root: FileRoot::open(&settings.folder)?,
            cache: FileCache::new(&settings.cache),
            index: settings.index.clone(),
            lists_folders: settings.lists_folders,
        })
    }

    /// The resource of a path, if it was checked a moment ago.
    pub(in crate::http) fn cached(&self, path: &[u8], now: Timestamp) -> Option<Arc<Resource>> {
        let cached = self.cache.get(path, now)?;
        cached.is_fresh.then(|| cached.file.resource.clone())
    }

    /// Finds what a path stands for now. Fails with `AGAIN` if this would have to wait for the disk.
    pub(super) fn find(&self, path: &[u8], now: RequestTime, wait: DiskWait) -> Result<Found, Errno> {
        let known = self.cache.get(path, now.steady).map(|cached| cached.file);
        let search = Search { known: known.as_ref(), wall: now.wall, wait };
        let found = match self.find_uncached(path, &search) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG | Errno::NXIO) => {
                Found::Missing
            }
            Err(Errno::ACCESS | Errno::PERM) => Found::Forbidden,
            found => found?,
        };
        match &found {
            Found::Small(file) => self.cache.insert(path, file, now.steady),
            _ if known.is_some() => self.cache.remove(path),
            _ => {}
        }
        Ok(found)
    }

    fn find_uncached(&self, path: &[u8], search: &Search<'_>) -> Result<Found, Errno> {
        if is_hidden(path) {
            return Ok(Found::Missing);
        }
        if path.ends_with(b"/") {
            return self.find_folder(path, search);
        }
        match self.root.look_up(path, search.wait)? {
            OpenedPath::File(file, stat) => search.load(path, file, &stat),
            OpenedPath::Folder(_) => Ok(Found::Folder),
            OpenedPath::Special => Ok(Found::Missing),
        }
    }

    fn find_folder(&self, path: &[u8], search: &Search<'_>) -> Result<Found, Errno> {
        for name in &self.index {
            let path = [path, name.as_bytes()].concat();
            match self.root.look_up(&path, search.wait) {
                Ok(OpenedPath::File(file, stat)) => return search.load(&path, file, &stat),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        match self.root.look_up(path, search.wait)? {
            OpenedPath::Folder(_) if !self.lists_folders => Ok(Found::Forbidden),
            // Reading a folder may always wait for the disk.
            OpenedPath::Folder(_) if search.wait == DiskWait::Never => Err(Errno::AGAIN),
            OpenedPath::Folder(folder) => listing::list_folder(path, folder).map(Found::Listing),
            OpenedPath::File(..) | OpenedPath::Special => Ok(Found::Missing),
        }
    }
}

/// Names with a dot are not served, except for `/.well-known` (RFC 8615).
fn is_hidden(path: &[u8]) -> bool {
    let mut names = path.split(|octet| *octet == b'/').skip(1);
    let is_dotted = |name: &[u8]| name.starts_with(b".");
    names.next().is_some_and(|first| is_dotted(first) && first != b".well-known") || names.any(is_dotted)
}

impl Search<'_> {
    /// Reads the file if it is small, and not known in this version.
    fn load(&self, path: &[u8], file: File, stat: &Stat) -> Result<Found, Errno> {
        let version = FileVersion::new(stat);
        if let Some(known) = self.known.filter(|known| known.is_settled && known.version == version) {
            return Ok(Found::Small(known.clone()));
        }
        let (version, content) = file_version::load(&file, version, self.wait)?;
        let is_large = matches!(content, Content::File { .. });
        let resource = version.resource(content, self.wall, content_type(path));
        if is_large {
            return Ok(Found::Large(resource, file));
        }
        let is_settled = version.is_settled(self.wall);
        Ok(Found::Small(Arc::new(SmallFile { resource: Arc::new(resource), version, is_settled })))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::file_version::SETTLED_AFTER;

    #[test]
    fn hidden_names_are_those_with_a_dot() {
        for path in ["/.git/config", "/a/.htaccess", "/.well-known/.x", "/a/.well-known/x", "/.well-known2"] {
            assert!(is_hidden(path.as_bytes()), "{path}");
        }
        for path in ["/", "/a.b", "/.well-known/acme-challenge/x", "/a./b"] {
            assert!(!is_hidden(path.as_bytes()), "{path}");
        }
    }

    /// A store with a folder of files that are as long as their numbers say, and a time of its clocks.
    fn store(count: usize, entries_max: usize, octets_max: usize) -> (FileStore, tempfile::TempDir, RequestTime) {
        let folder = tempfile::TempDir::new().unwrap();
        for number in 0..count {
            std::fs::write(folder.path().join(number.to_string()), vec![b'x'; number]).unwrap();
        }
        let mut settings = FileSettings::new(folder.path().to_owned());
        (settings.cache.entries_max, settings.cache.octets_max) = (entries_max, octets_max);
        let now = std::time::SystemTime::now().into();
        (FileStore::open(&settings).unwrap(), folder, RequestTime { steady: now, wall: now })
    }

    fn find(store: &FileStore, path: &str, now: RequestTime) -> Arc<SmallFile> {
        match store.find(path.as_bytes(), now, DiskWait::Allowed).unwrap() {
            Found::Small(file) => file,
            _ => panic!("{path} is not a small file"),
        }
    }

    #[test]
    fn the_cache_keeps_within_its_bounds() {
        for (entries_max, octets_max) in [(64, 1 << 20), (8192, 100_000), (0, 1 << 20), (8192, 0)] {
            let (store, _folder, now) = store(500, entries_max, octets_max);
            for number in (0..500).chain(0..500) {
                let file = find(&store, &format!("/{number}"), now);
                assert_eq!(file.resource.octets(), number);
                let (entries, octets) = store.cache.usage();
                assert!(entries <= entries_max && octets <= octets_max, "{entries} entries, {octets} octets");
            }
        }
        let (store, _folder, now) = store(500, 8192, 1 << 20);
        (0..500).for_each(|number| drop(find(&store, &format!("/{number}"), now)));
        assert_eq!(store.cache.usage().0, 500);
        assert!((0..500).all(|number| store.cached(format!("/{number}").as_bytes(), now.steady).is_some()));
    }

    #[test]
    fn a_file_is_read_again_unless_its_change_would_show() {
        let (store, folder, now) = store(2, 100, 1 << 20);
        let later = RequestTime { wall: now.wall + SETTLED_AFTER + Duration::from_secs(1), ..now };
        let new = find(&store, "/1", now);
        let settled = find(&store, "/1", later);
        assert!(!Arc::ptr_eq(&new, &settled), "a file that had just changed was not read again");
        assert!(Arc::ptr_eq(&settled, &find(&store, "/1", later)), "a known file was read again");
        std::fs::write(folder.path().join("1"), b"y").unwrap();
        assert_eq!(find(&store, "/1", later).resource.bytes(), Some(&b"y"[..]));
        std::fs::remove_file(folder.path().join("1")).unwrap();
        assert!(matches!(store.find(b"/1", later, DiskWait::Allowed), Ok(Found::Missing)));
        assert!(store.cached(b"/1", now.steady).is_none(), "a removed file stayed in the cache");
    }
}
