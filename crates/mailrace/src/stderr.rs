//! Messages to standard error, with control characters escaped. If standard error is closed, they
//! are dropped.

use std::fmt::Display;
use std::io::{self, Write};

use mail::printable;

/// Prints lines to standard error.
pub(crate) fn print_stderr(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}
