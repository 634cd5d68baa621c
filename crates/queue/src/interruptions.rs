//! Messages that were interrupted at one next hop since its last answer. Each message is blamed
//! first, the next hop only if several different messages are interrupted.
//!
//! `failures` is [`ProbePolicy::failures`], `n` the number of different messages:
//!
//! | n | attempts |
//! |---|---|
//! | below `failures` (at least below 2) | as many as before; one second after a message that was interrupted again |
//! | from there on | one at a time, the next after 100 ms, three times as long for each further message |
//! | 3 x `failures` | none: the next hop is dead |
//!
//! A message that is interrupted again is not counted again. With 3 failures, a next hop that
//! interrupts every message is dead after 9 of them and at most 37 seconds, plus the time of the
//! attempts.

use std::time::Duration;

use mail::{QueueId, Timestamp};

use crate::{DestinationId, ProbePolicy};

/// How many different interrupted messages count as much as one failure to reach the next hop.
pub(crate) const MESSAGES_PER_FAILURE: u32 = 3;
/// Messages that are remembered, which bounds memory and comparisons if `failures` is a million to
/// prevent death. Beyond that, it makes little difference whether a message was seen before.
const MESSAGES_MAX: usize = 64;
/// The first delay of a suspect next hop.
const DELAY_FIRST: Duration = Duration::from_millis(100);
/// Each delay is this many times the previous one.
const DELAY_FACTOR: u32 = 3;
/// The delay after a message that was interrupted again: bulk mail leaves in many attempts.
const DELAY_AGAIN: Duration = Duration::from_secs(1);

/// An interrupted message, with its destination and sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterruptedMessage {
    pub(crate) message: QueueId,
    pub(crate) destination: DestinationId,
    /// The hash of its sender, as in [`AdmittedMessage::sender`](crate::AdmittedMessage::sender).
    pub(crate) sender: u64,
}

/// The interruptions at one next hop since its last answer; at least one.
#[derive(Debug)]
pub(crate) struct InterruptionTracker {
    /// The different messages. None is added once the next hop is dead or [`MESSAGES_MAX`] are
    /// stored.
    messages: Vec<QueueId>,
    /// The number of different messages.
    count: u32,
    last: InterruptedMessage,
    delay: Duration,
    resume_at: Timestamp,
}

impl InterruptionTracker {
    /// The first interruption since an answer. It has no consequences.
    pub(crate) fn new(blamed: InterruptedMessage) -> Self {
        let (delay, resume_at) = (Duration::ZERO, Timestamp::default());
        InterruptionTracker { messages: vec![blamed.message], count: 1, last: blamed, delay, resume_at }
    }

    /// Counts another interruption.
    pub(crate) fn add(&mut self, now: Timestamp, blamed: InterruptedMessage, probe: &ProbePolicy) {
        let is_known = self.last.message == blamed.message || self.messages.contains(&blamed.message);
        if !is_known && !self.is_fatal(probe) && self.messages.len() < MESSAGES_MAX {
            self.messages.push(blamed.message);
        }
        self.count = self.count.saturating_add(u32::from(!is_known));
        let again = if is_known { DELAY_AGAIN } else { Duration::ZERO };
        self.last = blamed;
        self.delay = self.delay_by_count(probe).max(again).min(probe.first);
        self.resume_at = now + self.delay;
    }

    /// The number of different messages.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The last interrupted message: other mail goes first.
    pub(crate) fn last(&self) -> InterruptedMessage {
        self.last
    }

    /// The next attempt does not leave earlier.
    pub(crate) fn resume_at(&self) -> Timestamp {
        self.resume_at
    }

    /// Whether attempts are made one at a time.
    pub(crate) fn is_suspect(&self, probe: &ProbePolicy) -> bool {
        self.count >= suspect_from(probe)
    }

    /// Whether the next hop is to blame and counts as dead.
    pub(crate) fn is_fatal(&self, probe: &ProbePolicy) -> bool {
        self.count >= probe.failures.max(1).saturating_mul(MESSAGES_PER_FAILURE)
    }

    /// Corrects the time after the clock was set back.
    pub(crate) fn set_back(&mut self, now: Timestamp) {
        self.resume_at = self.resume_at.min(now + self.delay);
    }

    fn delay_by_count(&self, probe: &ProbePolicy) -> Duration {
        match self.count.checked_sub(suspect_from(probe)) {
            Some(further) => DELAY_FIRST.saturating_mul(DELAY_FACTOR.saturating_pow(further)),
            None => Duration::ZERO,
        }
    }
}

