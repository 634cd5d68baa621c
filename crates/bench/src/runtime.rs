//! A runtime for one thread.

use tokio::runtime::{Builder, Runtime};

use crate::BenchError;

/// Creates a runtime with sockets, timers and signals.
pub(crate) fn runtime() -> Result<Runtime, BenchError> {
    Builder::new_current_thread().enable_all().build().map_err(BenchError::system("starting a runtime"))
}
