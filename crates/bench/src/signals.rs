//! The operator's word to come to an end: SIGINT (Ctrl-C) or SIGTERM.
//!
//! A command inside a runtime waits for [`Signals`]; one that works without a runtime looks at a [`Word`] now and then.
//! From the moment that either is heard the signals end the process no more, for good: whoever hears them has promised
//! to come to an end, to report, and to leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Fault;
use crate::runtime::runtime;

/// How soon the word is heard by one that waits for something else.
const LISTEN_EVERY: Duration = Duration::from_millis(20);

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

/// Whether one of them came; a thread of its own hears them.
#[derive(Clone, Debug)]
pub(crate) struct Word(Arc<AtomicBool>);

impl Word {
    /// From here on the signals end the process no more.
    pub(crate) fn hear() -> Result<Word, Fault> {
        let word = Word(Arc::new(AtomicBool::new(false)));
        let runtime = runtime()?;
        let inside = runtime.enter();
        let mut signals = Signals::hear()?;
        drop(inside);
        let given = word.0.clone();
        let listen = move || {
            runtime.block_on(signals.next());
            given.store(true, Relaxed);
        };
        let named = thread::Builder::new().name("word".into());
        named.spawn(listen).map_err(Fault::system("starting a thread"))?;
        Ok(word)
    }

    /// Whether it was given.
    pub(crate) fn is_given(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// A fault once it was given.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.is_given() {
            true => Err(Fault::Unavailable("ended by a signal: nothing was proved".into())),
            false => Ok(()),
        }
    }

    /// Waits for so long, or until it is done, unless the word is given.
    pub(crate) fn pass(&self, span: Duration, mut done: impl FnMut() -> bool) -> Result<(), Fault> {
        let until = Instant::now() + span;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || done() {
                return Ok(());
            }
            thread::sleep(left.min(LISTEN_EVERY));
        }
    }
}
