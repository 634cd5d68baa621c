//! The drop folder, where local programs leave mail for the server, whether it runs or not, and the
//! format of its files. Both sides use this: local programs write the files ([`DropFolderWriter`]), and
//! the server takes them out ([`DropFolderScanner`]).
//!
//! | name | meaning |
//! |---|---|
//! | `t-` and 32 digits | being written, and not yet accepted |
//! | `m-`, 16 digits of milliseconds, `-`, 32 digits | a message; durable as soon as it has this name |
//! | anything else | foreign |
//!
//! Any local user can leave mail in the folder, but only its owner can list it (mode 1733). The
//! server may be another user than the writer, so files have mode 0644; other users cannot read
//! them because the names cannot be guessed. The file's owner, not its content, tells who sent a
//! message.

mod file;
mod notice;
mod scanner;
mod submission;
mod writer;

use std::path::{Path, PathBuf};

pub use file::{DROP_FILE_HEAD_OCTETS_MAX, DropFile, DropFileError, is_envid};
pub use notice::{DropNotice, NoticeComposer, NoticeFuture, RefusedMessage};
pub use scanner::{DropFolderConfig, DropFolderScanner};
pub use submission::DropSubmitter;
pub use writer::{DropFolderWriter, is_message_name, is_temporary_name, random_name};

/// The mode of the folder.
pub const FOLDER_MODE: u32 = 0o1733;

/// The folder for messages.
pub fn drop_folder_path(data_dir: &Path) -> PathBuf {
    data_dir.join("drop")
}

/// The folder for invalid files: beside the drop folder, in which any user may write.
pub fn rejected_folder_path(data_dir: &Path) -> PathBuf {
    data_dir.join("drop-rejected")
}
