//! The commit step: a second place that has to confirm a batch, beside the local disk, before its
//! messages are acknowledged. There is none by default.
//!
//! | the local sync | the step | a submission of new messages |
//! |---|---|---|
//! | succeeds | succeeds | is acknowledged and reported, by the later of the two |
//! | succeeds | fails | fails; the log gets [`RecipientState::Withdrawn`] for each recipient |
//! | fails | (ignored) | fails; the step may have the messages |
//!
//! The writer never waits for the step: later batches are written and synced meanwhile. A crash
//! before the step answers, or before the outcome `Withdrawn` is durable, may leave a message that
//! was never acknowledged, as any failed submission may.
//!
//! A submission with an outcome of an *earlier* message, alone or with its bounce, is passed to the
//! step, but acknowledged by the local sync alone: the delivery or the failure that it records has
//! happened, whatever the step says, and an outcome that is not recorded would repeat it. An
//! outcome of a message in the same submission (a message that is held from the start) goes with
//! its message, and waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mail::{Body, BodyFlags, Envelope, QueueId};
use parking_lot::{Condvar, Mutex};

use crate::entries::{LiveMessage, SpoolEntry, SubmittedBody};
use crate::recipient_states::RecipientState;
use crate::segment::FileLease;
use crate::{CommitCallback, CommitError, LaneId};

/// A second place that confirms batches. Shared by all lanes.
pub trait CommitStep: Send + Sync {
    /// Takes a batch that is being written to the local disk, and answers once, from any thread
    /// (also from within this call). The batches of one lane come in the order of its log, one after
    /// the other, on its writer's thread: a call that blocks stops the lane.
    ///
    /// A failure withdraws the messages that wait for it. Outcomes are recorded in any case: a step
    /// that fails to take them has to catch up by itself. Its next success says that it has those of all
    /// earlier batches of the lane too; until then they stay in the log, for
    /// [`crate::Spool::take_finished`]. The local write may fail after the step has succeeded; what was
    /// submitted then fails, and may be submitted again. A further batch withdraws its new mail.
    fn start(&self, batch: BatchDraft, answer: StepAnswer);

    /// Whether it can take new mail of a lane now. If not, that is refused before it is written.
    fn takes_mail(&self, lane: LaneId) -> bool {
        let _ = lane;
        true
    }
}

/// A commit step and its limits.
#[derive(Clone)]
pub struct CommitStepConfig {
    /// The step.
    pub step: Arc<dyn CommitStep>,
    /// Submissions of messages are refused while messages of this many bytes wait for the step, in
    /// all lanes together. They are counted from their submission until the step has answered. The
    /// last one may exceed the limit, so that a message of any size can pass.
    pub waiting_bytes_max: u64,
    /// How long closing waits for the step's answers. Submissions that still wait then fail as
    /// [`CommitError::Closed`], and are withdrawn: clients will send them again, while the step may
    /// never answer.
    pub close_wait: Duration,
}

/// What a batch contains, without what belongs to its place in the log. Messages that are only
/// copied forward are not in it; a batch without any other entry is not passed to the step.
#[derive(Debug)]
pub struct BatchDraft {
    /// The lane.
    pub lane: LaneId,
    /// The entries in the order of the log. They are durable together or not at all.
    pub entries: Vec<EntryDraft>,
}

/// An entry of a batch.
#[derive(Debug)]
pub enum EntryDraft {
    /// A new message.
    Message {
        /// Its id.
        id: QueueId,
        /// Its envelope.
        envelope: Envelope,
        /// Its prefix and body.
        content: DraftBody,
        /// Properties of the prefix and the body together.
        flags: BodyFlags,
        /// CRC-32C of the prefix and the body together.
        digest: u32,
    },
    /// New states of recipients.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals of recipients and their new states.
        recipients: Vec<(u32, RecipientState)>,
        /// The bounce that this outcome causes, which is a message of the same batch.
        bounce: Option<QueueId>,
    },
}

/// The prefix and the body of a new message.
#[derive(Clone, Debug)]
pub enum DraftBody {
    /// In memory, shared with the writer.
    Memory {
        /// The bytes before the body.
        prefix: Arc<Vec<u8>>,
        /// The body.
        body: Arc<Vec<u8>>,
    },
    /// In a file of its own, as one range. It stays readable while this is held.
    Spilled {
        /// Prefix and body.
        content: Body,
        /// The length of the prefix in bytes.
        prefix_len: u64,
    },
}

/// The answer of a [`CommitStep`] to one batch. If it is dropped, the step counts as failed. An
/// answer after the spool was closed is ignored.
pub struct StepAnswer {
    receiver: Option<StepCallback>,
    /// Of a batch with outcomes.
    outcomes: Option<OutcomesStored>,
}

