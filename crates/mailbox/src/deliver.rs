//! Durable delivery in batches, by [`MaildirWriter`]. The state table of the crate is its contract.
//!
//! A message costs five system calls (create, stat, write, close, rename) and its share of the one
//! sync of the batch; nearly all of its time is spent in the kernel. Paths are absolute: walking
//! them costs 6 % of the CPU, and a cache of directory handles would mostly miss at hundreds of
//! thousands of mailboxes. A rename takes 5 to 10 % less than link and unlink. Directories are
//! created only after the kernel reports that one is missing.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};
use rustix::io::Errno;

use crate::copy::MessageCopier;
use crate::delivered;
use crate::folder::{self, Device, FileSystems, SyncFailures};
use crate::name::{self, FileNames, Sizes};
use crate::quota::{self, Usage};
use crate::{DeliverError, MaildirMessage, MaildirWriterConfig, QuotaState};

/// Delivers to any number of Maildirs on any number of file systems. For use by one thread; several
/// instances may run in parallel.
pub struct MaildirWriter<T> {
    names: FileNames,
    copier: MessageCopier,
    file_systems: FileSystems,
    /// Linked in `new/`; the next sync makes the names durable.
    linked: Vec<(T, Device)>,
}

/// A message in `tmp/`; the next sync makes its bytes durable.
struct TmpFile<T> {
    ticket: T,
    device: Device,
    folder: PathBuf,
    tmp: PathBuf,
    new: PathBuf,
    /// The size of the file, if a quota counts it.
    counted: Option<u64>,
}

type Results<T> = Vec<(T, Result<(), DeliverError>)>;

impl<T> MaildirWriter<T> {
    /// A writer with no message in progress.
    pub fn new(config: MaildirWriterConfig) -> Self {
        MaildirWriter {
            names: FileNames::new(&config.host),
            copier: MessageCopier::new(config.line_ends),
            file_systems: FileSystems::default(),
            linked: Vec::new(),
        }
    }

    /// Whether all messages passed so far have been returned.
    pub fn is_idle(&self) -> bool {
        self.linked.is_empty()
    }

    /// Processes one batch: writes `messages` to `tmp/`, syncs each file system involved once, and
    /// links the messages into `new/`. Returns the results of the previous batch, whose names this
    /// sync has made durable, and of the messages of this batch that failed. Call it with an empty
    /// batch to finish a burst.
    pub fn deliver_batch(&mut self, messages: Vec<MaildirMessage<T>>) -> Vec<(T, Result<(), DeliverError>)> {
        let mut results = Vec::with_capacity(self.linked.len());
        let tmp_files = self.write_all(messages, &mut results);
        let failures = self.file_systems.sync();
        self.report_synced(&failures, &mut results);
        self.link_all(tmp_files, &failures, &mut results);
        self.file_systems.retain(|device| self.linked.iter().any(|(_, used)| *used == device));
        results
    }

    fn write_all(&mut self, messages: Vec<MaildirMessage<T>>, results: &mut Results<T>) -> Vec<TmpFile<T>> {
        let mut delivered = delivered::find(&messages, &self.names);
        let mut tmp_files = Vec::with_capacity(messages.len());
        for (index, message) in messages.into_iter().enumerate() {
            match delivered.remove(&index) {
                None => match self.write(message) {
                    Ok(message) => tmp_files.push(message),
                    Err((ticket, error)) => results.push((ticket, Err(error))),
                },
                // The file is in its mailbox already, but its name is durable only after the sync
                // of this batch.
                Some(seen) => match seen.and_then(|file| self.file_systems.register(&file)) {
                    Ok(device) => self.linked.push((message.ticket, device)),
                    Err(error) => results.push((message.ticket, Err(error.into()))),
                },
            }
        }
        tmp_files
    }

