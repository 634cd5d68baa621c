//! The `mailrace` binary; the code is in the library.

use std::process::ExitCode;

/// Bodies, envelopes and table answers are often freed by another thread than the one that
/// allocated them. This allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mailrace::command::run()
}
