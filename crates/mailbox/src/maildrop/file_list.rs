//! The files of a Maildir: names and places, without opening or asking for any of them.
//!
//! Everything in `new/` and `cur/` is a message that is not hidden and, as far as the directory
//! tells, a regular file. The part of the name before the first colon (the *base*) identifies a
//! message, as in Dovecot; flags follow the colon.

use std::collections::HashMap;
use std::io;

use rustix::fs::{FileType, RawDir, fstat};

use super::mail_folder::{FileIdentity, MailFolder};
use super::uidlist::parse_number;
use crate::list::MaildirFolder;

/// The most messages of a maildrop; they take about 150 MB of memory then.
pub(super) const MESSAGES_MAX: usize = 1_000_000;
/// How often `cur/` is listed if another program renames files meanwhile.
const LISTINGS_MAX: usize = 3;
/// For reading directories: a small one takes two system calls, as with any size.
const BUFFER_OCTETS: usize = 64 << 10;

/// The files, in no order.
#[derive(Debug, Default)]
pub(super) struct FileList {
    /// All names, one after the other.
    names: Vec<u8>,
    pub(super) files: Vec<MailFile>,
}

/// A file at the time of listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct MailFile {
    /// The size with CRLF line ends, if it is known.
    pub(super) octets: Option<u64>,
    pub(super) part: MaildirFolder,
    /// The size was found by reading the file: `dovecot-uidlist` should have it.
    pub(super) is_measured: bool,
    name_octets: u8,
    name: u32,
}

impl FileList {
    /// Reads `new/`, then `cur/`: a file that another program moves meanwhile is in one or in both.
    ///
    /// # Errors
    ///
    /// A directory cannot be read, or there are more than [`MESSAGES_MAX`] files.
    pub(super) fn read(folder: &MailFolder) -> io::Result<FileList> {
        let mut list = FileList::default();
        let mut buffer = Vec::with_capacity(BUFFER_OCTETS);
        list.add_part(folder, MaildirFolder::New, &mut buffer)?;
        let (names, files) = (list.names.len(), list.files.len());
        for _ in 0..LISTINGS_MAX {
            list.names.truncate(names);
            list.files.truncate(files);
            // A renamed file may be missing from the listing of a directory that was being read.
            if list.add_part(folder, MaildirFolder::Cur, &mut buffer)? == PartState::Unchanged {
                break;
            }
        }
        Ok(list)
    }

    fn add_part(&mut self, folder: &MailFolder, part: MaildirFolder, buffer: &mut Vec<u8>) -> io::Result<PartState> {
        let Some(dir) = folder.open_part(part)? else { return Ok(PartState::Unchanged) };
        let before = FileIdentity::new(&fstat(&dir)?);
        let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
                self.add(part, entry.file_name().to_bytes())?;
            }
        }
        let after = FileIdentity::new(&fstat(&dir)?);
        Ok(if before == after { PartState::Unchanged } else { PartState::Changed })
    }

    /// Line ends in a name would break `dovecot-uidlist`; Dovecot ignores such files too.
    fn add(&mut self, part: MaildirFolder, name: &[u8]) -> io::Result<()> {
        if name.starts_with(b".") || memchr::memchr2(b'\r', b'\n', name).is_some() {
            return Ok(());
        }
        if self.files.len() >= MESSAGES_MAX {
            return Err(io::Error::other(format!("more than {MESSAGES_MAX} messages")));
        }
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidFilename);
        let file = MailFile {
            octets: size_in_name(name, b'W'),
            part,
            is_measured: false,
            name_octets: name.len().try_into().map_err(too_long)?,
            name: self.names.len().try_into().map_err(too_long)?,
        };
        self.names.extend_from_slice(name);
        self.files.push(file);
        Ok(())
    }

    /// The file name.
    pub(super) fn name(&self, file: &MailFile) -> &[u8] {
        let start = file.name as usize;
        &self.names[start..start + usize::from(file.name_octets)]
    }

    /// The file name without flags.
    pub(super) fn base(&self, file: &MailFile) -> &[u8] {
        base_of(self.name(file))
    }

    /// The path in the Maildir.
    pub(super) fn path(&self, file: &MailFile) -> Vec<u8> {
        let name = self.name(file);
        let mut path = Vec::with_capacity(4 + name.len());
        path.extend_from_slice(file.part.folder_name().as_bytes());
        path.push(b'/');
        path.extend_from_slice(name);
        path
    }

    /// The index of each file by its base. Of several files with one base, the last counts: the one
    /// in `cur/`, if a file was moved during the listing.
    pub(super) fn by_base(&self) -> HashMap<&[u8], usize> {
        self.files.iter().enumerate().map(|(index, file)| (self.base(file), index)).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    Unchanged,
    Changed,
}

