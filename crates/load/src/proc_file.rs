//! A file of /proc that stays open. Reading it from the start makes the kernel regenerate it, so
//! each sample is of one moment. The buffer grows to the size of the file and is reused.
//!
//! Such a file has no length to query, and the kernel may return less than asked for. A file that
//! the kernel writes in one piece ends with a short read; one that it writes in several pieces ends
//! with an empty read, and its pieces may be of different moments. Text that the parser rejects is
//! an error of kind `InvalidData` that names the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most files of /proc are smaller; a larger one costs a few more reads, once.
const INITIAL_BYTES: usize = 4096;

/// An open file and a buffer for its text.
#[derive(Debug)]
pub(crate) struct ProcFile {
    file: File,
    path: PathBuf,
    text: Vec<u8>,
}

impl ProcFile {
    pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<ProcFile> {
        let path = path.as_ref().to_owned();
        Ok(ProcFile { file: File::open(&path)?, path, text: vec![0; INITIAL_BYTES] })
    }

    /// Samples a file that the kernel writes in one piece, by one `pread` if the buffer is large
    /// enough.
    pub(crate) fn sample<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        loop {
            let length = self.file.read_at(&mut self.text, 0)?;
            if length < self.text.len() {
                return self.parsed(length, parse);
            }
            self.grow();
        }
    }

    /// Samples a file that the kernel writes in several pieces: it ends with an empty read.
    pub(crate) fn sample_pieces<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        let mut length = 0;
        loop {
            if length == self.text.len() {
                self.grow();
            }
            match self.file.read_at(&mut self.text[length..], length as u64)? {
                0 => return self.parsed(length, parse),
                count => length += count,
            }
        }
    }

    fn grow(&mut self) {
        self.text.resize(self.text.len() * 2, 0);
    }

    fn parsed<T>(&self, length: usize, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        let text = std::str::from_utf8(&self.text[..length]).ok();
        text.and_then(parse).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("unexpected format of {}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole_both_ways() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "x".repeat(3 * INITIAL_BYTES);
        std::fs::write(file.path(), &text).unwrap();
        let mut record = ProcFile::open(file.path()).unwrap();
        assert_eq!(record.sample(|seen| Some(seen.to_owned())).unwrap(), text);
        let mut record = ProcFile::open(file.path()).unwrap();
        assert_eq!(record.sample_pieces(|seen| Some(seen.to_owned())).unwrap(), text);
    }

    #[test]
    fn what_cannot_be_read_names_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0xff, 0xfe]).unwrap();
        let error = ProcFile::open(file.path()).unwrap().sample(|_| Some(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
    }
}
