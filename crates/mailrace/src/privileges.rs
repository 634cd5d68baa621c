//! The rights of the process. It starts as whoever started it, binds, and then gives away what it no longer needs.
//!
//! | started as | `user`       | `allow_root` | built-in default | the server runs |
//! |------------|--------------|--------------|------------------|-----------------|
//! | root       | named        | any          | -                | as that user; as root only if root was named and allowed |
//! | root       | -            | true         | no               | as root         |
//! | root       | -            | any          | yes              | as root, with a warning: the first try, in a container |
//! | root       | -            | false        | no               | not at all      |
//! | other      | - or itself  | any          | any              | as it is        |
//! | other      | another      | any          | -                | not at all: its files would be the wrong user's |

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, User, geteuid, setgroups, setresgid, setresuid};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use crate::config::{Config, Loaded, Source};
use crate::maildrop;

/// Why the server does not run with the rights it has.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// Nobody was named to become, and root was not allowed.
    #[error("refusing to serve as root: name a `user` to become after binding, or set allow_root = true")]
    Root,
    /// There is no such user.
    #[error("there is no user {0:?} on this machine")]
    NoSuchUser(Box<str>),
    /// Only root can become somebody else.
    #[error("cannot become {user:?}: started as user {uid}, not as root")]
    NotRoot {
        /// Who was named.
        user: Box<str>,
        /// Who we are.
        uid: u32,
    },
    /// After root was given up, it could be had back.
    #[error("root was given up, but the system gave it back: refusing to serve")]
    RootRegained,
    /// The system refused a call.
    #[error("{call}: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        errno: Errno,
    },
    /// A folder or a file could not be made.
    #[error("making {}: {error}", path.display())]
    Make {
        /// The folder or the file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The system lets the process have too few files to serve.
    #[error("the system allows {files} open files (RLIMIT_NOFILE), expected at least {needed}")]
    Files {
        /// What it may have.
        files: u64,
        /// With how many it would serve.
        needed: u64,
    },
}

/// Who the server will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Who it is now.
    Unchanged,
    /// Root, which nobody asked for: the operator is to be warned.
    UnaskedRoot,
    /// Somebody else.
    Become {
        /// The user.
        uid: Uid,
        /// The user's group, and the only one.
        gid: Gid,
    },
}

impl Identity {
    /// Decides by the table above; changes nothing.
    pub fn of(loaded: &Loaded) -> Result<Identity, PrivilegesError> {
        let Config { user, allow_root, .. } = &loaded.config;
        let user = user.as_deref().map(named).transpose()?;
        decide(geteuid(), user.as_ref(), *allow_root, loaded.source == Source::BuiltIn)
    }

    /// Makes `folder` and its parents where they are missing, for nobody but that user; what is there stays whose
    /// it is. Before [`Identity::assume`], which may take away the right to do so.
    pub fn make_folder(&self, folder: &Path) -> Result<(), PrivilegesError> {
        self.make_path(folder, CLOSED)
    }

    /// The same, with the mode of `folder`; the parents that it makes are closed.
    fn make_path(&self, folder: &Path, mode: u32) -> Result<(), PrivilegesError> {
        let above = folder.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let missing: Vec<&Path> = above.take_while(|folder| !folder.is_dir()).collect();
        missing.into_iter().rev().try_for_each(|part| {
            let mode = if part == folder { mode } else { CLOSED };
            self.make_one(part, mode).map_err(|error| PrivilegesError::Make { path: part.to_owned(), error })
        })
    }

    fn make_one(&self, folder: &Path, mode: u32) -> io::Result<()> {
        match DirBuilder::new().mode(CLOSED).create(folder) {
            // As `a/..` is, once `a` is made.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            Ok(()) => self.hand_over(folder, mode),
            Err(error) => Err(error),
        }
    }

    /// Gives a folder that was just made its mode and that user as its owner. The folder above may be that user's, who can
    /// put another one in its place meanwhile: so it is opened, looked at, and changed by its handle.
    fn hand_over(&self, folder: &Path, mode: u32) -> io::Result<()> {
        if mode == CLOSED && self.owner().is_none() {
            return Ok(());
        }
        let opened = open_folder(folder)?;
        let found = opened.metadata()?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o777 != CLOSED {
            return Err(io::Error::other("another folder was put in its place"));
        }
        if mode != CLOSED {
            opened.set_permissions(PermissionsExt::from_mode(mode))?;
        }
        self.owner().map_or(Ok(()), |(uid, gid)| fchown(&opened, uid, gid))
    }

