//! Which messages of a lane the log proves to be finished.
//!
//! A message that is not live was finished, or the disk has lost it: a part of the log cannot be read, or
//! all of it was set back to an earlier time. Whoever keeps a second copy has to tell the two apart. The
//! proof is an outcome in the log. Outcomes are freed with their segments, but not before the commit
//! step has confirmed them ([`crate::CommitStep::start`]). Of those that were in the log when it was opened,
//! nobody knows whether the step has them, so their segments stay for as long as this is kept: drop it when
//! the second copy knows all that it proves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mail::QueueId;

use crate::LaneId;
use crate::recipient_states::{RecipientState, RecipientStates};
use crate::segment::FileLease;

/// What a lane's log says about messages that are not live: when the lane was opened, and since then.
#[derive(Default)]
pub struct FinishedMessages {
    /// By sequence number: outcomes that were found without a live message.
    outcomes: HashMap<u64, RecipientStates>,
    /// Messages that were live, and were finished since.
    finished: HashSet<u64>,
    /// The segments that were in the log when it was opened. They are not freed before these are dropped.
    _segments: Vec<Arc<FileLease>>,
}

impl FinishedMessages {
    pub(crate) fn new(outcomes: HashMap<u64, RecipientStates>, segments: Vec<Arc<FileLease>>) -> Self {
        FinishedMessages { outcomes, finished: HashSet::new(), _segments: segments }
    }

    pub(crate) fn add(&mut self, sequence: u64) {
        self.finished.insert(sequence);
    }

    /// The states of a message's recipients, when the log is believed over `states`, which somebody else
    /// has kept. None: the message is finished.
    pub fn unfinished_states(
        &self,
        id: QueueId,
        recipients: u32,
        states: Vec<(u32, RecipientState)>,
    ) -> Option<Vec<(u32, RecipientState)>> {
        if self.finished.contains(&id.sequence()) {
            return None;
        }
        let mut merged = RecipientStates::from(states);
        merged.merge(self.outcomes.get(&id.sequence()).map(RecipientStates::listed).unwrap_or_default());
        let listed = merged.listed();
        let is_over = merged.finished() >= recipients as usize
            || listed.iter().any(|(_, state)| *state == RecipientState::SetAside);
        (!is_over).then_some(listed)
    }
}

impl crate::Spool {
    /// What the log of a lane proves to be finished; once for each lane, since it is forgotten here. With a
    /// commit step, nothing of the log that was opened is freed until this is taken and dropped.
    /// None without a commit step, and for a lane that is not open.
    pub fn take_finished(&self, lane: LaneId) -> Option<FinishedMessages> {
        self.lane_by_id(lane)?.segment_table.lock().finished.take()
    }
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn only_final_states_of_all_recipients_prove_that_a_message_is_finished() {
        let id = |sequence| QueueId::new(SpoolId::new(1), 0, sequence);
        let delivered = |ordinal| (ordinal, RecipientState::Delivered);
        let outcomes = HashMap::from([
            (1, vec![delivered(0)].into()),
            (2, vec![(0, RecipientState::Held { attempts: 1 })].into()),
            (3, vec![(0, RecipientState::SetAside)].into()),
        ]);
        let mut finished = FinishedMessages::new(outcomes, Vec::new());
        finished.add(4);
        for (sequence, recipients, known, expected) in [
            (1, 1, vec![], None),
            (1, 2, vec![], Some(vec![delivered(0)])),
            (1, 2, vec![delivered(1)], None),
            (2, 1, vec![], Some(vec![(0, RecipientState::Held { attempts: 1 })])),
            (3, 2, vec![], None),
            (4, 9, vec![], None),
            (5, 1, vec![], Some(vec![])),
        ] {
            let states = finished.unfinished_states(id(sequence), recipients, known);
            assert_eq!(states, expected, "{sequence} to {recipients}");
        }
    }
}
