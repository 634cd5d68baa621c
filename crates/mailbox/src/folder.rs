//! Creates missing Maildirs, and keeps one open handle per file system to sync it.
//!
//! `syncfs` reports write errors since its handle was opened, so the handle must be a file that was
//! opened *before* the messages were written. The handle is closed when no message waits for its
//! file system, which can then be unmounted, and after a failed sync, since that fails all waiting
//! messages.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::Dev;

/// A file system, identified by its device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(Dev);

/// The file systems with messages waiting for a sync.
#[derive(Default)]
pub(crate) struct FileSystems {
    handles: Vec<(Device, File)>,
}

/// The file systems that failed to sync, with the errors.
pub(crate) struct SyncFailures(Vec<(Device, io::Error)>);

impl FileSystems {
    /// Registers the file system of `file` for the following syncs.
    pub(crate) fn register(&mut self, file: &File) -> io::Result<Device> {
        let device = Device(rustix::fs::fstat(file)?.st_dev);
        if !self.handles.iter().any(|(known, _)| *known == device) {
            self.handles.push((device, file.try_clone()?));
        }
        Ok(device)
    }

    /// Makes everything written so far durable.
    pub(crate) fn sync(&self) -> SyncFailures {
        let sync = |(device, handle): &(Device, File)| Some((*device, rustix::fs::syncfs(handle).err()?.into()));
        SyncFailures(self.handles.iter().filter_map(sync).collect())
    }

    /// Closes the handles of all other file systems.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(Device) -> bool) {
        self.handles.retain(|(device, _)| is_needed(*device));
    }

    /// Makes the next sync of every file system fail: a handle opened with `O_PATH` cannot be
    /// synced.
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

impl SyncFailures {
    /// Whether messages on `device` are durable. The error is created anew for each message.
    pub(crate) fn check(&self, device: Device) -> io::Result<()> {
        match self.0.iter().find(|(failed, _)| *failed == device) {
            None => Ok(()),
            Some((_, error)) => Err(error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)),
        }
    }
}

/// Creates the Maildir and its parent directories if missing, accessible to the mail user only.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
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
        create(&folder).unwrap();
        create(&folder).unwrap();
        for path in
            ["example.org", "example.org/bob", "example.org/bob/tmp", "example.org/bob/new", "example.org/bob/cur"]
        {
            let mode = root.path().join(path).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{path}");
        }
    }

    #[test]
    fn a_file_system_has_one_handle_until_it_is_closed() {
        let file = tempfile::tempfile().unwrap();
        let mut systems = FileSystems::default();
        let device = systems.register(&file).unwrap();
        assert_eq!(systems.register(&file).unwrap(), device);
        let other = systems.register(&File::open("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(systems.len(), 2);
        systems.retain(|kept| kept == other);
        assert_eq!(systems.len(), 1);
    }
}
