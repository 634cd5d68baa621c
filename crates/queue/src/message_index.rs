//! Finds the recipients of a message by its queue id, so that one message can be shown without a look at
//! all others.
//!
//! The trees are ordered, not hashed: they grow without a pause. A message that was classified again in
//! part is admitted again, so recipients of one id may belong to several admissions.

use std::collections::{BTreeMap, BTreeSet};

use mail::{QueueId, SpoolId};

/// The slots of all recipients, by the lane and the sequence number of their messages.
#[derive(Default)]
pub(crate) struct MessageIndex {
    lanes: BTreeMap<(SpoolId, u16), BTreeSet<(u64, u32)>>,
}

impl MessageIndex {
    pub(crate) const fn new() -> Self {
        MessageIndex { lanes: BTreeMap::new() }
    }

    /// Adds the recipient in this slot.
    pub(crate) fn insert(&mut self, id: QueueId, slot: u32) {
        self.lanes.entry((id.spool(), id.lane())).or_default().insert((id.sequence(), slot));
    }

    pub(crate) fn remove(&mut self, id: QueueId, slot: u32) {
        let lane = (id.spool(), id.lane());
        let Some(slots) = self.lanes.get_mut(&lane) else { return };
        slots.remove(&(id.sequence(), slot));
        if slots.is_empty() {
            self.lanes.remove(&lane);
        }
    }

    /// The slots of a message's recipients, in ascending order.
    pub(crate) fn slots(&self, id: QueueId) -> impl Iterator<Item = u32> + '_ {
        let lane = self.lanes.get(&(id.spool(), id.lane())).into_iter();
        let sequence = id.sequence();
        lane.flat_map(move |slots| slots.range((sequence, 0)..=(sequence, u32::MAX))).map(|&(_, slot)| slot)
    }

    /// The slots of the recipients of these messages, each once, in ascending order.
    pub(crate) fn slots_of_all(&self, ids: &[QueueId]) -> Vec<u32> {
        let mut slots: Vec<u32> = ids.iter().flat_map(|id| self.slots(*id)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipients_of_a_message_are_found_until_they_are_removed() {
        let id = |lane, sequence| QueueId::new(SpoolId::new(7), lane, sequence);
        let mut index = MessageIndex::new();
        for (id, slot) in [(id(0, 1), 4), (id(0, 2), 3), (id(0, 1), 0), (id(1, 1), 7)] {
            index.insert(id, slot);
        }
        let slots = |index: &MessageIndex, id| index.slots(id).collect::<Vec<_>>();
        assert_eq!(slots(&index, id(0, 1)), [0, 4]);
        index.remove(id(0, 1), 0);
        assert_eq!(
            (slots(&index, id(0, 1)), slots(&index, id(1, 1)), slots(&index, id(1, 2))),
            (vec![4], vec![7], vec![])
        );
        for (id, slot) in [(id(0, 1), 4), (id(0, 2), 3), (id(1, 1), 7), (id(1, 1), 7)] {
            index.remove(id, slot);
        }
        assert!(index.lanes.is_empty());
    }
}
