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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mail::{Body, BodyFlags, Envelope, QueueId};
use parking_lot::{Condvar, Mutex};

use crate::entries::{LiveMessage, OutcomeHead, SpoolEntry, SubmittedBody};
use crate::lane::{IndexUpdate, Lane, PendingRecord, Submission};
use crate::recipient_states::RecipientState;
use crate::{CommitCallback, CommitError, LaneId, SpoolEvent};

/// A second place that confirms batches. Shared by all lanes.
pub trait CommitStep: Send + Sync {
    /// Takes a batch that is being written to the local disk, and answers once, from any thread
    /// (also from within this call). The batches of one lane come in the order of its log, one after
    /// the other, on its writer's thread: a call that blocks stops the lane.
    ///
    /// A failure withdraws the messages that wait for it. Outcomes are recorded in any case: a step
    /// that fails to take them has to catch up by itself. The local write may fail after the
    /// step has succeeded; what was submitted then fails, and may be submitted again.
    fn start(&self, batch: BatchDraft, answer: StepAnswer);
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
    /// None if the answer was sent.
    lane: Option<Weak<Lane>>,
    batch: u64,
}

impl StepAnswer {
    /// Sends the answer; an error is a description of the failure.
    pub fn send(mut self, result: Result<(), String>) {
        self.deliver(result);
    }

    fn deliver(&mut self, result: Result<(), String>) {
        if let Some(lane) = self.lane.take().and_then(|lane| lane.upgrade()) {
            lane.take_step_answer(self.batch, result.map_err(CommitError::StepFailed));
        }
    }
}