/// The number of messages from which attempts are made one at a time; never a single message.
fn suspect_from(probe: &ProbePolicy) -> u32 {
    probe.failures.max(2)
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn id(number: u64) -> QueueId {
        QueueId::new(SpoolId::new(1), 0, number)
    }

    fn blamed(number: u64) -> InterruptedMessage {
        InterruptedMessage { message: id(number), destination: DestinationId(0), sender: 1 }
    }

    /// The delays after each interruption, in milliseconds.
    fn delays(messages: impl IntoIterator<Item = u64>, probe: &ProbePolicy) -> (Vec<u128>, InterruptionTracker) {
        let mut messages = messages.into_iter();
        let mut interrupted = InterruptionTracker::new(blamed(messages.next().unwrap()));
        let mut delays = vec![interrupted.resume_at().since(NOW).as_millis()];
        for message in messages {
            interrupted.add(NOW, blamed(message), probe);
            delays.push(interrupted.resume_at().since(NOW).as_millis());
        }
        (delays, interrupted)
    }

    #[test]
    fn different_messages_bring_longer_and_longer_waits_and_then_death() {
        let probe = ProbePolicy::default();
        let (waits, interrupted) = delays(1..=8, &probe);
        assert_eq!(waits, [0, 0, 100, 300, 900, 2700, 8100, 24_300]);
        assert_eq!(
            (interrupted.count(), interrupted.is_suspect(&probe), interrupted.is_fatal(&probe)),
            (8, true, false)
        );
        assert!(delays(1..=9, &probe).1.is_fatal(&probe));
        assert!(!delays(1..=2, &probe).1.is_suspect(&probe));
    }

    #[test]
    fn a_message_that_comes_again_costs_a_second_and_never_more() {
        let probe = ProbePolicy::default();
        let (waits, interrupted) = delays([7; 50], &probe);
        assert!(waits[0] == 0 && waits[1..].iter().all(|&wait| wait == 1000), "{waits:?}");
        assert_eq!((interrupted.count(), interrupted.last(), interrupted.is_suspect(&probe)), (1, blamed(7), false));
        let (waits, interrupted) = delays((1..=6).chain([6, 1]), &probe);
        assert_eq!((&waits[6..], interrupted.last()), (&[2700, 2700][..], blamed(1)));
    }

    #[test]
    fn no_wait_is_longer_than_the_one_for_the_first_probe() {
        let probe = ProbePolicy { first: Duration::from_millis(500), failures: 50, ..ProbePolicy::default() };
        assert_eq!(delays([1, 1], &probe).0, [0, 500]);
        let (waits, interrupted) = delays(1..=149, &probe);
        assert_eq!((waits[48], waits[49], waits[148]), (0, 100, 500));
        assert!(!interrupted.is_fatal(&probe));
    }

    #[test]
    fn messages_above_the_limit_are_not_stored_but_the_last_one_is_recognized() {
        let probe = ProbePolicy { failures: 1_000_000, ..ProbePolicy::default() };
        let (_, mut interrupted) = delays((1..=1000).chain([1000]), &probe);
        assert_eq!((interrupted.messages.len(), interrupted.count()), (MESSAGES_MAX, 1000));
        interrupted.add(NOW, blamed(1), &probe);
        assert_eq!(interrupted.count(), 1000);
        // One that comes again and again takes no place of another one.
        let again = [1, 2].into_iter().chain([1; MESSAGES_MAX]);
        assert_eq!(delays(again.chain([3, 4, 3]), &probe).1.count(), 4);
    }

    #[test]
    fn settings_that_make_no_sense_still_blame_one_message_for_nothing() {
        for failures in [0, 1] {
            let probe = ProbePolicy { failures, ..ProbePolicy::default() };
            let (waits, interrupted) = delays(1..=2, &probe);
            assert_eq!((waits, interrupted.is_fatal(&probe)), (vec![0, 100], false));
            assert!(delays(1..=3, &probe).1.is_fatal(&probe));
        }
        assert!(
            !delays(1..=9, &ProbePolicy { failures: u32::MAX, ..ProbePolicy::default() })
                .1
                .is_fatal(&ProbePolicy { failures: u32::MAX, ..ProbePolicy::default() })
        );
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_wait_longer() {
        let mut interrupted = delays(1..=5, &ProbePolicy::default()).1;
        let earlier = NOW - Duration::from_secs(3600);
        interrupted.set_back(earlier);
        assert_eq!(interrupted.resume_at(), earlier + Duration::from_millis(900));
    }
}
