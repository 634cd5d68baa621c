//! The folders of a node's lanes. Besides the files of an own lane, a lane folder may have two more
//! folders, each with one folder for each lane, named by its id:
//!
//! | folder | holds |
//! |---|---|
//! | `adopted/LANE` | a lane that this node took over and owns; with the file `finished` once it is complete |
//! | `fenced/LANE` | a lane that another node took over. What of its mail was never copied is moved to another lane |
//!
//! Beside the segments of a lane may be these files:
//!
//! | file | says |
//! |---|---|
//! | `copied` | the stream has all mail that was acknowledged, in the epoch of the spool that it names: a start without the cluster makes it void. With `acknowledged` behind the epoch, what was in flight may be missing |
//! | `uncopied` | the epoch of the spool, and the ids of the mail that the stream lacked in it before it was copied |
//! | `local` | the lane was made while no server answered, and is not closed |
//!
//! They are on the disk of the lane folder, so that a rename is enough to move a lane. A lane folder
//! may be a mount point, so its files are moved and not itself. A crash in between is made good by
//! moving the rest: the caller moves lanes of others last, and so decides again as before.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mail::QueueId;
use spool::{FolderDisk, LaneId, LaneIdentity, LaneRestorer, OpenError, RestoreError, survey_lane};

use crate::jetstream::parse_lane;

const ADOPTED: &str = "adopted";
const FENCED: &str = "fenced";
const FINISHED: &str = "finished";
const COPIED: &str = "copied";
const ACKNOWLEDGED: &str = "acknowledged";
const UNCOPIED: &str = "uncopied";
const LOCAL: &str = "local";

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
    /// The stream has all mail that was acknowledged.
    pub(crate) is_copied: bool,
}

/// A folder with an adopted lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdoptedFolder {
    pub(crate) path: PathBuf,
    pub(crate) lane: LaneId,
    /// All of it was written before the last stop.
    pub(crate) finished: bool,
}

/// A folder with a fenced lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FencedFolder {
    pub(crate) path: PathBuf,
    pub(crate) lane: LaneId,
}

