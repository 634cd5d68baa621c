//! The `mailrace` binary; everything is in the library beside it.

use std::process::ExitCode;

/// One thread frees what another one made: bodies, envelopes, answers of tables. This allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mailrace::command::run()
}
