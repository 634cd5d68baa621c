//! Limits password guessing. Free of side effects: time is an argument, and memory is bounded.
//!
//! Failures are counted by user and client together, by client, and by user. A client is a network:
//! an IPv4 address, or 64 bits of IPv6. Each counter has a [`Bound`]: some failures within a window
//! are free, then the next attempt has to wait for a delay that doubles with each failure, up to a
//! maximum. A refused attempt is no failure. A counter expires at the end of its window, or, once
//! delays began, after a window without attempts.
//!
//! | counter         | stops                                        | exception                                              |
//! |-----------------|----------------------------------------------|--------------------------------------------------------|
//! | user and client | one client guessing one user's password      | the user elsewhere, and other users of the client      |
//! | client          | one client trying many users                 | users who logged in from there recently                |
//! | user            | many clients guessing one user's password    | the same; the delay stays short, so that a user on a new client gets through |
//!
//! A right password resets the pair only. An attempt counts from its admission: no more run at once
//! than may still fail, and an abandoned one has failed. If the client controls when an attempt
//! ends it is [charged](Throttle::charge) early, so that it does not block others.
//!
//! Repeating the last wrong password is no further guess, so that a device with an old password
//! does not lock out its user. Each pair keeps a mark of it. Where each check has its full cost, as
//! with an LDAP bind, a repetition is free once a minute only.
//!
//! Each table of counters has a fixed size. A new counter evicts another one of its group: empty
//! ones first, then pairs without a recent login, and of those the least recently used. A secret
//! hash chooses the group, so that a client cannot evict a particular counter.

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Counters per group.
const GROUP: usize = 8;
/// How long after a costly repetition the next one is free.
const REPETITION_PAUSE: Duration = Duration::from_secs(60);

/// The limit of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Free failures within the window; 0 means 1.
    pub failures: u32,
    /// The delay after that.
    pub delay: Duration,
    /// The maximum delay.
    pub delay_max: Duration,
}

/// A set of client addresses, defined by a function.
#[derive(Clone, Default)]
pub struct Networks(Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>);

impl Networks {
    /// The addresses for which this is true. Called for each attempt.
    pub fn new(contain: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Networks {
        Networks(Some(Arc::new(contain)))
    }

    /// Whether the address is in the set. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_some_and(|contain| contain(address.to_canonical()))
    }
}

/// Compares identity: two separate functions are never equal.
impl PartialEq for Networks {
    fn eq(&self, other: &Networks) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Networks {}

impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Networks(some)" } else { "Networks(none)" })
    }
}

/// Settings of the throttle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleSettings {
    /// How long a failure counts.
    pub window: Duration,
    /// The limit by user and client.
    pub pair: Bound,
    /// The limit by client.
    pub client: Bound,
    /// The limit by user.
    pub user: Bound,
    /// How long a login makes the user known on that client. The limits by client and by user do
    /// not apply to known pairs.
    pub known_for: Duration,
    /// Concurrent attempts of one user from one client.
    pub pair_at_once: u32,
    /// Concurrent attempts from one client.
    pub client_at_once: u32,
    /// The number of counters for pairs, for clients and for users each; 112 octets per counter.
    pub places: usize,
    /// Clients with many users, such as webmail servers. They have no limit by client.
    pub shared_clients: Networks,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        let (second, quarter) = (Duration::from_secs(1), Duration::from_secs(15 * 60));
        ThrottleSettings {
            window: Duration::from_secs(10 * 60),
            pair: Bound { failures: 5, delay: second, delay_max: quarter },
            client: Bound { failures: 50, delay: second, delay_max: quarter },
            user: Bound { failures: 1000, delay: second, delay_max: Duration::from_secs(5) },
            known_for: Duration::from_secs(7 * 24 * 3600),
            pair_at_once: 16,
            client_at_once: 64,
            places: 65_536,
            shared_clients: Networks::default(),
        }
    }
}

/// Counts failed logins and admits attempts.
#[derive(Debug)]
pub struct Throttle {
    settings: ThrottleSettings,
    hasher: RandomState,
    pairs: Places,
    clients: Places,
    users: Places,
}

/// An admitted attempt, to be settled when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an attempt counts as running until it is settled"]
pub struct Attempt {
    pair: u64,
    /// None for shared clients.
    client: Option<u64>,
    user: u64,
    charged: Option<Duration>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The password was right.
    Succeeded,
    /// The password was wrong, or the result is unknown.
    Failed,
    /// The password was wrong. Holds a fingerprint of user and password, keyed with a secret. The
    /// same one again in a row does not count.
    Wrong(u64),
    /// Like `Wrong`, but checking it again costs as much: a repetition is free once a minute only.
    WrongAtCost(u64),
    /// The password was not checked.
    Void,
}

