//! Submits outcomes to the spool, those of a lane together, and each notice in one submission with
//! its outcome. The spool's answer goes to the scheduler as [`Note::Recorded`].

use std::collections::BTreeMap;
use std::sync::Arc;

use queue::Verdict;
use spool::{Entry, Spool, State};

use super::{Attempt, Judged, Mailbag, Note};

/// Approximate bytes that an outcome and each of its recipients take in the spool.
const OUTCOME_BYTES: usize = 128;
const RECIPIENT_BYTES: usize = 16;
/// Approximate bytes of outcomes and notices in one submission; it must fit into any segment.
const SUBMISSION_BYTES: usize = 256 * 1024;

/// Submits outcomes.
#[derive(Clone)]
pub(super) struct Registrar {
    pub(super) spool: Arc<Spool>,
    pub(super) mailbag: Mailbag,
}

/// The outcomes and notices of one submission.
#[derive(Default)]
struct Sheaf {
    entries: Vec<Entry>,
    judged: Vec<Judged>,
    bytes: usize,
}

impl Registrar {
    /// Submits outcomes with their notices: never one without the other.
    pub(super) fn submit(&self, judged: impl Iterator<Item = (Judged, Option<Entry>)>) {
        let mut lanes: BTreeMap<u16, Sheaf> = BTreeMap::new();
        for (judged, notice) in judged {
            let sheaf = lanes.entry(judged.attempt.id.lane()).or_default();
            sheaf.bytes += judged.notice.as_ref().map_or(0, |told| told.size as usize);
            sheaf.bytes += OUTCOME_BYTES + judged.verdicts.len() * RECIPIENT_BYTES;
            sheaf.entries.extend(notice);
            sheaf.entries.push(outcome(&judged));
            sheaf.judged.push(judged);
            if sheaf.bytes >= SUBMISSION_BYTES {
                self.hand_in(std::mem::take(sheaf));
            }
        }
        lanes.into_values().for_each(|sheaf| self.hand_in(sheaf));
    }

    fn hand_in(&self, sheaf: Sheaf) {
        let Sheaf { entries, judged, .. } = sheaf;
        if judged.is_empty() {
            return;
        }
        let mailbag = self.mailbag.clone();
        self.spool.submit(entries, Box::new(move |result| mailbag.tell(Note::Recorded(judged, result))));
    }
}

fn outcome(judged: &Judged) -> Entry {
    let Judged { attempt, verdicts, notice, .. } = judged;
    let states = verdicts.iter().map(|verdict| state(attempt, verdict));
    let recipients = attempt.recipients.iter().copied().zip(states).collect();
    Entry::Outcome { id: attempt.id, recipients, bounce: notice.as_ref().map(|told| told.id) }
}

fn state(attempt: &Attempt, verdict: &Verdict) -> State {
    match verdict {
        Verdict::Delivered | Verdict::Relayed { .. } => State::Delivered,
        Verdict::Deferred { until, .. } => State::Waiting { attempts: attempt.number, until: *until },
        Verdict::Failed { .. } | Verdict::Removed => State::Failed,
        Verdict::Held => State::Held { attempts: attempt.number },
    }
}
