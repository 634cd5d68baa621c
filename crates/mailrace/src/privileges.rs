//! The privileges of the process. It starts with those of its caller, binds ports, and then drops
//! what it does not need.
//!
//! | started as | `user`       | `allow_root` | built-in default | the server runs |
//! |------------|--------------|--------------|------------------|-----------------|
//! | root       | named        | any          | -                | as that user; as root only if root is named and allowed |
//! | root       | -            | true         | no               | as root         |
//! | root       | -            | any          | yes              | as root, with a warning: for a first try in a container |
//! | root       | -            | false        | no               | not at all      |
//! | other      | - or itself  | any          | any              | as it is        |
//! | other      | another      | any          | -                | not at all: its files would be the wrong user's |

use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, User, getegid, geteuid, getgrouplist, setgroups, setresgid, setresuid};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use config::{Config, ConfigSource, LoadedConfig};
use intake::drop_folder;

/// Why the server cannot run with the privileges it has.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// It would run as root without permission.
    #[error("refusing to run as root: set `user`, to switch to after binding ports, or allow_root = true")]
    Root,
    /// The configured user does not exist.
    #[error("user {0:?} does not exist")]
    NoSuchUser(Box<str>),
    /// Only root can switch to another user.
    #[error("cannot switch to user {user:?}: started as user {uid}, not as root")]
    NotRoot {
        /// The configured user.
        user: Box<str>,
        /// The current user.
        uid: u32,
    },
    /// Root could be regained after it was dropped.
    #[error("root could be regained after it was dropped: refusing to run")]
    RootRegained,
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// A folder or file could not be created.
    #[error("cannot create {}: {error}", path.display())]
    Make {
        /// Its path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The limit on open files is too low.
    #[error("the system allows {files} open files (RLIMIT_NOFILE), expected at least {needed}")]
    Files {
        /// The limit.
        files: u64,
        /// The minimum for the server.
        needed: u64,
    },
}

/// The user that the server will run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessUser {
    /// The current user.
    Unchanged,
    /// Root by default, about which the operator is warned.
    ImplicitRoot,
    /// Another user.
    Become {
        /// Its user ID.
        uid: Uid,
        /// Its group.
        gid: Gid,
        /// All of its groups, through which it reaches sockets and files of other programs.
        groups: Box<[Gid]>,
    },
}

impl ProcessUser {
    /// Decides by the table above, without changing anything.
    pub fn resolve(loaded: &LoadedConfig) -> Result<ProcessUser, PrivilegesError> {
        let Config { user, allow_root, .. } = &loaded.config;
        let user = user.as_deref().map(find_user).transpose()?;
        choose_user(geteuid(), user.as_ref(), *allow_root, loaded.source == ConfigSource::BuiltIn)
    }

    /// Creates `folder` and its parents if missing, accessible only to that user. Existing folders
    /// keep their owner. Call it before [`ProcessUser::drop_privileges`], which may drop the
    /// required privileges.
    pub fn make_folder(&self, folder: &Path) -> Result<(), PrivilegesError> {
        self.make_folders(folder, MODE_PRIVATE)
    }

    /// The same with a mode for `folder`; its new parents are private.
    fn make_folders(&self, folder: &Path, mode: u32) -> Result<(), PrivilegesError> {
        let above = folder.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let missing: Vec<&Path> = above.take_while(|folder| !folder.is_dir()).collect();
        missing.into_iter().rev().try_for_each(|part| {
            let mode = if part == folder { mode } else { MODE_PRIVATE };
            self.make_single_folder(part, mode).map_err(|error| PrivilegesError::Make { path: part.to_owned(), error })
        })
    }

    fn make_single_folder(&self, folder: &Path, mode: u32) -> io::Result<()> {
        match DirBuilder::new().mode(MODE_PRIVATE).create(folder) {
            // For example `a/..` once `a` is created.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            Ok(()) => self.chown_folder(folder, mode),
            Err(error) => Err(error),
        }
    }

