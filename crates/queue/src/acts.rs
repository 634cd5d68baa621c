//! The operator's acts: recipients are picked out of wherever they wait, and leave as attempts of that purpose. Those
//! whose queue is retired leave in the same way.
//!
//! Picking is one pass over everyone, and where anybody is chosen one over the lines and the heap: O(n), and O(m log m)
//! in those chosen, who are sorted so that recipients of one message at one destination leave together.

use std::collections::VecDeque;

use mail::{Enhanced, Outcome, Reply, Timestamp};

use crate::attempt::{Act, Attempt, Purpose};
use crate::chain::Chain;
use crate::recipient::{Recipient, Stage, split_group};
use crate::{Entry, Progress, Queues, Verdict};

/// An act takes no connection, only a record: so many recipients leave together at most.
const RECIPIENTS_PER_ACT_MAX: usize = 1000;

/// Those who were picked, in the order of the acts.
pub(crate) type Acts = VecDeque<(Purpose, Chain)>;

impl<R: Clone> Queues<R> {
    /// Chooses recipients for an act of the operator in one pass over all (see [`Act`] for who can be chosen; never
    /// those in flight). They leave their lines, and come out of `next` as attempts of that purpose. Returns how many.
    pub fn pick(&mut self, act: Act, now: Timestamp, filter: &mut dyn FnMut(&Entry) -> bool) -> usize {
        let chosen = self.choose(act, now, filter);
        self.take_out(Purpose::Act(act), chosen)
    }

    /// They leave their lines, and come out of `next` as attempts of this purpose. Returns how many.
    pub(crate) fn take_out(&mut self, purpose: Purpose, mut chosen: Vec<u32>) -> usize {
        // Who only counts or looks chooses nobody, and shall not wait for a heap and lines made anew.
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

    /// The next recipients for whom an act is to be recorded.
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

    /// Whether there is one, and room to record it: a million of them must not keep attempts from being recorded.
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

    /// What it comes to for each recipient, recorded and reported.
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
