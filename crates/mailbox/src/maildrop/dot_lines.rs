//! Where the lines of a file begin with a dot, which POP3 doubles (RFC 1939 section 3).
//!
//! A file is read once to know; then it can be sent in ranges, and the kernel copies nothing. What was
//! found is remembered by device, inode, size and times of the file, in memory that does not grow with
//! the mailboxes: two generations of entries, of which the older one is dropped when the younger one
//! is full.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use memchr::memmem;
use parking_lot::Mutex;

use super::mail_folder::FileIdentity;
use super::message_file::MessageFile;

/// The most files that are remembered by default.
pub const DOT_LINE_FILES_MAX: usize = 65_536;
/// The most lines that are remembered of all files by default: 8 MB.
pub const DOT_LINES_CACHED_MAX: usize = 1 << 20;
/// The most lines of one file; a file with more is not worth sending in ranges.
pub const DOT_LINES_MAX: usize = 16_384;

/// Read at a time.
const CHUNK_OCTETS: usize = 128 << 10;

/// Where the lines of a file begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DotLines {
    /// The offset of each such dot, ascending.
    pub offsets: Arc<[u64]>,
    /// Whether the last line is complete; an empty file has no incomplete one.
    pub ends_with_newline: bool,
}

/// Remembers [`DotLines`] of files.
pub struct DotLineCache {
    entries: Mutex<DotLineEntries>,
    files_max: usize,
    lines_max: usize,
}

#[derive(Default)]
struct DotLineEntries {
    young: HashMap<FileIdentity, DotLines>,
    /// The offsets in `young`.
    young_lines: usize,
    old: HashMap<FileIdentity, DotLines>,
}

impl DotLineCache {
    /// For at most so many files, with at most so many lines altogether.
    pub fn new(files_max: usize, lines_max: usize) -> DotLineCache {
        DotLineCache { entries: Mutex::default(), files_max, lines_max }
    }

    /// What is remembered of the file. Does not block on the disk.
    pub fn find(&self, file: &MessageFile) -> Option<DotLines> {
        let mut entries = self.entries.lock();
        if let Some(lines) = entries.young.get(&file.identity) {
            return Some(lines.clone());
        }
        let lines = entries.old.remove(&file.identity)?;
        self.insert(&mut entries, file.identity, lines.clone());
        Some(lines)
    }

    /// Reads the whole file, and remembers what it found. Blocks.
    ///
    /// # Errors
    ///
    /// The file cannot be read; `UnexpectedEof` if it is shorter than when it was opened; `Unsupported`
    /// if it has more than [`DOT_LINES_MAX`] such lines and should be sent as a copy.
    pub fn scan(&self, file: &MessageFile) -> io::Result<DotLines> {
        let lines = scan(&file.file, file.octets)?;
        self.insert(&mut self.entries.lock(), file.identity, lines.clone());
        Ok(lines)
    }

    fn insert(&self, entries: &mut DotLineEntries, identity: FileIdentity, lines: DotLines) {
        let (files_max, lines_max) = (self.files_max / 2, self.lines_max / 2);
        if lines.offsets.len() > lines_max {
            return;
        }
        if entries.young.len() >= files_max || entries.young_lines + lines.offsets.len() > lines_max {
            entries.old = std::mem::take(&mut entries.young);
            entries.young_lines = 0;
        }
        entries.young_lines += lines.offsets.len();
        if let Some(replaced) = entries.young.insert(identity, lines) {
            entries.young_lines -= replaced.offsets.len();
        }
    }
}

impl Default for DotLineCache {
    fn default() -> DotLineCache {
        DotLineCache::new(DOT_LINE_FILES_MAX, DOT_LINES_CACHED_MAX)
    }
}

fn scan(file: &File, octets: u64) -> io::Result<DotLines> {
    let finder = memmem::Finder::new(b"\n.");
    let mut chunk = vec![0; CHUNK_OCTETS];
    let (mut offsets, mut at, mut last) = (Vec::new(), 0, b'\n');
    while at < octets {
        let filled = match file.read_at(&mut chunk, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(filled) => &chunk[..filled],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if last == b'\n' && filled[0] == b'.' {
            offsets.push(at);
        }
        for found in finder.find_iter(filled) {
            if offsets.len() >= DOT_LINES_MAX {
                return Err(io::ErrorKind::Unsupported.into());
            }
            offsets.push(at + found as u64 + 1);
        }
        at += filled.len() as u64;
        last = filled[filled.len() - 1];
    }
    // The file may have grown since.
    offsets.retain(|&offset| offset < octets);
    Ok(DotLines { offsets: offsets.into(), ends_with_newline: last == b'\n' })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use rustix::fs::fstat;

    use super::super::message_file::FileLineEnds;
    use super::*;

    fn message(text: &[u8]) -> MessageFile {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let identity = FileIdentity::new(&fstat(&file).unwrap());
        MessageFile { file, octets: text.len() as u64, line_ends: FileLineEnds::Crlf, has_wrong_size: false, identity }
    }

    #[test]
    fn what_was_scanned_is_found_until_the_file_changes() {
        let cache = DotLineCache::default();
        let mut file = message(b".a\r\n..\r\nx.\r\n.");
        assert_eq!(cache.find(&file), None);
        let lines = cache.scan(&file).unwrap();
        assert_eq!(lines, DotLines { offsets: [0, 4, 12].into(), ends_with_newline: false });
        assert_eq!(cache.find(&file), Some(lines));
        file.identity.changed += 1;
        assert_eq!(cache.find(&file), None);
    }

    #[test]
    fn files_and_lines_are_limited() {
        let cache = DotLineCache::new(8, 10);
        let files: Vec<_> = (0..20).map(|lines| message(&b".\r\n".repeat(lines % 3))).collect();
        for file in &files {
            cache.scan(file).unwrap();
            let entries = cache.entries.lock();
            let all: Vec<_> = entries.young.values().chain(entries.old.values()).collect();
            assert!(all.len() <= 8);
            assert!(all.iter().map(|lines| lines.offsets.len()).sum::<usize>() <= 10);
        }
        let kept = files.last().unwrap();
        assert!(cache.find(kept).is_some());
        assert!(cache.find(&files[0]).is_none());
        for file in &files[..5] {
            cache.scan(file).unwrap();
            assert!(cache.find(kept).is_some(), "what is used stays");
        }
        cache.scan(&message(&b".\r\n".repeat(6))).unwrap();
    }

    #[test]
    fn a_file_of_dots_is_not_remembered() {
        let cache = DotLineCache::default();
        let file = message(&b"\n.".repeat(DOT_LINES_MAX + 1));
        assert_eq!(cache.scan(&file).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(cache.scan(&message(&b"\n.".repeat(DOT_LINES_MAX))).unwrap().offsets.len(), DOT_LINES_MAX);
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let file = message(b"a\r\n");
        file.file.set_len(2).unwrap();
        assert_eq!(DotLineCache::default().scan(&file).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn dots_are_found_across_chunks(before in CHUNK_OCTETS - 3..CHUNK_OCTETS + 3, text in "[.\r\na]{0,12}") {
            let text = format!("{}{text}", "x".repeat(before));
            let found = scan(&message(text.as_bytes()).file, text.len() as u64).unwrap();
            let bytes = text.as_bytes();
            let expected: Vec<_> = (1..bytes.len()).filter(|&at| bytes[at - 1..=at] == *b"\n.").collect();
            prop_assert_eq!(found.offsets.iter().map(|&offset| offset as usize).collect::<Vec<_>>(), expected);
            prop_assert_eq!(found.ends_with_newline, text.ends_with('\n'));
        }
    }
}