    /// Gives a new folder its mode and owner. If that user owns the parent folder, it could replace
    /// the folder meanwhile; so the folder is opened, checked, and changed by its handle.
    fn chown_folder(&self, folder: &Path, mode: u32) -> io::Result<()> {
        if mode == MODE_PRIVATE && self.owner().is_none() {
            return Ok(());
        }
        let opened = open_folder(folder)?;
        let found = opened.metadata()?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o777 != MODE_PRIVATE {
            return Err(io::Error::other("the folder was replaced by another one"));
        }
        if mode != MODE_PRIVATE {
            opened.set_permissions(PermissionsExt::from_mode(mode))?;
        }
        self.owner().map_or(Ok(()), |(uid, gid)| fchown(&opened, uid, gid))
    }

    /// Creates the drop folder, where all local users may write files and only that user can list
    /// them. If `data_dir` is created too, others may pass through it; all else in it is private.
    /// Call it before [`ProcessUser::drop_privileges`].
    pub fn make_drop_folder(&self, data_dir: &Path) -> Result<(), PrivilegesError> {
        self.make_folders(data_dir, MODE_SEARCHABLE)?;
        let folder = drop_folder::drop_folder_path(data_dir);
        // The operator decides about the mode of an existing folder.
        if folder.symlink_metadata().is_err() {
            self.make_writable_folder(&folder).map_err(|error| PrivilegesError::Make { path: folder, error })?;
        }
        self.make_folder(&drop_folder::rejected_folder_path(data_dir))
    }

    /// Creates a folder under a temporary name and renames it when it is complete, so that an
    /// interrupted start leaves none with the wrong mode. A folder that another start or the
    /// operator created meanwhile stays.
    fn make_writable_folder(&self, folder: &Path) -> io::Result<()> {
        let unnamed = folder.with_file_name(format!(".new-{}", drop_folder::random_name()?));
        DirBuilder::new().mode(MODE_PRIVATE).create(&unnamed)?;
        let made = self.chown_folder(&unnamed, drop_folder::FOLDER_MODE).and_then(|()| rename_new(&unnamed, folder));
        if made.is_err() {
            // It is empty and not in use.
            let _ = std::fs::remove_dir(&unnamed);
        }
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Creates an empty `file` if missing, owned by that user. An existing file keeps its owner.
    pub fn make_file(&self, file: &Path) -> Result<(), PrivilegesError> {
        let made = match OpenOptions::new().append(true).create_new(true).open(file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Ok(made) => self.owner().map_or(Ok(()), |(uid, gid)| fchown(&made, uid, gid)),
            Err(error) => Err(error),
        };
        made.map_err(|error| PrivilegesError::Make { path: file.to_owned(), error })
    }

    /// The user that the server will run as.
    pub fn uid(&self) -> Uid {
        match self {
            ProcessUser::Become { uid, .. } => *uid,
            ProcessUser::Unchanged | ProcessUser::ImplicitRoot => geteuid(),
        }
    }

    /// The user ID and the group ID that the server will have.
    pub fn ids(&self) -> (Uid, Gid) {
        match self {
            ProcessUser::Become { uid, gid, .. } => (*uid, *gid),
            ProcessUser::Unchanged | ProcessUser::ImplicitRoot => (geteuid(), getegid()),
        }
    }

    /// The owner for new files; None if they already have it.
    fn owner(&self) -> Option<(Option<u32>, Option<u32>)> {
        match self {
            ProcessUser::Become { uid, gid, .. } => Some((Some(uid.as_raw()), Some(gid.as_raw()))),
            ProcessUser::Unchanged | ProcessUser::ImplicitRoot => None,
        }
    }

    /// Switches to that user permanently, and verifies it. Call it after binding ports.
    pub fn drop_privileges(&self) -> Result<(), PrivilegesError> {
        let ProcessUser::Become { uid, gid, ref groups } = *self else { return Ok(()) };
        // Groups first: they cannot be dropped without root.
        setgroups(groups).map_err(system_error("setgroups"))?;
        setresgid(gid, gid, gid).map_err(system_error("setresgid"))?;
        setresuid(uid, uid, uid).map_err(system_error("setresuid"))?;
        let root = Uid::from_raw(0);
        match setresuid(root, root, root) {
            Err(_) if geteuid() == uid => Ok(()),
            _ => Err(PrivilegesError::RootRegained),
        }
    }
}

/// The mode of private folders.
const MODE_PRIVATE: u32 = 0o700;
/// The mode of `data_dir`, through which other users reach the drop folder.
const MODE_SEARCHABLE: u32 = 0o711;

/// Renames without replacing anything, not even an empty folder. On file systems without support
/// for this, such as old ZFS and NFS, it is a plain rename.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Opens the folder itself, not the target of a symbolic link.
fn open_folder(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, rustix::fs::Mode::empty())?))
}

