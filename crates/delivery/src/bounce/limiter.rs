//! Limits the notices one sender gets about mail from untrusted clients, so that mail with a forged
//! sender does not flood a mailbox: a token bucket for each sender. A suppressed notice is lost, so
//! the caller asks only about mail whose sender may be forged. The time is an argument.
//!
//! A bucket is stored as the time at which it is full again (the generic cell rate algorithm). A
//! notice moves that time forward by the time one token takes to return, and is suppressed if it
//! would lie further ahead than a whole bucket takes. A full bucket needs no entry. When there are
//! too many senders, the one whose bucket is nearest to full is dropped: it loses the least.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use mail::{Address, Rate, Timestamp};

/// The limits of a [`NoticeLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeLimits {
    /// Notices to one sender: this many in a burst, and in each time span, in which an empty bucket
    /// fills up. 0 suppresses all.
    pub per_sender: Rate,
    /// The maximum number of senders tracked.
    pub senders_max: usize,
}

impl Default for NoticeLimits {
    fn default() -> Self {
        NoticeLimits { per_sender: Rate { count: 100, per: Duration::from_secs(3600) }, senders_max: 100_000 }
    }
}

/// Suppresses notices to senders that get too many.
#[derive(Debug)]
pub struct NoticeLimiter {
    limits: NoticeLimits,
    seed: u64,
    /// When the bucket is full again, by the hash of the sender.
    full_at: HashMap<u64, Timestamp>,
    /// The same, the earliest first.
    order: BTreeSet<(Timestamp, u64)>,
    suppressed: u64,
}

impl NoticeLimiter {
    /// Starts with the buckets of all senders full. `seed` must be random, so that nobody can
    /// construct a sender whose hash collides with another's.
    pub fn new(limits: NoticeLimits, seed: u64) -> Self {
        NoticeLimiter { limits, seed, full_at: HashMap::new(), order: BTreeSet::new(), suppressed: 0 }
    }

    /// The limits in force.
    pub fn limits(&self) -> NoticeLimits {
        self.limits
    }

    /// Whether one more notice may go to `sender` now; if so, it is counted.
    pub fn allows(&mut self, now: Timestamp, sender: &Address) -> bool {
        let key = self.hash(sender);
        let token = self.token_interval();
        let empty = now + token * self.limits.per_sender.count;
        // The upper bound corrects entries from before the clock was set back.
        let full_at = self.take_bucket(key).clamp(now, empty);
        let after = full_at + token;
        let allowed = after <= empty;
        self.suppressed += u64::from(!allowed);
        self.put_bucket(key, if allowed { after } else { full_at }, now);
        allowed
    }

    /// How many notices were suppressed since the start.
    pub fn suppressed_count(&self) -> u64 {
        self.suppressed
    }

    /// The time one token takes to return, in whole milliseconds, the resolution of [`Timestamp`].
    fn token_interval(&self) -> Duration {
        let Rate { count, per } = self.limits.per_sender;
        let token = per / count.max(1);
        Duration::new(token.as_secs(), token.subsec_millis() * 1_000_000)
    }

    fn hash(&self, sender: &Address) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, sender).hash(&mut hasher);
        hasher.finish()
    }

    /// Removes the bucket of a sender. A sender without an entry has a full bucket.
    fn take_bucket(&mut self, key: u64) -> Timestamp {
        let Some(full_at) = self.full_at.remove(&key) else { return Timestamp::default() };
        self.order.remove(&(full_at, key));
        full_at
    }

    /// Stores a bucket, and drops full ones and, beyond the limit, those nearest to full.
    fn put_bucket(&mut self, key: u64, full_at: Timestamp, now: Timestamp) {
        self.full_at.insert(key, full_at);
        self.order.insert((full_at, key));
        while let Some(&(first, forgotten)) = self.order.first()
            && (first <= now || self.order.len() > self.limits.senders_max)
        {
            self.order.pop_first();
            self.full_at.remove(&forgotten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_762_160_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const LIMITS: NoticeLimits =
        NoticeLimits { per_sender: Rate { count: 3, per: Duration::from_secs(180) }, senders_max: 4 };

    fn sender(name: &str) -> Address {
        format!("{name}@example.org").parse().unwrap()
    }

    fn allowed(limiter: &mut NoticeLimiter, now: Timestamp, name: &str, tries: usize) -> usize {
        (0..tries).filter(|_| limiter.allows(now, &sender(name))).count()
    }

    #[test]
    fn a_sender_gets_so_many_at_once_and_one_for_each_token_that_returns() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 5), 3);
        assert_eq!(limiter.suppressed_count(), 2);
        assert_eq!(allowed(&mut limiter, NOW + MINUTE - Duration::from_millis(1), "ann", 5), 0);
        assert_eq!(allowed(&mut limiter, NOW + MINUTE, "ann", 5), 1);
        assert_eq!(allowed(&mut limiter, NOW + 10 * MINUTE, "ann", 5), 3);
        assert_eq!(limiter.suppressed_count(), 13);
    }

    #[test]
    fn one_sender_costs_another_nothing() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 100), 3);
        assert_eq!(allowed(&mut limiter, NOW, "bob", 100), 3);
    }

    #[test]
    fn what_is_held_back_does_not_put_off_what_may_go() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        let seconds = (0..3600).map(|second| NOW + Duration::from_secs(second));
        assert_eq!(seconds.filter(|now| limiter.allows(*now, &sender("ann"))).count(), 3 + 59);
    }

    #[test]
    fn of_many_senders_those_are_forgotten_that_had_the_least() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 3), 3);
        for n in 0..1000 {
            assert_eq!(allowed(&mut limiter, NOW, &format!("forged{n}"), 1), 1);
            assert!(limiter.full_at.len() <= LIMITS.senders_max && limiter.order.len() == limiter.full_at.len());
        }
        assert_eq!(allowed(&mut limiter, NOW, "ann", 3), 0);
    }

    #[test]
    fn nothing_is_kept_of_full_buckets() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 3) + allowed(&mut limiter, NOW, "bob", 1), 4);
        assert_eq!(allowed(&mut limiter, NOW + 3 * MINUTE, "carol", 1), 1);
        assert_eq!((limiter.full_at.len(), limiter.order.len()), (1, 1));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_a_sender_no_longer_than_a_bucket_takes() {
        let mut limiter = NoticeLimiter::new(LIMITS, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 3), 3);
        let earlier = NOW - Duration::from_secs(86_400);
        assert_eq!(allowed(&mut limiter, earlier, "ann", 1), 0);
        assert_eq!(allowed(&mut limiter, earlier + MINUTE, "ann", 2), 1);
    }

    #[test]
    fn a_limit_of_zero_holds_all_back() {
        let mut limiter =
            NoticeLimiter::new(NoticeLimits { per_sender: Rate { count: 0, ..LIMITS.per_sender }, ..LIMITS }, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 3), 0);
        assert_eq!(limiter.suppressed_count(), 3);
    }

    #[test]
    fn a_limit_finer_than_a_millisecond_is_none() {
        let fine = Rate { count: 1000, per: Duration::from_millis(10) };
        let mut limiter = NoticeLimiter::new(NoticeLimits { per_sender: fine, ..LIMITS }, 1);
        assert_eq!(allowed(&mut limiter, NOW, "ann", 5000), 5000);
    }
}
