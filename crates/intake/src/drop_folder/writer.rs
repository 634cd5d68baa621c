//! Writes messages to the drop folder: a file is written under a temporary name, synced and
//! renamed, and the folder is synced. Only then is the message accepted.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mail::Timestamp;

const TEMPORARY: &str = "t-";
const MESSAGE: &str = "m-";
const TIME_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 32;

/// Writes to the drop folder.
#[derive(Clone, Debug)]
pub struct DropFolderWriter {
    folder: PathBuf,
}

impl DropFolderWriter {
    /// Writes to the folder at this path, which the server creates.
    pub fn new(folder: PathBuf) -> DropFolderWriter {
        DropFolderWriter { folder }
    }

    /// The path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a message file. On success it is durable.
    ///
    /// # Errors
    ///
    /// The folder does not exist or is not writable, the disk is full, or it fails. Then no message
    /// is left.
    pub fn write_file(&self, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let temporary = self.folder.join(format!("{TEMPORARY}{}", random_name()?));
        let result = self.try_write(&temporary, bytes, now);
        if result.is_err() {
            // If it cannot be removed, the temporary file stays, and is ignored.
            let _ = std::fs::remove_file(&temporary);
        }
        result
    }

    fn try_write(&self, temporary: &Path, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
        file.write_all(bytes)?;
        // The server may be another user; other users do not know the name.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.sync_all()?;
        let name = self.folder.join(format!("{MESSAGE}{:016x}-{}", now.millis(), random_name()?));
        std::fs::rename(temporary, &name)?;
        let synced = self.sync_folder(&file);
        if synced.is_err() {
            // The caller reports the failure and will try again.
            let _ = std::fs::remove_file(&name);
        }
        synced
    }

    /// Writers may not read the folder, and so cannot open and sync it. Then the whole file system
    /// of `file` is synced.
    fn sync_folder(&self, file: &File) -> io::Result<()> {
        match File::open(&self.folder) {
            Ok(folder) => folder.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(rustix::fs::syncfs(file)?),
            Err(error) => Err(error),
        }
    }
}

/// Whether this is the name of a message.
pub fn is_message_name(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(MESSAGE.as_bytes()) else { return false };
    rest.len() == TIME_DIGITS + 1 + SECRET_DIGITS
        && rest[TIME_DIGITS] == b'-'
        && rest.iter().enumerate().all(|(writer, byte)| writer == TIME_DIGITS || is_digit(*byte))
}

/// Whether this is the name of a file that is being written.
pub fn is_temporary_name(name: &[u8]) -> bool {
    let rest = name.strip_prefix(TEMPORARY.as_bytes());
    rest.is_some_and(|rest| rest.len() == SECRET_DIGITS && rest.iter().all(|byte| is_digit(*byte)))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Digits that cannot be guessed, from the system's random source.
///
/// # Errors
///
/// The system has no random source.
pub fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; SECRET_DIGITS / 2];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn written_files_are_complete_and_named_as_messages() {
        let folder = tempfile::tempdir().unwrap();
        let writer = DropFolderWriter::new(folder.path().to_owned());
        writer.write_file(b"one", Timestamp(5)).unwrap();
        writer.write_file(b"two", Timestamp(6)).unwrap();
        let mut names = names(folder.path());
        names.sort();
        assert!(names.iter().all(|name| is_message_name(name.as_bytes())), "{names:?}");
        let first = folder.path().join(&names[0]);
        assert_eq!(std::fs::read(&first).unwrap(), b"one");
        assert_eq!(first.metadata().unwrap().permissions().mode() & 0o7777, 0o644);
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = DropFolderWriter::new(folder.path().join("drop")).write_file(b"x", Timestamp(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn foreign_names_are_rejected() {
        let secret = "0123456789abcdef0123456789abcdef";
        assert!(is_message_name(format!("m-0123456789abcdef-{secret}").as_bytes()));
        assert!(is_temporary_name(format!("t-{secret}").as_bytes()));
        for name in ["", "m-", "m-0-1", "..", "m-0123456789abcdef_0123456789abcdef0123456789abcdef"] {
            assert!(!is_message_name(name.as_bytes()) && !is_temporary_name(name.as_bytes()), "{name}");
        }
        assert!(!is_message_name(format!("m-0123456789ABCDEF-{secret}").as_bytes()));
        assert!(!is_temporary_name(format!("t-{secret}/").as_bytes()));
    }
}
