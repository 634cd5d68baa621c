//! What the process says to whoever started it: a line on standard error. Where that is closed nobody is left to be
//! told, and the work goes on.

use std::fmt::Display;
use std::io::{self, Write};

/// Says it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
