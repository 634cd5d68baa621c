//! The operator's word to come to an end: SIGINT (Ctrl-C) or SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Fault;

/// Hears both.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on they end the process no more. Must be called inside a runtime.
    pub(crate) fn hear() -> Result<Signals, Fault> {
        let hear = |kind| signal(kind).map_err(Fault::system("listening to signals"));
        Ok(Signals { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
