//! The output of commands. If its reader is gone (`mailrace queue list | head`), the command ends
//! silently with exit code 0.

use std::fmt;
use std::io::{self, ErrorKind, Stdout, Write};

use rustix::termios::tcgetwinsize;

/// The width of tables if the output is not a terminal, in columns.
const WIDTH: u16 = 160;
/// Narrower tables would have a letter in each line.
const WIDTH_MIN: u16 = 80;

/// The standard output of a command.
pub(crate) struct Output(Stdout);

/// The standard output.
pub(crate) fn output() -> Output {
    Output(io::stdout())
}

/// The width of the terminal, for tables, in columns.
pub(crate) fn terminal_width() -> u16 {
    tcgetwinsize(io::stdout()).map_or(WIDTH, |size| size.ws_col.max(WIDTH_MIN))
}

/// The reader closed standard output. A broken socket is a different error, which must be reported.
#[derive(Clone, Copy, Debug)]
struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed by its reader")
    }
}

impl std::error::Error for OutputClosed {}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(mark_broken_pipe)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark_broken_pipe)
    }
}

fn mark_broken_pipe(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, OutputClosed),
        _ => error,
    }
}

/// Whether a command failed only because its output was closed.
pub(crate) fn is_output_closed(error: &anyhow::Error) -> bool {
    let marks = |cause: &io::Error| cause.get_ref().is_some_and(|inner| inner.is::<OutputClosed>());
    error.chain().filter_map(|cause| cause.downcast_ref()).any(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_output_differs_from_a_closed_socket() {
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_output_closed(&anyhow::Error::from(mark_broken_pipe(broken())).context("printing")));
        assert!(!is_output_closed(&broken().into()));
        assert!(!is_output_closed(&mark_broken_pipe(ErrorKind::StorageFull.into()).into()));
    }
}
