//! Stop requests of the operator: SIGINT (Ctrl-C) or SIGTERM.
//!
//! Async code waits for [`Signals`]; other code polls a [`StopSignal`]. Once either is registered,
//! the signals no longer end the process. The command must then end, report and clean up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::BenchError;
use crate::runtime::runtime;

/// How often a waiting thread checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Receives both signals.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Registers the signals. Must be called inside a runtime.
    pub(crate) fn listen() -> Result<Signals, BenchError> {
        let listen = |kind| signal(kind).map_err(BenchError::system("listening to signals"));
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether a signal arrived; a thread of its own receives it.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Registers the signals and starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread left, or does not allow it.
    pub fn listen() -> Result<StopSignal, BenchError> {
        let stop_signal = StopSignal(Arc::new(AtomicBool::new(false)));
        let runtime = runtime()?;
        let inside = runtime.enter();
        let mut signals = Signals::listen()?;
        drop(inside);
        let received = stop_signal.0.clone();
        let listen = move || {
            runtime.block_on(signals.next());
            received.store(true, Relaxed);
        };
        let named = thread::Builder::new().name("stop-signal".into());
        named.spawn(listen).map_err(BenchError::system("starting a thread"))?;
        Ok(stop_signal)
    }

    /// The flag, for programs that look at it themselves: it becomes true when a signal arrives, and stays so.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether a signal arrived.
    pub(crate) fn is_received(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// A fault once a signal arrived.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        match self.is_received() {
            true => Err(BenchError::Unavailable("ended by a signal, so nothing was proved".into())),
            false => Ok(()),
        }
    }

    /// Waits for `span` or until `done` returns true. Fails once a signal arrived.
    pub(crate) fn wait(&self, span: Duration, mut done: impl FnMut() -> bool) -> Result<(), BenchError> {
        let until = Instant::now() + span;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || done() {
                return Ok(());
            }
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }
}