/// Which mail of a fenced lane may never have been copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UncopiedMail {
    Ids(BTreeSet<QueueId>),
    /// All of later epochs of the spool than this one.
    After(u32),
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
            let is_copied = copied_epoch(path) == Some(epoch);
            found.extend(lane.map(|lane| OwnFolder { path: path.clone(), lane, epoch, is_copied }));
        }
        Ok(found)
    }

    /// The folders of adopted lanes, finished or not.
    pub(crate) fn adopted(&self) -> io::Result<Vec<AdoptedFolder>> {
        let found = self.aside(ADOPTED)?.into_iter();
        Ok(found.map(|(path, lane)| AdoptedFolder { finished: path.join(FINISHED).exists(), path, lane }).collect())
    }

    /// The folders of fenced lanes.
    pub(crate) fn fenced(&self) -> io::Result<Vec<FencedFolder>> {
        Ok(self.aside(FENCED)?.into_iter().map(|(path, lane)| FencedFolder { path, lane }).collect())
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
                // A lane that was lost twice has a number behind a dot.
                let name = entry.file_name();
                let lane = name.to_str().and_then(|name| parse_lane(name.split('.').next().unwrap_or_default()));
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

impl LaneFolders {
    /// Makes a folder with a new lane, which has no stream. The next start finds it as an adopted one.
    pub(crate) fn create_local(&self, lane: LaneId, segment_bytes: u64, random: u64) -> Result<PathBuf, RestoreError> {
        let path = self.create_adopted(lane).map_err(OpenError::Io)?;
        let made = make_empty_lane(&path, lane, segment_bytes, random);
        if made.is_err() {
            // Nothing is in it. If it stays, the next start removes it.
            drop(fs::remove_dir_all(&path));
        }
        made.map(|()| path)
    }

    /// How many local lanes are not closed.
    pub(crate) fn local_count(&self) -> io::Result<usize> {
        Ok(self.adopted()?.iter().filter(|folder| folder.path.join(LOCAL).exists()).count())
    }

    /// Notes that a lane is closed.
    pub(crate) fn end_local(&self, lane: LaneId) -> io::Result<()> {
        for folder in self.adopted()?.iter().filter(|folder| folder.lane == lane) {
            remove_if_there(&folder.path.join(LOCAL))?;
        }
        Ok(())
    }
}

fn make_empty_lane(path: &Path, lane: LaneId, segment_bytes: u64, random: u64) -> Result<(), RestoreError> {
    let config = spool::Config { segment_bytes, ..spool::Config::default() };
    let disk = FolderDisk::open(path).map_err(OpenError::Io)?;
    LaneRestorer::create(Arc::new(disk), lane, 0, config, random)?.finish()?;
    let marked = File::create(path.join(LOCAL)).and_then(|_| mark_finished(path));
    Ok(marked.map_err(OpenError::Io)?)
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

    /// Whether the stream has all mail that was acknowledged until this epoch.
    pub(crate) fn is_copied(&self, epoch: u32) -> bool {
        copied_epoch(&self.path) == Some(epoch)
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

impl FencedFolder {
    /// What may never have been copied.
    pub(crate) fn uncopied(&self) -> Result<UncopiedMail, OpenError> {
        let epoch = survey_lane(Arc::new(FolderDisk::open(&self.path)?))?.epoch;
        let text = fs::read_to_string(self.path.join(UNCOPIED)).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next().and_then(|line| line.parse().ok()) == Some(epoch) {
            return Ok(UncopiedMail::Ids(lines.filter_map(|line| line.parse().ok()).collect()));
        }
        Ok(UncopiedMail::After(copied_epoch(&self.path).unwrap_or(0)))
    }

    /// How many files it has with what could not be read.
    pub(crate) fn damaged_files(&self) -> io::Result<usize> {
        Ok(file_names(&self.path)?.iter().filter(|name| name.starts_with("aside-")).count())
    }

    /// Nothing of it is needed.
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
    write_synced(folder, COPIED, &epoch.to_string())?;
    remove_if_there(&folder.join(UNCOPIED))
}

/// Notes that the stream has all mail of a lane that was acknowledged until this epoch, in which it is open.
pub(crate) fn mark_acknowledged(folder: &Path, epoch: u32) -> io::Result<()> {
    write_synced(folder, COPIED, &format!("{epoch} {ACKNOWLEDGED}"))
}

/// Notes what the stream of a lane lacks, which is open in this epoch.
pub(crate) fn note_uncopied(folder: &Path, epoch: u32, ids: &[QueueId]) -> io::Result<()> {
    let lines = std::iter::once(epoch.to_string()).chain(ids.iter().map(QueueId::to_string));
    write_synced(folder, UNCOPIED, &lines.collect::<Vec<_>>().join("\n"))
}

fn write_synced(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::write(folder.join(name), text)?;
    File::open(folder.join(name))?.sync_all()?;
    File::open(folder)?.sync_all()
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The epoch up to which the stream has all acknowledged mail.
fn copied_epoch(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join(COPIED)).ok()?.split(' ').next()?.parse().ok()
}

/// Removes a fenced lane if nothing is lost with it.
fn remove_if_copied(folder: &Path, epoch: u32) -> io::Result<()> {
    if copied_epoch(folder) == Some(epoch) { fs::remove_dir_all(folder) } else { Ok(()) }
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
            assert_eq!(own, [OwnFolder { path: path.clone(), lane, epoch: 1, is_copied: false }]);
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
        let own = OwnFolder { path: path.clone(), lane, epoch: 1, is_copied: false };
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
    fn a_fenced_lane_says_what_was_never_copied() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let folders = LaneFolders::new(vec![path.clone()]);
        let lane = lane_folder(&path, 1);
        mark_acknowledged(&path, 0).unwrap();
        assert!(!folders.own().unwrap()[0].is_copied, "that was before its last epoch");
        let id = QueueId::new(lane.spool, lane.number, 1 << 40 | 7);
        for (epoch, expected) in [(1, UncopiedMail::Ids(BTreeSet::from([id]))), (2, UncopiedMail::After(0))] {
            note_uncopied(&path, epoch, &[id]).unwrap();
            assert_eq!(FencedFolder { path: path.clone(), lane }.uncopied().unwrap(), expected);
        }
        mark_acknowledged(&path, 1).unwrap();
        assert!(folders.own().unwrap()[0].is_copied);
    }

    #[test]
    fn a_local_lane_is_found_as_an_adopted_one_and_counted_until_it_is_closed() {
        let home = tempfile::tempdir().unwrap();
        let folders = LaneFolders::new(vec![home.path().join("a"), home.path().join("b")]);
        let lane = LaneId { spool: mail::SpoolId::new(9), number: 0 };
        let path = folders.create_local(lane, 64 << 10, 1).unwrap();
        assert_eq!(folders.adopted().unwrap(), [AdoptedFolder { path, lane, finished: true }]);
        assert_eq!((folders.adopted().unwrap()[0].epoch().unwrap(), folders.local_count().unwrap()), (1, 1));
        folders.end_local(lane).unwrap();
        assert_eq!(folders.local_count().unwrap(), 0);
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
