//! A runtime for one thread.

use tokio::runtime::{Builder, Runtime};

use crate::Fault;

/// Creates a runtime with sockets, timers and signals.
pub(crate) fn runtime() -> Result<Runtime, Fault> {
    Builder::new_current_thread().enable_all().build().map_err(Fault::system("starting a runtime"))
}
