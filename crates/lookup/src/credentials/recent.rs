//! What passwords came to lately, so that a client which comes with the same one again and again does not cost a hash each
//! time: those that were right, and those that were wrong.
//!
//! What is kept of a password is a keyed hash, by a key that is in this process alone.
//!
//! | kept of | known again by | goes on after the password was changed |
//! |---|---|---|
//! | a right one | user and password, before the table is asked | as long as it is kept |
//! | a wrong one | these, what is stored for the user, and the client | no: of what is stored now nothing is kept |
//!
//! A wrong one is known by the client that brought it: to others the time of an answer would tell which passwords the user's
//! own devices try, an old one say.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use zeroize::Zeroizing;

use super::scram::hmac;

/// What is kept of a user and a password.
pub(super) type Mark = [u8; 32];

/// The successes of late. Time comes in as an argument.
pub(super) struct Recent {
    key: [u8; 32],
    /// As whom each was accepted.
    marks: Marks<Box<str>>,
}

impl Recent {
    /// `ttl` or `entries_max` of zero: nothing is kept.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> Recent {
        Recent { key, marks: Marks::new(ttl, entries_max) }
    }

    /// As whom the user was accepted.
    pub(super) fn find(&self, now: Duration, user: &str, password: &str) -> Option<Box<str>> {
        if self.marks.is_empty() {
            return None;
        }
        self.marks.find(now, &self.mark(user, password)).cloned()
    }

    /// Was accepted as `canonical`.
    pub(super) fn add(&mut self, now: Duration, user: &str, password: &str, canonical: &str) {
        let mark = self.mark(user, password);
        self.marks.add(now, mark, canonical.into());
    }

    /// Enough to know a wrong password again for a while.
    pub(super) fn short_mark(&self, user: &str, password: &str) -> u64 {
        let mark = self.mark(user, password);
        u64::from_be_bytes(std::array::from_fn(|place| mark[place]))
    }

    /// The user's name cannot have NUL in it, or what follows would be the password.
    fn mark(&self, user: &str, password: &str) -> Mark {
        let message = Zeroizing::new([user.as_bytes(), b"\0", password.as_bytes()].concat());
        hmac(&self.key, &message)
    }
}

/// The failures of late. Time comes in as an argument.
pub(super) struct Wrong {
    key: [u8; 32],
    marks: Marks<()>,
}

impl Wrong {
    /// `ttl` or `entries_max` of zero: nothing is kept.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> Wrong {
        Wrong { key, marks: Marks::new(ttl, entries_max) }
    }

    /// What is stored for a user, as one number: for nobody there is nothing.
    pub(super) fn entry(&self, stored: &[String]) -> Mark {
        // Each with its length, so that no other values are read as the same.
        let each = stored.iter().flat_map(|value| [&value.len().to_be_bytes()[..], value.as_bytes()].concat());
        hmac(&self.key, &Zeroizing::new(each.collect::<Vec<u8>>()))
    }

    /// By what an attempt is known again. `client` is the network that counts as one.
    pub(super) fn mark(&self, client: IpAddr, user: &str, entry: &Mark, password: &str) -> Mark {
        let address = client.to_string();
        let parts = [&entry[..], address.as_bytes(), b"\0", user.as_bytes(), b"\0", password.as_bytes()];
        hmac(&self.key, &Zeroizing::new(parts.concat()))
    }

    /// Whether it was wrong lately.
    pub(super) fn has(&self, now: Duration, mark: &Mark) -> bool {
        self.marks.find(now, mark).is_some()
    }

    /// It was computed, and was wrong.
    pub(super) fn add(&mut self, now: Duration, mark: Mark) {
        self.marks.add(now, mark, ());
    }
}

/// So many marks for so long, and what is kept with each.
struct Marks<T> {
    ttl: Duration,
    entries_max: usize,
    /// Until when each counts.
    entries: HashMap<Mark, (Duration, T)>,
    /// The same in the order in which they came, which is that in which they end.
    order: VecDeque<Mark>,
}

impl<T> Marks<T> {
    fn new(ttl: Duration, entries_max: usize) -> Marks<T> {
        Marks { ttl, entries_max, entries: HashMap::new(), order: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, now: Duration, mark: &Mark) -> Option<&T> {
        let (until, kept) = self.entries.get(mark)?;
        (*until > now).then_some(kept)
    }

    fn add(&mut self, now: Duration, mark: Mark, kept: T) {
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
        // One that is there keeps its time: it must be looked at again at the end of it.
        if !self.entries.contains_key(&mark) {
            self.entries.insert(mark, (now + self.ttl, kept));
            self.order.push_back(mark);
        }
    }
}
