//! The operator's actions: recipients are picked wherever they wait, and leave as attempts with
//! that purpose. Recipients of retired queues leave in the same way.
//!
//! Picking looks at the recipients in some slots, or at those of some messages; if any of them waits, it makes
//! one pass over the heap; if any is chosen that is ready, one over the sender queues, and if any waits, one
//! more over the heap. The m chosen ones are sorted, so that recipients of one message at one destination leave
//! together: O(m log m). Whoever acts on many picks from a part of the slots at a time, and lets other work be
//! done between the parts.

use std::collections::VecDeque;
use std::ops::Range;

use mail::{EnhancedCode, Outcome, QueueId, Reply, Timestamp};

use crate::attempt::{Attempt, AttemptPurpose, OperatorAction};
use crate::intrusive_list::IntrusiveList;
use crate::recipient::{QueuedRecipient, RecipientStage, split_group};
use crate::{Queues, RecipientProgress, RecipientVerdict, RecipientView};

/// Recipients that leave together for an action. It needs a record but no connection.
const RECIPIENTS_PER_ACTION_MAX: usize = 1000;

/// The picked recipients, in the order of the actions.
pub(crate) type PendingActions = VecDeque<(AttemptPurpose, IntrusiveList)>;

impl<R: Clone> Queues<R> {
    /// Picks recipients in these slots for an operator's action (see [`OperatorAction`] for which can be
    /// picked; never those in flight). They leave their queues and come out of `next` as attempts with that
    /// purpose. Returns their number. A recipient keeps its slot until it is finished, so whoever goes through
    /// all slots part by part looks once at each recipient that is there all the time.
    pub fn pick_recipients_for_action(
        &mut self,
        act: OperatorAction,
        now: Timestamp,
        slots: Range<u32>,
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> usize {
        let slots = self.recipients.used_slots(slots).collect();
        self.pick_chosen(act, now, slots, filter)
    }

    /// The same for the recipients of these messages, wherever they are.
    pub fn pick_message_recipients_for_action(
        &mut self,
        act: OperatorAction,
        now: Timestamp,
        ids: &[QueueId],
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> usize {
        let mut slots: Vec<u32> = ids.iter().flat_map(|id| self.message_index.slots(*id)).collect();
        slots.sort_unstable();
        slots.dedup();
        self.pick_chosen(act, now, slots, filter)
    }

    /// Picks those of these slots, which ascend, that the action applies to and that pass.
    fn pick_chosen(
        &mut self,
        act: OperatorAction,
        now: Timestamp,
        slots: Vec<u32>,
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> usize {
        let views = self.views_of(slots).into_iter();
        let chosen = views.filter(|(_, view)| act.applies_to(now, view.progress) && filter(view));
        let chosen = chosen.map(|(slot, _)| slot).collect();
        self.pick_recipients(AttemptPurpose::Action(act), chosen)
    }

    /// Moves the chosen recipients out of their queues, to be returned by `next` with this purpose.
    /// Returns their number.
    pub(crate) fn pick_recipients(&mut self, purpose: AttemptPurpose, mut chosen: Vec<u32>) -> usize {
        // A caller that only counts or lists chooses none; it must not wait for the heap to be
        // rebuilt.
        if chosen.is_empty() {
            return 0;
        }
        let (mut has_ready, mut has_waiting) = (false, false);
        for &index in &chosen {
            let stage = self.recipients[index].stage;
            has_ready |= stage == RecipientStage::Ready;
            has_waiting |= stage == RecipientStage::Waiting;
            if stage == RecipientStage::Ready {
                self.ready.remove(self.origin(index), 1);
            }
            self.set_stage(index, RecipientStage::Picked);
        }
        if has_waiting {
            self.waiting.retain(|index| self.recipients[index].stage != RecipientStage::Picked);
        }
        if has_ready {
            self.ready.retain(&mut self.recipients, |recipient| recipient.stage != RecipientStage::Picked);
        }
        chosen.sort_unstable_by_key(|&index| {
            let &QueuedRecipient { message, destination, attempts, ordinal, .. } = &self.recipients[index];
            (message, destination, attempts, ordinal)
        });
        let mut chain = IntrusiveList::EMPTY;
        chosen.iter().for_each(|&index| chain.push_back(&mut self.recipients, index));
        self.pending_actions.push_back((purpose, chain));
        chosen.len()
    }

    /// The next recipients with a pending action.
    pub(crate) fn next_action(&mut self) -> Option<Attempt<R>> {
        if !self.has_action() {
            return None;
        }
        let (purpose, chain) = self.pending_actions.front_mut()?;
        let purpose = purpose.clone();
        let (group, count) = split_group(chain, &mut self.recipients, RECIPIENTS_PER_ACTION_MAX);
        if chain.is_empty() {
            self.pending_actions.pop_front();
        }
        self.unrecorded += 1;
        self.actions_unrecorded += 1;
        Some(self.build_attempt(group, count, purpose, None))
    }

    /// Whether there is one, and capacity to record it: a million actions must not keep attempts
    /// from being recorded.
    pub(crate) fn has_action(&self) -> bool {
        !self.pending_actions.is_empty() && self.actions_unrecorded < self.config.policy.unrecorded_max.div_ceil(2)
    }
}

impl OperatorAction {
    fn applies_to(self, now: Timestamp, progress: RecipientProgress) -> bool {
        match (self, progress) {
            (_, RecipientProgress::InFlight) => false,
            (OperatorAction::Hold, progress) => progress != RecipientProgress::Held,
            (OperatorAction::Release, progress) => progress == RecipientProgress::Held,
            (OperatorAction::Retry, progress) => matches!(progress, RecipientProgress::Waiting(due) if due > now),
            (OperatorAction::Remove | OperatorAction::Bounce, _) => true,
        }
    }

    /// The verdict of the action for each recipient.
    pub(crate) fn verdict(self, now: Timestamp, outcome: Outcome) -> RecipientVerdict {
        let reason = match outcome {
            Outcome::Delivered => Reply::new(250, EnhancedCode(2, 0, 0), "by the operator"),
            Outcome::Relayed { reply, .. } | Outcome::Deferred(reply) | Outcome::Failed(reply) => reply,
        };
        match self {
            OperatorAction::Hold => RecipientVerdict::Held,
            OperatorAction::Release | OperatorAction::Retry => RecipientVerdict::Deferred { reason, until: now },
            OperatorAction::Remove => RecipientVerdict::Removed,
            OperatorAction::Bounce => RecipientVerdict::Failed { reason },
        }
    }
}
