//! The files of a folder: looked up, cached if they are small, and listed.

mod content_type;
mod file_cache;
mod file_root;
mod file_store;
mod listing;
mod small_file;

pub use file_root::HttpSetupError;

pub(super) use file_root::DiskWait;
pub(super) use file_store::{FileStore, FindTime, Found};
