//! What an import is given and what it returns: texts, not files. The caller reads and writes files.

use std::io;
use std::path::Path;

use crate::config_draft::NewFile;

/// Reads the files that a configuration names.
pub trait FileReader {
    /// The text of a file.
    ///
    /// # Errors
    ///
    /// It does not exist, cannot be read, or is not UTF-8.
    fn text(&self, path: &Path) -> io::Result<String>;

    /// The names of the files in a folder, in any order.
    ///
    /// # Errors
    ///
    /// It does not exist, cannot be read, or this reader knows no folders.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("{} cannot be listed", folder.display())))
    }
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportResult {
    /// The new configuration.
    pub text: String,
    /// The files that it names.
    pub files: Vec<NewFile>,
    /// How mail is handled differently than by the other server, one sentence each; also at the top
    /// of the text.
    pub behavior_changes: Vec<String>,
}
