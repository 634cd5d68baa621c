//! The open file of a message, and what is known of its line ends without reading it.

use std::fs::File;
use std::io;

use rustix::fs::fstat;
use rustix::io::Errno;

use super::file_list::{FileList, MailFile, size_in_name};
use super::mail_folder::{FileIdentity, MailFolder, is_regular};

/// An open message.
#[derive(Debug)]
pub struct MessageFile {
    /// The file; its position is at the beginning.
    pub file: File,
    /// The size of the file.
    pub octets: u64,
    /// The line ends of the file.
    pub line_ends: FileLineEnds,
    /// A size in the file's name is wrong; the operator may want to know. The message is sent as it
    /// is, but the client was told another size.
    pub has_wrong_size: bool,
    pub(super) identity: FileIdentity,
}

/// The line ends of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLineEnds {
    /// Each line feed follows a carriage return (or there is none): the file can be sent as it is.
    Crlf,
    /// Some line feeds, or all, come without a carriage return.
    Lf,
    /// The recorded size and that of the file contradict each other: either is possible.
    Unknown,
}

/// Opens the file of a message; see [`Maildrop::open_message`](super::Maildrop::open_message).
pub(super) fn open(
    folder: &MailFolder,
    files: &FileList,
    listed: &MailFile,
    cached_only: bool,
) -> io::Result<MessageFile> {
    let file = match folder.open_message(&files.path(listed), cached_only) {
        // A moved file must be searched for, which reads directories.
        Err(Errno::NOENT) if cached_only => return Err(io::ErrorKind::WouldBlock.into()),
        Err(Errno::NOENT) => open_moved(folder, files.base(listed))?,
        Err(Errno::LOOP) => return Err(io::ErrorKind::NotFound.into()),
        opened => File::from(opened?),
    };
    let stat = fstat(&file)?;
    if !is_regular(&stat) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let identity = FileIdentity::new(&stat);
    let octets = identity.octets;
    let recorded = listed.octets.unwrap_or(0);
    let size_in_name = size_in_name(files.name(listed), b'S');
    let has_wrong_size = recorded < octets || size_in_name.is_some_and(|size| size != octets);
    let line_ends = match has_wrong_size {
        true => FileLineEnds::Unknown,
        false if recorded == octets => FileLineEnds::Crlf,
        false => FileLineEnds::Lf,
    };
    Ok(MessageFile { file, octets, line_ends, has_wrong_size, identity })
}

/// Searches for the file by the name without flags: another program may have moved it to `cur/` or
/// changed its flags.
fn open_moved(folder: &MailFolder, base: &[u8]) -> io::Result<File> {
    let files = FileList::read(folder)?;
    // The last one is in cur/, if there are several.
    let moved = files.files.iter().rev().find(|file| files.base(file) == base).ok_or(io::ErrorKind::NotFound)?;
    Ok(folder.open_message(&files.path(moved), false)?.into())
}
