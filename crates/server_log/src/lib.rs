//! The log of the server: its settings, the lines, a writer that nothing waits for, and a parser.
//!
//! A line is an event about mail ([`mail::MailEvent`]), whose fields are those of its
//! [`MailEventKind`], or an event of the server itself. [`Log`] gathers events in memory and writes
//! them on a thread of its own; if they do not fit, they are dropped and counted. [`parse_line`]
//! reads what was written, for summaries.

mod events;
mod format;
mod log;
mod parse;
mod settings;

pub use events::MailEventKind;
pub use format::{LogEntry, write_line};
pub use log::{Log, LogOutput};
pub use parse::{LineKind, LogLine, parse_line};
pub use settings::{LogFormat, LogSettings, LogTarget};
