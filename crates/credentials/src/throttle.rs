//! Limits password guessing. Free of side effects: time is an argument, and memory is bounded.
//!
//! Failures are counted by user and client together, by client, and by user. A client is a network:
//! an IPv4 address, or 64 bits of IPv6. Each counter has a [`ThrottleLimit`]: some failures within
//! a window are free, then the next attempt has to wait for a delay that doubles with each failure,
//! up to a maximum. A refused attempt is no failure. A counter expires at the end of its window,
//! or, once delays began, after a window without attempts.
//!
//! | counter         | stops                                        | exception                                              |
//! |-----------------|----------------------------------------------|--------------------------------------------------------|
//! | user and client | one client guessing one user's password      | the user elsewhere, and other users of the client      |
//! | client          | one client trying many users                 | users who logged in from there recently                |
//! | user            | many clients guessing one user's password    | the same; the delay stays short, so that a user on a new client gets through |
//!
//! A right password resets the pair only. An attempt counts from its admission: no more run at once
//! than may still fail, and an abandoned one has failed. If the client controls when an attempt
//! ends it is [charged](Throttle::count_as_failed) early, so that it does not block others.
//!
//! Repeating the last wrong password is no further guess, so that a device with an old password
//! does not lock out its user. Each pair keeps a fingerprint of it. Where each check has its full
//! cost, as with an LDAP bind, a repetition is free once a minute only.
//!
//! Each table of counters has a fixed size. A new counter evicts another one of its group: empty
//! ones first, then pairs without a recent login, and of those the least recently used. A secret
//! hash chooses the group, so that a client cannot evict a particular counter.

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use mail::Networks;

/// Counters per group.
const GROUP_SIZE_MAX: usize = 8;
/// How long after a costly repetition the next one is free.
const REPETITION_PAUSE: Duration = Duration::from_secs(60);

/// The limit of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimit {
    /// Free failures within the window; 0 means 1.
    pub failures: u32,
    /// The delay after that.
    pub delay: Duration,
    /// The maximum delay.
    pub delay_max: Duration,
}

/// Settings of the throttle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleSettings {
    /// How long a failure counts.
    pub window: Duration,
    /// The limit by user and client.
    pub pair: ThrottleLimit,
    /// The limit by client.
    pub client: ThrottleLimit,
    /// The limit by user.
    pub user: ThrottleLimit,
    /// How long a login makes the user known on that client. The limits by client and by user do
    /// not apply to known pairs.
    pub known_for: Duration,
    /// Concurrent attempts of one user from one client.
    pub pair_concurrency: u32,
    /// Concurrent attempts from one client.
    pub client_concurrency: u32,
    /// The number of counters for pairs, for clients and for users each; 112 octets per counter.
    pub counters_max: usize,
    /// Clients with many users, such as webmail servers. They have no limit by client.
    pub shared_clients: Networks,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        let (second, quarter) = (Duration::from_secs(1), Duration::from_secs(15 * 60));
        ThrottleSettings {
            window: Duration::from_secs(10 * 60),
            pair: ThrottleLimit { failures: 5, delay: second, delay_max: quarter },
            client: ThrottleLimit { failures: 50, delay: second, delay_max: quarter },
            user: ThrottleLimit { failures: 1000, delay: second, delay_max: Duration::from_secs(5) },
            known_for: Duration::from_secs(7 * 24 * 3600),
            pair_concurrency: 16,
            client_concurrency: 64,
            counters_max: 65_536,
            shared_clients: Networks::default(),
        }
    }
}

/// Counts failed logins and admits attempts.
#[derive(Debug)]
pub struct Throttle {
    settings: ThrottleSettings,
    hasher: RandomState,
    pairs: FailureCounters,
    clients: FailureCounters,
    users: FailureCounters,
}

