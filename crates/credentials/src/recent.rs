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
pub(super) type Fingerprint = [u8; 32];

/// Recent successful logins. Time is an argument.
pub(super) struct RecentSuccesses {
    key: [u8; 32],
    /// The canonical user name of each.
    cache: FingerprintCache<Box<str>>,
}

impl RecentSuccesses {
    /// With a `ttl` or `entries_max` of zero it stays empty.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> RecentSuccesses {
        RecentSuccesses { key, cache: FingerprintCache::new(ttl, entries_max) }
    }

    /// The canonical user name, if this login is cached.
    pub(super) fn find(&self, now: Duration, user: &str, password: &str) -> Option<Box<str>> {
        if self.cache.is_empty() {
            return None;
        }
        self.cache.find(now, &self.fingerprint(user, password)).cloned()
    }

    /// Adds a successful login of the user `canonical`.
    pub(super) fn add(&mut self, now: Duration, user: &str, password: &str, canonical: &str) {
        let fingerprint = self.fingerprint(user, password);
        self.cache.add(now, fingerprint, canonical.into());
    }

    /// A short fingerprint that recognizes a repeated wrong password.
    pub(super) fn short_fingerprint(&self, user: &str, password: &str) -> u64 {
        let fingerprint = self.fingerprint(user, password);
        u64::from_be_bytes(std::array::from_fn(|place| fingerprint[place]))
    }

    /// A user name contains no NUL, so it cannot run into the password.
    fn fingerprint(&self, user: &str, password: &str) -> Fingerprint {
        let message = Zeroizing::new([user.as_bytes(), b"\0", password.as_bytes()].concat());
        hmac(&self.key, &message)
    }
}

/// Recent failed logins. Time is an argument.
pub(super) struct RecentFailures {
    key: [u8; 32],
    cache: FingerprintCache<()>,
}

impl RecentFailures {
    /// With a `ttl` or `entries_max` of zero it stays empty.
    pub(super) fn new(key: [u8; 32], ttl: Duration, entries_max: usize) -> RecentFailures {
        RecentFailures { key, cache: FingerprintCache::new(ttl, entries_max) }
    }

    /// A fingerprint of the stored values of a user; for unknown users there are none.
    pub(super) fn entry_fingerprint(&self, stored: &[String]) -> Fingerprint {
        // With lengths, so that different lists never look the same.
        let each = stored.iter().flat_map(|value| [&value.len().to_be_bytes()[..], value.as_bytes()].concat());
        hmac(&self.key, &Zeroizing::new(each.collect::<Vec<u8>>()))
    }

    /// A fingerprint of a login attempt. `client` is the client's network.
    pub(super) fn fingerprint(&self, client: IpAddr, user: &str, entry: &Fingerprint, password: &str) -> Fingerprint {
        let address = client.to_string();
        let parts = [&entry[..], address.as_bytes(), b"\0", user.as_bytes(), b"\0", password.as_bytes()];
        hmac(&self.key, &Zeroizing::new(parts.concat()))
    }

    /// Whether it is cached.
    pub(super) fn has(&self, now: Duration, fingerprint: &Fingerprint) -> bool {
        self.cache.find(now, fingerprint).is_some()
    }

    /// Adds a failed login.
    pub(super) fn add(&mut self, now: Duration, fingerprint: Fingerprint) {
        self.cache.add(now, fingerprint, ());
    }
}

/// A bounded cache of fingerprints, each with a value.
struct FingerprintCache<T> {
    ttl: Duration,
    entries_max: usize,
    /// Expiry time and value of each.
    entries: HashMap<Fingerprint, (Duration, T)>,
    /// Fingerprints in order of insertion, and therefore of expiry.
    order: VecDeque<Fingerprint>,
}

impl<T> FingerprintCache<T> {
    fn new(ttl: Duration, entries_max: usize) -> FingerprintCache<T> {
        FingerprintCache { ttl, entries_max, entries: HashMap::new(), order: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, now: Duration, fingerprint: &Fingerprint) -> Option<&T> {
        let (until, value) = self.entries.get(fingerprint)?;
        (*until > now).then_some(value)
    }

    fn add(&mut self, now: Duration, fingerprint: Fingerprint, value: T) {
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
        if !self.entries.contains_key(&fingerprint) {
            self.entries.insert(fingerprint, (now + self.ttl, value));
            self.order.push_back(fingerprint);
        }
    }
}
