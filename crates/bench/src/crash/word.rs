//! The operator's word to stop, SIGINT or SIGTERM, for a command that must first see to a server that it has started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::Fault;
use crate::runtime::runtime;
use crate::signals::Signals;

/// How soon the word is heard.
const LISTEN_EVERY: Duration = Duration::from_millis(20);

/// Whether it was given.
#[derive(Clone, Debug)]
pub(super) struct Word(Arc<AtomicBool>);

impl Word {
    /// From here on the signals no longer end the process.
    pub(super) fn hear() -> Result<Word, Fault> {
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

    /// A fault once the word was given.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.0.load(Relaxed) {
            true => Err(Fault::Unavailable("ended by a signal: nothing was proved".into())),
            false => Ok(()),
        }
    }

    /// Waits for so long, or until it is done, unless the word is given.
    pub(super) fn pass(&self, span: Duration, mut done: impl FnMut() -> bool) -> Result<(), Fault> {
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
