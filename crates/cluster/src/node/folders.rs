//! The folders of a node's lanes. Besides the files of an own lane, a lane folder may have two more
//! folders, each with one folder for each lane, named by its id:
//!
//! | folder | holds |
//! |---|---|
//! | `adopted/LANE` | a lane that this node took over and owns; with the file `finished` once it is complete |
//! | `fenced/LANE` | a lane that another node took over: never opened again, and kept for the operator unless all of it was copied |
//!
//! The file `copied` beside the segments of a lane says that the lane's stream has all of its mail, in
//! the epoch of the spool that it names: a start without the cluster makes it void.
//!
//! They are on the disk of the lane folder, so that a rename is enough to move a lane. A lane folder
//! may be a mount point, so its files are moved and not itself. A crash in between is made good by
//! moving the rest: the caller moves lanes of others last, and so decides again as before.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spool::{FolderDisk, LaneId, LaneIdentity, OpenError, survey_lane};

use crate::jetstream::parse_lane;

const ADOPTED: &str = "adopted";
const FENCED: &str = "fenced";
const FINISHED: &str = "finished";
const COPIED: &str = "copied";

/// The lane folders of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct LaneFolders(Vec<PathBuf>);

/// A lane folder that holds a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnFolder {
    pub(crate) path: PathBuf,
    pub(crate) lane: LaneId,
    /// The epoch of the spool in which it was written last.
    pub(crate) epoch: u32,
}

/// A folder with an adopted lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdoptedFolder {
    pub(crate) path: PathBuf,
    pub(crate) lane: LaneId,
    /// All of it was written before the last stop.
    pub(crate) finished: bool,
}

/// Where an own lane goes when the node has lost any of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// It is still owned.
    Adopted,
    /// Another node has it.
    Fenced,
}

impl LaneFolders {
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        LaneFolders(folders)
    }

    /// The lane folders that hold a lane.
    pub(crate) fn own(&self) -> Result<Vec<OwnFolder>, OpenError> {
        let mut found = Vec::new();
        for path in &self.0 {
            let LaneIdentity { lane, epoch } = survey_lane(Arc::new(FolderDisk::open(path)?))?;
            found.extend(lane.map(|lane| OwnFolder { path: path.clone(), lane, epoch }));
        }
        Ok(found)
    }

    /// The folders of adopted lanes, finished or not.
    pub(crate) fn adopted(&self) -> io::Result<Vec<AdoptedFolder>> {
        let found = self.aside(ADOPTED)?.into_iter();
        Ok(found.map(|(path, lane)| AdoptedFolder { finished: path.join(FINISHED).exists(), path, lane }).collect())
    }

    /// The folders of fenced lanes.
    pub(crate) fn fenced(&self) -> io::Result<Vec<PathBuf>> {
        Ok(self.aside(FENCED)?.into_iter().map(|(path, _)| path).collect())
    }

    fn aside(&self, kind: &str) -> io::Result<Vec<(PathBuf, LaneId)>> {
        let mut found = Vec::new();
        for folder in &self.0 {
            let entries = match fs::read_dir(folder.join(kind)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let lane = entry.file_name().to_str().and_then(parse_lane);
                found.extend(lane.map(|lane| (entry.path(), lane)));
            }
        }
        Ok(found)
    }

    /// Makes an empty folder for a lane that is being adopted. One that was left half written is
    /// thrown away.
    pub(crate) fn create_adopted(&self, lane: LaneId) -> io::Result<PathBuf> {
        for unfinished in self.adopted()?.into_iter().filter(|found| found.lane == lane) {
            fs::remove_dir_all(unfinished.path)?;
        }
        let mut hasher = DefaultHasher::new();
        lane.hash(&mut hasher);
        let index = hasher.finish() % self.0.len().max(1) as u64;
        let path = self.0[index as usize].join(ADOPTED).join(lane.to_string());
        // It is made by the one who opens it.
        Ok(path)
    }
}

impl OwnFolder {
    /// Moves the files of the lane out of the lane folder, which is empty then.
    pub(crate) fn set_aside(&self, aside: Aside) -> io::Result<()> {
        let kind = if aside == Aside::Adopted { ADOPTED } else { FENCED };
        let target = self.path.join(kind).join(self.lane.to_string());
        // Creates it with its parents, and syncs them.
        drop(FolderDisk::open(&target)?);
        if aside == Aside::Adopted {
            mark_finished(&target)?;
        }
        let mut names = file_names(&self.path)?;
        // The lane is recognized by its segments: they go last.
        names.sort_by_key(|name| name.starts_with("segment-"));
        for name in names {
            fs::rename(self.path.join(&name), target.join(&name))?;
        }
        File::open(&target)?.sync_all()?;
        File::open(&self.path)?.sync_all()?;
        if aside == Aside::Fenced {
            remove_if_copied(&target, self.epoch)?;
        }
        Ok(())
    }
}

impl AdoptedFolder {
    /// The epoch of the spool in which it was written last.
    pub(crate) fn epoch(&self) -> Result<u32, OpenError> {
        Ok(survey_lane(Arc::new(FolderDisk::open(&self.path)?))?.epoch)
    }

