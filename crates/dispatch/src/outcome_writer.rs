//! Submits outcomes to the spool, those of a lane together, and each notice in one submission with
//! its outcome. The spool's answer goes to the scheduler as [`SchedulerMsg::Recorded`].

use std::collections::BTreeMap;
use std::sync::Arc;

use queue::RecipientVerdict;
use spool::{LaneId, RecipientState, Spool, SpoolEntry};

use super::{Attempt, AttemptOutcome, SchedulerHandle, SchedulerMsg};

/// Approximate bytes that an outcome and each of its recipients take in the spool.
const OUTCOME_BYTES: usize = 128;
const RECIPIENT_BYTES: usize = 16;
/// Approximate bytes of outcomes and notices in one submission; it must fit into any segment.
const SUBMISSION_BYTES: usize = 256 * 1024;

/// Submits outcomes.
#[derive(Clone)]
pub(super) struct OutcomeWriter {
    pub(super) spool: Arc<Spool>,
    pub(super) scheduler: SchedulerHandle,
}

/// The outcomes and notices of one submission.
#[derive(Default)]
struct OutcomeBatch {
    entries: Vec<SpoolEntry>,
    attempt_outcomes: Vec<AttemptOutcome>,
    bytes: usize,
}

impl OutcomeWriter {
    /// Submits outcomes with their notices: never one without the other.
    pub(super) fn submit(&self, attempt_outcomes: impl Iterator<Item = (AttemptOutcome, Option<SpoolEntry>)>) {
        let mut lanes: BTreeMap<LaneId, OutcomeBatch> = BTreeMap::new();
        for (attempt_outcome, notice) in attempt_outcomes {
            let batch = lanes.entry(LaneId::of(attempt_outcome.attempt.id)).or_default();
            batch.bytes += attempt_outcome.submitted_notice.as_ref().map_or(0, |told| told.size as usize);
            batch.bytes += OUTCOME_BYTES + attempt_outcome.verdicts.len() * RECIPIENT_BYTES;
            batch.entries.extend(notice);
            batch.entries.push(outcome_entry(&attempt_outcome));
            batch.attempt_outcomes.push(attempt_outcome);
            if batch.bytes >= SUBMISSION_BYTES {
                self.submit_batch(std::mem::take(batch));
            }
        }
        lanes.into_values().for_each(|batch| self.submit_batch(batch));
    }

    fn submit_batch(&self, batch: OutcomeBatch) {
        let OutcomeBatch { entries, attempt_outcomes, .. } = batch;
        if attempt_outcomes.is_empty() {
            return;
        }
        let scheduler = self.scheduler.clone();
        self.spool
            .submit(entries, Box::new(move |result| scheduler.send(SchedulerMsg::Recorded(attempt_outcomes, result))));
    }
}

fn outcome_entry(attempt_outcome: &AttemptOutcome) -> SpoolEntry {
    let AttemptOutcome { attempt, verdicts, submitted_notice: notice, .. } = attempt_outcome;
    let states = verdicts.iter().map(|verdict| state(attempt, verdict));
    let recipients = attempt.recipients.iter().copied().zip(states).collect();
    SpoolEntry::Outcome { id: attempt.id, recipients, bounce: notice.as_ref().map(|told| told.id) }
}

fn state(attempt: &Attempt, verdict: &RecipientVerdict) -> RecipientState {
    match verdict {
        RecipientVerdict::Delivered | RecipientVerdict::Relayed { .. } => RecipientState::Delivered,
        RecipientVerdict::Deferred { until, .. } => RecipientState::Waiting { attempts: attempt.number, until: *until },
        RecipientVerdict::Failed { .. } | RecipientVerdict::Removed => RecipientState::Failed,
        RecipientVerdict::Held => RecipientState::Held { attempts: attempt.number },
    }
}