impl Drop for StepAnswer {
    fn drop(&mut self) {
        self.deliver(Err("the step gave no answer".into()));
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
    /// Released when the submission was answered.
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

impl StepQueue {
    pub(crate) fn new(config: CommitStepConfig, waiting_bytes: Arc<AtomicU64>) -> Self {
        StepQueue { config, waiting_bytes, state: Mutex::default(), answered: Condvar::new() }
    }

    /// Counts the bytes of a submission; None if too many wait already.
    fn admit(&self, bytes: u64) -> Option<StepPermit> {
        let max = self.config.waiting_bytes_max;
        let added = |waiting: u64| (waiting < max).then(|| waiting.saturating_add(bytes));
        self.waiting_bytes.fetch_update(Relaxed, Relaxed, added).ok()?;
        Some(StepPermit { bytes, waiting_bytes: self.waiting_bytes.clone() })
    }
}

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

impl Lane {
    /// The permit of a submission that waits for the step; Ok(None) if it does not wait.
    pub(crate) fn step_permit(&self, entries: &[SpoolEntry]) -> Result<Option<StepPermit>, CommitError> {
        match &self.steps {
            Some(steps) if waits_for_step(entries) => {
                steps.admit(content_bytes(entries)).map(Some).ok_or(CommitError::StepBacklog)
            }
            _ => Ok(None),
        }
    }

    /// Passes a sealed batch to the step, if there is one. Returns its number in the queue.
    pub(crate) fn start_step(self: &Arc<Self>, submissions: &mut [Submission]) -> Option<u64> {
        let steps = self.steps.as_ref()?;
        let records = submissions.iter_mut().flat_map(|submission| &mut submission.records);
        let entries: Vec<EntryDraft> = records.filter_map(|record| self.entry_draft(record)).collect();
        if entries.is_empty() {
            return None;
        }
        let batch = {
            let mut state = steps.state.lock();
            state.next += 1;
            let batch = state.next;
            state.batches.insert(batch, StepBatch::Running);
            batch
        };
        let answer = StepAnswer { lane: Some(Arc::downgrade(self)), batch };
        steps.config.step.start(BatchDraft { lane: self.lane_id, entries }, answer);
        Some(batch)
    }

    fn entry_draft(&self, record: &mut PendingRecord) -> Option<EntryDraft> {
        match &record.index_update {
            IndexUpdate::Insert(head) => Some(EntryDraft::Message {
                id: self.id(head.sequence),
                envelope: head.envelope.clone(),
                content: match record.spilled.take() {
                    Some(content) => DraftBody::Spilled { content, prefix_len: u64::from(head.prefix_len) },
                    None => DraftBody::Memory { prefix: record.draft.prefix.share(), body: record.draft.body.share() },
                },
                flags: head.flags,
                digest: head.spilled.map_or(record.draft.body_crc, |range| range.digest),
            }),
            IndexUpdate::ApplyOutcome(head) if !head.states.is_empty() => Some(EntryDraft::Outcome {
                id: self.id(head.sequence),
                recipients: head.states.clone(),
                bounce: (head.bounce != 0).then(|| self.id(head.bounce)),
            }),
            IndexUpdate::ApplyOutcome(_) | IndexUpdate::Relocate(_) => None,
        }
    }

    /// The local write or sync failed: the answer is ignored.
    pub(crate) fn abandon_step(&self, batch: u64) {
        if let Some(steps) = &self.steps {
            steps.state.lock().batches.remove(&batch);
        }
    }

    /// The batch is durable here; `waiting` is answered when the step is.
    pub(crate) fn mark_step_synced(self: &Arc<Self>, batch: u64, waiting: Vec<WaitingSubmission>) {
        let Some(steps) = &self.steps else { return };
        let mut state = steps.state.lock();
        match state.batches.remove(&batch) {
            Some(StepBatch::Answered(result)) => {
                drop(state);
                self.end_waiting(waiting, result);
            }
            _ => drop(state.batches.insert(batch, StepBatch::Synced(waiting))),
        }
    }

    fn take_step_answer(self: &Arc<Self>, batch: u64, result: Result<(), CommitError>) {
        let Some(steps) = &self.steps else { return };
        let mut state = steps.state.lock();
        match state.batches.remove(&batch) {
            None | Some(StepBatch::Answered(_)) => {}
            Some(StepBatch::Running) => drop(state.batches.insert(batch, StepBatch::Answered(result))),
            Some(StepBatch::Synced(waiting)) => {
                state.answering += 1;
                drop(state);
                self.end_waiting(waiting, result);
                steps.state.lock().answering -= 1;
                steps.answered.notify_all();
            }
        }
    }

    /// Waits for the step's answers to all batches, but not for long; the others fail. Called by the
    /// writer when no submission can follow.
    pub(crate) fn end_steps(self: &Arc<Self>) {
        let Some(steps) = &self.steps else { return };
        let end = Instant::now() + steps.config.close_wait;
        let mut state = steps.state.lock();
        while !state.batches.is_empty() && !steps.answered.wait_until(&mut state, end).timed_out() {}
        let unanswered = std::mem::take(&mut state.batches);
        // Their withdrawals have to be written too.
        while state.answering > 0 {
            steps.answered.wait(&mut state);
        }
        drop(state);
        for batch in unanswered.into_values() {
            if let StepBatch::Synced(waiting) = batch {
                self.end_waiting(waiting, Err(CommitError::Closed));
            }
        }
    }

    fn end_waiting(self: &Arc<Self>, waiting: Vec<WaitingSubmission>, result: Result<(), CommitError>) {
        let mut committed = Vec::new();
        for WaitingSubmission { messages, done, permit } in waiting {
            match &result {
                Ok(()) => committed.extend(messages),
                Err(_) => self.withdraw(messages.iter().map(withdrawal).collect()),
            }
            done(result.clone());
            drop(permit);
        }
        self.report_committed(committed);
    }

    /// Reports messages that are acknowledged.
    pub(crate) fn report_committed(&self, committed: Vec<LiveMessage>) {
        self.counters.messages_committed.fetch_add(committed.len() as u64, Relaxed);
        if !committed.is_empty() {
            self.report_event(SpoolEvent::Committed(committed));
        }
    }

    /// Records the final outcomes of messages that the step refused. If they cannot be written,
    /// maintenance tries again.
    pub(crate) fn withdraw(self: &Arc<Self>, outcomes: Vec<OutcomeHead>) {
        let (lane, again) = (Arc::downgrade(self), outcomes.clone());
        let done = move |result: Result<(), CommitError>| {
            if let (Err(_), Some(lane)) = (result, lane.upgrade()) {
                lane.tidying_failed.store(true, Relaxed);
                lane.segment_table.lock().unwithdrawn.push(again);
            }
        };
        let records = outcomes.into_iter().map(PendingRecord::outcome).collect();
        self.submit_internal(Submission { records, permit: None, done: Box::new(done) });
    }
}

fn withdrawal(message: &LiveMessage) -> OutcomeHead {
    let ordinals = 0..message.states.len() as u32;
    let states = ordinals.map(|ordinal| (ordinal, RecipientState::Withdrawn)).collect();
    OutcomeHead { sequence: message.id.sequence(), bounce: 0, states }
}