type StepCallback = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Tells that a step has the outcomes of a batch whose new mail it has refused, and those of all earlier
/// batches of the lane.
pub struct OutcomesStored(Box<dyn FnOnce() + Send>);

impl OutcomesStored {
    pub(crate) fn new(receiver: impl FnOnce() + Send + 'static) -> Self {
        OutcomesStored(Box::new(receiver))
    }

    /// The step has them.
    pub fn send(self) {
        (self.0)();
    }
}

impl StepAnswer {
    /// An answer that is passed to `receiver`.
    pub fn new(receiver: impl FnOnce(Result<(), String>) + Send + 'static) -> Self {
        StepAnswer { receiver: Some(Box::new(receiver)), outcomes: None }
    }

    /// The same, with what is called when only the outcomes are stored.
    pub(crate) fn with_outcomes(mut self, outcomes: OutcomesStored) -> Self {
        self.outcomes = Some(outcomes);
        self
    }

    /// Sends the answer; an error is a description of the failure.
    pub fn send(mut self, result: Result<(), String>) {
        self.answer(result);
    }

    /// Refuses the new mail of the batch. The outcomes in it may still be stored, as the returned value
    /// tells; None if nobody waits for that.
    pub fn refuse_mail(mut self, reason: String) -> Option<OutcomesStored> {
        let outcomes = self.outcomes.take();
        self.answer(Err(reason));
        outcomes
    }

    fn answer(&mut self, result: Result<(), String>) {
        if let Some(receiver) = self.receiver.take() {
            receiver(result);
        }
    }
}

impl Drop for StepAnswer {
    fn drop(&mut self) {
        self.answer(Err("the step gave no answer".into()));
    }
}

/// The batches of a lane that the step has not confirmed.
pub(crate) struct StepQueue {
    config: CommitStepConfig,
    /// The bytes that wait in all lanes.
    waiting_bytes: Arc<AtomicU64>,
    state: Mutex<StepState>,
    answered: Condvar,
}

#[derive(Default)]
struct StepState {
    next: u64,
    batches: BTreeMap<u64, StepBatch>,
    /// Segments with outcomes that the step has not confirmed, each with the last batch of them. They are
    /// not freed before.
    unconfirmed: VecDeque<(u64, Arc<FileLease>)>,
    /// Batches that left `batches`, and whose submissions are being answered.
    answering: usize,
}

enum StepBatch {
    /// Neither the local sync nor the step has ended.
    Running,
    /// The step was first.
    Answered(Result<(), CommitError>),
    /// The local sync was first. These submissions wait.
    Synced(Vec<WaitingSubmission>),
}

/// A submission that is durable here.
pub(crate) struct WaitingSubmission {
    pub(crate) messages: Vec<LiveMessage>,
    pub(crate) done: CommitCallback,
    /// Released when the step has answered.
    pub(crate) permit: StepPermit,
}

/// Bytes of a submission that count towards [`CommitStepConfig::waiting_bytes_max`].
pub(crate) struct StepPermit {
    bytes: u64,
    waiting_bytes: Arc<AtomicU64>,
}

