//! Values of file systems, folders and disks.

use std::path::Path;

use crate::disks::{Storage, is_rotational};
use crate::mounts::Mount;
use crate::survey::{Observed, Reading, Survey};
use crate::value::Value;

/// The seconds between commits of ext4 without the option.
const COMMIT_INTERVAL_DEFAULT: u64 = 5;

/// A value of the mount of each file system.
pub(super) fn each_mount(survey: &Survey<'_>, read: fn(&Mount) -> Observed) -> Vec<Reading> {
    each_file_system(survey, |storage| storage.mount.as_ref().map_or(Observed::Unknown, read))
}

fn each_file_system(survey: &Survey<'_>, read: impl Fn(&Storage) -> Observed) -> Vec<Reading> {
    let reading = |storage: &Storage| Reading {
        subject: storage.mount_point().display().to_string(),
        device: storage.mount.as_ref().map(|mount| mount.source.clone()).unwrap_or_default(),
        observed: read(storage),
    };
    survey.file_systems().into_iter().map(reading).collect()
}

pub(super) fn access_times(mount: &Mount) -> Observed {
    let named = ["noatime", "relatime"].into_iter().find(|option| mount.has_option(option));
    Observed::text(Some(named.unwrap_or("strictatime")))
}

pub(super) fn synchronous(mount: &Mount) -> Observed {
    let named = ["sync", "dirsync"].into_iter().find(|option| mount.has_option(option));
    Observed::text(Some(named.unwrap_or("async")))
}

/// XFS and ext4 have `discard`, btrfs also `discard=sync`; its `discard=async` does not delay commits.
pub(super) fn discard(mount: &Mount) -> Observed {
    let is_on = mount.has_option("discard") || mount.option("discard") == Some("sync");
    Observed::text(Some(if is_on { "discard" } else { "no discard" }))
}

pub(super) fn commit_interval(mount: &Mount) -> Observed {
    match mount.option("commit") {
        Some(seconds) => Observed::number(seconds.parse().ok()),
        None if mount.is_ext() => Observed::number(Some(COMMIT_INTERVAL_DEFAULT)),
        None => Observed::Absent,
    }
}

pub(super) fn data_mode(mount: &Mount) -> Observed {
    match mount.is_ext() {
        true => Observed::text(Some(mount.option("data").unwrap_or("ordered"))),
        false => Observed::Absent,
    }
}

pub(super) fn barrier(mount: &Mount) -> Observed {
    let is_off = mount.has_option("nobarrier") || mount.option("barrier") == Some("0");
    Observed::text(Some(if is_off { "nobarrier" } else { "barrier" }))
}

pub(super) fn file_system(mount: &Mount) -> Observed {
    Observed::text(Some(&mount.file_system))
}

/// The kernel has a folder `DEVICE-INODE` for the journal of each mounted file system. That of a journal on a device of
/// its own has only the name of that device, so it can be the journal of any file system that has no other.
pub(super) fn journals(survey: &Survey<'_>) -> Vec<Reading> {
    let journals = survey.host.list("/proc/fs/jbd2");
    each_file_system(survey, |storage| {
        let (Some(mount), Some(journals)) = (&storage.mount, &journals) else { return Observed::Unknown };
        let Some(device) = storage.device.as_ref().filter(|_| mount.is_ext()) else {
            return if mount.is_ext() { Observed::Unknown } else { Observed::Absent };
        };
        let is_own = |name: &String| name.rsplit_once('-').is_some_and(|(name, _)| name == device);
        match (journals.iter().any(is_own), journals.iter().any(|name| is_external_journal(name))) {
            (true, _) => Observed::text(Some("journal")),
            (false, true) => Observed::Unknown,
            (false, false) => Observed::text(Some("no journal")),
        }
    })
}

/// `sdc1`, or `dm-3`, which looks like an inode of `dm`.
fn is_external_journal(name: &str) -> bool {
    name.rsplit_once('-').is_none_or(|(device, _)| device == "dm")
}

pub(super) fn folder_flags(survey: &Survey<'_>) -> Vec<Reading> {
    let flags = |storage: &Storage| survey.host.calls()?.folder_flags(Path::new(&storage.folder));
    let reading = |storage: &Storage| Reading::of(&storage.folder, Observed::known(flags(storage).map(Value::Set)));
    survey.folders().map(reading).collect()
}

/// The free part of the inodes, in percent. File systems without a limit have all of them free.
pub(super) fn free_inodes(survey: &Survey<'_>) -> Vec<Reading> {
    each_file_system(survey, |storage| {
        let counts = survey.host.calls().and_then(|calls| calls.inodes(storage.mount_point()));
        Observed::number(counts.map(|counts| match counts.total {
            0 => 100,
            total => (u128::from(counts.free) * 100 / u128::from(total)) as u64,
        }))
    })
}

pub(super) fn shared_disk(survey: &Survey<'_>) -> Observed {
    let disks = survey.spool_disks();
    if disks.is_empty() || survey.mailboxes.iter().any(|storage| storage.disks.is_empty()) {
        return Observed::Unknown;
    }
    let is_shared = |disk: &&&str| survey.mailboxes.iter().any(|storage| storage.disks.iter().any(|it| it == *disk));
    let shared: Vec<_> = disks.iter().filter(is_shared).collect();
    let rotates = shared.iter().any(|disk| is_rotational(survey.host, disk) == Some(true));
    Observed::text(Some(match (shared.is_empty(), rotates) {
        (true, _) => "apart",
        (false, true) => "shared",
        (false, false) => "shared, does not rotate",
    }))
}

/// The most lanes that have a disk in common. Lanes whose disks are unknown count by their file system.
pub(super) fn lanes_on_one_disk(survey: &Survey<'_>) -> Observed {
    let places = |storage: &Storage| match storage.disks.is_empty() {
        true => vec![storage.mount_point().display().to_string()],
        false => storage.disks.clone(),
    };
    let all: Vec<Vec<String>> = survey.spool.iter().map(places).collect();
    let lanes_with = |place: &String| all.iter().filter(|places| places.contains(place)).count() as u64;
    Observed::number(all.iter().flatten().map(lanes_with).max())
}
