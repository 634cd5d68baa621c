//! The names in a folder: what readers see, what is durable, and the changes in between.
//!
//! After a crash any subset of the unsynced changes has happened, in their order. A rename is one
//! change: the file has its old name or its new one. POSIX allows a moment in which it has both,
//! and a harsh crash may hit that moment; it never has neither.

use std::collections::BTreeMap;

use crate::Random;

/// The index of a file in the disk's list of files, like an inode number.
pub(crate) type FileNumber = usize;

/// How often a rename leaves both names after a harsh crash.
const BOTH_NAMES_PERCENT: u64 = 10;

/// How often an unsynced change survives: none, all, and mixtures.
const SURVIVAL_PERCENT: [u64; 4] = [0, 30, 70, 100];

#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedFolder {
    live: BTreeMap<String, FileNumber>,
    durable: BTreeMap<String, FileNumber>,
    unsynced: Vec<NameChange>,
    synced: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create { name: String, file: FileNumber },
    Rename { from: String, to: String, file: FileNumber },
    Remove { name: String },
}

/// A position in the order of changes: a sync covers the changes made before it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamesMark(u64);

impl SimulatedFolder {
    /// A folder whose names are all durable.
    pub(crate) fn durable(names: BTreeMap<String, FileNumber>) -> Self {
        SimulatedFolder { live: names.clone(), durable: names, ..SimulatedFolder::default() }
    }

    pub(crate) fn live(&self) -> &BTreeMap<String, FileNumber> {
        &self.live
    }

    pub(crate) fn create(&mut self, name: &str, file: FileNumber) {
        self.change(NameChange::Create { name: name.to_owned(), file });
    }

    /// Adds a name that is durable immediately.
    pub(crate) fn create_durable(&mut self, name: &str, file: FileNumber) {
        self.live.insert(name.to_owned(), file);
        self.durable.insert(name.to_owned(), file);
    }

    /// Returns false if the name does not exist.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(&file) = self.live.get(from) else { return false };
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        true
    }

    /// Returns false if the name does not exist.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let known = self.live.contains_key(name);
        if known {
            self.change(NameChange::Remove { name: name.to_owned() });
        }
        known
    }

    pub(crate) fn mark(&self) -> NamesMark {
        NamesMark(self.synced + self.unsynced.len() as u64)
    }

    /// Makes every change before `mark` durable.
    pub(crate) fn sync(&mut self, mark: NamesMark) {
        let count = mark.0.saturating_sub(self.synced);
        self.synced += count;
        for change in self.unsynced.drain(..count as usize) {
            apply(&mut self.durable, &change);
        }
    }

    /// The names that may be found after a power failure.
    pub(crate) fn crash(&self, random: &mut Random, harsh: bool) -> BTreeMap<String, FileNumber> {
        let percent = random.pick(&SURVIVAL_PERCENT);
        let mut names = self.durable.clone();
        for change in &self.unsynced {
            if !random.chance(percent) {
                continue;
            }
            apply(&mut names, change);
            if let NameChange::Rename { from, file, .. } = change
                && harsh
                && random.chance(BOTH_NAMES_PERCENT)
            {
                names.insert(from.clone(), *file);
            }
        }
        names
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.live, &change);
        self.unsynced.push(change);
    }
}

/// Applies a change even if earlier ones did not survive: a renamed file has its new name whether
/// or not its creation was written.
fn apply(names: &mut BTreeMap<String, FileNumber>, change: &NameChange) {
    match change {
        NameChange::Create { name, file } => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename { from, to, file } => {
            if names.get(from) == Some(file) {
                names.remove(from);
            }
            names.insert(to.clone(), *file);
        }
        NameChange::Remove { name } => {
            names.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn outcomes(folder: &SimulatedFolder, harsh: bool) -> BTreeSet<String> {
        let list = |seed| {
            let names = folder.crash(&mut Random::new(seed), harsh);
            names.keys().cloned().collect::<Vec<_>>().join(" ")
        };
        (0..1000).map(list).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_synced_file_that_is_renamed_has_one_of_its_names() {
        let mut folder = SimulatedFolder::default();
        folder.create("old", 0);
        folder.sync(folder.mark());
        folder.rename("old", "new");
        assert_eq!(outcomes(&folder, false), set(&["old", "new"]));
        assert_eq!(outcomes(&folder, true), set(&["old", "new", "new old"]));
    }

    #[test]
    fn unsynced_creations_and_removals_may_be_undone() {
        let mut folder = SimulatedFolder::default();
        folder.create("kept", 0);
        folder.sync(folder.mark());
        folder.create("new", 1);
        folder.remove("kept");
        assert_eq!(outcomes(&folder, false), set(&["", "kept", "kept new", "new"]));
        folder.sync(folder.mark());
        assert_eq!(outcomes(&folder, false), set(&["new"]));
    }
}
