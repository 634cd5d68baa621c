//! Stop requests of the operator: SIGINT (Ctrl-C), SIGTERM, SIGQUIT, and SIGHUP, which comes when the terminal is
//! closed or the connection to it is lost. A program that was started by nohup(1) ignores SIGHUP, and goes on.
//!
//! Async code waits for [`Signals`]; other code polls a [`StopSignal`]. Once either is registered,
//! the signals no longer end the process. The command must then end, report and clean up.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::BenchError;
use crate::runtime::runtime;

/// How often a waiting thread checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Receives all of these signals.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    /// None if it was ignored when this program started.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Registers the signals. Must be called inside a runtime.
    pub(crate) fn listen() -> Result<Signals, BenchError> {
        let listen = |kind| signal(kind).map_err(BenchError::system("listening to signals"));
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = (!ignores(&status, SignalKind::hangup())).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            quit: listen(SignalKind::quit())?,
            hang_up,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => _ = signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
            () = hang_up => {}
        }
    }
}

/// Whether the process with this text in /proc/PID/status ignores a signal.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_by_its_bit() {
        let of_nohup = "Name:\tmailrace\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(of_nohup, SignalKind::hangup()));
        assert!(!ignores(of_nohup, SignalKind::quit()));
        assert!(!ignores("", SignalKind::hangup()));
    }
}