/// An admitted attempt, to be settled when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an attempt counts as running until it is settled"]
pub struct LoginAttempt {
    pair: u64,
    /// None for shared clients.
    client: Option<u64>,
    user: u64,
    charged: Option<Duration>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAttemptOutcome {
    /// The password was right.
    Succeeded,
    /// The password was wrong, or the result is unknown.
    Failed,
    /// The password was wrong. Holds a fingerprint of user and password, keyed with a secret. The
    /// same one again in a row does not count.
    WrongPassword(u64),
    /// Like `WrongPassword`, but checking it again costs as much: a repetition is free once a
    /// minute only.
    WrongCostly(u64),
    /// The password was not checked.
    NotChecked,
}

impl Throttle {
    /// Creates a throttle without failures.
    pub fn new(settings: ThrottleSettings) -> Throttle {
        let places = || FailureCounters::new(settings.counters_max);
        let (pairs, clients, users) = (places(), places(), places());
        Throttle { settings, hasher: RandomState::new(), pairs, clients, users }
    }

    /// Admits an attempt, or returns None if it has to wait. `now` is the time since any fixed
    /// moment; `user` is the folded name.
    pub fn admit_attempt(&mut self, now: Duration, user: &str, client: IpAddr) -> Option<LoginAttempt> {
        let settings = &self.settings;
        let attempt = self.attempt(user, client);
        let window = settings.window;
        let pair = self.pairs.find(attempt.pair).map(|pair| pair.refreshed(now, window, &settings.pair));
        let is_known = pair.is_some_and(|pair| pair.known_until > now);
        if !pair.is_none_or(|pair| pair.admits(now, &settings.pair, settings.pair_concurrency)) {
            return None;
        }
        if !is_known {
            let client = attempt.client.and_then(|client| self.clients.find(client));
            let client = client.map(|it| it.refreshed(now, window, &settings.client));
            let user = self.users.find(attempt.user).map(|it| it.refreshed(now, window, &settings.user));
            if !client.is_none_or(|it| it.admits(now, &settings.client, settings.client_concurrency))
                || !user.is_none_or(|it| it.admits(now, &settings.user, u32::MAX))
            {
                return None;
            }
        }
        for (table, key, bound, _) in self.counters_of(&attempt) {
            table.refresh_or_insert(key, now, window, bound).in_flight += 1;
        }
        Some(attempt)
    }

    /// Counts the attempt as failed by client and by user until it succeeds, because the client
    /// controls when it ends. It still runs for its pair: only those who can fail there can block
    /// it.
    pub fn count_as_failed(&mut self, now: Duration, attempt: &mut LoginAttempt) {
        let window = self.settings.window;
        for (table, key, bound, is_pair) in self.counters_of(attempt) {
            if !is_pair {
                let counter = table.refresh_or_insert(key, now, window, bound);
                counter.in_flight = counter.in_flight.saturating_sub(1);
                counter.fail(now, bound);
            }
        }
        attempt.charged = Some(now);
    }

    /// Counts a failure that happened on another server.
    pub fn count_failure_elsewhere(&mut self, now: Duration, user: &str, client: IpAddr) {
        let window = self.settings.window;
        let attempt = self.attempt(user, client);
        for (table, key, bound, _) in self.counters_of(&attempt) {
            table.refresh_or_insert(key, now, window, bound).fail(now, bound);
        }
    }

