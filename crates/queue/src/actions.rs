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
use std::sync::Arc;

use mail::{EnhancedCode, Outcome, QueueId, Reply, Timestamp};

use crate::attempt::{Attempt, AttemptPurpose, OperatorAction};
use crate::intrusive_list::IntrusiveList;
use crate::recipient::{QueuedRecipient, RecipientStage, split_group};
use crate::{ActProgress, Queues, RecipientProgress, RecipientVerdict, RecipientView, TrackedAction};

/// Recipients that leave together for an action. It needs a record but no connection.
const RECIPIENTS_PER_ACTION_MAX: usize = 1000;

/// The picked recipients, in the order of the actions.
pub(crate) type PendingActions = VecDeque<PendingAction>;

/// Recipients that were picked together.
pub(crate) struct PendingAction {
    purpose: AttemptPurpose,
    /// The counts of an operator's action.
    act: Option<Arc<ActProgress>>,
    chain: IntrusiveList,
}

/// How many recipients an action selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PickCount {
    /// Those that are picked; in a dry run, those that would be.
    pub picked: usize,
    /// Those that pass the filter and should be held, removed or bounced, and are left out: they are in an
    /// attempt, or in another action that goes before.
    pub in_attempt: usize,
}

impl<R: Clone> Queues<R> {
    /// Picks recipients in these slots for an operator's action (see [`OperatorAction`] for which can be
    /// picked; never those in flight). They leave their queues and come out of `next` as attempts with that
    /// purpose. The filter is also asked about those that are left out because they are in flight. A recipient
    /// keeps its slot until it is finished, so whoever goes through all slots part by part looks once at each
    /// recipient that is there all the time.
    pub fn pick_recipients_for_action(
        &mut self,
        act: impl Into<TrackedAction>,
        now: Timestamp,
        slots: Range<u32>,
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> PickCount {
        let slots = self.recipients.used_slots(slots).collect();
        self.pick_chosen(act.into(), now, slots, filter)
    }

    /// The same for the recipients of these messages, wherever they are.
    pub fn pick_message_recipients_for_action(
        &mut self,
        act: impl Into<TrackedAction>,
        now: Timestamp,
        ids: &[QueueId],
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> PickCount {
        self.pick_chosen(act.into(), now, self.message_index.slots_of_all(ids), filter)
    }

    /// Picks those of these slots, which ascend, that the action applies to and that pass.
    fn pick_chosen(
        &mut self,
        act: TrackedAction,
        now: Timestamp,
        slots: Vec<u32>,
        filter: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> PickCount {
        let TrackedAction { action, progress, dry_run } = act;
        let (mut chosen, mut count) = (Vec::new(), PickCount::default());
        for (slot, view) in self.views_of(slots) {
            let applies = action.applies_to(now, self.recipients[slot].stage, view.progress);
            let is_left_out = !applies && action.stops_mail() && view.progress == RecipientProgress::InFlight;
            if (!applies && !is_left_out) || !filter(&view) {
                continue;
            }
            if applies {
                chosen.push(slot);
            }
            count.in_attempt += usize::from(is_left_out);
        }
        count.picked = chosen.len();
        if !dry_run {
            progress.note_picked(count.picked);
            self.pick_recipients(AttemptPurpose::Action(action), Some(progress), chosen);
        }
        count
    }

    /// Moves the chosen recipients out of their queues, to be returned by `next` with this purpose.
    /// Returns their number.
    pub(crate) fn pick_recipients(
        &mut self,
        purpose: AttemptPurpose,
        act: Option<Arc<ActProgress>>,
        mut chosen: Vec<u32>,
    ) -> usize {
        // A caller that only counts or lists chooses none; it must not wait for the heap to be
        // rebuilt.
        if chosen.is_empty() {
            return 0;
        }
        self.take_over_picked(&chosen);
        let picked = match &purpose {
            AttemptPurpose::Action(action) if action.stops_mail() => RecipientStage::Picked,
            _ => RecipientStage::PickedToGoOn,
        };
        let (mut has_ready, mut has_waiting) = (false, false);
        for &index in &chosen {
            let stage = self.recipients[index].stage;
            has_ready |= stage == RecipientStage::Ready;
            has_waiting |= stage == RecipientStage::Waiting;
            if stage == RecipientStage::Ready {
                self.ready.remove(self.origin(index), 1);
            }
            self.set_stage(index, picked);
        }
        if has_waiting {
            self.waiting.retain(|index| self.recipients[index].stage != picked);
        }
        if has_ready {
            self.ready.retain(&mut self.recipients, |recipient| recipient.stage != picked);
        }
        chosen.sort_unstable_by_key(|&index| {
            let &QueuedRecipient { message, destination, attempts, ordinal, .. } = &self.recipients[index];
            (message, destination, attempts, ordinal)
        });
        let mut chain = IntrusiveList::EMPTY;
        chosen.iter().for_each(|&index| chain.push_back(&mut self.recipients, index));
        self.pending_actions.push_back(PendingAction { purpose, act, chain });
        chosen.len()
    }

    /// Takes those of the chosen recipients that are picked already out of their pending actions, in one pass
    /// over what is picked so that mail goes on. Their new stage is for the caller to set.
    fn take_over_picked(&mut self, chosen: &[u32]) {
        let is_picked = |index: &&u32| self.recipients[**index].stage == RecipientStage::PickedToGoOn;
        let taken: Vec<u32> = chosen.iter().filter(is_picked).copied().collect();
        if taken.is_empty() {
            return;
        }
        taken.iter().for_each(|&index| self.set_stage(index, RecipientStage::Picked));
        let mut reclassified = Vec::new();
        self.pending_actions.retain_mut(|pending| {
            if matches!(&pending.purpose, AttemptPurpose::Action(action) if action.stops_mail()) {
                return true;
            }
            let mut kept = IntrusiveList::EMPTY;
            while let Some(index) = pending.chain.pop_front(&mut self.recipients) {
                if self.recipients[index].stage == RecipientStage::PickedToGoOn {
                    kept.push_back(&mut self.recipients, index);
                    continue;
                }
                pending.act.iter().for_each(|act| act.note_dropped(1));
                if pending.purpose == AttemptPurpose::Reclassify {
                    reclassified.push(index);
                }
            }
            pending.chain = kept;
            !kept.is_empty()
        });
        for index in reclassified {
            let &QueuedRecipient { message, ordinal, .. } = &self.recipients[index];
            self.unclassified.push((self.messages[message].id, ordinal));
        }
    }

    /// Recipients that were picked to be classified again, and that an operator's action took over: whoever
    /// picked them has to pick them again once they return.
    pub fn take_unclassified(&mut self) -> Vec<(QueueId, u32)> {
        std::mem::take(&mut self.unclassified)
    }

    /// The next recipients with a pending action, and nothing else: for a caller that stops, and makes no
    /// attempts any more.
    pub fn next_action(&mut self) -> Option<Attempt<R>> {
        if !self.has_action() {
            return None;
        }
        let PendingAction { purpose, act, chain } = self.pending_actions.front_mut()?;
        let (purpose, act) = (purpose.clone(), act.clone());
        let (group, count) = split_group(chain, &mut self.recipients, RECIPIENTS_PER_ACTION_MAX);
        if chain.is_empty() {
            self.pending_actions.pop_front();
        }
        self.unrecorded += 1;
        self.actions_unrecorded += 1;
        Some(Attempt { act, ..self.build_attempt(group, count, purpose, None) })
    }

    /// Whether recipients are picked for an action that is not reported.
    pub fn has_unreported_actions(&self) -> bool {
        !self.pending_actions.is_empty() || self.actions_unrecorded > 0
    }

    /// Whether there is one, and capacity to record it: a million actions must not keep attempts
    /// from being recorded.
    pub(crate) fn has_action(&self) -> bool {
        let unrecorded_max = self.config.policy.unrecorded_max;
        let has_room = self.unrecorded < unrecorded_max && self.actions_unrecorded < unrecorded_max.div_ceil(2);
        has_room && !self.pending_actions.is_empty()
    }
}

impl OperatorAction {
    /// Whether no attempt follows. Such an action takes over recipients that others have picked so that mail
    /// goes on: what an operator stops must not leave because a release before it is not recorded yet.
    fn stops_mail(self) -> bool {
        match self {
            OperatorAction::Hold | OperatorAction::Remove | OperatorAction::Bounce => true,
            OperatorAction::Release | OperatorAction::Retry => false,
        }
    }

    fn applies_to(self, now: Timestamp, stage: RecipientStage, progress: RecipientProgress) -> bool {
        if stage == RecipientStage::PickedToGoOn {
            return self.stops_mail();
        }
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
