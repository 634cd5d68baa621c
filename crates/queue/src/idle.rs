//! What nobody uses, kept for a while in case it is wanted again: bounded in number and in time.
//!
//! A clock's hand goes round those that fell idle, a step or two whenever something is reported: whoever is in use
//! again leaves the ring, whoever was idle for too long is forgotten, and so is whoever the hand meets while there are
//! too many. Each stands in the ring once at most, which a mark in the value says.

use std::collections::VecDeque;
use std::time::Duration;

use mail::Timestamp;

/// The mark of a value.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rest {
    in_ring: bool,
    /// The last time that it was in use.
    since: Timestamp,
}

/// Those that fell idle.
pub(crate) struct Idle {
    ring: VecDeque<u32>,
    number_max: usize,
    time_max: Duration,
}

impl Idle {
    pub(crate) const fn new(number_max: usize, time_max: Duration) -> Self {
        Idle { ring: VecDeque::new(), number_max, time_max }
    }

    /// Somebody is idle from now on.
    pub(crate) fn enter(&mut self, index: u32, rest: &mut Rest, now: Timestamp) {
        rest.since = now;
        if !std::mem::replace(&mut rest.in_ring, true) {
            self.ring.push_back(index);
        }
    }

    /// Whom the hand points at, if anybody.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.ring.pop_front()
    }

    /// What becomes of the one the hand pointed at; true: it is to be forgotten.
    pub(crate) fn decide(&mut self, index: u32, rest: &mut Rest, in_use: bool, now: Timestamp) -> bool {
        // A clock that was set back makes nobody younger than just idle.
        rest.since = rest.since.min(now);
        let is_old = now.since(rest.since) >= self.time_max || self.ring.len() >= self.number_max;
        rest.in_ring = !in_use && !is_old;
        if rest.in_ring {
            self.ring.push_back(index);
        }
        !in_use && is_old
    }

    /// Bytes held, slack included.
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
