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
//! | `moving` | in a fenced lane: the ids of the mail that is being moved |
//! | `local` | the lane was made while no server answered, and is not closed |
//!
//! They are on the disk of the lane folder, so that a rename is enough to move a lane. A lane folder
//! may be a mount point, so its files are moved and not itself. A crash in between is made good by
//! moving the rest: the caller moves lanes of others last, and so decides again as before.
//!
//! These files decide whether mail is removed, so one that cannot be read, or whose end is missing, counts as the
//! case in which nothing is.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
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
const MOVING: &str = "moving";
/// The first word of the last line of a list of ids. The number of the ids follows.
const END: &str = "end";

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UncopiedMail {
    ids: BTreeSet<QueueId>,
    /// All of later epochs of the spool than this one, too.
    after: u32,
}

impl UncopiedMail {
    pub(crate) fn includes(&self, id: QueueId) -> bool {
        self.ids.contains(&id) || LaneId::epoch_of(id) > self.after
    }
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
    pub(crate) fn set_aside(&self, aside: Aside) -> Result<(), OpenError> {
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
        if aside == Aside::Fenced { remove_if_copied(&target) } else { Ok(()) }
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
        remove_if_copied(&target)
    }

    /// Throws away what was not finished.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

impl FencedFolder {
    /// What may never have been copied. What was noted in an earlier epoch holds on: later mail is added. If that
    /// cannot be known, it is all mail.
    pub(crate) fn uncopied(&self) -> Result<UncopiedMail, OpenError> {
        let epoch = survey_lane(Arc::new(FolderDisk::open(&self.path)?))?.epoch;
        let copied = copied_epoch(&self.path);
        let Some(text) = read_if_there(&self.path.join(UNCOPIED))? else {
            return Ok(UncopiedMail { ids: BTreeSet::new(), after: copied.unwrap_or(0) });
        };
        match parse_uncopied(&text) {
            Some((noted, _)) if noted > epoch => Ok(UncopiedMail::default()),
            // It was to be removed then.
            Some((noted, _)) if copied.is_some_and(|copied| copied >= noted) => {
                Ok(UncopiedMail { ids: BTreeSet::new(), after: copied.unwrap_or(0) })
            }
            Some((noted, ids)) => Ok(UncopiedMail { ids, after: noted }),
            None => Ok(UncopiedMail::default()),
        }
    }

    /// What an earlier try has begun to move. None: nothing, or it cannot be known.
    pub(crate) fn moving(&self) -> io::Result<Option<BTreeSet<QueueId>>> {
        Ok(read_if_there(&self.path.join(MOVING))?.and_then(|text| parse_ids(&text)))
    }

    /// Notes what is to be moved.
    pub(crate) fn note_moving(&self, ids: &BTreeSet<QueueId>) -> io::Result<()> {
        write_synced(&self.path, MOVING, &list_of(ids.iter()))
    }

    /// How many files it has with what could not be read.
    pub(crate) fn damaged_files(&self) -> io::Result<usize> {
        damaged_files(&self.path)
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
    write_synced(folder, COPIED, &format!("{epoch} {COPIED}"))?;
    remove_if_there(&folder.join(UNCOPIED))
}

/// Notes that the stream has all mail of a lane that was acknowledged until this epoch, in which it is open.
pub(crate) fn mark_acknowledged(folder: &Path, epoch: u32) -> io::Result<()> {
    write_synced(folder, COPIED, &format!("{epoch} {ACKNOWLEDGED}"))
}

/// Notes what the stream of a lane lacks, which is open in this epoch.
pub(crate) fn note_uncopied(folder: &Path, epoch: u32, ids: &[QueueId]) -> io::Result<()> {
    write_synced(folder, UNCOPIED, &format!("{epoch}\n{}", list_of(ids.iter())))?;
    remove_if_there(&folder.join(COPIED))?;
    sync_folder(folder)
}

/// Forgets what the stream of a lane has: it is a new one.
pub(crate) fn forget_copies(folder: &Path) -> io::Result<()> {
    remove_if_there(&folder.join(COPIED))?;
    remove_if_there(&folder.join(UNCOPIED))?;
    sync_folder(folder)
}

/// The ids in lines of their own, and a last line by which a cut list is recognized.
fn list_of<'a>(ids: impl ExactSizeIterator<Item = &'a QueueId>) -> String {
    let end = format!("{END} {}\n", ids.len());
    ids.map(|id| format!("{id}\n")).chain([end]).collect()
}

/// None: it is not a whole list.
fn parse_ids(text: &str) -> Option<BTreeSet<QueueId>> {
    let lines: Vec<&str> = text.strip_suffix('\n')?.split('\n').collect();
    let (end, ids) = lines.split_last()?;
    (*end == format!("{END} {}", ids.len())).then(|| ids.iter().map(|line| line.parse().ok()).collect()).flatten()
}

fn parse_uncopied(text: &str) -> Option<(u32, BTreeSet<QueueId>)> {
    let (epoch, ids) = text.split_once('\n')?;
    Some((epoch.parse().ok()?, parse_ids(ids)?))
}

/// Writes a file. After a crash, it is there as a whole, or as it was before.
fn write_synced(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let unfinished = folder.join(format!("{name}.new"));
    let mut file = File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, folder.join(name))?;
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// None: there is no such file. One that is no text is like one without its end.
fn read_if_there(file: &Path) -> io::Result<Option<String>> {
    match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(String::from_utf8_lossy(&read?).into_owned())),
    }
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The epoch up to which the stream has all acknowledged mail. None also if it cannot be read: then more is
/// compared, or moved, than has to be.
fn copied_epoch(folder: &Path) -> Option<u32> {
    let text = fs::read_to_string(folder.join(COPIED)).ok()?;
    let (epoch, kind) = text.split_once(' ')?;
    if [COPIED, ACKNOWLEDGED].contains(&kind) { epoch.parse().ok() } else { None }
}

