//! The settings of the log.

use std::path::PathBuf;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `time event key=value ...`
    Text,
    /// One JSON object per line.
    Json,
}

/// The destination of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// A file, to which lines are appended.
    File(PathBuf),
}

/// Log settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The format.
    pub format: LogFormat,
    /// The destination.
    pub to: LogTarget,
    /// Lines that may wait to be written. Further lines are dropped and counted.
    pub queue: usize,
    /// Whether to log the subject of each message.
    pub subject: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings { format: LogFormat::Text, to: LogTarget::Stderr, queue: 65_536, subject: false }
    }
}
