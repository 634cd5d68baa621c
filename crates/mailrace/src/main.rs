//! The `mailrace` binary; everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mailrace::command::run()
}