    /// Settles an attempt. Returns whether it counts as a failure.
    pub fn finish_attempt(&mut self, now: Duration, attempt: LoginAttempt, end: LoginAttemptOutcome) -> bool {
        let window = self.settings.window;
        let is_again = match (end, self.pairs.find_mut(attempt.pair)) {
            (LoginAttemptOutcome::WrongPassword(mark), Some(pair)) => pair.is_free_repeat(now, mark, Duration::ZERO),
            (LoginAttemptOutcome::WrongCostly(mark), Some(pair)) => pair.is_free_repeat(now, mark, REPETITION_PAUSE),
            _ => false,
        };
        let is_failure = matches!(
            end,
            LoginAttemptOutcome::Failed | LoginAttemptOutcome::WrongPassword(_) | LoginAttemptOutcome::WrongCostly(_)
        ) && !is_again;
        for (table, key, bound, is_pair) in self.counters_of(&attempt) {
            match attempt.charged.filter(|_| !is_pair) {
                Some(_) if is_failure => {}
                Some(charged) => table.update_existing(key, now, |place| place.refund(charged, bound)),
                None if is_failure => {
                    let counter = table.refresh_or_insert(key, now, window, bound);
                    counter.in_flight = counter.in_flight.saturating_sub(1);
                    counter.fail(now, bound);
                }
                // A counter that was evicted meanwhile is not restored.
                None => table.update_existing(key, now, |place| place.in_flight = place.in_flight.saturating_sub(1)),
            }
        }
        match end {
            LoginAttemptOutcome::Succeeded => {
                let pair = self.pairs.refresh_or_insert(attempt.pair, now, window, &self.settings.pair);
                pair.reset();
                pair.known_until = now + self.settings.known_for;
            }
            // Set this even if the counter was evicted and restored meanwhile.
            LoginAttemptOutcome::WrongPassword(mark) | LoginAttemptOutcome::WrongCostly(mark) => {
                if let Some(pair) = self.pairs.find_mut(attempt.pair) {
                    pair.last_wrong = Some(mark);
                }
            }
            LoginAttemptOutcome::Failed | LoginAttemptOutcome::NotChecked => {}
        }
        is_failure
    }

    /// The keys of an attempt of this user.
    fn attempt(&self, user: &str, client: IpAddr) -> LoginAttempt {
        let is_bound = !self.settings.shared_clients.contains(client);
        let client = client_network(client);
        LoginAttempt {
            pair: self.hasher.hash_one((user, client)),
            client: is_bound.then(|| self.hasher.hash_one(client)),
            user: self.hasher.hash_one(user),
            charged: None,
        }
    }

    /// The counters of an attempt with their keys and limits, and whether it is the pair's.
    fn counters_of(
        &mut self,
        attempt: &LoginAttempt,
    ) -> impl Iterator<Item = (&mut FailureCounters, u64, &ThrottleLimit, bool)> {
        let Throttle { settings, pairs, clients, users, .. } = self;
        let client = attempt.client.map(|client| (clients, client, &settings.client, false));
        let pair = (pairs, attempt.pair, &settings.pair, true);
        [Some(pair), client, Some((users, attempt.user, &settings.user, false))].into_iter().flatten()
    }
}

/// The network that counts as one client. IPv4-mapped IPv6 addresses count as IPv4.
pub(super) fn client_network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// Counters in groups of a fixed size.
#[derive(Debug)]
struct FailureCounters {
    groups: Vec<Vec<FailureCounter>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FailureCounter {
    key: u64,
    touched: Duration,
    window_start: Duration,
    blocked_until: Duration,
    known_until: Duration,
    last_wrong: Option<u64>,
    /// When the next costly repetition is free.
    next_free_repeat: Duration,
    failures: u32,
    in_flight: u32,
}

impl FailureCounters {
    fn new(places: usize) -> FailureCounters {
        FailureCounters { groups: vec![Vec::new(); places.div_ceil(GROUP_SIZE_MAX).max(1)] }
    }

    fn find(&self, key: u64) -> Option<FailureCounter> {
        self.groups[self.group(key)].iter().find(|place| place.key == key).copied()
    }

    fn find_mut(&mut self, key: u64) -> Option<&mut FailureCounter> {
        let group = self.group(key);
        self.groups[group].iter_mut().find(|place| place.key == key)
    }

