//! Classifies senders: single messages or bulk mail.
//!
//! | sender, in one queue | class of the recipients that become ready |
//! |---|---|
//! | at most `bulk_above` ready recipients of single messages | single |
//! | more | bulk, until none of them is ready any more |
//!
//! A message that is bulk mail by its own size is not counted: its sender's other messages stay
//! single.

use std::collections::BTreeMap;

use crate::QueueNumber;

/// The class of a message, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MessageClass {
    Single,
    Bulk,
}

/// Senders with ready single messages. Ordered, not hashed: no rehashing pause, and no choice of
/// senders makes it slow.
pub(crate) struct SenderClassifier {
    ready: BTreeMap<(QueueNumber, u64), ReadyCount>,
    bulk_above: usize,
}

#[derive(Default)]
struct ReadyCount {
    singles: u32,
    is_bulk: bool,
}

impl SenderClassifier {
    pub(crate) fn new(bulk_above: usize) -> Self {
        SenderClassifier { ready: BTreeMap::new(), bulk_above }
    }

    /// Sets the number of recipients above which a sender's mail is bulk.
    pub(crate) fn reconfigure(&mut self, bulk_above: usize) {
        self.bulk_above = bulk_above;
    }

    /// Counts one more ready recipient of a single message.
    pub(crate) fn add(&mut self, queue: QueueNumber, sender: u64) -> MessageClass {
        let ready = self.ready.entry((queue, sender)).or_default();
        ready.singles += 1;
        ready.is_bulk |= ready.singles as usize > self.bulk_above;
        if ready.is_bulk { MessageClass::Bulk } else { MessageClass::Single }
    }

    /// Counts `count` fewer.
    pub(crate) fn remove(&mut self, queue: QueueNumber, sender: u64, count: usize) {
        let key = (queue, sender);
        let Some(ready) = self.ready.get_mut(&key) else { return };
        ready.singles = ready.singles.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        if ready.singles == 0 {
            self.ready.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_above_the_limit_is_bulk_until_none_is_ready() {
        let (mut senders, queue) = (SenderClassifier::new(2), QueueNumber(0));
        let classes: Vec<MessageClass> = (0..3).map(|_| senders.add(queue, 7)).collect();
        assert_eq!(classes, [MessageClass::Single, MessageClass::Single, MessageClass::Bulk]);
        senders.remove(queue, 7, 2);
        assert_eq!((senders.add(queue, 7), senders.add(QueueNumber(1), 7)), (MessageClass::Bulk, MessageClass::Single));
        senders.remove(queue, 7, 2);
        assert_eq!(senders.add(queue, 7), MessageClass::Single);
    }
}