impl Throttle {
    /// Creates a throttle without failures.
    pub fn new(settings: ThrottleSettings) -> Throttle {
        let places = || Places::new(settings.places);
        let (pairs, clients, users) = (places(), places(), places());
        Throttle { settings, hasher: RandomState::new(), pairs, clients, users }
    }

    /// Admits an attempt, or returns None if it has to wait. `now` is the time since any fixed
    /// moment; `user` is the folded name.
    pub fn admit(&mut self, now: Duration, user: &str, client: IpAddr) -> Option<Attempt> {
        let settings = &self.settings;
        let is_bound = !settings.shared_clients.contain(client);
        let client = network(client);
        let attempt = Attempt {
            pair: self.hasher.hash_one((user, client)),
            client: is_bound.then(|| self.hasher.hash_one(client)),
            user: self.hasher.hash_one(user),
            charged: None,
        };
        let window = settings.window;
        let pair = self.pairs.find(attempt.pair).map(|pair| pair.renewed(now, window, &settings.pair));
        let is_known = pair.is_some_and(|pair| pair.known_until > now);
        if !pair.is_none_or(|pair| pair.admits(now, &settings.pair, settings.pair_at_once)) {
            return None;
        }
        if !is_known {
            let client = attempt.client.and_then(|client| self.clients.find(client));
            let client = client.map(|it| it.renewed(now, window, &settings.client));
            let user = self.users.find(attempt.user).map(|it| it.renewed(now, window, &settings.user));
            if !client.is_none_or(|it| it.admits(now, &settings.client, settings.client_at_once))
                || !user.is_none_or(|it| it.admits(now, &settings.user, u32::MAX))
            {
                return None;
            }
        }
        for (places, key, bound, _) in self.places_of(&attempt) {
            places.renew(key, now, window, bound).under_way += 1;
        }
        Some(attempt)
    }

    /// Counts the attempt as failed by client and by user until it succeeds, because the client
    /// controls when it ends. It still runs for its pair: only those who can fail there can block
    /// it.
    pub fn charge(&mut self, now: Duration, attempt: &mut Attempt) {
        let window = self.settings.window;
        for (places, key, bound, is_pair) in self.places_of(attempt) {
            if !is_pair {
                let place = places.renew(key, now, window, bound);
                place.under_way = place.under_way.saturating_sub(1);
                place.fail(now, bound);
            }
        }
        attempt.charged = Some(now);
    }

    /// Settles an attempt.
    pub fn settle(&mut self, now: Duration, attempt: Attempt, end: End) {
        let window = self.settings.window;
        let is_again = match (end, self.pairs.find_mut(attempt.pair)) {
            (End::Wrong(mark), Some(pair)) => pair.repeats(now, mark, Duration::ZERO),
            (End::WrongAtCost(mark), Some(pair)) => pair.repeats(now, mark, REPETITION_PAUSE),
            _ => false,
        };
        let is_failure = matches!(end, End::Failed | End::Wrong(_) | End::WrongAtCost(_)) && !is_again;
        for (places, key, bound, is_pair) in self.places_of(&attempt) {
            match attempt.charged.filter(|_| !is_pair) {
                Some(_) if is_failure => {}
                Some(charged) => places.hold(key, now, |place| place.take_back(charged, bound)),
                None if is_failure => {
                    let place = places.renew(key, now, window, bound);
                    place.under_way = place.under_way.saturating_sub(1);
                    place.fail(now, bound);
                }
                // A counter that was evicted meanwhile is not restored.
                None => places.hold(key, now, |place| place.under_way = place.under_way.saturating_sub(1)),
            }
        }
        match end {
            End::Succeeded => {
                let pair = self.pairs.renew(attempt.pair, now, window, &self.settings.pair);
                pair.forgive();
                pair.known_until = now + self.settings.known_for;
            }
            // Set this even if the counter was evicted and restored meanwhile.
            End::Wrong(mark) | End::WrongAtCost(mark) => {
                if let Some(pair) = self.pairs.find_mut(attempt.pair) {
                    pair.wrong = Some(mark);
                }
            }
            End::Failed | End::Void => {}
        }
    }