    /// Writes one message to `tmp/`, unless its mailbox is full.
    fn write(&mut self, message: MaildirMessage<T>) -> Result<TmpFile<T>, (T, DeliverError)> {
        let base = self.names.base(message.accepted_at, message.id, message.ordinal);
        let tmp = path_of(&message.folder, "tmp", &base);
        match self.write_to(&tmp, &message) {
            Ok((device, sizes)) => {
                let new = path_of(&message.folder, "new", &name::with_sizes(&base, sizes));
                let counted = (message.quota == QuotaState::Counted).then_some(sizes.file);
                Ok(TmpFile { ticket: message.ticket, device, folder: message.folder, tmp, new, counted })
            }
            Err(error) => Err((message.ticket, error)),
        }
    }

    fn write_to(&mut self, tmp: &Path, message: &MaildirMessage<T>) -> Result<(Device, Sizes), DeliverError> {
        if message.quota == QuotaState::Full {
            return Err(DeliverError::OverQuota);
        }
        let mut file = create(&message.folder, tmp)?;
        let copied = self.file_systems.register(&file).map_err(DeliverError::from).and_then(|device| {
            let sizes = self.copier.copy(&message.header, &message.body, &mut file)?;
            Ok((device, sizes))
        });
        copied.inspect_err(|_| remove(tmp))
    }

    /// Reports the messages of the previous batch, as durable or as failed to sync.
    fn report_synced(&mut self, failures: &SyncFailures, results: &mut Results<T>) {
        for (ticket, device) in self.linked.drain(..) {
            results.push((ticket, failures.check(device).map_err(DeliverError::Unsynced)));
        }
    }

    fn link_all(&mut self, tmp_files: Vec<TmpFile<T>>, failures: &SyncFailures, results: &mut Results<T>) {
        let mut added = HashMap::new();
        for tmp_file in tmp_files {
            let synced = failures.check(tmp_file.device).map_err(DeliverError::Unsynced);
            match synced.and_then(|()| link(&tmp_file.folder, &tmp_file.tmp, &tmp_file.new).map_err(DeliverError::from))
            {
                Ok(linked) => {
                    if let (LinkResult::New, Some(octets)) = (linked, tmp_file.counted) {
                        let sum: &mut Usage = added.entry(tmp_file.folder).or_default();
                        *sum = *sum + Usage::of_message(octets);
                    }
                    self.linked.push((tmp_file.ticket, tmp_file.device));
                }
                Err(error) => {
                    remove(&tmp_file.tmp);
                    results.push((tmp_file.ticket, Err(error)));
                }
            }
        }
        for (folder, usage) in added {
            // If this fails, the next recount finds the difference; the messages are delivered
            // anyway.
            let _ = quota::record_added_usage(&folder, usage);
        }
    }
}

/// How a message came to be in `new/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkResult {
    New,
    /// An earlier attempt had delivered it; that counts as success.
    AlreadyDelivered,
}

/// Creates a file in `tmp/`. A leftover of a crash with the same name is removed and never written
/// to, since on some file systems it may be the same file as one in `new/` (see
/// [`link_and_remove`]).
fn create(folder: &Path, tmp: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    match options.open(tmp) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => folder::create(folder)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => std::fs::remove_file(tmp)?,
        created => return created,
    }
    options.open(tmp)
}

/// Moves a message from `tmp/` into `new/`, creating the directories if they are missing.
fn link(folder: &Path, tmp: &Path, new: &Path) -> io::Result<LinkResult> {
    match try_link(tmp, new) {
        Err(Errno::NOENT) => folder::create(folder).and_then(|()| Ok(try_link(tmp, new)?)),
        linked => Ok(linked?),
    }
}

fn try_link(tmp: &Path, new: &Path) -> Result<LinkResult, Errno> {
    match renameat_with(CWD, tmp, CWD, new, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => {
            remove(tmp);
            Ok(LinkResult::AlreadyDelivered)
        }
        // NFS and some other file systems cannot rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_and_remove(tmp, new),
        renamed => renamed.map(|()| LinkResult::New),
    }
}

