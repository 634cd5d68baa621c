//! After a crash: which letters of a turn are in their mailboxes already.
//!
//! A reader that has seen a letter moves it from `new/` to `cur/` and adds flags to its name, so both are searched,
//! for the base of the name. Each mailbox is read once for a turn. A mailbox that cannot be read says nothing: its
//! letters are put off rather than delivered twice.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Letter;
use crate::name::{Names, base_of};

/// What was found, by the letter's place in the turn: its file, or why its mailbox could not be searched. Letters
/// that are not there, and those that were not looked for, have no entry.
pub(crate) type Sightings = HashMap<usize, io::Result<File>>;

/// Letters by the base of their names.
type Wanted = HashMap<Vec<u8>, usize>;

/// Looks for the recovered ones among `letters`.
pub(crate) fn find<T>(letters: &[Letter<T>], names: &Names) -> Sightings {
    let mut by_folder: HashMap<&Path, Wanted> = HashMap::new();
    for (place, letter) in letters.iter().enumerate().filter(|(_, letter)| letter.recovered) {
        let base = names.base(letter.accepted_at, letter.id, letter.ordinal);
        by_folder.entry(&letter.folder).or_default().insert(base.into_bytes(), place);
    }
    let mut sightings = Sightings::new();
    for (folder, wanted) in &by_folder {
        // In this order: what a reader moves meanwhile is seen at one of the two places.
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
        // Moved or deleted by its reader in this moment. If moved to cur/, the search there finds it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => {
            sightings.insert(place, Ok(file?));
            Ok(())
        }
    }
}
