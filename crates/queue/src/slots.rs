//! The slots of a next hop whose maximum concurrency others share: each attempt holds one, and they are
//! granted from outside.
//!
//! | state | an attempt |
//! |---|---|
//! | fewer attempts than granted slots | leaves, if the own concurrency allows it |
//! | all granted slots are held | waits; twice as many are wanted, up to the own concurrency |
//!
//! What is wanted and held is reported when it has changed, at most once in [`REPORT_INTERVAL`]. A slot counts
//! as held for as long as its connection may stay open, and what was wanted for as long. That fewer are
//! granted is reported at once: from then on, no attempt leaves above them.

use std::time::Duration;

use mail::Timestamp;

/// Two reports of a next hop are at least this far apart.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The use of this time counts at least, so that slots do not come and go with every message.
const SPAN_MIN: Duration = Duration::from_secs(1);
/// The slots that are wanted where there are none yet: as many as a new next hop gets.
const FIRST_WANTED: usize = 2;

/// What those who share a next hop have to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotReport {
    /// The name of the next hop.
    pub next_hop: Box<str>,
    /// Its numbers.
    pub usage: SlotUsage,
}

/// The slots of a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    /// The maximum of all who share it.
    pub limit: usize,
    /// How many could be used.
    pub wanted: usize,
    /// How many are held, or were until their connections are closed.
    pub held: usize,
    /// How many are granted. No attempt has left above them since they were.
    pub granted: usize,
}

impl SlotUsage {
    /// Whether nothing is wanted, held or granted.
    pub fn is_none(&self) -> bool {
        self.wanted == 0 && self.held == 0 && self.granted == 0
    }
}

/// The slots of a next hop that is shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSlots {
    granted: usize,
    /// The most that was held and wanted in the present span, and in the one before.
    present: SlotPeak,
    before: SlotPeak,
    span_began: Timestamp,
    reported: SlotUsage,
    reported_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotPeak {
    held: usize,
    wanted: usize,
}

/// The state of a next hop, as it is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotState {
    /// The maximum of all who share it, and how long a connection stays open after its last attempt.
    pub(crate) limit: usize,
    pub(crate) idle: Duration,
    /// Attempts that hold a slot.
    pub(crate) slots: usize,
    /// The own concurrency.
    pub(crate) concurrency: usize,
    /// An attempt waits for nothing but a slot.
    pub(crate) is_waiting: bool,
}

impl SharedSlots {
    /// How many attempts may be made at a time.
    pub(crate) fn granted(&self) -> usize {
        self.granted
    }

    pub(crate) fn grant(&mut self, slots: usize) {
        self.granted = slots;
    }

    /// Whether this server has asked for any. An idle next hop has none, and nobody has refused them.
    pub(crate) fn is_wanted(&self) -> bool {
        self.reported.wanted > 0
    }

    /// Whether those who share it count slots of this server.
    pub(crate) fn is_reported(&self) -> bool {
        !self.reported.is_none()
    }

    /// Takes the present state; returns what is to be reported, and when to look again.
    pub(crate) fn poll(&mut self, now: Timestamp, state: SlotState) -> (Option<SlotUsage>, Option<Timestamp>) {
        let span = state.idle.max(SPAN_MIN);
        self.count(now, span, state);
        let usage = SlotUsage {
            limit: state.limit,
            wanted: self.present.wanted.max(self.before.wanted).min(state.limit),
            held: self.present.held.max(self.before.held),
            granted: self.granted,
        };
        let is_settled = self.before.held.max(self.present.held) <= state.slots
            && self.before.wanted.max(self.present.wanted) <= self.wanted_now(state);
        let span_end = (!is_settled).then(|| self.span_began + span);
        if usage == self.reported {
            return (None, span_end);
        }
        let due = self.reported_at.map_or(now, |at| at + REPORT_INTERVAL);
        if due > now && usage.granted >= self.reported.granted {
            return (None, span_end.into_iter().chain(Some(due)).min());
        }
        (self.reported, self.reported_at) = (usage, Some(now));
        (Some(usage), span_end)
    }

    /// Corrects the state after the clock was set back.
    pub(crate) fn clamp_to_clock(&mut self, now: Timestamp) {
        self.span_began = self.span_began.min(now);
        self.reported_at = self.reported_at.min(Some(now));
    }

    fn count(&mut self, now: Timestamp, span: Duration, state: SlotState) {
        let current = SlotPeak { held: state.slots, wanted: self.wanted_now(state) };
        if now >= self.span_began + span {
            self.before = std::mem::replace(&mut self.present, current);
            self.span_began = now;
        }
        self.present.held = self.present.held.max(current.held);
        self.present.wanted = self.present.wanted.max(current.wanted);
    }

    fn wanted_now(&self, state: SlotState) -> usize {
        match state.is_waiting {
            true => (self.granted * 2).max(FIRST_WANTED).min(state.concurrency).max(state.slots),
            false => state.slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_millis(500);

    fn state(slots: usize, is_waiting: bool) -> SlotState {
        SlotState { limit: 20, idle: SECOND * 5, slots, concurrency: 10, is_waiting }
    }

    fn usage(wanted: usize, held: usize, granted: usize) -> Option<SlotUsage> {
        Some(SlotUsage { limit: 20, wanted, held, granted })
    }

    #[test]
    fn more_slots_are_wanted_while_all_are_held_up_to_the_own_concurrency() {
        let mut slots = SharedSlots::default();
        assert_eq!(slots.poll(NOW, state(0, true)).0, usage(2, 0, 0));
        slots.grant(4);
        assert_eq!(slots.poll(NOW, state(4, true)), (None, Some(NOW + LATER)), "not that often");
        assert_eq!(slots.poll(NOW + LATER, state(4, true)).0, usage(8, 4, 4));
        slots.grant(8);
        assert_eq!(slots.poll(NOW + SECOND, state(8, true)).0, usage(10, 8, 8));
    }

    #[test]
    fn a_slot_is_held_until_its_connection_is_closed() {
        let mut slots = SharedSlots::default();
        slots.grant(5);
        assert_eq!(slots.poll(NOW, state(5, false)).0, usage(5, 5, 5));
        assert_eq!(slots.poll(NOW + SECOND, state(0, false)), (None, Some(NOW + SECOND * 5)));
        assert_eq!(slots.poll(NOW + SECOND * 5, state(0, false)), (None, Some(NOW + SECOND * 10)));
        assert_eq!(slots.poll(NOW + SECOND * 10, state(0, false)), (usage(0, 0, 5), None));
        assert!(slots.is_reported(), "some are granted");
    }

    #[test]
    fn fewer_slots_are_confirmed_at_once() {
        let mut slots = SharedSlots::default();
        slots.grant(5);
        slots.poll(NOW, state(5, false));
        slots.grant(2);
        assert_eq!(slots.poll(NOW, state(5, false)).0, usage(5, 5, 2));
    }
}
