//! A runtime for one thread: what it runs never moves to another one.

use tokio::runtime::{Builder, Runtime};

use crate::Fault;

/// Makes one, with sockets, timers and signals.
pub(crate) fn runtime() -> Result<Runtime, Fault> {
    Builder::new_current_thread().enable_all().build().map_err(Fault::system("starting a runtime"))
}