/// The same in two steps. A crash between them leaves one file under two names.
fn link_and_remove(tmp: &Path, new: &Path) -> Result<LinkResult, Errno> {
    let linked = match linkat(CWD, tmp, CWD, new, AtFlags::empty()) {
        Ok(()) => LinkResult::New,
        Err(Errno::EXIST) => LinkResult::AlreadyDelivered,
        Err(error) => return Err(error),
    };
    remove(tmp);
    Ok(linked)
}

/// A file left in `tmp/` does no harm: the next attempt removes it, and so does any cleanup of
/// `tmp/`.
fn remove(tmp: &Path) {
    let _ = std::fs::remove_file(tmp);
}

fn path_of(folder: &Path, part: &str, name: &str) -> PathBuf {
    let mut path = PathBuf::with_capacity(folder.as_os_str().len() + part.len() + name.len() + 2);
    path.push(folder);
    path.push(part);
    path.push(name);
    path
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{Body, BodyFlags, QueueId, SpoolId, Timestamp};

    use super::*;
    use crate::LineEnds;

    fn maildirs() -> MaildirWriter<u64> {
        MaildirWriter::new(MaildirWriterConfig { host: "mx".into(), line_ends: LineEnds::Crlf })
    }

    fn message(folder: &Path, number: u64) -> MaildirMessage<u64> {
        let digest = crc32c::crc32c(b"text\r\n");
        MaildirMessage {
            ticket: number,
            folder: folder.into(),
            id: QueueId::new(SpoolId::new(1), 0, number),
            ordinal: 0,
            accepted_at: Timestamp(1_763_000_000_000),
            header: Vec::new(),
            body: Body::new(Arc::new(b"text\r\n".to_vec()), 0, 6, digest, BodyFlags::default()),
            recovered: false,
            quota: QuotaState::None,
        }
    }

    fn count(part: PathBuf) -> usize {
        part.read_dir().unwrap().count()
    }

    #[test]
    fn after_a_failed_sync_all_waiting_messages_are_deferred_and_the_next_batch_succeeds() {
        let root = tempfile::tempdir().unwrap();
        let mut maildirs = maildirs();
        assert!(maildirs.deliver_batch(vec![message(root.path(), 1)]).is_empty());
        maildirs.file_systems.break_handles();
        let results = maildirs.deliver_batch(vec![message(root.path(), 2)]);
        assert_eq!(results.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [1, 2]);
        assert!(results.iter().all(|(_, result)| matches!(result, Err(DeliverError::Unsynced(_)))), "{results:?}");
        assert!(maildirs.is_idle());
        assert_eq!((count(root.path().join("tmp")), count(root.path().join("new"))), (0, 1));

        assert!(maildirs.deliver_batch(vec![message(root.path(), 1), message(root.path(), 2)]).is_empty());
        let results = maildirs.deliver_batch(Vec::new());
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
        assert_eq!((count(root.path().join("tmp")), count(root.path().join("new"))), (0, 2));
    }

    #[test]
    fn a_file_system_without_waiting_messages_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let mut maildirs = maildirs();
        maildirs.deliver_batch(vec![message(root.path(), 1)]);
        assert_eq!(maildirs.file_systems.len(), 1);
        maildirs.deliver_batch(Vec::new());
        assert_eq!(maildirs.file_systems.len(), 0);
    }

    #[test]
    fn without_a_safe_rename_a_message_is_linked_and_its_tmp_name_removed() {
        let root = tempfile::tempdir().unwrap();
        let (tmp, new) = (root.path().join("tmp"), root.path().join("new"));
        for text in ["first", "second"] {
            std::fs::write(&tmp, text).unwrap();
            link_and_remove(&tmp, &new).unwrap();
            assert!(!tmp.exists());
            assert_eq!(std::fs::read_to_string(&new).unwrap(), "first");
        }
    }

    #[test]
    fn a_leftover_in_tmp_that_is_also_linked_in_new_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        folder::create(root.path()).unwrap();
        let (tmp, new) = (root.path().join("tmp/x"), root.path().join("new/x"));
        std::fs::write(&new, "delivered").unwrap();
        std::fs::hard_link(&new, &tmp).unwrap();
        assert_eq!(create(root.path(), &tmp).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "delivered");
    }
}
