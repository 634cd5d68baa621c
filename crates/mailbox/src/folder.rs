//! Folders and file systems: makes Maildirs that are not there yet, and keeps one handle per file system to sync it.
//!
//! `syncfs` reports the write errors since its handle was opened. So a handle is a file that was opened *before* the
//! letters were written. It is given up when nothing waits for its file system, which can then be unmounted; so it is
//! after a sync that failed, since all that waited for it is given back.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::Dev;

/// A file system, by the number that stat gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(Dev);

/// The file systems that letters wait for.
#[derive(Default)]
pub(crate) struct FileSystems {
    handles: Vec<(Device, File)>,
}

/// Those that failed to sync, and how.
pub(crate) struct Failures(Vec<(Device, io::Error)>);

impl FileSystems {
    /// The file system of `file`; it takes part in syncs from now on.
    pub(crate) fn join(&mut self, file: &File) -> io::Result<Device> {
        let device = Device(rustix::fs::fstat(file)?.st_dev);
        if !self.handles.iter().any(|(known, _)| *known == device) {
            self.handles.push((device, file.try_clone()?));
        }
        Ok(device)
    }

    /// Makes durable all that was written so far.
    pub(crate) fn sync(&self) -> Failures {
        let sync = |(device, handle): &(Device, File)| Some((*device, rustix::fs::syncfs(handle).err()?.into()));
        Failures(self.handles.iter().filter_map(sync).collect())
    }

    /// Gives up the handles of all other file systems.
    pub(crate) fn keep_only(&mut self, is_needed: impl Fn(Device) -> bool) {
        self.handles.retain(|(device, _)| is_needed(*device));
    }

    /// Lets the next sync of every file system fail: a handle that is only a path cannot be synced.
    #[cfg(test)]
    pub(crate) fn break_handles(&mut self) {
        use rustix::fs::{Mode, OFlags};
        for (_, handle) in &mut self.handles {
            *handle = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap().into();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }
}

impl Failures {
    /// Whether letters on `device` are safe; the error is made anew for each letter.
    pub(crate) fn check(&self, device: Device) -> io::Result<()> {
        match self.0.iter().find(|(failed, _)| *failed == device) {
            None => Ok(()),
            Some((_, error)) => Err(error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)),
        }
    }
}

/// Makes the Maildir and its parents, where they are missing, for the mail user's eyes only.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    ["tmp", "new", "cur"].iter().try_for_each(|part| builder.create(folder.join(part)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_maildir_and_its_parents_are_for_their_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("example.org/bob");
        make(&folder).unwrap();
        make(&folder).unwrap();
        for path in
            ["example.org", "example.org/bob", "example.org/bob/tmp", "example.org/bob/new", "example.org/bob/cur"]
        {
            let mode = root.path().join(path).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{path}");
        }
    }

    #[test]
    fn a_file_system_has_one_handle_until_it_is_given_up() {
        let file = tempfile::tempfile().unwrap();
        let mut systems = FileSystems::default();
        let device = systems.join(&file).unwrap();
        assert_eq!(systems.join(&file).unwrap(), device);
        let other = systems.join(&File::open("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(systems.len(), 2);
        systems.keep_only(|kept| kept == other);
        assert_eq!(systems.len(), 1);
    }
}
