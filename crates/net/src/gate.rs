//! Limits on sessions, in total and per client, on the rate of connections, and on the rate of
//! messages. A [`Pass`] permits one session; dropping it ends the permission. Time is an argument.
//!
//! A client is an IPv4 address or an IPv6 /64. Trusted clients are subject only to the total, which
//! costs an atomic operation. Other clients also take a lock, shared with a fraction of the
//! clients.

mod rates;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use rates::Rate;
use rates::{Counted, Rates};

/// The default number of clients whose rates are tracked; they take about 10 MB.
pub const RATED_CLIENTS_MAX: usize = 100_000;
/// The number of shards that clients are distributed over, each with its own lock.
const CROWDS: usize = 16;

/// The limits of a [`Gate`].
#[derive(Clone, Debug)]
pub struct GateLimits {
    /// Sessions of all clients together.
    pub sessions_max: usize,
    /// Sessions of one client: an IPv4 address or an IPv6 /64.
    pub sessions_per_client_max: usize,
    /// New sessions of one client per time span; `None` for no limit.
    pub connections_per_client: Option<Rate>,
    /// Messages of one client per time span; `None` for no limit.
    pub messages_per_client: Option<Rate>,
    /// The number of clients whose rates are tracked; beyond it, those unseen the longest are
    /// forgotten.
    pub rated_clients_max: usize,
}

/// Enforces the limits.
#[derive(Debug)]
pub struct Gate {
    limits: GateLimits,
    hall: Arc<Hall>,
}

/// The current sessions, whatever limits they were admitted under.
#[derive(Debug)]
struct Hall {
    /// Sessions of all clients.
    sessions: AtomicUsize,
    crowds: [Mutex<Crowd>; CROWDS],
    /// Distributes the clients in a way that they cannot choose their shard.
    hasher: RandomState,
}

/// The state of a fraction of the clients.
#[derive(Debug)]
struct Crowd {
    /// Sessions per client; only clients that have any.
    sessions: HashMap<IpAddr, usize>,
    rates: Rates,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// The total number of sessions has reached its limit.
    Full,
    /// The client has reached its limit of sessions.
    ClientFull,
    /// The client connects too often.
    ClientTooOften,
}

/// The permission for one session.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    /// None for a client without a limit of its own.
    client: Option<IpAddr>,
}

impl Gate {
    /// A limiter without sessions.
    pub fn new(limits: GateLimits) -> Arc<Gate> {
        let rates = || {
            let clients_max = limits.rated_clients_max.div_ceil(CROWDS);
            Rates::new(limits.connections_per_client, limits.messages_per_client, clients_max)
        };
        let crowds = std::array::from_fn(|_| Mutex::new(Crowd { sessions: HashMap::new(), rates: rates() }));
        let hall = Hall { sessions: AtomicUsize::new(0), crowds, hasher: RandomState::new() };
        Arc::new(Gate { limits, hall: Arc::new(hall) })
    }

    /// A limiter with other limits on the same sessions: those admitted earlier still count, and
    /// the used part of each rate stays used. From now on both limiters apply the new rates.
    pub fn under(&self, limits: GateLimits) -> Arc<Gate> {
        let clients_max = limits.rated_clients_max.div_ceil(CROWDS);
        for crowd in &self.hall.crowds {
            let mut crowd = crowd.lock().unwrap_or_else(PoisonError::into_inner);
            crowd.rates.change(limits.connections_per_client, limits.messages_per_client, clients_max);
        }
        Arc::new(Gate { limits, hall: self.hall.clone() })
    }

    /// Admits a client. `trusted` clients are subject only to the total. A refused connection does
    /// not count towards the rates.
    pub fn enter(self: &Arc<Self>, address: IpAddr, trusted: bool, now: Instant) -> Result<Pass, Turned> {
        let mut pass = self.take_place().ok_or(Turned::Full)?;
        if !trusted {
            let client = client_of(address);
            self.crowd(client).enter(client, self.limits.sessions_per_client_max, now)?;
            pass.client = Some(client);
        }
        Ok(pass)
    }