    /// Another node has the lane now.
    pub(crate) fn fence(&self) -> Result<(), OpenError> {
        let epoch = self.epoch()?;
        let lane = self.lane.to_string();
        let folder = self.path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let fenced = folder.join(FENCED);
        drop(FolderDisk::open(&fenced)?);
        let mut target = fenced.join(&lane);
        // The lane may have been lost before.
        for number in 2.. {
            if !target.exists() {
                break;
            }
            target = fenced.join(format!("{lane}.{number}"));
        }
        fs::rename(&self.path, &target)?;
        File::open(&fenced)?.sync_all()?;
        Ok(remove_if_copied(&target, epoch)?)
    }

    /// Throws away what was not finished.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

/// Notes that the folder of an adopted lane is complete.
pub(crate) fn mark_finished(folder: &Path) -> io::Result<()> {
    File::create(folder.join(FINISHED))?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Notes that the stream has all mail of a lane, which is open in this epoch of its spool.
pub(crate) fn mark_copied(folder: &Path, epoch: u32) -> io::Result<()> {
    fs::write(folder.join(COPIED), epoch.to_string())?;
    File::open(folder.join(COPIED))?.sync_all()?;
    File::open(folder)?.sync_all()
}

/// Removes a fenced lane if nothing is lost with it.
fn remove_if_copied(folder: &Path, epoch: u32) -> io::Result<()> {
    match fs::read_to_string(folder.join(COPIED)) {
        Ok(copied) if copied == epoch.to_string() => fs::remove_dir_all(folder),
        _ => Ok(()),
    }
}

/// The names of the files in a folder.
fn file_names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane_folder(path: &Path, seed: u64) -> LaneId {
        let disk: Arc<dyn spool::Disk> = Arc::new(FolderDisk::open(path).unwrap());
        let config = spool::Config { segment_bytes: 64 << 10, ..spool::Config::default() };
        let spool = spool::open(vec![disk], config, seed, &mut |_| {}).unwrap();
        let lane = spool.lane_epochs()[0].0;
        spool.close();
        lane
    }

    #[test]
    fn a_lane_is_moved_out_of_its_folder_and_found_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let folders = LaneFolders::new(vec![path.clone()]);
        for (seed, aside) in [(1, Aside::Adopted), (2, Aside::Fenced)] {
            let lane = lane_folder(&path, seed);
            let own = folders.own().unwrap();
            assert_eq!(own, [OwnFolder { path: path.clone(), lane, epoch: 1 }]);
            own[0].set_aside(aside).unwrap();
            assert_eq!(folders.own().unwrap(), []);
        }
        let adopted = folders.adopted().unwrap();
        assert!(adopted.len() == 1 && adopted[0].finished, "{adopted:?}");
        let identity = survey_lane(Arc::new(FolderDisk::open(&adopted[0].path).unwrap())).unwrap();
        assert_eq!(identity.lane, Some(adopted[0].lane));
        adopted[0].fence().unwrap();
        assert_eq!((folders.adopted().unwrap(), folders.fenced().unwrap().len()), (Vec::new(), 2));
    }

    /// The rest of a move that a crash interrupted: body files are there already, or a segment.
    #[test]
    fn a_move_goes_on_where_it_was_interrupted() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let (folders, lane) = (LaneFolders::new(vec![path.clone()]), lane_folder(&path, 1));
        fs::write(path.join("body-0000000000000001"), "x").unwrap();
        let own = OwnFolder { path: path.clone(), lane, epoch: 1 };
        let target = path.join(ADOPTED).join(lane.to_string());
        fs::create_dir_all(&target).unwrap();
        fs::rename(path.join("body-0000000000000001"), target.join("body-0000000000000001")).unwrap();
        own.set_aside(Aside::Adopted).unwrap();
        assert_eq!((folders.own().unwrap(), file_names(&path).unwrap()), (Vec::new(), Vec::new()));
        assert!(target.join("body-0000000000000001").exists() && target.join("segment-000000").exists());
    }

    #[test]
    fn a_fenced_lane_is_removed_only_if_all_of_it_was_copied() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let folders = LaneFolders::new(vec![path.clone()]);
        for (seed, copied, kept) in [(1, Some(1), 0), (2, Some(7), 1), (3, None, 2)] {
            lane_folder(&path, seed);
            if let Some(epoch) = copied {
                mark_copied(&path, epoch).unwrap();
            }
            folders.own().unwrap()[0].set_aside(Aside::Fenced).unwrap();
            assert_eq!(folders.fenced().unwrap().len(), kept, "{copied:?}");
        }
    }

    #[test]
    fn what_was_not_finished_makes_room() {
        let home = tempfile::tempdir().unwrap();
        let folders = LaneFolders::new(vec![home.path().join("a"), home.path().join("b")]);
        let lane = LaneId { spool: mail::SpoolId::new(7), number: 1 };
        let path = folders.create_adopted(lane).unwrap();
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("segment-000000"), "half").unwrap();
        assert!(!folders.adopted().unwrap()[0].finished);
        assert_eq!(folders.create_adopted(lane).unwrap(), path);
        assert!(!path.exists());
        fs::create_dir_all(&path).unwrap();
        mark_finished(&path).unwrap();
        assert!(folders.adopted().unwrap()[0].finished);
        folders.adopted().unwrap()[0].remove().unwrap();
        assert_eq!(folders.adopted().unwrap(), []);
    }
}