/// Removes a fenced lane if nothing is lost with it: the stream has its mail, and what could not be read is
/// not in files of its own.
fn remove_if_copied(folder: &Path) -> Result<(), OpenError> {
    let epoch = survey_lane(Arc::new(FolderDisk::open(folder)?))?.epoch;
    if copied_epoch(folder) == Some(epoch) && damaged_files(folder)? == 0 {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// How many files a lane has with what could not be read.
fn damaged_files(folder: &Path) -> io::Result<usize> {
    Ok(file_names(folder)?.iter().filter(|name| name.starts_with("aside-")).count())
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
        let (ids, fenced) = (BTreeSet::from([id]), FencedFolder { path: path.clone(), lane });
        for (epoch, expected) in
            [(0, UncopiedMail { ids: ids.clone(), after: 0 }), (1, UncopiedMail { ids, after: 1 }), (2, default())]
        {
            note_uncopied(&path, epoch, &[id]).unwrap();
            assert_eq!(fenced.uncopied().unwrap(), expected, "{epoch}");
            assert!(!path.join(COPIED).exists());
        }
        mark_acknowledged(&path, 1).unwrap();
        assert!(folders.own().unwrap()[0].is_copied);
    }

    fn default() -> UncopiedMail {
        UncopiedMail::default()
    }

    /// A move was interrupted after the old log was opened, which began the next epoch: what was noted is moved
    /// then too. And a crash between both steps of `mark_copied` leaves a note that holds no more.
    #[test]
    fn what_was_noted_in_an_earlier_epoch_is_still_uncopied() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let lane = lane_folder(&path, 1);
        let id = |epoch: u64| QueueId::new(lane.spool, lane.number, epoch << 40 | 7);
        note_uncopied(&path, 1, &[id(1)]).unwrap();
        let noted = fs::read(path.join(UNCOPIED)).unwrap();
        lane_folder(&path, 1);
        assert_eq!(LaneFolders::new(vec![path.clone()]).own().unwrap()[0].epoch, 2);
        let fenced = FencedFolder { path: path.clone(), lane };
        let uncopied = fenced.uncopied().unwrap();
        assert_eq!([id(0), id(1), id(2)].map(|id| uncopied.includes(id)), [false, true, true]);
        mark_copied(&path, 1).unwrap();
        fs::write(path.join(UNCOPIED), noted).unwrap();
        let uncopied = fenced.uncopied().unwrap();
        assert_eq!([id(1), id(2)].map(|id| uncopied.includes(id)), [false, true]);
    }

    /// As a crash leaves a file that is written in place: the mail that it does not name any more was lost.
    #[test]
    fn a_list_or_a_mark_that_was_cut_is_never_taken_for_a_whole_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let lane = lane_folder(&path, 1);
        let ids: Vec<QueueId> = (7..9).map(|number| QueueId::new(lane.spool, lane.number, 1 << 40 | number)).collect();
        let fenced = FencedFolder { path: path.clone(), lane };
        note_uncopied(&path, 1, &ids).unwrap();
        fenced.note_moving(&ids.iter().copied().collect()).unwrap();
        let moving = fenced.moving().unwrap();
        assert_eq!(moving, Some(ids.iter().copied().collect()));
        let [uncopied, moving] = [UNCOPIED, MOVING].map(|name| fs::read(path.join(name)).unwrap());
        for length in 0..uncopied.len() {
            fs::write(path.join(UNCOPIED), &uncopied[..length]).unwrap();
            assert_eq!(fenced.uncopied().unwrap(), default(), "{length}");
        }
        for length in 0..moving.len() {
            fs::write(path.join(MOVING), &moving[..length]).unwrap();
            assert_eq!(fenced.moving().unwrap(), None, "{length}");
        }
        for mark in [mark_copied, mark_acknowledged] {
            mark(&path, 12).unwrap();
            let copied = fs::read(path.join(COPIED)).unwrap();
            assert_eq!(copied_epoch(&path), Some(12));
            for length in 0..copied.len() {
                fs::write(path.join(COPIED), &copied[..length]).unwrap();
                assert_eq!(copied_epoch(&path), None, "{length}");
            }
        }
        assert!(file_names(&path).unwrap().iter().all(|name| !name.ends_with(".new")));
    }

    /// What can be read of a damaged message is only here.
    #[test]
    fn a_fenced_lane_with_damaged_mail_is_kept_although_it_was_copied() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let folders = LaneFolders::new(vec![path.clone()]);
        lane_folder(&path, 1);
        mark_copied(&path, 1).unwrap();
        fs::write(path.join("aside-0000000000000001"), "half").unwrap();
        folders.own().unwrap()[0].set_aside(Aside::Fenced).unwrap();
        assert_eq!(folders.fenced().unwrap()[0].damaged_files().unwrap(), 1);
    }

    /// A crash has moved the newest segment already, so the rest of the lane is of an older epoch: that of its mark.
    #[test]
    fn an_interrupted_move_does_not_make_an_old_mark_valid() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lane");
        let lane = lane_folder(&path, 1);
        mark_copied(&path, 1).unwrap();
        lane_folder(&path, 1);
        let rest = OwnFolder { path: path.clone(), lane, epoch: 1, is_copied: true };
        rest.set_aside(Aside::Fenced).unwrap();
        assert!(path.join(FENCED).join(lane.to_string()).exists(), "its mail of the second epoch was never copied");
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
