//! From batches that wait to parts that the owner has: in their order, and only a few ahead of what
//! the stream takes.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt;
use mail::QueueId;
use spool::{BatchDraft, DraftBody, OutcomesStored, RecipientState, RecipientStates, SpooledMessage, StepAnswer};

use super::room;
use super::stream_maintenance::{StreamMaintenanceEvent, retained};
use super::{BatchAnswer, Event, LaneTask};
use crate::clock::boot_time;
use crate::codec::{BatchEncoder, CopiedEntry};
use crate::lane::owner::BatchId;
use crate::lane::retention::StateChange;
use crate::lane::{BootTime, LaneTimes};
use crate::record::{HEADER_BYTES, Payload};

/// Encoded parts that wait to be sent, or for their answers. The last one may exceed it.
const ENCODED_BYTES_MAX: u64 = 16 << 20;

/// The longest record. Servers with a smaller `max_payload` get shorter ones.
const RECORD_BYTES_MAX: usize = 512 << 10;

/// What a message has beside its record: the header with the expected sequence, which counts towards
/// `max_payload`.
const MESSAGE_HEAD_BYTES: usize = 256;

/// A part and whether it is the last one; None: the last one was before.
pub(super) type EncodedPart = Option<(Payload, bool)>;

/// A batch that is not queued yet.
pub(super) enum WaitingBatch {
    /// With the time since which it waits.
    Draft(BatchDraft, StepAnswer, BootTime),
    /// States of a message that the stream lacks.
    Changes(QueueId, Vec<StateChange>, StepAnswer),
    /// A message that the stream lacks.
    Missing(QueueId, SpooledMessage, StepAnswer),
    /// A message is published again.
    Copy(QueueId, SpooledMessage),
    /// What is left of a batch that was abandoned.
    Outcomes(Vec<CopiedEntry>, Option<OutcomesStored>),
}

/// The batch whose parts are passed to the owner.
pub(super) enum Encoding {
    Nothing,
    Batch(BegunBatch, Box<BatchEncoder>),
    /// A part is being read on another thread.
    Reading(BegunBatch),
}

/// A batch of which not all parts are queued.
pub(super) struct BegunBatch {
    batch: BatchId,
    /// It has bodies in files.
    reads_files: bool,
    /// It is a copy of this message.
    copied: Option<QueueId>,
    /// What follows if it is abandoned.
    outcomes: Vec<CopiedEntry>,
}

impl LaneTask {
    /// Passes the next part to the owner, if there is one and room for it. False: there is not.
    pub(super) fn queue_next(&mut self) -> bool {
        if self.owner.waiting_bytes() >= ENCODED_BYTES_MAX {
            return false;
        }
        match std::mem::replace(&mut self.encoding, Encoding::Nothing) {
            Encoding::Nothing => self.start_next(),
            Encoding::Batch(begun, encoder) if begun.reads_files => {
                self.read_part(encoder);
                self.encoding = Encoding::Reading(begun);
                false
            }
            Encoding::Batch(begun, mut encoder) => {
                let part = encoder.next_part();
                self.queue_part(begun, part.map(|part| (encoder, part)));
                true
            }
            reading @ Encoding::Reading(_) => {
                self.encoding = reading;
                false
            }
        }
    }

    /// A part was read on another thread.
    pub(super) fn handle_read_part(&mut self, read: io::Result<(Box<BatchEncoder>, EncodedPart)>) {
        if let Encoding::Reading(begun) = std::mem::replace(&mut self.encoding, Encoding::Nothing) {
            self.queue_part(begun, read);
        }
    }

