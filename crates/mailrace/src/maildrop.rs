//! The drop: the folder in which local programs leave mail for the server, whether it runs or not, and the form of a
//! file there. Both sides use it: `inject` writes, the flow empties.
//!
//! | name in the folder | what it is |
//! |---|---|
//! | `t-` and 32 digits | under way: nobody has been told that it is kept |
//! | `m-`, 16 digits of milliseconds, `-`, 32 digits | a message, durable since its name is |
//! | anything else | none of ours |
//!
//! Whoever can reach the folder can leave mail in it, and nobody but its owner can see what is there (mode 1733). The
//! server may be another user than the writer, so files have mode 0644; what keeps others from reading them is that their
//! names cannot be guessed. Whose a message is, its owner tells, and nothing that is in it.

mod parcel;
mod place;

use std::path::{Path, PathBuf};

pub(crate) use parcel::is_envid;
pub use parcel::{NotAParcel, PARCEL_HEAD_OCTETS_MAX, Parcel};
pub(crate) use place::secret;
pub use place::{Place, is_message_name, is_temporary_name};

/// Who may do what in the folder.
pub const FOLDER_MODE: u32 = 0o1733;

/// The folder of messages.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("drop")
}

/// Where the server puts what it cannot understand. Beside the folder of messages, since in that anybody may write.
pub fn rejected(data_dir: &Path) -> PathBuf {
    data_dir.join("drop-rejected")
}
