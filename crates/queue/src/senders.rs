//! Classifies senders: single messages or bulk mail.
//!
//! | sender, in one queue | class of the recipients that become ready |
//! |---|---|
//! | at most `mailing_above` ready recipients of single messages | single |
//! | more | bulk, until none of them is ready any more |
//!
//! A message that is bulk mail by its own size is not counted: its sender's other messages stay
//! single.

use std::collections::BTreeMap;

use crate::QueueNumber;
use crate::destinations::tree_bytes;

/// The class of a message, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Letter,
    Mailing,
}

/// Senders with ready single messages. Ordered, not hashed: no rehashing pause, and no choice of
/// senders makes it slow.
pub(crate) struct Senders {
    ready: BTreeMap<(QueueNumber, u64), Ready>,
    mailing_above: usize,
}

#[derive(Default)]
struct Ready {
    letters: u32,
    is_mailing: bool,
}

impl Senders {
    pub(crate) fn new(mailing_above: usize) -> Self {
        Senders { ready: BTreeMap::new(), mailing_above }
    }

    /// Sets the number of recipients above which a sender's mail is bulk.
    pub(crate) fn change(&mut self, mailing_above: usize) {
        self.mailing_above = mailing_above;
    }

    /// Counts one more ready recipient of a single message.
    pub(crate) fn join(&mut self, queue: QueueNumber, sender: u64) -> Class {
        let ready = self.ready.entry((queue, sender)).or_default();
        ready.letters += 1;
        ready.is_mailing |= ready.letters as usize > self.mailing_above;
        if ready.is_mailing { Class::Mailing } else { Class::Letter }
    }

    /// Counts `count` fewer.
    pub(crate) fn leave(&mut self, queue: QueueNumber, sender: u64, count: usize) {
        let key = (queue, sender);
        let Some(ready) = self.ready.get_mut(&key) else { return };
        ready.letters = ready.letters.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        if ready.letters == 0 {
            self.ready.remove(&key);
        }
    }

    /// Bytes allocated, estimated from above.
    pub(crate) fn bytes(&self) -> usize {
        tree_bytes::<(QueueNumber, u64), Ready>(self.ready.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_of_many_sends_a_mailing_until_all_of_it_has_left() {
        let (mut senders, queue) = (Senders::new(2), QueueNumber(0));
        let classes: Vec<Class> = (0..3).map(|_| senders.join(queue, 7)).collect();
        assert_eq!(classes, [Class::Letter, Class::Letter, Class::Mailing]);
        senders.leave(queue, 7, 2);
        assert_eq!((senders.join(queue, 7), senders.join(QueueNumber(1), 7)), (Class::Mailing, Class::Letter));
        senders.leave(queue, 7, 2);
        assert_eq!(senders.join(queue, 7), Class::Letter);
    }
}