    /// The counters of an attempt with their keys and limits, and whether it is the pair's.
    fn places_of(&mut self, attempt: &Attempt) -> impl Iterator<Item = (&mut Places, u64, &Bound, bool)> {
        let Throttle { settings, pairs, clients, users, .. } = self;
        let client = attempt.client.map(|client| (clients, client, &settings.client, false));
        let pair = (pairs, attempt.pair, &settings.pair, true);
        [Some(pair), client, Some((users, attempt.user, &settings.user, false))].into_iter().flatten()
    }
}

/// The network that counts as one client. IPv4-mapped IPv6 addresses count as IPv4.
pub(super) fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// Counters in groups of a fixed size.
#[derive(Debug)]
struct Places {
    groups: Vec<Vec<Place>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    key: u64,
    touched: Duration,
    began: Duration,
    until: Duration,
    known_until: Duration,
    wrong: Option<u64>,
    /// When the next costly repetition is free.
    repeats_from: Duration,
    failures: u32,
    under_way: u32,
}

impl Places {
    fn new(places: usize) -> Places {
        Places { groups: vec![Vec::new(); places.div_ceil(GROUP).max(1)] }
    }

    fn find(&self, key: u64) -> Option<Place> {
        self.groups[self.group(key)].iter().find(|place| place.key == key).copied()
    }

    fn find_mut(&mut self, key: u64) -> Option<&mut Place> {
        let group = self.group(key);
        self.groups[group].iter_mut().find(|place| place.key == key)
    }

    /// The counter of this key, refreshed, or a new one.
    fn renew(&mut self, key: u64, now: Duration, window: Duration, bound: &Bound) -> &mut Place {
        let number = self.group(key);
        let group = &mut self.groups[number];
        let place = match group.iter().position(|place| place.key == key) {
            Some(place) => place,
            None => {
                let fresh = Place { key, began: now, ..Place::default() };
                let oldest = (0..group.len()).min_by_key(|&place| (group[place].worth(now), group[place].touched));
                match oldest.filter(|_| group.len() >= GROUP) {
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
        let place = &mut group[place];
        *place = Place { touched: now, ..place.renewed(now, window, bound) };
        place
    }

    /// Changes the counter of this key if it exists, and removes it if it is empty then.
    fn hold(&mut self, key: u64, now: Duration, change: impl FnOnce(&mut Place)) {
        let number = self.group(key);
        let group = &mut self.groups[number];
        let Some(number) = group.iter().position(|place| place.key == key) else { return };
        change(&mut group[number]);
        if group[number].worth(now) == Worth::Nothing {
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
enum Worth {
    Nothing,
    /// Failures or running attempts.
    Failures,
    /// A user known on this client.
    Known,
}

impl Place {
    fn worth(&self, now: Duration) -> Worth {
        match self {
            _ if self.known_until > now => Worth::Known,
            _ if self.failures > 0 || self.under_way > 0 => Worth::Failures,
            _ => Worth::Nothing,
        }
    }

    /// The counter without expired failures.
    fn renewed(mut self, now: Duration, window: Duration, bound: &Bound) -> Place {
        let over_at = if self.failures < bound.failures.max(1) { self.began } else { self.until } + window;
        if now >= over_at {
            self.forgive();
            self.began = now;
        }
        self
    }

    fn admits(&self, now: Duration, bound: &Bound, at_once: u32) -> bool {
        let left = bound.failures.max(1).saturating_sub(self.failures);
        let free = if self.failures == 0 { at_once } else { left.min(at_once) };
        now >= self.until && self.under_way < free.max(1)
    }

    /// Whether this repeats the last wrong password and is free. After a free one the next is free
    /// after `pause`.
    fn repeats(&mut self, now: Duration, mark: u64, pause: Duration) -> bool {
        let is_same = self.wrong.replace(mark) == Some(mark);
        let is_free = is_same && now >= self.repeats_from;
        if is_free {
            self.repeats_from = now + pause;
        }
        is_free
    }

    fn fail(&mut self, now: Duration, bound: &Bound) {
        if self.failures == 0 {
            self.began = now;
        }
        self.failures = self.failures.saturating_add(1);
        if let Some(beyond) = self.failures.checked_sub(bound.failures.max(1)) {
            let delay = bound.delay.saturating_mul(1 << beyond.min(30)).min(bound.delay_max);
            self.until = self.until.max(now + delay);
        }
    }

    /// Refunds a charge, unless it has expired and the counter holds other failures.
    fn take_back(&mut self, charged: Duration, bound: &Bound) {
        if self.began <= charged {
            self.failures = self.failures.saturating_sub(1);
            if self.failures < bound.failures.max(1) {
                self.until = Duration::ZERO;
            }
        }
    }

    fn forgive(&mut self) {
        self.failures = 0;
        self.until = Duration::ZERO;
    }
}