    /// The counter of this key, refreshed, or a new one.
    fn refresh_or_insert(
        &mut self,
        key: u64,
        now: Duration,
        window: Duration,
        bound: &ThrottleLimit,
    ) -> &mut FailureCounter {
        let number = self.group(key);
        let group = &mut self.groups[number];
        let index = match group.iter().position(|place| place.key == key) {
            Some(place) => place,
            None => {
                let fresh = FailureCounter { key, window_start: now, ..FailureCounter::default() };
                let oldest =
                    (0..group.len()).min_by_key(|&place| (group[place].eviction_rank(now), group[place].touched));
                match oldest.filter(|_| group.len() >= GROUP_SIZE_MAX) {
                    Some(oldest) => {
                        group[oldest] = fresh;
                        oldest
                    }
                    None => {
                        group.push(fresh);
                        group.len() - 1
                    }
                }
            }
        };
        let counter = &mut group[index];
        *counter = FailureCounter { touched: now, ..counter.refreshed(now, window, bound) };
        counter
    }

    /// Changes the counter of this key if it exists, and removes it if it is empty then.
    fn update_existing(&mut self, key: u64, now: Duration, change: impl FnOnce(&mut FailureCounter)) {
        let number = self.group(key);
        let group = &mut self.groups[number];
        let Some(number) = group.iter().position(|place| place.key == key) else { return };
        change(&mut group[number]);
        if group[number].eviction_rank(now) == EvictionRank::Nothing {
            group.swap_remove(number);
        }
    }

    fn group(&self, key: u64) -> usize {
        // The remainder is less than the number of groups.
        (key % self.groups.len() as u64) as usize
    }
}

/// What an eviction would lose, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    Nothing,
    /// Failures or running attempts.
    Failures,
    /// A user known on this client.
    Known,
}

impl FailureCounter {
    fn eviction_rank(&self, now: Duration) -> EvictionRank {
        match self {
            _ if self.known_until > now => EvictionRank::Known,
            _ if self.failures > 0 || self.in_flight > 0 => EvictionRank::Failures,
            _ => EvictionRank::Nothing,
        }
    }

    /// The counter without expired failures.
    fn refreshed(mut self, now: Duration, window: Duration, bound: &ThrottleLimit) -> FailureCounter {
        let over_at =
            if self.failures < bound.failures.max(1) { self.window_start } else { self.blocked_until } + window;
        if now >= over_at {
            self.reset();
            self.window_start = now;
        }
        self
    }

    fn admits(&self, now: Duration, bound: &ThrottleLimit, at_once: u32) -> bool {
        let left = bound.failures.max(1).saturating_sub(self.failures);
        let free = if self.failures == 0 { at_once } else { left.min(at_once) };
        now >= self.blocked_until && self.in_flight < free.max(1)
    }

    /// Whether this repeats the last wrong password and is free. After a free one the next is free
    /// after `pause`.
    fn is_free_repeat(&mut self, now: Duration, mark: u64, pause: Duration) -> bool {
        let is_same = self.last_wrong.replace(mark) == Some(mark);
        let is_free = is_same && now >= self.next_free_repeat;
        if is_free {
            self.next_free_repeat = now + pause;
        }
        is_free
    }

    fn fail(&mut self, now: Duration, bound: &ThrottleLimit) {
        if self.failures == 0 {
            self.window_start = now;
        }
        self.failures = self.failures.saturating_add(1);
        if let Some(beyond) = self.failures.checked_sub(bound.failures.max(1)) {
            let delay = bound.delay.saturating_mul(1 << beyond.min(30)).min(bound.delay_max);
            self.blocked_until = self.blocked_until.max(now + delay);
        }
    }

    /// Refunds a charge, unless it has expired and the counter holds other failures.
    fn refund(&mut self, charged: Duration, bound: &ThrottleLimit) {
        if self.window_start <= charged {
            self.failures = self.failures.saturating_sub(1);
            if self.failures < bound.failures.max(1) {
                self.blocked_until = Duration::ZERO;
            }
        }
    }

    fn reset(&mut self) {
        self.failures = 0;
        self.blocked_until = Duration::ZERO;
    }
}
