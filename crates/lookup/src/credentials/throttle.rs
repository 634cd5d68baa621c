//! Who has failed too often to be listened to now. Pure: time comes in as an argument, and memory is bounded.
//!
//! Failures are counted in three places: by user and client together, by client, and by user. A client is a network: one
//! address of IPv4, 64 bits of IPv6. Each place has a [`Bound`]: so many failures within a window are free; then the next
//! attempt is looked at after a delay, and each further failure doubles the delay up to a maximum. What is not looked at
//! is no failure. A place is forgotten when its window is over, or, once delays began, when nothing was tried for a window.
//!
//! | place           | what it stops                                | what it must not do                                   |
//! |-----------------|----------------------------------------------|-------------------------------------------------------|
//! | user and client | one client that guesses one user's password  | the user is known elsewhere, the client as others     |
//! | client          | one client that goes through many users      | whoever has logged in from there lately is let through |
//! | user            | many clients that guess one user's password  | the same; the delay stays short, so that a stranger who is that user is heard in the end |
//!
//! The right password from a client forgives that pair, and nothing else. An attempt counts from when it is let through:
//! of those that may still fail as many are let through at once, and one that is never heard of again has failed. Where
//! its end is the client's to choose it is [charged](Throttle::charge) before: it holds up nobody else meanwhile.
//!
//! The same wrong password again is no further guess: a device that was not told of a new one does not lock out others. Of
//! the last one of each pair a mark is kept, and it counts once.
//!
//! Each place has room for so many; a new one takes that of another of its group: of one that says nothing, else of a pair
//! that has not logged in lately, and of these the one that was touched longest ago. Groups are chosen by a hash that no
//! client knows, so that nobody can have a certain one forgotten.

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Places of one group.
const GROUP: usize = 8;

/// What is free, and what a failure costs after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Failures within the window that cost nothing; 0 is taken for 1.
    pub failures: u32,
    /// The delay after that many.
    pub delay: Duration,
    /// What it grows to.
    pub delay_max: Duration,
}

/// Which addresses, as somebody else knows them: some networks, or none.
#[derive(Clone, Default)]
pub struct Networks(Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>);

impl Networks {
    /// Those of which this is true. It is asked for each attempt.
    pub fn new(contain: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Networks {
        Networks(Some(Arc::new(contain)))
    }

    /// Whether the address is one of them. One of IPv4 that came over IPv6 is one of IPv4.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_some_and(|contain| contain(address.to_canonical()))
    }
}

/// The same one, not only one that contains the same.
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

/// What the throttle is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleSettings {
    /// How long a failure counts.
    pub window: Duration,
    /// By user and client.
    pub pair: Bound,
    /// By client.
    pub client: Bound,
    /// By user.
    pub user: Bound,
    /// How long a client from which a user has logged in is known for that: the bounds by client and by user do not hold
    /// for the two of them.
    pub known_for: Duration,
    /// Attempts of one user from one client that are looked at at once.
    pub pair_at_once: u32,
    /// Attempts of one client that are looked at at once.
    pub client_at_once: u32,
    /// Pairs, clients and users that are remembered, of each so many; 100 octets each.
    pub places: usize,
    /// Clients that many users come from, as from the host of a webmail: the bound by client does not hold for them.
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

/// Counts failures, and says who is listened to.
#[derive(Debug)]
pub struct Throttle {
    settings: ThrottleSettings,
    hasher: RandomState,
    pairs: Places,
    clients: Places,
    users: Places,
}

/// An attempt that was let through, which must be told of how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an attempt counts as under way until its end is told"]
pub struct Attempt {
    pair: u64,
    /// None: not bound.
    client: Option<u64>,
    user: u64,
    charged: Option<Duration>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the right password.
    Succeeded,
    /// With a wrong one, or nobody knows.
    Failed,
    /// With a wrong one of which this is the mark: by a key that no client knows, of the user and the password. The same
    /// one as the last of the pair counts no more.
    Wrong(u64),
    /// The password was not looked at.
    Void,
}

impl Throttle {
    /// One that has seen nothing yet.
    pub fn new(settings: ThrottleSettings) -> Throttle {
        let places = || Places::new(settings.places);
        let (pairs, clients, users) = (places(), places(), places());
        Throttle { settings, hasher: RandomState::new(), pairs, clients, users }
    }

    /// Whether an attempt is looked at; None: not now. `now` is the time since a moment of the caller's choice, and
    /// `user` is the folded name.
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

    /// An attempt whose end the client chooses counts as failed by client and user, until it succeeds. Its pair goes on
    /// being under way: whoever could hold that up could fail as well.
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

    /// An attempt ended.
    pub fn settle(&mut self, now: Duration, attempt: Attempt, end: End) {
        let window = self.settings.window;
        let is_again = match (end, self.pairs.find_mut(attempt.pair)) {
            (End::Wrong(mark), Some(pair)) => pair.wrong.replace(mark) == Some(mark),
            _ => false,
        };
        let is_failure = matches!(end, End::Failed | End::Wrong(_)) && !is_again;
        for (places, key, bound, is_pair) in self.places_of(&attempt) {
            match attempt.charged.filter(|_| !is_pair) {
                Some(_) if is_failure => {}
                Some(charged) => places.hold(key, now, |place| place.take_back(charged, bound)),
                None if is_failure => {
                    let place = places.renew(key, now, window, bound);
                    place.under_way = place.under_way.saturating_sub(1);
                    place.fail(now, bound);
                }
                // One that had to make room is not called back for that.
                None => places.hold(key, now, |place| place.under_way = place.under_way.saturating_sub(1)),
            }
        }
        match end {
            End::Succeeded => {
                let pair = self.pairs.renew(attempt.pair, now, window, &self.settings.pair);
                pair.forgive();
                pair.known_until = now + self.settings.known_for;
            }
            // Also where its place had to make room meanwhile.
            End::Wrong(mark) => {
                if let Some(pair) = self.pairs.find_mut(attempt.pair) {
                    pair.wrong = Some(mark);
                }
            }
            End::Failed | End::Void => {}
        }
    }

    /// Where it counts, by what bound, and whether that is the pair.
    fn places_of(&mut self, attempt: &Attempt) -> impl Iterator<Item = (&mut Places, u64, &Bound, bool)> {
        let Throttle { settings, pairs, clients, users, .. } = self;
        let client = attempt.client.map(|client| (clients, client, &settings.client, false));
        let pair = (pairs, attempt.pair, &settings.pair, true);
        [Some(pair), client, Some((users, attempt.user, &settings.user, false))].into_iter().flatten()
    }
}

/// The network that counts as one client. An address of IPv4 that came over IPv6 is one of IPv4.
pub(super) fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// Places in groups of a fixed size.
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

    /// The place of this key as it is now, or a new one.
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

    /// Changes the place of this key if there is one, and gives it back where it says nothing then.
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

/// What would be lost with a place, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Nothing,
    /// Failures, or that something is under way.
    Failures,
    /// That a user is known there.
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

    /// Without what no longer counts.
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

    /// What was charged then was no failure; unless it is forgotten already, or another one would be taken for it.
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
