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

use crate::Letter;
use crate::name::{Names, base_of};

/// The result by the message's index in the batch: its open file, or the error of searching its
/// mailbox. Messages that were not found or not searched for have no entry.
pub(crate) type Sightings = HashMap<usize, io::Result<File>>;

/// Batch indexes by the base of the file name.
type Wanted = HashMap<Vec<u8>, usize>;

/// Searches for the recovered messages among `letters`.
pub(crate) fn find<T>(letters: &[Letter<T>], names: &Names) -> Sightings {
    let mut by_folder: HashMap<&Path, Wanted> = HashMap::new();
    for (place, letter) in letters.iter().enumerate().filter(|(_, letter)| letter.recovered) {
        let base = names.base(letter.accepted_at, letter.id, letter.ordinal);
        by_folder.entry(&letter.folder).or_default().insert(base.into_bytes(), place);
    }
    let mut sightings = Sightings::new();
    for (folder, wanted) in &by_folder {
        // In this order: a file that a reader moves during the search is found in one of the two
        // directories.
        let searched = ["new", "cur"].iter().try_for_each(|part| search(&folder.join(part), wanted, &mut sightings));
        if let Err(error) = searched {
            sightings.extend(wanted.values().map(|&place| (place, Err(error.kind().into()))));
        }
    }
    sightings
}

fn search(part: &Path, wanted: &Wanted, sightings: &mut Sightings) -> io::Result<()> {
    let entries = match part.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        if let Some(&place) = wanted.get(base_of(name.as_bytes())) {
            see(part, &name, place, sightings)?;
        }
    }
    Ok(())
}

fn see(part: &Path, name: &OsStr, place: usize, sightings: &mut Sightings) -> io::Result<()> {
    match File::open(part.join(name)) {
        // A reader has just moved or deleted it. If it moved to cur/, the search there finds it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => {
            sightings.insert(place, Ok(file?));
            Ok(())
        }
    }
}
