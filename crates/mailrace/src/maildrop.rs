//! The drop folder, where local programs leave mail for the server, whether it runs or not, and the
//! format of its files. Both sides use this: `inject` writes the files, the flow takes them out.
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

mod drop_file;
mod drop_folder;
mod drop_folder_scanner;
mod drop_submission;

use std::path::{Path, PathBuf};

pub(crate) use drop_file::is_envid;
pub use drop_file::{DROP_FILE_HEAD_OCTETS_MAX, DropFile, DropFileError};
pub(crate) use drop_folder::random_name;
pub use drop_folder::{DropFolderWriter, is_message_name, is_temporary_name};
pub use drop_folder_scanner::{DropFolderConfig, DropFolderScanner};
pub use drop_submission::DropSubmitter;

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
