//! Entries that are not in use but kept in case they are needed again, limited in number and time.
//!
//! This is the clock algorithm: every report examines the next one or two idle entries. An entry
//! that is in use again leaves the ring; one that was idle for too long is forgotten, and so is
//! every examined one while there are too many. Each entry is in the ring at most once, which its
//! mark records.

use std::collections::VecDeque;
use std::time::Duration;

use mail::Timestamp;

/// Stored with each entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdleMark {
    in_ring: bool,
    /// When the entry was last in use.
    since: Timestamp,
}

/// The ring of idle entries.
pub(crate) struct IdleRing {
    ring: VecDeque<u32>,
    number_max: usize,
    time_max: Duration,
}

impl IdleRing {
    pub(crate) const fn new(number_max: usize, time_max: Duration) -> Self {
        IdleRing { ring: VecDeque::new(), number_max, time_max }
    }

    /// Marks an entry as idle from now on.
    pub(crate) fn add(&mut self, index: u32, rest: &mut IdleMark, now: Timestamp) {
        rest.since = now;
        if !std::mem::replace(&mut rest.in_ring, true) {
            self.ring.push_back(index);
        }
    }

    /// Takes the next entry to examine.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.ring.pop_front()
    }

    /// Decides about an examined entry. True means forget it, false means it stays or is in use.
    pub(crate) fn should_forget(&mut self, index: u32, rest: &mut IdleMark, in_use: bool, now: Timestamp) -> bool {
        // After a clock step back, the idle time starts again.
        rest.since = rest.since.min(now);
        let is_old = now.since(rest.since) >= self.time_max || self.ring.len() >= self.number_max;
        rest.in_ring = !in_use && !is_old;
        if rest.in_ring {
            self.ring.push_back(index);
        }
        !in_use && is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn sweep(idle: &mut IdleRing, rests: &mut [IdleMark], in_use: &[u32], now: Timestamp) -> Option<u32> {
        let index = idle.next()?;
        let is_used = in_use.contains(&index);
        idle.should_forget(index, &mut rests[index as usize], is_used, now).then_some(index)
    }

    #[test]
    fn idle_entries_are_forgotten_in_time_and_used_ones_are_not() {
        let (mut idle, mut rests) = (IdleRing::new(10, HOUR), [IdleMark::default(); 3]);
        let start = Timestamp(1_000_000);
        (0..3).for_each(|index| idle.add(index, &mut rests[index as usize], start));
        assert_eq!((0..5).find_map(|_| sweep(&mut idle, &mut rests, &[1], start)), None);
        assert_eq!(idle.ring, [0, 2]);
        assert_eq!(sweep(&mut idle, &mut rests, &[], start + HOUR), Some(0));
        idle.add(2, &mut rests[2], start + HOUR);
        assert_eq!(sweep(&mut idle, &mut rests, &[], start + HOUR), None);
        assert_eq!(idle.ring, [2]);
    }

    #[test]
    fn a_clock_step_back_keeps_no_entry_longer() {
        let (mut idle, mut rests) = (IdleRing::new(10, HOUR), [IdleMark::default(); 1]);
        let earlier = Timestamp(1_000_000);
        idle.add(0, &mut rests[0], earlier + 24 * HOUR);
        assert_eq!(sweep(&mut idle, &mut rests, &[], earlier), None);
        assert_eq!(sweep(&mut idle, &mut rests, &[], earlier + HOUR), Some(0));
    }

    #[test]
    fn entries_above_the_limit_are_forgotten_immediately() {
        let (mut idle, mut rests) = (IdleRing::new(2, HOUR), [IdleMark::default(); 3]);
        (0..3).for_each(|index| idle.add(index, &mut rests[index as usize], Timestamp(5)));
        assert_eq!(sweep(&mut idle, &mut rests, &[], Timestamp(5)), Some(0));
        assert_eq!(sweep(&mut idle, &mut rests, &[], Timestamp(5)), None);
    }
}
