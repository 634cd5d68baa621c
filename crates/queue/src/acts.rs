//! The operator's actions: recipients are picked wherever they wait, and leave as attempts with
//! that purpose. Recipients of retired queues leave in the same way.
//!
//! Picking is one pass over all recipients and, if any is chosen, one over the sender queues and
//! the heap: O(n), plus O(m log m) for the m chosen ones, which are sorted so that recipients of
//! one message at one destination leave together.

use std::collections::VecDeque;

use mail::{Enhanced, Outcome, Reply, Timestamp};

use crate::attempt::{Act, Attempt, Purpose};
use crate::chain::Chain;
use crate::recipient::{Recipient, Stage, split_group};
use crate::{Entry, Progress, Queues, Verdict};

/// Recipients that leave together for an action. It needs a record but no connection.
const RECIPIENTS_PER_ACT_MAX: usize = 1000;

/// The picked recipients, in the order of the actions.
pub(crate) type Acts = VecDeque<(Purpose, Chain)>;

impl<R: Clone> Queues<R> {
    /// Picks recipients for an operator's action in one pass over all (see [`Act`] for which can be
    /// picked; never those in flight). They leave their queues and come out of `next` as attempts
    /// with that purpose. Returns their number.
    pub fn pick(&mut self, act: Act, now: Timestamp, filter: &mut dyn FnMut(&Entry) -> bool) -> usize {
        let chosen = self.choose(act, now, filter);
        self.take_out(Purpose::Act(act), chosen)
    }

    /// Moves the chosen recipients out of their queues, to be returned by `next` with this purpose.
    /// Returns their number.
    pub(crate) fn take_out(&mut self, purpose: Purpose, mut chosen: Vec<u32>) -> usize {
        // A caller that only counts or lists chooses none; it must not wait for the heap to be
        // rebuilt.
        if chosen.is_empty() {
            return 0;
        }
        for &index in &chosen {
            if self.recipients[index].stage == Stage::Ready {
                self.turns.leave(self.origin(index), 1);
            }
            self.enter(index, Stage::Picked);
        }
        self.waiting.retain(|index| self.recipients[index].stage != Stage::Picked);
        self.turns.retain(&mut self.recipients, |recipient| recipient.stage != Stage::Picked);
        chosen.sort_unstable_by_key(|&index| {
            let &Recipient { message, destination, attempts, ordinal, .. } = &self.recipients[index];
            (message, destination, attempts, ordinal)
        });
        let mut chain = Chain::EMPTY;
        chosen.iter().for_each(|&index| chain.push_back(&mut self.recipients, index));
        self.acts.push_back((purpose, chain));
        chosen.len()
    }

    /// The next recipients with a pending action.
    pub(crate) fn next_act(&mut self) -> Option<Attempt<R>> {
        if !self.has_act() {
            return None;
        }
        let (purpose, chain) = self.acts.front_mut()?;
        let purpose = purpose.clone();
        let (group, count) = split_group(chain, &mut self.recipients, RECIPIENTS_PER_ACT_MAX);
        if chain.is_empty() {
            self.acts.pop_front();
        }
        self.unrecorded += 1;
        self.acts_unrecorded += 1;
        Some(self.depart(group, count, purpose, None))
    }

    /// Whether there is one, and capacity to record it: a million actions must not keep attempts
    /// from being recorded.
    pub(crate) fn has_act(&self) -> bool {
        !self.acts.is_empty() && self.acts_unrecorded < self.config.unrecorded_max.div_ceil(2)
    }

    fn choose(&self, act: Act, now: Timestamp, filter: &mut dyn FnMut(&Entry) -> bool) -> Vec<u32> {
        let all = self.everyone().filter(|&(_, progress)| act.chooses(now, progress));
        all.filter(|&(index, progress)| filter(&self.entry(index, progress))).map(|(index, _)| index).collect()
    }
}

impl Act {
    fn chooses(self, now: Timestamp, progress: Progress) -> bool {
        match (self, progress) {
            (_, Progress::InFlight) => false,
            (Act::Hold, progress) => progress != Progress::Held,
            (Act::Release, progress) => progress == Progress::Held,
            (Act::Retry, progress) => matches!(progress, Progress::Waiting(due) if due > now),
            (Act::Remove | Act::Bounce, _) => true,
        }
    }

    /// The verdict of the action for each recipient.
    pub(crate) fn verdict(self, now: Timestamp, outcome: Outcome) -> Verdict {
        let reason = match outcome {
            Outcome::Delivered => Reply::new(250, Enhanced(2, 0, 0), "by the operator"),
            Outcome::Relayed { reply, .. } | Outcome::Deferred(reply) | Outcome::Failed(reply) => reply,
        };
        match self {
            Act::Hold => Verdict::Held,
            Act::Release | Act::Retry => Verdict::Deferred { reason, until: now },
            Act::Remove => Verdict::Removed,
            Act::Bounce => Verdict::Failed { reason },
        }
    }
}