    /// The current number of sessions.
    pub fn sessions(&self) -> usize {
        self.hall.sessions.load(Relaxed)
    }

    fn take_place(self: &Arc<Self>) -> Option<Pass> {
        let one_more = |sessions| (sessions < self.limits.sessions_max).then_some(sessions + 1);
        self.hall.sessions.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Pass { gate: self.clone(), client: None })
    }

    fn crowd(&self, client: IpAddr) -> MutexGuard<'_, Crowd> {
        let crowd = &self.hall.crowds[self.hall.hasher.hash_one(client) as usize % CROWDS];
        // Counting never panics midway.
        crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Crowd {
    fn enter(&mut self, client: IpAddr, sessions_max: usize, now: Instant) -> Result<(), Turned> {
        let sessions = self.sessions.get(&client).copied().unwrap_or(0);
        if sessions >= sessions_max {
            return Err(Turned::ClientFull);
        }
        if !self.rates.take(client, Counted::Connection, now) {
            return Err(Turned::ClientTooOften);
        }
        self.sessions.insert(client, sessions + 1);
        Ok(())
    }

    fn leave(&mut self, client: IpAddr) {
        if let Some(sessions) = self.sessions.get_mut(&client) {
            *sessions -= 1;
            if *sessions == 0 {
                self.sessions.remove(&client);
            }
        }
    }
}

impl Pass {
    /// Transfers the permission to another client, on whose behalf a proxy has connected. If that
    /// client is refused, the session no longer counts for any client, but counts in the total
    /// until the permission is dropped.
    pub fn pass_on(&mut self, address: IpAddr, trusted: bool, now: Instant) -> Result<(), Turned> {
        if let Some(before) = self.client.take() {
            self.gate.crowd(before).leave(before);
        }
        if !trusted {
            let client = client_of(address);
            self.gate.crowd(client).enter(client, self.gate.limits.sessions_per_client_max, now)?;
            self.client = Some(client);
        }
        Ok(())
    }

    /// Whether the client may send one more message now; if so, it is counted.
    pub fn take_message(&self, now: Instant) -> bool {
        // No lock is needed without a limit on messages.
        let client = self.client.filter(|_| self.gate.limits.messages_per_client.is_some());
        client.is_none_or(|client| self.gate.crowd(client).rates.take(client, Counted::Message, now))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.gate.crowd(client).leave(client);
        }
        self.gate.hall.sessions.fetch_sub(1, Relaxed);
    }
}