    /// Makes the folder in which every local user may leave mail and only that user sees what is there, and lets others
    /// pass through `data_dir` if that is made here too: all else in it is closed to them. Before [`Identity::assume`].
    pub fn make_drop(&self, data_dir: &Path) -> Result<(), PrivilegesError> {
        self.make_path(data_dir, PASSABLE)?;
        let folder = maildrop::folder(data_dir);
        // The mode of one that is there is the operator's decision.
        if folder.symlink_metadata().is_err() {
            self.make_open(&folder).map_err(|error| PrivilegesError::Make { path: folder, error })?;
        }
        self.make_folder(&maildrop::rejected(data_dir))
    }

    /// Makes a folder that gets its name when it is as it is to be: a start that is cut short leaves none that is there,
    /// but closed. One that has got the name meanwhile, from another start or the operator, stays.
    fn make_open(&self, folder: &Path) -> io::Result<()> {
        let unnamed = folder.with_file_name(format!(".new-{}", maildrop::secret()?));
        DirBuilder::new().mode(CLOSED).create(&unnamed)?;
        let made = self.hand_over(&unnamed, maildrop::FOLDER_MODE).and_then(|()| rename_new(&unnamed, folder));
        if made.is_err() {
            // It is empty, and nobody's.
            let _ = std::fs::remove_dir(&unnamed);
        }
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Makes an empty `file` where it is missing, for that user; one that is there stays whose it is.
    pub fn make_file(&self, file: &Path) -> Result<(), PrivilegesError> {
        let made = match OpenOptions::new().append(true).create_new(true).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Ok(made) => self.owner().map_or(Ok(()), |(uid, gid)| fchown(&made, uid, gid)),
            Err(error) => Err(error),
        };
        made.map_err(|error| PrivilegesError::Make { path: file.to_owned(), error })
    }

    /// Who the server will be.
    pub fn uid(&self) -> Uid {
        match self {
            Identity::Become { uid, .. } => *uid,
            Identity::Unchanged | Identity::UnaskedRoot => geteuid(),
        }
    }

    /// To whom new files are given; None where they are that user's already.
    fn owner(&self) -> Option<(Option<u32>, Option<u32>)> {
        match self {
            Identity::Become { uid, gid } => Some((Some(uid.as_raw()), Some(gid.as_raw()))),
            Identity::Unchanged | Identity::UnaskedRoot => None,
        }
    }

    /// Becomes that user for good, and makes sure of it. After binding.
    pub fn assume(&self) -> Result<(), PrivilegesError> {
        let Identity::Become { uid, gid } = *self else { return Ok(()) };
        // Groups first: without root they could not be given up any more.
        setgroups(&[gid]).map_err(failed("setgroups"))?;
        setresgid(gid, gid, gid).map_err(failed("setresgid"))?;
        setresuid(uid, uid, uid).map_err(failed("setresuid"))?;
        let root = Uid::from_raw(0);
        match setresuid(root, root, root) {
            Err(_) if geteuid() == uid => Ok(()),
            _ => Err(PrivilegesError::RootRegained),
        }
    }
}

/// The mode of folders that are the server's alone.
const CLOSED: u32 = 0o700;
/// The mode of `data_dir`, through which others reach the drop.
const PASSABLE: u32 = 0o711;

/// Renames, but replaces nothing, not even an empty folder. Where the file system cannot promise that, as old ZFS and NFS
/// cannot, it is a plain rename.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// The folder itself, and not one that a link in its place leads to.
fn open_folder(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, rustix::fs::Mode::empty())?))
}

/// Prepares the process before it opens anything: as many files as the system lets it have, and files that are
/// nobody else's. Returns how many files it may have open.
pub fn prepare_process() -> Result<u64, PrivilegesError> {
    umask(Mode::from_bits_truncate(0o077));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed("getrlimit"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed("setrlimit"))?;
    Ok(hard)
}

/// Files that are no session's: the spool, mailboxes, the log, libraries.
const FILES_RESERVED: u64 = 256;
/// A server that can hold fewer sessions than this is set up wrongly.
const SESSIONS_MIN: u64 = 64;

