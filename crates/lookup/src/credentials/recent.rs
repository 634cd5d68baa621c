//! Caches of recent successful and failed logins, so that a client that repeats the same password
//! does not cost a hash each time.
//!
//! Entries are keyed hashes; the key exists only in this process.
//!
//! | cache | key | after a password change |
//! |---|---|---|
//! | successes | user and password, checked before the table lookup | valid until the entry expires |
//! | failures | user, password, the stored values, and the client | no effect, because the stored values differ |
//!
//! Failures include the client, because otherwise the response time would tell other clients which
//! passwords the user's own devices have tried.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use zeroize::Zeroizing;

use super::scram::hmac;

/// A keyed hash of a login.
pub(super) type Mark = [u8; 32];

/// Recent successful logins. Time is an argument.
pub(super) struct Recent {
    key: [u8; 32],
    /// The canonical user name of each.
    marks: Marks<Box<str>>,
}

impl Recent {
    /// With a `ttl` or `entries_max` of zero it stays empty.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> Recent {
        Recent { key, marks: Marks::new(ttl, entries_max) }
    }

    /// The canonical user name, if this login is cached.
    pub(super) fn find(&self, now: Duration, user: &str, password: &str) -> Option<Box<str>> {
        if self.marks.is_empty() {
            return None;
        }
        self.marks.find(now, &self.mark(user, password)).cloned()
    }

    /// Adds a successful login of the user `canonical`.
    pub(super) fn add(&mut self, now: Duration, user: &str, password: &str, canonical: &str) {
        let mark = self.mark(user, password);
        self.marks.add(now, mark, canonical.into());
    }

    /// A short fingerprint that recognizes a repeated wrong password.
    pub(super) fn short_mark(&self, user: &str, password: &str) -> u64 {
        let mark = self.mark(user, password);
        u64::from_be_bytes(std::array::from_fn(|place| mark[place]))
    }

    /// A user name contains no NUL, so it cannot run into the password.
    fn mark(&self, user: &str, password: &str) -> Mark {
        let message = Zeroizing::new([user.as_bytes(), b"\0", password.as_bytes()].concat());
        hmac(&self.key, &message)
    }
}

/// Recent failed logins. Time is an argument.
pub(super) struct Wrong {
    key: [u8; 32],
    marks: Marks<()>,
}

impl Wrong {
    /// With a `ttl` or `entries_max` of zero it stays empty.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> Wrong {
        Wrong { key, marks: Marks::new(ttl, entries_max) }
    }

    /// A fingerprint of the stored values of a user; for unknown users there are none.
    pub(super) fn entry(&self, stored: &[String]) -> Mark {
        // With lengths, so that different lists never look the same.
        let each = stored.iter().flat_map(|value| [&value.len().to_be_bytes()[..], value.as_bytes()].concat());
        hmac(&self.key, &Zeroizing::new(each.collect::<Vec<u8>>()))
    }

    /// A fingerprint of a login attempt. `client` is the client's network.
    pub(super) fn mark(&self, client: IpAddr, user: &str, entry: &Mark, password: &str) -> Mark {
        let address = client.to_string();
        let parts = [&entry[..], address.as_bytes(), b"\0", user.as_bytes(), b"\0", password.as_bytes()];
        hmac(&self.key, &Zeroizing::new(parts.concat()))
    }

    /// Whether it is cached.
    pub(super) fn has(&self, now: Duration, mark: &Mark) -> bool {
        self.marks.find(now, mark).is_some()
    }

    /// Adds a failed login.
    pub(super) fn add(&mut self, now: Duration, mark: Mark) {
        self.marks.add(now, mark, ());
    }
}

/// A bounded cache of fingerprints, each with a value.
struct Marks<T> {
    ttl: Duration,
    entries_max: usize,
    /// Expiry time and value of each.
    entries: HashMap<Mark, (Duration, T)>,
    /// Fingerprints in order of insertion, and therefore of expiry.
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
        // An existing entry keeps its expiry time, so that it is checked again then.
        if !self.entries.contains_key(&mark) {
            self.entries.insert(mark, (now + self.ttl, kept));
            self.order.push_back(mark);
        }
    }
}