/// A client typically has a whole IPv6 /64 (RFC 6177), so that is what is counted.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: GateLimits = GateLimits {
        sessions_max: 3,
        sessions_per_client_max: 2,
        connections_per_client: None,
        messages_per_client: None,
        rated_clients_max: 100,
    };
    const TWO_A_MINUTE: Option<Rate> = Some(Rate { count: 2, per: Duration::from_secs(60) });

    fn gate() -> Arc<Gate> {
        Gate::new(LIMITS)
    }

    #[test]
    fn a_client_has_its_share_and_gets_it_back() {
        let gate = gate();
        let address = IpAddr::from([192, 0, 2, 1]);
        let first = gate.enter(address, false, Instant::now()).unwrap();
        let _second = gate.enter(address, false, Instant::now()).unwrap();
        assert_eq!(gate.enter(address, false, Instant::now()).unwrap_err(), Turned::ClientFull);
        drop(first);
        let _third = gate.enter(address, false, Instant::now()).unwrap();
        assert_eq!(gate.sessions(), 2);
    }

    #[test]
    fn a_trusted_client_is_limited_only_by_the_whole() {
        let gate = gate();
        let address = IpAddr::from([127, 0, 0, 1]);
        let _passes: Vec<Pass> = (0..3).map(|_| gate.enter(address, true, Instant::now()).unwrap()).collect();
        assert_eq!(gate.enter(address, true, Instant::now()).unwrap_err(), Turned::Full);
    }

    #[test]
    fn a_place_that_a_proxy_has_taken_is_passed_on_to_its_client() {
        let gate = gate();
        let (proxy, client) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        let mut passes: Vec<Pass> = (0..3).map(|_| gate.enter(proxy, true, now).unwrap()).collect();
        assert_eq!(passes[0].pass_on(client, false, now), Ok(()), "the transferred session takes no second slot");
        assert_eq!(passes[1].pass_on(client, false, now), Ok(()));
        assert_eq!(passes[2].pass_on(client, false, now), Err(Turned::ClientFull));
        assert_eq!(gate.sessions(), 3);
        assert_eq!(passes[0].pass_on(IpAddr::from([192, 0, 2, 2]), false, now), Ok(()));
        assert_eq!(
            passes[2].pass_on(client, false, now),
            Ok(()),
            "a transferred session no longer counts for its earlier client"
        );
        drop(passes);
        assert_eq!((gate.sessions(), gate.crowd(client).sessions.len()), (0, 0));
    }

    #[test]
    fn neighbours_in_one_ipv6_network_are_one_client() {
        let gate = gate();
        let _a = gate.enter("2001:db8::1".parse().unwrap(), false, Instant::now()).unwrap();
        let _b = gate.enter("2001:db8::2".parse().unwrap(), false, Instant::now()).unwrap();
        assert_eq!(gate.enter("2001:db8::3".parse().unwrap(), false, Instant::now()).unwrap_err(), Turned::ClientFull);
        assert!(gate.enter("2001:db8:0:1::3".parse().unwrap(), false, Instant::now()).is_ok());
    }

    #[test]
    fn a_client_that_comes_too_often_waits_and_loses_no_session() {
        let gate = Gate::new(GateLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        let (start, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        drop(gate.enter(address, false, start).unwrap());
        drop(gate.enter(address, false, start).unwrap());
        assert_eq!(gate.enter(address, false, start).unwrap_err(), Turned::ClientTooOften);
        assert!(gate.enter(address, true, start).is_ok(), "a trusted client was limited");
        assert_eq!(gate.sessions(), 0);
        assert!(gate.crowd(address).sessions.is_empty());
        assert!(gate.enter(address, false, start + Duration::from_secs(30)).is_ok());
    }

    #[test]
    fn messages_are_counted_by_client_over_all_its_sessions() {
        let gate = Gate::new(GateLimits { messages_per_client: TWO_A_MINUTE, ..LIMITS });
        let now = Instant::now();
        let enter = |address: &str, trusted| gate.enter(address.parse().unwrap(), trusted, now).unwrap();
        let (first, second) = (enter("2001:db8::1", false), enter("2001:db8::2", false));
        assert!(first.take_message(now) && second.take_message(now));
        assert!(!first.take_message(now) && !second.take_message(now));
        let trusted = enter("2001:db8::3", true);
        assert!((0..10).all(|_| trusted.take_message(now)));
    }

    #[test]
    fn whoever_came_in_under_other_limits_is_still_counted() {
        let gate = Gate::new(GateLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        let (now, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let first = gate.enter(address, false, now).unwrap();
        let narrow = gate.under(GateLimits { sessions_per_client_max: 1, ..LIMITS });
        assert_eq!(narrow.enter(address, false, now).unwrap_err(), Turned::ClientFull);
        drop(first);
        assert_eq!((gate.sessions(), narrow.sessions()), (0, 0));
        let wide = narrow.under(GateLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        drop(wide.enter(address, false, now).unwrap());
        assert_eq!(
            wide.enter(address, false, now).unwrap_err(),
            Turned::ClientTooOften,
            "the used part of a rate was forgotten"
        );
    }

    #[test]
    fn messages_that_nobody_counts_wait_for_no_lock() {
        let gate = gate();
        let address = IpAddr::from([192, 0, 2, 1]);
        let pass = gate.enter(address, false, Instant::now()).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        let crowd = gate.crowd(address);
        std::thread::scope(|scope| {
            scope.spawn(|| told.send(pass.take_message(Instant::now())).unwrap());
            let taken = heard.recv_timeout(Duration::from_secs(10));
            drop(crowd);
            assert_eq!(taken, Ok(true));
        });
    }
}
