//! Logins that succeeded lately: a client that logs in for each of its messages does not cost a hash each time.
//!
//! What is kept of a password is a keyed hash, by a key that is in this process alone. A password that was changed, or a
//! user who was removed, is accepted for as long as an entry lives.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::scram::hmac;

/// What is kept of a user and a password.
pub(super) type Mark = [u8; 32];

/// The successes of late. Time comes in as an argument.
pub(super) struct Recent {
    key: [u8; 32],
    ttl: Duration,
    entries_max: usize,
    /// Until when each counts, and as whom.
    entries: HashMap<Mark, (Duration, Box<str>)>,
    /// The same in the order in which they came, which is that in which they end.
    order: VecDeque<Mark>,
}

impl Recent {
    /// `ttl` or `entries_max` of zero: nothing is kept.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> Recent {
        Recent { key, ttl, entries_max, entries: HashMap::new(), order: VecDeque::new() }
    }

    /// As whom the user was accepted.
    pub(super) fn find(&self, now: Duration, user: &str, password: &str) -> Option<Box<str>> {
        if self.entries.is_empty() {
            return None;
        }
        let (until, user) = self.entries.get(&self.mark(user, password))?;
        (*until > now).then(|| user.clone())
    }

    /// Was accepted as `canonical`.
    pub(super) fn add(&mut self, now: Duration, user: &str, password: &str, canonical: &str) {
        if self.ttl.is_zero() || self.entries_max == 0 {
            return;
        }
        while let Some(first) = self.order.front() {
            let is_over = self.entries.get(first).is_none_or(|(until, _)| *until <= now);
            if !is_over && self.order.len() < self.entries_max {
                break;
            }
            self.entries.remove(first);
            self.order.pop_front();
        }
        let mark = self.mark(user, password);
        // One that is there keeps its time: it must be looked at again at the end of it.
        if !self.entries.contains_key(&mark) {
            self.entries.insert(mark, (now + self.ttl, canonical.into()));
            self.order.push_back(mark);
        }
    }

    /// Enough to know a wrong password again for a while.
    pub(super) fn short_mark(&self, user: &str, password: &str) -> u64 {
        let mark = self.mark(user, password);
        u64::from_be_bytes(std::array::from_fn(|place| mark[place]))
    }

    /// The user's name cannot have NUL in it, or what follows would be the password.
    fn mark(&self, user: &str, password: &str) -> Mark {
        let message = zeroize::Zeroizing::new([user.as_bytes(), b"\0", password.as_bytes()].concat());
        hmac(&self.key, &message)
    }
}