    /// Begins the next batch, or hands the lane over. False: nothing waits.
    fn start_next(&mut self) -> bool {
        match self.waiting.pop_front() {
            Some(WaitingBatch::Draft(batch, answer, _)) => self.start_draft(batch, answer),
            Some(WaitingBatch::Changes(id, changes, answer)) => {
                let recipients = self.maintenance.unchanged(id, changes);
                if recipients.is_empty() {
                    answer.send(Ok(()));
                } else {
                    let batch = self.start_batch(vec![CopiedEntry::Outcome { id, recipients, bounce: None }], None);
                    self.answers.insert(batch, BatchAnswer::Batch(answer));
                }
            }
            Some(WaitingBatch::Missing(id, message, answer)) => self.start_missing(id, message, answer),
            Some(WaitingBatch::Copy(id, message)) => {
                // Without states, it was settled meanwhile.
                if let Some(states) = self.maintenance.states(id) {
                    self.start_batch(vec![copied(id, states, message)], Some(id));
                }
            }
            Some(WaitingBatch::Outcomes(outcomes, _)) if outcomes.is_empty() => {}
            Some(WaitingBatch::Outcomes(outcomes, stored)) => {
                let batch = self.start_batch(outcomes, None);
                self.await_outcomes(batch, stored);
            }
            None if self.is_releasing => {
                self.is_releasing = false;
                self.owner.release();
            }
            None => return false,
        }
        true
    }

    /// When the new mail of the first batch that waits is refused.
    pub(super) fn refusal_due(&self) -> Option<BootTime> {
        let since = self.waiting.iter().find_map(|waiting| match waiting {
            WaitingBatch::Draft(_, _, since) => Some(*since),
            _ => None,
        });
        since.map(|since| since.after(LaneTimes::default().batch_timeout))
    }

    /// Refuses the new mail of batches that have waited for too long. Their outcomes still wait.
    pub(super) fn refuse_overdue(&mut self, now: BootTime) {
        while self.refusal_due().is_some_and(|due| due <= now) {
            let first = self.waiting.iter_mut().find(|waiting| matches!(waiting, WaitingBatch::Draft(..)));
            let Some(first) = first else { return };
            if let WaitingBatch::Draft(batch, answer, _) =
                std::mem::replace(first, WaitingBatch::Outcomes(Vec::new(), None))
            {
                self.shared.counters.batches_failed.fetch_add(1, Relaxed);
                let stored = answer.refuse_mail("the NATS servers did not take it in time".into());
                let rest = room::without_new_mail(batch.entries);
                *first = WaitingBatch::Outcomes(rest.into_iter().map(CopiedEntry::from).collect(), stored);
            }
        }
    }

    /// Begins a batch of the spool. New mail that the stream has no room for is refused, and the rest
    /// of its batch goes on.
    fn start_draft(&mut self, batch: BatchDraft, answer: StepAnswer) {
        let waiting = self.owner.waiting_bytes();
        if !self.maintenance.has_room_for(waiting + room::bytes_of(&batch.entries))
            && room::has_new_mail(&batch.entries)
        {
            self.shared.counters.batches_failed.fetch_add(1, Relaxed);
            let outcomes = answer.refuse_mail("the stream of the lane is nearly full".into());
            let rest = room::without_new_mail(batch.entries);
            if !rest.is_empty() {
                let batch = self.start_batch(rest.into_iter().map(CopiedEntry::from).collect(), None);
                self.await_outcomes(batch, outcomes);
            }
            return;
        }
        let batch = self.start_batch(batch.entries.into_iter().map(CopiedEntry::from).collect(), None);
        self.answers.insert(batch, BatchAnswer::Batch(answer));
    }

    /// Begins the copy of a message that the stream lacks, with the outcomes that were queued before it.
    fn start_missing(&mut self, id: QueueId, message: SpooledMessage, answer: StepAnswer) {
        if self.maintenance.is_live(id) {
            let is_stored = self.maintenance.is_stored(id);
            return answer.send(if is_stored { Ok(()) } else { Err("it waits for its copy already".into()) });
        }
        if !self.maintenance.has_room_for(self.owner.waiting_bytes() + message.body.len()) {
            return answer.send(Err("the stream of the lane is nearly full".into()));
        }
        let listed = (0..).zip(message.states.iter().copied()).filter(|(_, state)| *state != RecipientState::NEW);
        let mut states = RecipientStates::from(listed.collect::<Vec<_>>());
        let early = self.early_outcomes.as_mut().and_then(|outcomes| outcomes.remove(&id));
        states.merge(early.map(|early| early.listed()).unwrap_or_default());
        let batch = self.start_batch(vec![copied(id, states.listed(), message)], None);
        self.answers.insert(batch, BatchAnswer::Batch(answer));
    }

