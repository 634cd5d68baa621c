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
pub(crate) struct Rest {
    in_ring: bool,
    /// When the entry was last in use.
    since: Timestamp,
}

/// The ring of idle entries.
pub(crate) struct Idle {
    ring: VecDeque<u32>,
    number_max: usize,
    time_max: Duration,
}

impl Idle {
    pub(crate) const fn new(number_max: usize, time_max: Duration) -> Self {
        Idle { ring: VecDeque::new(), number_max, time_max }
    }

    /// Marks an entry as idle from now on.
    pub(crate) fn enter(&mut self, index: u32, rest: &mut Rest, now: Timestamp) {
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
    pub(crate) fn decide(&mut self, index: u32, rest: &mut Rest, in_use: bool, now: Timestamp) -> bool {
        // After a clock step back, the idle time starts again.
        rest.since = rest.since.min(now);
        let is_old = now.since(rest.since) >= self.time_max || self.ring.len() >= self.number_max;
        rest.in_ring = !in_use && !is_old;
        if rest.in_ring {
            self.ring.push_back(index);
        }
        !in_use && is_old
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn sweep(idle: &mut Idle, rests: &mut [Rest], in_use: &[u32], now: Timestamp) -> Option<u32> {
        let index = idle.next()?;
        let is_used = in_use.contains(&index);
        idle.decide(index, &mut rests[index as usize], is_used, now).then_some(index)
    }

    #[test]
    fn the_idle_are_forgotten_in_time_and_those_in_use_are_not() {
        let (mut idle, mut rests) = (Idle::new(10, HOUR), [Rest::default(); 3]);
        let start = Timestamp(1_000_000);
        (0..3).for_each(|index| idle.enter(index, &mut rests[index as usize], start));
        assert_eq!((0..5).find_map(|_| sweep(&mut idle, &mut rests, &[1], start)), None);
        assert_eq!(idle.ring, [0, 2]);
        assert_eq!(sweep(&mut idle, &mut rests, &[], start + HOUR), Some(0));
        idle.enter(2, &mut rests[2], start + HOUR);
        assert_eq!(sweep(&mut idle, &mut rests, &[], start + HOUR), None);
        assert_eq!(idle.ring, [2]);
    }

    #[test]
    fn a_clock_set_back_lets_nobody_stay_for_longer() {
        let (mut idle, mut rests) = (Idle::new(10, HOUR), [Rest::default(); 1]);
        let earlier = Timestamp(1_000_000);
        idle.enter(0, &mut rests[0], earlier + 24 * HOUR);
        assert_eq!(sweep(&mut idle, &mut rests, &[], earlier), None);
        assert_eq!(sweep(&mut idle, &mut rests, &[], earlier + HOUR), Some(0));
    }

    #[test]
    fn too_many_are_forgotten_at_once() {
        let (mut idle, mut rests) = (Idle::new(2, HOUR), [Rest::default(); 3]);
        (0..3).for_each(|index| idle.enter(index, &mut rests[index as usize], Timestamp(5)));
        assert_eq!(sweep(&mut idle, &mut rests, &[], Timestamp(5)), Some(0));
        assert_eq!(sweep(&mut idle, &mut rests, &[], Timestamp(5)), None);
    }
}