/// Prepares the process before it opens files: raises the limit on open files, and makes new files
/// private. Returns the limit.
pub fn set_umask_and_rlimit() -> Result<u64, PrivilegesError> {
    umask(Mode::from_bits_truncate(0o077));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(system_error("getrlimit"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(system_error("setrlimit"))?;
    Ok(hard)
}

/// Files other than those of sessions: the spool, mailboxes, the log, libraries.
const FILES_RESERVED: u64 = 256;
/// A server that cannot hold this many sessions is misconfigured.
pub const SESSIONS_MIN: u64 = 64;
/// Files of a session that reads: its connection, and a file or a connection to another host.
const FILES_PER_READING_SESSION: u64 = 2;

/// Sessions at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Of clients that send mail.
    pub receiving: usize,
    /// Of clients that read.
    pub reading: usize,
}

impl SessionLimits {
    fn files(self) -> (u64, u64) {
        (self.receiving as u64, self.reading as u64 * FILES_PER_READING_SESSION)
    }
}

/// The part of the configured sessions that fits into `files`, next to the connections of deliveries.
/// Beyond the first sessions, deliveries get at most half of the files, since mail that cannot
/// leave immediately can wait.
pub fn limit_sessions_by_files(
    allowed: SessionLimits,
    deliveries: usize,
    files: u64,
) -> Result<SessionLimits, PrivilegesError> {
    let (receiving, reading) = allowed.files();
    let wanted = receiving + reading;
    let free = files.saturating_sub(FILES_RESERVED);
    let least = SESSIONS_MIN.min(receiving) + SESSIONS_MIN.min(reading);
    let room = free - (deliveries as u64).min(free.saturating_sub(least) / 2);
    if room < least {
        return Err(PrivilegesError::Files { files, needed: FILES_RESERVED + least });
    }
    if room >= wanted {
        return Ok(allowed);
    }
    let least_reading = SESSIONS_MIN.min(reading);
    let share = u128::from(room) * u128::from(reading) / u128::from(wanted);
    let for_reading =
        u64::try_from(share).unwrap_or(u64::MAX).max(least_reading).min(room - SESSIONS_MIN.min(receiving));
    let fitting = |files: u64, allowed: usize| usize::try_from(files).map_or(allowed, |files| files.min(allowed));
    Ok(SessionLimits {
        receiving: fitting(room - for_reading, allowed.receiving),
        reading: fitting(for_reading / FILES_PER_READING_SESSION, allowed.reading),
    })
}

fn system_error(call: &'static str) -> impl Fn(Errno) -> PrivilegesError {
    move |errno| PrivilegesError::System { call, errno }
}

fn find_user(name: &str) -> Result<User, PrivilegesError> {
    let found = User::from_name(name).map_err(system_error("getpwnam"))?;
    found.ok_or_else(|| PrivilegesError::NoSuchUser(name.into()))
}

/// The groups of a user, its own among them.
fn groups_of(user: &User) -> Result<Box<[Gid]>, PrivilegesError> {
    let name = CString::new(user.name.as_str()).map_err(|_| PrivilegesError::NoSuchUser(user.name.as_str().into()))?;
    getgrouplist(&name, user.gid).map(Into::into).map_err(system_error("getgrouplist"))
}

fn choose_user(us: Uid, user: Option<&User>, allow_root: bool, built_in: bool) -> Result<ProcessUser, PrivilegesError> {
    match user {
        Some(user) if user.uid.is_root() && !allow_root => Err(PrivilegesError::Root),
        Some(user) if user.uid == us => Ok(ProcessUser::Unchanged),
        Some(user) if us.is_root() => {
            Ok(ProcessUser::Become { uid: user.uid, gid: user.gid, groups: groups_of(user)? })
        }
        Some(user) => Err(PrivilegesError::NotRoot { user: user.name.as_str().into(), uid: us.as_raw() }),
        None if !us.is_root() || allow_root => Ok(ProcessUser::Unchanged),
        None if built_in => Ok(ProcessUser::ImplicitRoot),
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
    fn the_user_is_chosen_by_the_table_above() {
        use PrivilegesError::{NotRoot, Root};
        let (root, mail) = (user("root", 0), user("mail", 8));
        let decide = |uid, user, allow, built_in| choose_user(Uid::from_raw(uid), user, allow, built_in);
        let become_mail = ProcessUser::Become { uid: mail.uid, gid: mail.gid, groups: groups_of(&mail).unwrap() };
        assert_eq!(decide(0, Some(&mail), false, false).unwrap(), become_mail);
        assert_eq!(decide(0, Some(&mail), true, false).unwrap(), become_mail);
        assert!(matches!(decide(0, Some(&root), false, false), Err(Root)));
        assert_eq!(decide(0, Some(&root), true, false).unwrap(), ProcessUser::Unchanged);
        assert_eq!(decide(0, None, true, false).unwrap(), ProcessUser::Unchanged);
        assert_eq!(decide(0, None, false, true).unwrap(), ProcessUser::ImplicitRoot);
        assert!(matches!(decide(0, None, false, false), Err(Root)));
        assert_eq!(decide(8, None, false, false).unwrap(), ProcessUser::Unchanged);
        assert_eq!(decide(8, Some(&mail), false, false).unwrap(), ProcessUser::Unchanged);
        assert!(matches!(decide(9, Some(&mail), false, false), Err(NotRoot { uid: 9, .. })));
    }

    #[test]
    fn a_user_that_is_not_there_is_an_error() {
        assert!(matches!(find_user("no-such-user-here"), Err(PrivilegesError::NoSuchUser(_))));
    }

    #[test]
    fn the_drop_is_open_from_its_first_moment_and_is_no_link() {
        let above = tempfile::tempdir().unwrap();
        let data = above.path().join("data");
        ProcessUser::Unchanged.make_drop_folder(&data).unwrap();
        let mode = |folder: &Path| folder.symlink_metadata().unwrap().permissions().mode() & 0o7777;
        let drop = drop_folder::drop_folder_path(&data);
        assert_eq!((mode(&data), mode(&drop), mode(&drop_folder::rejected_folder_path(&data))), (0o711, 0o1733, 0o700));
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 2);
        let link = above.path().join("link");
        std::os::unix::fs::symlink(&data, &link).unwrap();
        assert!(open_folder(&link).is_err());
        std::fs::set_permissions(&drop, PermissionsExt::from_mode(0o1730)).unwrap();
        ProcessUser::Unchanged.make_drop_folder(&data).unwrap();
        assert_eq!(mode(&drop), 0o1730);
    }

    /// Of two servers that started at the same time, the second replaced the folder of the first,
    /// or of a faster operator.
    #[test]
    fn an_existing_drop_folder_is_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        let drop = drop_folder::drop_folder_path(data.path());
        DirBuilder::new().mode(MODE_PRIVATE).create(&drop).unwrap();
        ProcessUser::Unchanged.make_writable_folder(&drop).unwrap();
        assert_eq!(drop.metadata().unwrap().mode() & 0o7777, MODE_PRIVATE);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_replaced_folder_does_not_change_its_owner() {
        let above = tempfile::tempdir().unwrap();
        let (shared, closed, link) =
            (above.path().join("shared"), above.path().join("closed"), above.path().join("link"));
        for (folder, mode) in [(&shared, 0o755), (&closed, MODE_PRIVATE)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&closed, &link).unwrap();
        let before = |folder: &Path| folder.metadata().map(|found| (found.uid(), found.mode())).unwrap();
        let were = [before(&shared), before(&closed)];
        let other =
            ProcessUser::Become { uid: Uid::from_raw(1), gid: Gid::from_raw(1), groups: [Gid::from_raw(1)].into() };
        assert!(other.chown_folder(&shared, MODE_SEARCHABLE).is_err());
        assert!(other.chown_folder(&link, MODE_SEARCHABLE).is_err());
        assert_eq!([before(&shared), before(&closed)], were);
        if geteuid().is_root() {
            other.chown_folder(&closed, MODE_PRIVATE).unwrap();
            assert_eq!(before(&closed).0, 1);
            assert!(ProcessUser::Unchanged.chown_folder(&closed, MODE_SEARCHABLE).is_err());
        }
    }

    #[test]
    fn root_is_dropped_permanently() {
        run_in_child_process("privileges::tests::drops_root_in_child");
    }

    #[test]
    fn a_process_raises_its_file_limit_and_has_private_files() {
        run_in_child_process("privileges::tests::prepares_process_in_child");
    }

    /// Privileges belong to the process, so each test that changes them gets a process of its own.
    fn run_in_child_process(test: &str) {
        let ourselves = std::env::current_exe().unwrap();
        let ran = Command::new(ourselves).args(["--exact", test, "--ignored"]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn sessions_are_limited_by_open_files() {
        let limit = |receiving, deliveries, files| {
            let allowed = SessionLimits { receiving, reading: 0 };
            limit_sessions_by_files(allowed, deliveries, files).map(|limits| limits.receiving)
        };
        assert_eq!(limit(10_000, 5000, 1 << 20).unwrap(), 10_000);
        assert_eq!(limit(10_000, 0, 1024).unwrap(), 768);
        assert_eq!(limit(10_000, 100, 1024).unwrap(), 668);
        assert_eq!(limit(10_000, 5000, 1024).unwrap(), 416);
        assert_eq!(limit(10_000, 0, 320).unwrap(), 64);
        assert!(matches!(limit(10_000, 0, 319), Err(PrivilegesError::Files { files: 319, needed: 320 })));
        assert_eq!(limit(5, 0, 261).unwrap(), 5);
        assert!(limit(5, 0, 260).is_err());
        assert_eq!(limit(10_000, 0, u64::MAX).unwrap(), 10_000);
    }

    #[test]
    fn clients_that_read_share_the_open_files_with_those_that_send() {
        let limit = |receiving, reading, files| {
            let limits = limit_sessions_by_files(SessionLimits { receiving, reading }, 0, files).unwrap();
            (limits.receiving, limits.reading)
        };
        assert_eq!(limit(10_000, 10_000, 1 << 20), (10_000, 10_000));
        // Reading takes two files, so it gets two thirds of them for as many sessions.
        assert_eq!(limit(10_000, 10_000, 256 + 3000), (1000, 1000));
        // Neither kind is left with less than 64 files.
        assert_eq!(limit(10_000, 100, 256 + 1020), (956, 32));
        assert_eq!(limit(10, 10_000, 256 + 2010), (10, 1000));
        assert_eq!(limit(64, 64, 256 + 128), (64, 32));
    }

    #[test]
    #[ignore = "changes the process; run by root_is_dropped_permanently"]
    fn drops_root_in_child() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let nobody = find_user("nobody").unwrap();
        let mut identity = choose_user(geteuid(), Some(&nobody), false, false).unwrap();
        let shared = Gid::from_raw(54_321);
        if let ProcessUser::Become { groups, .. } = &mut identity {
            assert_eq!(**groups, [nobody.gid]);
            *groups = [nobody.gid, shared].into();
        }
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
        identity.drop_privileges().unwrap();
        std::fs::write(&log, "what the user writes\n").unwrap();
        std::fs::write(made.join("mail"), "").unwrap();
        // What existed before is unchanged.
        assert_eq!((kept.metadata().unwrap().uid(), folder.path().metadata().unwrap().uid()), (0, 0));
        assert_eq!(geteuid(), nobody.uid);
        let mut groups = nix::unistd::getgroups().unwrap();
        groups.sort_by_key(|group| group.as_raw());
        assert_eq!(groups, [shared, nobody.gid]);
        assert!(setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_err());
        assert!(std::fs::write("/etc/mailrace-was-here", "").is_err());
    }

    #[test]
    #[ignore = "changes the process; run by a_process_raises_its_file_limit_and_has_private_files"]
    fn prepares_process_in_child() {
        let folder = tempfile::tempdir().unwrap();
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64.min(hard), hard).unwrap();
        assert_eq!(set_umask_and_rlimit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        std::fs::write(folder.path().join("file"), "").unwrap();
        let mode = folder.path().join("file").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
