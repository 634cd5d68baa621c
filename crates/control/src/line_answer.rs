//! An answer as it goes to whoever asked with a line: what the request gives, and a last line that says
//! whether it is all. The control socket sends it, and so does a node that another one has asked.

use std::io::{self, Write};

use crate::handler::{ControlError, ControlHandler};

/// Handles a request of `caller`, and writes the answer.
///
/// # Errors
///
/// `out` takes no more, or the answer cannot be made; then its last line is missing.
pub(crate) fn write_answer(
    handler: &ControlHandler,
    request: &str,
    caller: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    match handler.handle(request, caller, out) {
        Ok(()) => writeln!(out, "done"),
        Err(ControlError::Io(error)) => Err(error),
        Err(ControlError::Refused(why) | ControlError::NotFound(why)) => writeln!(out, "no: {}", printable(&why)),
        Err(why) => writeln!(out, "failed: {}", printable(&why.to_string())),
    }
}

/// Keeps the answer on one line, whatever the request contained.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}
