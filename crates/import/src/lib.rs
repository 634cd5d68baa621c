//! Imports the configuration of another mail server. Texts go in and come out; the caller reads and
//! writes files. What has no counterpart is listed in comments of the new file: nothing is dropped
//! silently.

mod config_draft;
pub mod exim;
mod ip_net;
mod mysql;
mod output_text;
mod placeholders;
pub mod postfix;
mod result;
mod sql;
mod words;

pub use config_draft::NewFile;
pub use result::{FileReader, ImportResult};
