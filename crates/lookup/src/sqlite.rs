//! Tables in an SQLite database.

use std::path::PathBuf;
use std::time::Duration;

/// A table, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file.
    pub path: PathBuf,
    /// What is asked for each key; `:key` is the key, `:local` and `:domain` are its parts.
    pub query: Box<str>,
    /// How long to wait for one who writes, and how long one request may take.
    pub timeout: Duration,
}

/// A table in an SQLite database.
pub struct Sqlite {
    config: Config,
}

impl Sqlite {
    /// The table as it is configured. The file is opened when it is first asked.
    pub fn new(config: Config) -> Self {
        Sqlite { config }
    }
}