impl Drop for StepPermit {
    fn drop(&mut self) {
        self.waiting_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl StepState {
    fn keep_outcomes(&mut self, batch: u64, segment: &Arc<FileLease>) {
        match self.unconfirmed.back_mut() {
            Some((last, kept)) if Arc::ptr_eq(kept, segment) => *last = batch,
            _ => self.unconfirmed.push_back((batch, segment.clone())),
        }
    }
}

impl StepQueue {
    pub(crate) fn new(config: CommitStepConfig, waiting_bytes: Arc<AtomicU64>) -> Self {
        StepQueue { config, waiting_bytes, state: Mutex::default(), answered: Condvar::new() }
    }

    /// The permit of a submission to `lane` that waits for the step; Ok(None) if it does not wait.
    pub(crate) fn permit(&self, lane: LaneId, entries: &[SpoolEntry]) -> Result<Option<StepPermit>, CommitError> {
        if !waits_for_step(entries) {
            return Ok(None);
        }
        // What it refuses later is written, and kept until the step knows that it is finished.
        if !self.config.step.takes_mail(lane) {
            return Err(CommitError::StepAway);
        }
        let (bytes, max) = (content_bytes(entries), self.config.waiting_bytes_max);
        let added = |waiting: u64| (waiting < max).then(|| waiting.saturating_add(bytes));
        let admitted = self.waiting_bytes.fetch_update(Relaxed, Relaxed, added);
        admitted.map_err(|_| CommitError::StepBacklog)?;
        Ok(Some(StepPermit { bytes, waiting_bytes: self.waiting_bytes.clone() }))
    }

    /// Passes a batch in `segment` to the step. Returns its number; `answer_to` makes the answer for it.
    pub(crate) fn start(
        &self,
        batch: BatchDraft,
        segment: &Arc<FileLease>,
        answer_to: impl FnOnce(u64) -> StepAnswer,
    ) -> u64 {
        let has_outcomes = batch.entries.iter().any(|entry| matches!(entry, EntryDraft::Outcome { .. }));
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            state.batches.insert(number, StepBatch::Running);
            if has_outcomes {
                state.keep_outcomes(number, segment);
            }
            number
        };
        self.config.step.start(batch, answer_to(number));
        number
    }

    /// The local write or sync failed: the answer is ignored, and `withdrawal` follows.
    pub(crate) fn abandon(&self, batch: u64, withdrawal: BatchDraft) {
        self.state.lock().batches.remove(&batch);
        if !withdrawal.entries.is_empty() {
            // If it fails, the step has to catch up, as with all outcomes.
            self.config.step.start(withdrawal, StepAnswer::new(|_| {}));
        }
    }

    /// The step has all outcomes up to this batch. True if a segment may be freed that could not before.
    pub(crate) fn release_outcomes(&self, batch: u64) -> bool {
        let mut state = self.state.lock();
        let confirmed = state.unconfirmed.partition_point(|(last, _)| *last <= batch);
        // One that is still written is not freed in any case.
        let has_sealed = confirmed > 1 || (confirmed == 1 && state.unconfirmed.len() > 1);
        state.unconfirmed.drain(..confirmed);
        has_sealed
    }

    /// The batch is durable here, and `waiting` waits. Returns it with the answer if that was first.
    pub(crate) fn mark_synced(&self, batch: u64, waiting: Vec<WaitingSubmission>) -> Option<AnsweredSubmissions> {
        let mut state = self.state.lock();
        match state.batches.remove(&batch) {
            Some(StepBatch::Answered(result)) => Some((waiting, result)),
            _ => {
                state.batches.insert(batch, StepBatch::Synced(waiting));
                None
            }
        }
    }

    /// Takes the step's answer. If the batch is durable here, `end` is called with what waits for it.
    pub(crate) fn take_answer(
        &self,
        batch: u64,
        result: Result<(), CommitError>,
        end: impl FnOnce(AnsweredSubmissions),
    ) {
        let mut state = self.state.lock();
        match state.batches.remove(&batch) {
            None | Some(StepBatch::Answered(_)) => {}
            Some(StepBatch::Running) => {
                state.batches.insert(batch, StepBatch::Answered(result));
            }
            Some(StepBatch::Synced(waiting)) => {
                state.answering += 1;
                drop(state);
                end((waiting, result));
                self.state.lock().answering -= 1;
                self.answered.notify_all();
            }
        }
    }

    /// Waits for the answers to all batches, but not for long. Returns what still waits.
    pub(crate) fn drain(&self) -> Vec<WaitingSubmission> {
        let end = Instant::now() + self.config.close_wait;
        let mut state = self.state.lock();
        while !state.batches.is_empty() && !self.answered.wait_until(&mut state, end).timed_out() {}
        let unanswered = std::mem::take(&mut state.batches);
        // Their withdrawals have to be written too.
        while state.answering > 0 {
            self.answered.wait(&mut state);
        }
        let waiting = |batch| match batch {
            StepBatch::Synced(waiting) => waiting,
            StepBatch::Running | StepBatch::Answered(_) => Vec::new(),
        };
        unanswered.into_values().flat_map(waiting).collect()
    }
}

/// Submissions and the answer to them.
pub(crate) type AnsweredSubmissions = (Vec<WaitingSubmission>, Result<(), CommitError>);

/// Whether a submission is only acknowledged when the step has succeeded; see above.
fn waits_for_step(entries: &[SpoolEntry]) -> bool {
    let is_new =
        |id: QueueId| entries.iter().any(|entry| matches!(entry, SpoolEntry::Message { id: new, .. } if *new == id));
    entries.iter().any(|entry| matches!(entry, SpoolEntry::Message { .. }))
        && entries.iter().all(|entry| match entry {
            SpoolEntry::Message { .. } => true,
            SpoolEntry::Outcome { id, .. } => is_new(*id),
        })
}

fn content_bytes(entries: &[SpoolEntry]) -> u64 {
    let of_entry = |entry: &SpoolEntry| match entry {
        SpoolEntry::Message { content: SubmittedBody::Memory { prefix, body }, .. } => {
            prefix.len() as u64 + body.len() as u64
        }
        SpoolEntry::Message { content: SubmittedBody::Spilled(spilled), .. } => spilled.range.len,
        SpoolEntry::Outcome { .. } => 0,
    };
    entries.iter().map(of_entry).sum()
}
