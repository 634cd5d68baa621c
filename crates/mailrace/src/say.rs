//! What the process says to whoever started it: lines on standard error, with what strangers wrote made harmless. Where
//! that is closed nobody is left to be told, and the work goes on.

use std::fmt::Display;
use std::io::{self, Write};

use crate::terminal::printable;

/// Says it.
pub(crate) fn say(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}
