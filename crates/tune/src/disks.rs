//! The file systems and disks of the spool and the mailboxes.

use std::path::Path;

use crate::host::Host;
use crate::mounts::{Mount, mount_of};

/// Partitions, device mappers and arrays on top of each other that are followed.
const LAYERS_MAX: usize = 8;

/// A folder of the server, with the file system and the disks below it.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// The folder.
    pub(crate) folder: String,
    /// Its file system; None if the mounts could not be read.
    pub(crate) mount: Option<Mount>,
    /// The kernel's name of the device of the file system, such as `sda1` or `dm-0`; None if it has none.
    pub(crate) device: Option<String>,
    /// The names of its disks in /sys/block. Empty if it has none, or none that is known.
    pub(crate) disks: Vec<String>,
}

impl Storage {
    /// Finds the file system of a folder, which need not exist yet.
    pub(crate) fn of_folder(host: &Host, mounts: &[Mount], folder: &Path) -> Storage {
        let real = match host.calls() {
            Some(calls) => calls.real_path(folder),
            None => std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()),
        };
        let mount = mount_of(mounts, &real).cloned();
        let blocks = host.list("/sys/block").unwrap_or_default();
        let device = mount.as_ref().and_then(|mount| device_of(host, &blocks, mount));
        let disks = device.as_ref().map(|device| disks_below(host, &blocks, &device.block)).unwrap_or_default();
        Storage { folder: real.display().to_string(), mount, device: device.map(|device| device.name), disks }
    }
}

/// Whether a disk rotates, as the kernel believes.
pub(crate) fn is_rotational(host: &Host, disk: &str) -> Option<bool> {
    match host.read(&format!("/sys/block/{disk}/queue/rotational"))?.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Whether a disk has a cache that a power failure empties, as the kernel believes.
pub(crate) fn has_volatile_cache(host: &Host, disk: &str) -> Option<bool> {
    Some(host.read(&format!("/sys/block/{disk}/queue/write_cache"))?.trim() == "write back")
}

/// A block device that contains a file system.
struct BlockDevice {
    /// The disk or the like in /sys/block.
    block: String,
    /// The kernel's name of the device itself, which may be a partition.
    name: String,
}

/// Finds the device of a file system by number or, for file systems without a number of their own (btrfs), by name.
fn device_of(host: &Host, blocks: &[String], mount: &Mount) -> Option<BlockDevice> {
    let source = mount.source.strip_prefix("/dev/").unwrap_or_default();
    let devices = || blocks.iter().flat_map(|block| devices_in(host, block));
    let has_number = |path: &str| host.read(path).is_some_and(|text| Some(text.trim()) == mount.device.as_deref());
    let by_number = devices().find(|(_, folder)| has_number(&format!("{folder}/dev")));
    let (device, _) = by_number.or_else(|| devices().find(|(device, _)| device.name == source))?;
    Some(device)
}

/// A block device and its partitions, with their folders.
fn devices_in(host: &Host, block: &str) -> Vec<(BlockDevice, String)> {
    let folder = format!("/sys/block/{block}");
    let entries = host.list(&folder).unwrap_or_default();
    let partitions = entries.into_iter().filter(|entry| entry.starts_with(block));
    let partitions = partitions.map(|name| (format!("{folder}/{name}"), name));
    let all = std::iter::once((folder.clone(), block.to_owned())).chain(partitions);
    all.map(|(folder, name)| (BlockDevice { block: block.to_owned(), name }, folder)).collect()
}

/// The disks at the bottom of a block device.
fn disks_below(host: &Host, blocks: &[String], block: &str) -> Vec<String> {
    let mut layer = vec![block.to_owned()];
    for _ in 0..LAYERS_MAX {
        let mut next: Vec<String> = layer.iter().flat_map(|block| below(host, blocks, block)).collect();
        next.sort();
        next.dedup();
        if next == layer {
            break;
        }
        layer = next;
    }
    layer
}

/// The block devices that one consists of; itself if it is a disk.
fn below(host: &Host, blocks: &[String], block: &str) -> Vec<String> {
    let slaves = host.list(&format!("/sys/block/{block}/slaves")).unwrap_or_default();
    let disk_of = |slave: &String| {
        let mut disks = blocks.iter().filter(|disk| slave.starts_with(disk.as_str()));
        disks.find(|disk| *disk == slave || host.list(&format!("/sys/block/{disk}/{slave}")).is_some()).cloned()
    };
    let disks: Vec<String> = slaves.iter().filter_map(disk_of).collect();
    if disks.is_empty() { vec![block.to_owned()] } else { disks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::mounts;

    #[test]
    fn a_file_system_is_followed_down_to_its_disks() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/block/sda/dev", "8:0\n");
        write("sys/block/sda/sda1/dev", "8:1\n");
        write("sys/block/sdb/dev", "8:16\n");
        write("sys/block/sdb/sdb2/dev", "8:18\n");
        write("sys/block/md0/dev", "9:0\n");
        write("sys/block/md0/slaves/sda1/x", "");
        write("sys/block/md0/slaves/sdb2/x", "");
        write("sys/block/dm-0/dev", "253:0\n");
        write("sys/block/dm-0/slaves/md0/x", "");
        write(
            "proc/self/mountinfo",
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 253:0 / /mail rw - xfs /dev/mapper/mail rw\n\
             3 1 0:40 / /pool rw - btrfs /dev/sdb2 rw\n4 1 0:41 / /tmp rw - tmpfs tmpfs rw\n",
        );
        let host = Host::below(folder.path());
        let mounts = mounts(&host);
        let disks = |path: &str| Storage::of_folder(&host, &mounts, Path::new(path)).disks;
        assert_eq!(disks("/var/spool"), ["sda"]);
        assert_eq!(disks("/mail/x"), ["sda", "sdb"]);
        assert_eq!(disks("/pool"), ["sdb"]);
        assert_eq!(Storage::of_folder(&host, &mounts, Path::new("/mail")).device.as_deref(), Some("dm-0"));
        assert!(disks("/tmp").is_empty());
    }

    #[test]
    fn devices_that_consist_of_one_another_end() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("sys/block/dm-0/slaves/dm-1")).unwrap();
        std::fs::create_dir_all(folder.path().join("sys/block/dm-1/slaves/dm-0")).unwrap();
        let host = Host::below(folder.path());
        let blocks = host.list("/sys/block").unwrap();
        assert_eq!(disks_below(&host, &blocks, "dm-0").len(), 1);
    }
}
