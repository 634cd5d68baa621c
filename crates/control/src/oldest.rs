//! The oldest of many recipients: as many as were asked for, and no more are in memory, however long the queue is.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use mail::{QueueId, Timestamp};
use queue::RecipientView;

use crate::selection::NamedRecipient;

/// The oldest recipients so far.
pub(super) struct OldestRecipients {
    limit: usize,
    /// The youngest of them is on top.
    recipients: BinaryHeap<ByAge>,
}

/// Ordered as in a list: oldest first, recipients of one message together.
struct ByAge(NamedRecipient);

impl OldestRecipients {
    pub(super) fn new(limit: usize) -> OldestRecipients {
        OldestRecipients { limit, recipients: BinaryHeap::new() }
    }

    /// Whether a recipient is one of the oldest so far.
    pub(super) fn has_room_for(&self, recipient: &RecipientView) -> bool {
        self.recipients.len() < self.limit
            || self.recipients.peek().is_some_and(|youngest| age_key(recipient) < youngest.key())
    }

    /// Takes a recipient, instead of the youngest one if there are enough.
    pub(super) fn insert(&mut self, recipient: NamedRecipient) {
        self.recipients.push(ByAge(recipient));
        if self.recipients.len() > self.limit {
            self.recipients.pop();
        }
    }

    /// Oldest first.
    pub(super) fn into_sorted(self) -> impl Iterator<Item = NamedRecipient> {
        self.recipients.into_sorted_vec().into_iter().map(|ByAge(recipient)| recipient)
    }
}

fn age_key(recipient: &RecipientView) -> (Timestamp, QueueId, u32) {
    (recipient.accepted_at, recipient.id, recipient.ordinal)
}

impl ByAge {
    fn key(&self) -> (Timestamp, QueueId, u32) {
        age_key(&self.0.0)
    }
}

impl Ord for ByAge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for ByAge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByAge {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ByAge {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{self, NOW};
    use crate::selection;

    #[test]
    fn no_more_than_the_oldest_recipients_are_kept_whatever_their_order_is() {
        let sample = sample::queues();
        let found = || selection::select(&sample.queues, &sample::filter(&[]), 0..u32::MAX, NOW).unwrap().into_named();
        let mut all: Vec<_> = found().collect();
        selection::sort_by_age(&mut all);
        for limit in 0..=6 {
            let mut reversed: Vec<_> = found().collect();
            reversed.reverse();
            for order in [found().collect(), reversed] {
                let mut oldest = OldestRecipients::new(limit);
                for recipient in order {
                    if oldest.has_room_for(&recipient.0) {
                        oldest.insert(recipient);
                    }
                    assert!(oldest.recipients.len() <= limit);
                }
                let numbers = |recipients: &[NamedRecipient]| -> Vec<u32> {
                    recipients.iter().map(|(entry, _)| sample.number(entry)).collect()
                };
                let kept: Vec<_> = oldest.into_sorted().collect();
                assert_eq!(numbers(&kept), numbers(&all[..limit.min(all.len())]));
            }
        }
    }
}