    /// Keeps the outcomes of messages that the stream lacks, for the copies of these.
    fn keep_early_outcomes(&mut self, entries: &[CopiedEntry]) {
        let Some(early) = &mut self.early_outcomes else { return };
        for entry in entries {
            if let CopiedEntry::Outcome { id, recipients, .. } = entry
                && !self.maintenance.is_live(*id)
            {
                early.entry(*id).or_default().merge(recipients.iter().copied());
            }
        }
    }

    fn start_batch(&mut self, entries: Vec<CopiedEntry>, copied: Option<QueueId>) -> BatchId {
        self.keep_early_outcomes(&entries);
        let batch = self.owner.start_batch(boot_time());
        self.maintenance.handle(StreamMaintenanceEvent::Queued(batch, entries.iter().map(retained).collect()));
        let reads_files = entries.iter().any(is_in_file);
        let outcomes = if reads_files { outcomes_of(&entries) } else { Vec::new() };
        let encoder = Box::new(BatchEncoder::new(entries, self.part_bytes()));
        self.encoding = Encoding::Batch(BegunBatch { batch, reads_files, copied, outcomes }, encoder);
        batch
    }

    fn part_bytes(&self) -> usize {
        let record_bytes = self.stream.payload_bytes_max().saturating_sub(MESSAGE_HEAD_BYTES).min(RECORD_BYTES_MAX);
        record_bytes.saturating_sub(HEADER_BYTES).max(1)
    }

    fn read_part(&self, mut encoder: Box<BatchEncoder>) {
        let read = tokio::task::spawn_blocking(move || encoder.next_part().map(|part| (encoder, part)));
        let read = async move { Event::Part(read.await.unwrap_or_else(|error| Err(io::Error::other(error)))) };
        self.requests.push(read.boxed());
    }

    fn queue_part(&mut self, begun: BegunBatch, read: io::Result<(Box<BatchEncoder>, EncodedPart)>) {
        match read {
            Ok((encoder, Some((payload, is_last)))) => {
                self.owner.handle_part(begun.batch, payload, is_last);
                if !is_last {
                    self.encoding = Encoding::Batch(begun, encoder);
                }
            }
            Ok((_, None)) => {}
            Err(error) => self.abandon(begun, &error),
        }
    }

    fn abandon(&mut self, begun: BegunBatch, error: &io::Error) {
        self.owner.abandon_batch(begun.batch);
        self.maintenance.handle(StreamMaintenanceEvent::Abandoned(begun.batch));
        self.refuse_mail(begun.batch, format!("a body cannot be read for its copy: {error}"));
        let stored = match self.answers.remove(&begun.batch) {
            Some(BatchAnswer::Outcomes(stored)) => Some(stored),
            _ => None,
        };
        if let Some(id) = begun.copied {
            self.maintenance.handle_copy_failed(id);
        }
        if !begun.outcomes.is_empty() {
            self.waiting.push_front(WaitingBatch::Outcomes(begun.outcomes, stored));
        }
    }
}

/// The outcomes of a batch, without the bounces, which are lost with it.
fn outcomes_of(entries: &[CopiedEntry]) -> Vec<CopiedEntry> {
    let outcome = |entry: &CopiedEntry| match entry {
        CopiedEntry::Message { .. } => None,
        CopiedEntry::Outcome { id, recipients, .. } => {
            Some(CopiedEntry::Outcome { id: *id, recipients: recipients.clone(), bounce: None })
        }
    };
    entries.iter().filter_map(outcome).collect()
}

/// A message of the spool, to be published again with these states.
fn copied(id: QueueId, states: Vec<(u32, RecipientState)>, message: SpooledMessage) -> CopiedEntry {
    let SpooledMessage { envelope, body, prefix_len, .. } = message;
    let (flags, digest) = (body.flags(), body.digest());
    CopiedEntry::Message {
        id,
        envelope,
        states,
        content: DraftBody::Spilled { content: body, prefix_len },
        flags,
        digest,
    }
}

fn is_in_file(entry: &CopiedEntry) -> bool {
    matches!(entry, CopiedEntry::Message { content: DraftBody::Spilled { .. }, .. })
}
