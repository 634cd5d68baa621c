//! A heap of the recipients that are not due yet, ordered by due time, then by time of insertion.
//!
//! A binary heap over pages, so that it grows without copying and shrinks with the queue: 16 bytes
//! per recipient.

use mail::Timestamp;

use crate::pages::Pages;

/// A waiting recipient. The order of the fields is the order of waking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitEntry {
    pub(crate) due: Timestamp,
    /// Counts the insertions. It wraps after 2^32, which misorders a few recipients that are due in
    /// the same millisecond, once.
    turn: u32,
    pub(crate) recipient: u32,
}

/// The waiting recipients.
pub(crate) struct WaitHeap {
    heap: Pages<WaitEntry>,
    turn: u32,
}

impl WaitHeap {
    pub(crate) const fn new() -> Self {
        WaitHeap { heap: Pages::new(), turn: 0 }
    }

    pub(crate) fn push(&mut self, due: Timestamp, recipient: u32) {
        self.heap.push(WaitEntry { due, turn: self.turn, recipient });
        self.turn = self.turn.wrapping_add(1);
        self.sift_up(self.heap.len() - 1);
    }

    /// When the next recipient is due.
    pub(crate) fn soonest(&self) -> Option<Timestamp> {
        (self.heap.len() > 0).then(|| self.heap[0].due)
    }

    /// Removes one due recipient, the one due longest first.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<u32> {
        if self.soonest()? > now {
            return None;
        }
        let last = self.heap.pop()?;
        if self.heap.len() == 0 {
            return Some(last.recipient);
        }
        let first = std::mem::replace(&mut self.heap[0], last);
        self.sift_down(0);
        Some(first.recipient)
    }

    /// Keeps the recipients for which `keep` returns true, in one pass and without a second heap.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let mut kept = 0;
        for place in 0..self.heap.len() {
            let wake = self.heap[place];
            if keep(wake.recipient) {
                self.heap[kept] = wake;
                kept += 1;
            }
        }
        while self.heap.len() > kept {
            self.heap.pop();
        }
        (0..kept / 2).rev().for_each(|place| self.sift_down(place));
    }

    /// Makes the recipients for which `should_wake` returns true due at `now` at the latest, in one
    /// pass.
    pub(crate) fn make_due(&mut self, now: Timestamp, should_wake: impl Fn(u32) -> bool) {
        for place in 0..self.heap.len() {
            let wake = &mut self.heap[place];
            if should_wake(wake.recipient) {
                wake.due = wake.due.min(now);
            }
        }
        (0..self.heap.len() / 2).rev().for_each(|place| self.sift_down(place));
    }

    /// All waiting recipients, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &WaitEntry> {
        self.heap.iter()
    }

    fn sift_up(&mut self, mut place: u32) {
        let wake = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent] <= wake {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = wake;
    }

    fn sift_down(&mut self, mut place: u32) {
        let (wake, len) = (self.heap[place], self.heap.len());
        while let Some(child) = self.sooner_child(place, len) {
            if wake <= self.heap[child] {
                break;
            }
            self.heap[place] = self.heap[child];
            place = child;
        }
        self.heap[place] = wake;
    }

    fn sooner_child(&self, place: u32, len: u32) -> Option<u32> {
        // In u64, because the children of an index above 2^31 do not fit a u32.
        let left = u32::try_from(u64::from(place) * 2 + 1).ok()?;
        (left..len).take(2).min_by_key(|&child| self.heap[child])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipients_wake_by_time_and_then_in_order_of_arrival() {
        let mut waiting = WaitHeap::new();
        let times = |n: u32| Timestamp(u64::from(n.wrapping_mul(2_654_435_761) >> 24));
        (0..5000).rev().for_each(|n| waiting.push(times(n), n));
        let mut expected: Vec<u32> = (0..5000).rev().collect();
        expected.sort_by_key(|&n| times(n));
        assert!(expected.into_iter().eq(std::iter::from_fn(|| waiting.pop_due(Timestamp(1000)))));
    }

    #[test]
    fn retained_recipients_still_wake_in_order() {
        let mut waiting = WaitHeap::new();
        let times = |n: u32| Timestamp(u64::from(n.wrapping_mul(2_654_435_761) >> 22));
        (0..5000).for_each(|n| waiting.push(times(n), n));
        waiting.retain(|n| n % 3 == 0);
        let mut expected: Vec<u32> = (0..5000).filter(|n| n % 3 == 0).collect();
        expected.sort_by_key(|&n| times(n));
        assert!(expected.into_iter().eq(std::iter::from_fn(|| waiting.pop_due(Timestamp(2000)))));
    }

    #[test]
    fn selected_recipients_are_due_now_and_the_others_in_their_time() {
        let mut waiting = WaitHeap::new();
        (0..5000).for_each(|n| waiting.push(Timestamp(100 + u64::from(n)), n));
        waiting.make_due(Timestamp(150), |n| n % 2 == 1);
        let woken: Vec<u32> = std::iter::from_fn(|| waiting.pop_due(Timestamp(150))).collect();
        let mut expected: Vec<u32> = (0..5000).filter(|n| n % 2 == 1 || *n <= 50).collect();
        expected.sort_by_key(|&n| (n.min(50), n));
        assert_eq!(woken, expected);
        assert_eq!(waiting.soonest(), Some(Timestamp(152)));
    }

    #[test]
    fn no_recipient_wakes_early() {
        let mut waiting = WaitHeap::new();
        waiting.push(Timestamp(50), 1);
        waiting.push(Timestamp(40), 2);
        assert_eq!(waiting.soonest(), Some(Timestamp(40)));
        assert_eq!(waiting.pop_due(Timestamp(39)), None);
        assert_eq!(waiting.pop_due(Timestamp(40)), Some(2));
        assert_eq!(waiting.pop_due(Timestamp(49)), None);
        assert_eq!(waiting.pop_due(Timestamp(50)), Some(1));
        assert_eq!(waiting.soonest(), None);
    }
}