/// How many of the sessions that the configuration allows `files` suffice for, beside the connections that deliveries
/// take; of what the first sessions leave these have half at the most, since mail that cannot leave at once may wait.
pub fn sessions(allowed: usize, deliveries: usize, files: u64) -> Result<usize, PrivilegesError> {
    let free = files.saturating_sub(FILES_RESERVED);
    let least = SESSIONS_MIN.min(allowed as u64);
    let room = free - (deliveries as u64).min(free.saturating_sub(least) / 2);
    if room < least {
        return Err(PrivilegesError::Files { files, needed: FILES_RESERVED + least });
    }
    Ok(usize::try_from(room).map_or(allowed, |room| room.min(allowed)))
}

fn failed(call: &'static str) -> impl Fn(Errno) -> PrivilegesError {
    move |errno| PrivilegesError::System { call, errno }
}

fn named(name: &str) -> Result<User, PrivilegesError> {
    let found = User::from_name(name).map_err(failed("getpwnam"))?;
    found.ok_or_else(|| PrivilegesError::NoSuchUser(name.into()))
}

fn decide(us: Uid, user: Option<&User>, allow_root: bool, built_in: bool) -> Result<Identity, PrivilegesError> {
    match user {
        Some(user) if user.uid.is_root() && !allow_root => Err(PrivilegesError::Root),
        Some(user) if user.uid == us => Ok(Identity::Unchanged),
        Some(user) if us.is_root() => Ok(Identity::Become { uid: user.uid, gid: user.gid }),
        Some(user) => Err(PrivilegesError::NotRoot { user: user.name.as_str().into(), uid: us.as_raw() }),
        None if !us.is_root() || allow_root => Ok(Identity::Unchanged),
        None if built_in => Ok(Identity::UnaskedRoot),
        None => Err(PrivilegesError::Root),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn user(name: &str, uid: u32) -> User {
        User {
            name: name.into(),
            passwd: c"".into(),
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(uid),
            gecos: c"".into(),
            dir: PathBuf::new(),
            shell: PathBuf::new(),
        }
    }

    #[test]
    fn the_table_above_is_kept() {
        use PrivilegesError::{NotRoot, Root};
        let (root, mail) = (user("root", 0), user("mail", 8));
        let decide = |uid, user, allow, built_in| decide(Uid::from_raw(uid), user, allow, built_in);
        let become_mail = Identity::Become { uid: mail.uid, gid: mail.gid };
        assert_eq!(decide(0, Some(&mail), false, false).unwrap(), become_mail);
        assert_eq!(decide(0, Some(&mail), true, false).unwrap(), become_mail);
        assert!(matches!(decide(0, Some(&root), false, false), Err(Root)));
        assert_eq!(decide(0, Some(&root), true, false).unwrap(), Identity::Unchanged);
        assert_eq!(decide(0, None, true, false).unwrap(), Identity::Unchanged);
        assert_eq!(decide(0, None, false, true).unwrap(), Identity::UnaskedRoot);
        assert!(matches!(decide(0, None, false, false), Err(Root)));
        assert_eq!(decide(8, None, false, false).unwrap(), Identity::Unchanged);
        assert_eq!(decide(8, Some(&mail), false, false).unwrap(), Identity::Unchanged);
        assert!(matches!(decide(9, Some(&mail), false, false), Err(NotRoot { uid: 9, .. })));
    }

    #[test]
    fn a_user_that_is_not_there_is_an_error() {
        assert!(matches!(named("no-such-user-here"), Err(PrivilegesError::NoSuchUser(_))));
    }

    #[test]
    fn the_drop_is_open_from_its_first_moment_and_is_no_link() {
        let above = tempfile::tempdir().unwrap();
        let data = above.path().join("data");
        Identity::Unchanged.make_drop(&data).unwrap();
        let mode = |folder: &Path| folder.symlink_metadata().unwrap().permissions().mode() & 0o7777;
        let drop = maildrop::folder(&data);
        assert_eq!((mode(&data), mode(&drop), mode(&maildrop::rejected(&data))), (0o711, 0o1733, 0o700));
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 2);
        let link = above.path().join("link");
        std::os::unix::fs::symlink(&data, &link).unwrap();
        assert!(open_folder(&link).is_err());
        std::fs::set_permissions(&drop, PermissionsExt::from_mode(0o1730)).unwrap();
        Identity::Unchanged.make_drop(&data).unwrap();
        assert_eq!(mode(&drop), 0o1730);
    }

    /// Of two that start at once, the second replaced the folder of the first, and that of an operator who was quicker.
    #[test]
    fn a_drop_that_somebody_made_meanwhile_stays() {
        let data = tempfile::tempdir().unwrap();
        let drop = maildrop::folder(data.path());
        DirBuilder::new().mode(CLOSED).create(&drop).unwrap();
        Identity::Unchanged.make_open(&drop).unwrap();
        assert_eq!(drop.metadata().unwrap().mode() & 0o7777, CLOSED);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_put_in_the_place_of_a_new_folder_is_not_handed_over() {
        let above = tempfile::tempdir().unwrap();
        let (shared, closed, link) =
            (above.path().join("shared"), above.path().join("closed"), above.path().join("link"));
        for (folder, mode) in [(&shared, 0o755), (&closed, CLOSED)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&closed, &link).unwrap();
        let before = |folder: &Path| folder.metadata().map(|found| (found.uid(), found.mode())).unwrap();
        let were = [before(&shared), before(&closed)];
        let other = Identity::Become { uid: Uid::from_raw(1), gid: Gid::from_raw(1) };
        assert!(other.hand_over(&shared, PASSABLE).is_err());
        assert!(other.hand_over(&link, PASSABLE).is_err());
        assert_eq!([before(&shared), before(&closed)], were);
        if geteuid().is_root() {
            other.hand_over(&closed, CLOSED).unwrap();
            assert_eq!(before(&closed).0, 1);
            assert!(Identity::Unchanged.hand_over(&closed, PASSABLE).is_err());
        }
    }

    #[test]
    fn root_is_given_up_for_good() {
        in_a_process_of_its_own("privileges::tests::gives_root_up");
    }

    #[test]
    fn a_process_gets_all_files_and_shares_none() {
        in_a_process_of_its_own("privileges::tests::prepares_itself");
    }

    /// Rights belong to the process, so the tests that change them each get one.
    fn in_a_process_of_its_own(test: &str) {
        let ourselves = std::env::current_exe().unwrap();
        let ran = Command::new(ourselves).args(["--exact", test, "--ignored"]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn sessions_are_as_many_as_files_suffice_for() {
        assert_eq!(sessions(10_000, 5000, 1 << 20).unwrap(), 10_000);
        assert_eq!(sessions(10_000, 0, 1024).unwrap(), 768);
        assert_eq!(sessions(10_000, 100, 1024).unwrap(), 668);
        assert_eq!(sessions(10_000, 5000, 1024).unwrap(), 416);
        assert_eq!(sessions(10_000, 0, 320).unwrap(), 64);
        assert!(matches!(sessions(10_000, 0, 319), Err(PrivilegesError::Files { files: 319, needed: 320 })));
        assert_eq!(sessions(5, 0, 261).unwrap(), 5);
        assert!(sessions(5, 0, 260).is_err());
        assert_eq!(sessions(10_000, 0, u64::MAX).unwrap(), 10_000);
    }

    #[test]
    #[ignore = "changes the process; run by root_is_given_up_for_good"]
    fn gives_root_up() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let nobody = named("nobody").unwrap();
        let identity = decide(geteuid(), Some(&nobody), false, false).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let made = folder.path().join("a/b/../c");
        identity.make_folder(&made).unwrap();
        let metadata = made.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o777), (nobody.uid.as_raw(), 0o700));
        let (log, kept) = (made.join("log"), folder.path().join("kept"));
        std::fs::write(&kept, "").unwrap();
        for file in [&log, &kept] {
            identity.make_file(file).unwrap();
        }
        identity.assume().unwrap();
        std::fs::write(&log, "what the user writes\n").unwrap();
        std::fs::write(made.join("mail"), "").unwrap();
        // What was there before is as it was.
        assert_eq!((kept.metadata().unwrap().uid(), folder.path().metadata().unwrap().uid()), (0, 0));
        assert_eq!(geteuid(), nobody.uid);
        assert_eq!(nix::unistd::getgroups().unwrap(), [nobody.gid]);
        assert!(setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_err());
        assert!(std::fs::write("/etc/mailrace-was-here", "").is_err());
    }

    #[test]
    #[ignore = "changes the process; run by a_process_gets_all_files_and_shares_none"]
    fn prepares_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64.min(hard), hard).unwrap();
        assert_eq!(prepare_process().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        std::fs::write(folder.path().join("file"), "").unwrap();
        let mode = folder.path().join("file").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
