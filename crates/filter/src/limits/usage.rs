//! What the keys of one quantity of one limit have used: for each, when its allowance is full again.

use std::time::Instant;

use mail::{Allowance, Shortfall};

use crate::key_digest::KeyDigest;
use crate::ordered_table::OrderedTable;

/// A key that is not there has used nothing.
#[derive(Debug, Default)]
pub(super) struct KeyUsage {
    full_at: OrderedTable<Instant, ()>,
    forgotten: u64,
}

impl KeyUsage {
    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.full_at.len()
    }

    /// How many keys were forgotten because there were too many.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// When the allowance of a key would be full again after this cost.
    ///
    /// # Errors
    ///
    /// It has less left.
    pub(super) fn check(
        &self,
        key: KeyDigest,
        allowance: Allowance,
        cost: u64,
        now: Instant,
    ) -> Result<Instant, Shortfall> {
        let full_at = self.full_at.find(key).map_or(now, |(full_at, ())| *full_at);
        allowance.spend(full_at, cost, now)
    }

    /// Counts a cost, as far as the key has it. Forgets keys whose allowance is full, and above `keys_max`
    /// the one that has used least.
    pub(super) fn count(&mut self, key: KeyDigest, allowance: Allowance, cost: u64, keys_max: usize, now: Instant) {
        let full_at = self.check(key, allowance, cost, now).unwrap_or(now + allowance.per);
        self.full_at.insert(key, full_at, ());
        while self.full_at.first().is_some_and(|(full_at, _)| full_at <= now) {
            self.full_at.pop_first();
        }
        while self.full_at.len() > keys_max {
            self.full_at.pop_first();
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ALLOWANCE: Allowance = Allowance { amount: 10, per: Duration::from_secs(1000) };

    fn key(number: u32) -> KeyDigest {
        KeyDigest::of(&[&number.to_string()])
    }

    #[test]
    fn each_key_has_its_own_and_gets_it_back() {
        let (mut usage, now) = (KeyUsage::default(), Instant::now());
        usage.count(key(1), ALLOWANCE, 10, 100, now);
        assert_eq!(usage.check(key(1), ALLOWANCE, 1, now), Err(Shortfall::Wait(Duration::from_secs(100))));
        assert!(usage.check(key(2), ALLOWANCE, 10, now).is_ok());
        assert!(usage.check(key(1), ALLOWANCE, 1, now + Duration::from_secs(100)).is_ok());
    }

    #[test]
    fn a_key_with_a_full_allowance_is_forgotten() {
        let (mut usage, now) = (KeyUsage::default(), Instant::now());
        (0..50).for_each(|number| usage.count(key(number), ALLOWANCE, 1, 100, now));
        usage.count(key(99), ALLOWANCE, 1, 100, now + Duration::from_secs(101));
        assert_eq!((usage.len(), usage.forgotten()), (1, 0));
    }

    #[test]
    fn a_million_new_keys_give_nobody_back_what_is_used_up() {
        let (mut usage, now) = (KeyUsage::default(), Instant::now());
        usage.count(key(0), ALLOWANCE, 10, 1000, now);
        (1..=1_000_000).for_each(|number| usage.count(key(number), ALLOWANCE, 1, 1000, now));
        assert_eq!((usage.len(), usage.forgotten()), (1000, 999_001));
        assert!(usage.check(key(0), ALLOWANCE, 1, now).is_err());
    }

    #[test]
    fn a_smaller_table_after_a_reload_keeps_those_that_have_used_most() {
        let (mut usage, now) = (KeyUsage::default(), Instant::now());
        (1..=10).for_each(|number| usage.count(key(number), ALLOWANCE, number.into(), 100, now));
        usage.count(key(11), ALLOWANCE, 10, 3, now);
        assert_eq!((usage.len(), usage.forgotten()), (3, 8));
        assert!(usage.check(key(9), ALLOWANCE, 2, now).is_err() && usage.check(key(8), ALLOWANCE, 10, now).is_ok());
    }
}
