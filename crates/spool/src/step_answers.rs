//! A lane and its commit step: what the writer passes to it, and what becomes of the submissions that
//! wait for its answer. Answers come on any thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::commit_step::{
    AnsweredSubmissions, BatchDraft, DraftBody, EntryDraft, OutcomesStored, StepAnswer, WaitingSubmission,
};
use crate::entries::{LiveMessage, OutcomeHead};
use crate::lane::{IndexUpdate, Lane, PendingRecord, Submission};
use crate::recipient_states::RecipientState;
use crate::segment::FileLease;
use crate::{CommitError, SpoolEvent};

impl Lane {
    /// Passes a sealed batch to the step, if there is one. Returns its number in the queue.
    /// `segment` holds the batch.
    pub(crate) fn start_step(
        self: &Arc<Self>,
        submissions: &mut [Submission],
        segment: &Arc<FileLease>,
    ) -> Option<u64> {
        let steps = self.steps.as_ref()?;
        let records = submissions.iter_mut().flat_map(|submission| &mut submission.records);
        let records = records.filter(|record| !record.is_restored);
        let entries: Vec<EntryDraft> = records.filter_map(|record| self.entry_draft(record)).collect();
        if entries.is_empty() {
            return None;
        }
        // A step that answers late must not keep the lane, and its lock, from being dropped.
        let (lane, of_outcomes) = (Arc::downgrade(self), Arc::downgrade(self));
        let answer_to = |batch| {
            let answer = StepAnswer::new(move |result| {
                if let Some(lane) = lane.upgrade() {
                    lane.take_step_answer(batch, result);
                }
            });
            answer.with_outcomes(OutcomesStored::new(move || {
                if let Some(lane) = of_outcomes.upgrade() {
                    lane.release_outcomes(batch);
                }
            }))
        };
        Some(steps.start(BatchDraft { lane: self.lane_id, entries }, segment, answer_to))
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

    /// The local write or sync failed: the step's answer is ignored. It may have taken the batch, whose
    /// new mail is refused here, so the step learns that this mail is finished. A notice whose outcome failed
    /// with it stays: the step may be all that knows of the failure that it reports.
    pub(crate) fn abandon_step(&self, batch: u64, submissions: &[Submission]) {
        let Some(steps) = &self.steps else { return };
        let refused = submissions.iter().filter(|submission| submission.permit.is_some());
        let records = refused.flat_map(|submission| &submission.records);
        let entries: Vec<EntryDraft> = records.filter_map(|record| self.withdrawal_draft(record)).collect();
        steps.abandon(batch, BatchDraft { lane: self.lane_id, entries });
    }

    fn withdrawal_draft(&self, record: &PendingRecord) -> Option<EntryDraft> {
        let IndexUpdate::Insert(head) = &record.index_update else { return None };
        let ordinals = 0..head.envelope.recipients.len() as u32;
        let recipients = ordinals.map(|ordinal| (ordinal, RecipientState::Withdrawn)).collect();
        Some(EntryDraft::Outcome { id: self.id(head.sequence), recipients, bounce: None })
    }

    /// The batch is durable here; `waiting` is answered when the step is.
    pub(crate) fn mark_step_synced(self: &Arc<Self>, batch: u64, waiting: Vec<WaitingSubmission>) {
        let answered = self.steps.as_ref().and_then(|steps| steps.mark_synced(batch, waiting));
        answered.into_iter().for_each(|answered| self.end_waiting(answered));
    }

    fn take_step_answer(self: &Arc<Self>, batch: u64, result: Result<(), String>) {
        let Some(steps) = &self.steps else { return };
        let result = result.map_err(CommitError::StepFailed);
        if result.is_ok() {
            self.release_outcomes(batch);
        }
        steps.take_answer(batch, result, |answered| self.end_waiting(answered));
    }

    /// The step has all outcomes up to this batch.
    fn release_outcomes(&self, batch: u64) {
        if self.steps.as_ref().is_some_and(|steps| steps.release_outcomes(batch)) {
            self.maintenance_wanted.notify_one();
        }
    }

    /// Waits for the step's answers to all batches, but not for long; the others fail. Called by the
    /// writer when no submission can follow.
    pub(crate) fn end_steps(self: &Arc<Self>) {
        if let Some(steps) = &self.steps {
            self.end_waiting((steps.drain(), Err(CommitError::Closed)));
        }
    }

    fn end_waiting(self: &Arc<Self>, (waiting, result): AnsweredSubmissions) {
        let mut committed = Vec::new();
        for WaitingSubmission { messages, done, permit } in waiting {
            match &result {
                Ok(()) => committed.extend(messages),
                Err(_) => self.withdraw(messages.iter().map(withdrawal).collect()),
            }
            // Whoever learns the result may submit the next message at once.
            drop(permit);
            done(result.clone());
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
