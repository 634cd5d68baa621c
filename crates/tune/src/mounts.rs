//! The mounted file systems: `/proc/self/mountinfo` (proc_pid_mountinfo(5)), or `/proc/mounts` where it is missing.
//! Lines with an unexpected format are skipped.

use std::path::{Path, PathBuf};

use crate::host::Host;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    /// Its type: `ext4`, `xfs`.
    pub(crate) file_system: String,
    /// What is mounted, such as `/dev/sda1`.
    pub(crate) source: String,
    /// The options of the mount and of the file system.
    pub(crate) options: Vec<String>,
    /// The device as `MAJOR:MINOR`; None if only `/proc/mounts` was readable.
    pub(crate) device: Option<String>,
}

impl Mount {
    /// Whether the options contain this one.
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }

    /// The value of an option `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether it is of the ext family, whose options and journal are known.
    pub(crate) fn is_ext(&self) -> bool {
        ["ext3", "ext4"].contains(&&*self.file_system)
    }
}

/// All mounts of the host, in the order in which they were mounted.
pub(crate) fn mounts(host: &Host) -> Vec<Mount> {
    match host.read("/proc/self/mountinfo") {
        Some(text) => text.lines().filter_map(parse_mountinfo).collect(),
        None => host.read("/proc/mounts").unwrap_or_default().lines().filter_map(parse_mounts).collect(),
    }
}

/// The mount that contains an absolute path: the longest, and of those at one point the last.
pub(crate) fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.as_os_str().len())
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,data=ordered`
fn parse_mountinfo(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let [_, _, device, _, point, mount_options, ..] = mount.split(' ').collect::<Vec<_>>()[..] else { return None };
    let [kind, source, options, ..] = file_system.split(' ').collect::<Vec<_>>()[..] else { return None };
    let options = mount_options.split(',').chain(options.split(','));
    Some(Mount {
        point: unescape(point).into(),
        file_system: kind.to_owned(),
        source: unescape(source),
        options: options.map(str::to_owned).collect(),
        device: Some(device.to_owned()),
    })
}

/// `/dev/sda1 /mnt ext4 rw,noatime 0 0`
fn parse_mounts(line: &str) -> Option<Mount> {
    let [source, point, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
    Some(Mount {
        point: unescape(point).into(),
        file_system: kind.to_owned(),
        source: unescape(source),
        options: options.split(',').map(str::to_owned).collect(),
        device: None,
    })
}

/// Replaces the octal escapes of blanks, line ends and backslashes. Other backslashes stay.
fn unescape(text: &str) -> String {
    const ESCAPES: [(&str, &str); 4] = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    ESCAPES.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_last_mount_contains_a_path() {
        let lines = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 8:2 / /var/mail\\040box rw,noatime shared:1 - xfs /dev/sda2 rw,discard\n\
            3 1 8:3 / /var rw - ext4 /dev/sda3 rw,commit=5\nodd line\n4 1 8:4 / /var rw - ext4 /dev/sda4 rw\n";
        let mounts: Vec<_> = lines.lines().filter_map(parse_mountinfo).collect();
        let source = |path: &str| mount_of(&mounts, Path::new(path)).map(|mount| &*mount.source);
        assert_eq!(mounts.len(), 4);
        assert_eq!(source("/var/mail box/x"), Some("/dev/sda2"));
        assert_eq!(source("/var/mail"), Some("/dev/sda4"));
        assert_eq!(source("/variable"), Some("/dev/sda1"));
        assert_eq!(source("relative"), None);
        assert!(mounts[1].has_option("noatime") && mounts[1].has_option("discard"));
        assert_eq!(mounts[2].option("commit"), Some("5"));
        assert_eq!(mounts[2].option("comm"), None);
    }

    #[test]
    fn older_files_lack_only_the_device() {
        let mount = parse_mounts("/dev/sda1 /mnt ext4 rw,noatime 0 0").unwrap();
        assert_eq!((&*mount.source, &mount.device, mount.has_option("noatime")), ("/dev/sda1", &None, true));
    }
}
