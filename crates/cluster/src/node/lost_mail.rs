//! Restores mail that the disk of a running lane lacks, from the lane's stream: a part of its log cannot be
//! read, or it was set back to an earlier time, or the mail was in flight when the node stopped.
//!
//! It takes as long as it takes to read the stream, so it does not keep the spool open meanwhile.

use std::collections::HashMap;
use std::io;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, channel};

use mail::QueueId;
use parking_lot::Mutex;
use spool::{CommitError, RecipientState, RestoredMessage, SpillWriter, Spool};
use tokio::runtime::Handle;

use super::replay::{ReplayFailure, RestoreTarget, replay};
use crate::LaneStream;

/// So many messages wait for the disk at a time.
const WAITING_MAX: usize = 64;

/// Messages to restore, with the states of their recipients that are not new.
pub(super) type LostMessages = HashMap<QueueId, Vec<(u32, RecipientState)>>;

/// Restores them from the records up to `last`. Blocks. What was restored is no longer in `lost`, also
/// if it fails. If it succeeds, what is left cannot be restored: the stream lacks it, or it does not fit into
/// a segment of the spool.
pub(super) fn restore(
    runtime: &Handle,
    stream: &LaneStream,
    last: u64,
    spool: &Weak<Spool>,
    lost: &mut LostMessages,
    is_stopping: &dyn Fn() -> bool,
) -> Result<(), ReplayFailure> {
    let target = LostMailTarget { spool, lost: Mutex::new(std::mem::take(lost)), waiting: Mutex::default() };
    let replayed = replay(runtime, stream, last, Some(&target), is_stopping).map(drop);
    let written = target.wait_for_all();
    *lost = target.lost.into_inner();
    replayed.and(written)
}

struct LostMailTarget<'a> {
    spool: &'a Weak<Spool>,
    lost: Mutex<LostMessages>,
    /// Messages that are being written, with what is needed to try it again.
    waiting: Mutex<Vec<WaitingMessage>>,
}

struct WaitingMessage {
    id: QueueId,
    states: Vec<(u32, RecipientState)>,
    result: Receiver<Result<(), CommitError>>,
}

impl RestoreTarget for LostMailTarget<'_> {
    fn skips_content(&self, id: QueueId) -> bool {
        !self.lost.lock().contains_key(&id)
    }

    fn create_spill_file(&self, id: QueueId) -> io::Result<SpillWriter> {
        let closed = || io::Error::other(CommitError::Closed);
        self.spool.upgrade().ok_or_else(closed)?.create_spill_file(id)
    }

    fn append_message(&self, message: RestoredMessage) -> Result<(), ReplayFailure> {
        let id = message.id;
        let spool = self.spool.upgrade().ok_or(CommitError::Closed)?;
        let Some(states) = self.lost.lock().remove(&id) else { return Ok(()) };
        let (sender, result) = channel();
        let message = RestoredMessage { states: states.clone(), ..message };
        spool.restore(message, Box::new(move |done| drop(sender.send(done))));
        drop(spool);
        let mut waiting = self.waiting.lock();
        waiting.push(WaitingMessage { id, states, result });
        let is_full = waiting.len() >= WAITING_MAX;
        drop(waiting);
        if is_full { self.wait_for_all() } else { Ok(()) }
    }

    /// The states of a lost message are known already, with those of later records.
    fn append_outcome(&self, _: QueueId, _: Vec<(u32, RecipientState)>) -> Result<(), ReplayFailure> {
        Ok(())
    }
}

impl LostMailTarget<'_> {
    /// Waits for all messages that are being written. Those that failed are lost again.
    fn wait_for_all(&self) -> Result<(), ReplayFailure> {
        let mut failure = Ok(());
        for WaitingMessage { id, states, result } in std::mem::take(&mut *self.waiting.lock()) {
            if let Err(error) = result.recv().unwrap_or(Err(CommitError::Closed)) {
                self.lost.lock().insert(id, states);
                // That would not change by another attempt.
                if error != CommitError::TooLarge {
                    failure = Err(error.into());
                }
            }
        }
        failure
    }
}
