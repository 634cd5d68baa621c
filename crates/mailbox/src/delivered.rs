//! Recovery after a crash: finds the messages of a batch that are already in their mailboxes.
//!
//! A reader that has seen a message moves it from `new/` to `cur/` and adds flags to its name, so
//! both directories are searched for the base of the name. Each mailbox is read once per batch. If
//! a mailbox cannot be read, its messages are deferred rather than delivered twice.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::MaildirMessage;
use crate::name::{FileNames, base_of};

/// The result by the message's index in the batch: its open file, or the error of searching its
/// mailbox. Messages that were not found or not searched for have no entry.
pub(crate) type DeliveredFiles = HashMap<usize, io::Result<File>>;

/// Batch indexes by the base of the file name.
type WantedNames = HashMap<Vec<u8>, usize>;

/// Searches for the recovered messages among `messages`.
pub(crate) fn find<T>(messages: &[MaildirMessage<T>], names: &FileNames) -> DeliveredFiles {
    let mut by_folder: HashMap<&Path, WantedNames> = HashMap::new();
    for (index, message) in messages.iter().enumerate().filter(|(_, letter)| letter.recovered) {
        let base = names.base(message.accepted_at, message.id, message.ordinal);
        by_folder.entry(&message.folder).or_default().insert(base.into_bytes(), index);
    }
    let mut delivered = DeliveredFiles::new();
    for (folder, wanted) in &by_folder {
        // In this order: a file that a reader moves during the search is found in one of the two
        // directories.
        let searched = ["new", "cur"].iter().try_for_each(|part| search(&folder.join(part), wanted, &mut delivered));
        if let Err(error) = searched {
            delivered.extend(wanted.values().map(|&place| (place, Err(error.kind().into()))));
        }
    }
    delivered
}

fn search(part: &Path, wanted: &WantedNames, sightings: &mut DeliveredFiles) -> io::Result<()> {
    let entries = match part.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        if let Some(&place) = wanted.get(base_of(name.as_bytes())) {
            add_file(part, &name, place, sightings)?;
        }
    }
    Ok(())
}

fn add_file(part: &Path, name: &OsStr, place: usize, sightings: &mut DeliveredFiles) -> io::Result<()> {
    match File::open(part.join(name)) {
        // A reader has just moved or deleted it. If it moved to cur/, the search there finds it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => {
            sightings.insert(place, Ok(file?));
            Ok(())
        }
    }
}