/// The part of a name that identifies a message in `dovecot-uidlist`.
pub(super) fn base_of(name: &[u8]) -> &[u8] {
    &name[..memchr::memchr(b':', name).unwrap_or(name.len())]
}

/// A size in a file name: `,S=` (of the file) or `,W=` (with CRLF line ends).
pub(super) fn size_in_name(name: &[u8], key: u8) -> Option<u64> {
    let base = base_of(name);
    let is_field = |comma: &usize| base[comma + 1..].starts_with(&[key, b'=']);
    let start = memchr::memchr_iter(b',', base).find(is_field)? + 3;
    let end = memchr::memchr(b',', &base[start..]).map_or(base.len(), |octets| start + octets);
    parse_number(&base[start..end])
}

/// A key by which files sort in the order in which Dovecot gives UIDs to new messages: by the time
/// in the name, then by its microseconds (`M`), then by the rest. Names with and without
/// microseconds, which Dovecot compares in no consistent order, sort as groups.
pub(super) fn delivery_order(base: &[u8]) -> (u64, Option<u64>, &[u8]) {
    let digits = base.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (seconds, rest) = base.split_at(digits);
    let seconds = if digits == 0 { 0 } else { parse_number(seconds).unwrap_or(u64::MAX) };
    (seconds, microseconds(rest), rest)
}

fn microseconds(rest: &[u8]) -> Option<u64> {
    let unique = rest.strip_prefix(b".")?;
    let unique = &unique[..memchr::memchr(b'.', unique).unwrap_or(unique.len())];
    let after = &unique[memchr::memchr(b'M', unique)? + 1..];
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some(parse_number(&after[..digits]).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(list: &FileList) -> Vec<&[u8]> {
        let mut names: Vec<_> = list.files.iter().map(|file| list.name(file)).collect();
        names.sort();
        names
    }

    #[test]
    fn hidden_files_folders_links_pipes_and_line_ends_are_no_messages() {
        use std::os::unix::ffi::OsStrExt;
        let root = tempfile::tempdir().unwrap();
        crate::folder::create(root.path()).unwrap();
        let strange = std::ffi::OsStr::from_bytes(b"3.\xff\x01 x:2,S");
        for name in ["1.a,S=3,W=4", ".hidden", "2.b\n", "2.c\r"] {
            fs::write(root.path().join("new").join(name), "").unwrap();
        }
        fs::write(root.path().join("cur").join(strange), "").unwrap();
        fs::create_dir(root.path().join("cur/folder")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("cur/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("new/pipe"), rustix::fs::Mode::RWXU).unwrap();
        let list = FileList::read(&MailFolder::open(root.path()).unwrap().unwrap()).unwrap();
        assert_eq!(names(&list), [&b"1.a,S=3,W=4"[..], b"3.\xff\x01 x:2,S"]);
        let file = list.files.iter().find(|file| file.octets.is_some()).unwrap();
        assert_eq!((file.octets, file.part, list.path(file)), (Some(4), MaildirFolder::New, b"new/1.a,S=3,W=4".into()));
    }

    #[test]
    fn missing_directories_are_empty() {
        let root = tempfile::tempdir().unwrap();
        assert!(MailFolder::open(&root.path().join("bob")).unwrap().is_none());
        let folder = MailFolder::open(root.path()).unwrap().unwrap();
        assert!(FileList::read(&folder).unwrap().files.is_empty());
    }

    #[test]
    fn a_listing_of_many_files_is_complete() {
        let root = tempfile::tempdir().unwrap();
        crate::folder::create(root.path()).unwrap();
        for number in 0..3000 {
            fs::write(root.path().join(format!("cur/{number}.{}", "x".repeat(100))), "").unwrap();
        }
        let list = FileList::read(&MailFolder::open(root.path()).unwrap().unwrap()).unwrap();
        assert_eq!((list.files.len(), list.by_base().len()), (3000, 3000));
    }

    #[test]
    fn sizes_in_names() {
        assert_eq!(size_in_name(b"1.a,S=5,W=6:2,S", b'W'), Some(6));
        assert_eq!(size_in_name(b"1.a,S=5,W=6:2,S", b'S'), Some(5));
        for name in [&b"1.a,W=,S=5"[..], b"1.a:2,W=5", b"W=5", b"1.a,W=5x", b"1.a,W", b"1,W=99999999999999999999"] {
            assert_eq!(size_in_name(name, b'W'), None, "{name:?}");
        }
    }

    #[test]
    fn new_messages_are_ordered_by_time_then_microseconds_then_name() {
        let ordered = [
            &b"no-time"[..],
            b"9.M999999P1.mx",
            b"10.11-2-5_7.mx",
            b"10.11-2-6_7.mx",
            b"10.M9P1.mx",
            b"10.M10P1.mx",
            b"10.M10P2.mx",
            b"11.M1P1.mx",
        ];
        assert!(ordered.is_sorted_by_key(|base| delivery_order(base)));
    }
}
