//! Limits on sessions, in total and per client, on the rate of connections, and on the rate of
//! messages. A [`SessionPermit`] permits one session; dropping it ends the permission. Time is an
//! argument.
//!
//! A client is an IPv4 address or an IPv6 /64. Trusted clients are subject only to the total, which
//! costs an atomic operation. Other clients also take a lock, shared with a fraction of the
//! clients.

mod rates;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use mail::Rate;
use parking_lot::{Mutex, MutexGuard};

use rates::{ClientRates, RateKind};

/// The default number of clients whose rates are tracked; they take about 10 MB.
pub const RATED_CLIENTS_MAX: usize = 100_000;
/// The number of shards that clients are distributed over, each with its own lock.
const SHARDS: usize = 16;

/// The limits of a [`ConnectionLimiter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Sessions of all clients together.
    pub sessions_max: usize,
    /// Sessions of one client: an IPv4 address or an IPv6 /64.
    pub sessions_per_client_max: usize,
    /// New sessions of one client per time span, all of which may come in a burst after a quiet
    /// span; 0 allows none, `None` is no limit.
    pub connections_per_client: Option<Rate>,
    /// Messages of one client per time span, in the same way.
    pub messages_per_client: Option<Rate>,
    /// The number of clients whose rates are tracked; beyond it, those unseen the longest are
    /// forgotten.
    pub rated_clients_max: usize,
}

impl Default for ConnectionLimits {
    /// 10,000 sessions, 100 for each client, and no rates.
    fn default() -> Self {
        ConnectionLimits {
            sessions_max: 10_000,
            sessions_per_client_max: 100,
            connections_per_client: None,
            messages_per_client: None,
            rated_clients_max: RATED_CLIENTS_MAX,
        }
    }
}

/// Enforces the limits.
#[derive(Debug)]
pub struct ConnectionLimiter {
    limits: ConnectionLimits,
    counters: Arc<ConnectionCounters>,
}

/// The current sessions, whatever limits they were admitted under.
#[derive(Debug)]
struct ConnectionCounters {
    /// Sessions of all clients.
    sessions: AtomicUsize,
    shards: [Mutex<ClientShard>; SHARDS],
    /// Distributes the clients in a way that they cannot choose their shard.
    hasher: RandomState,
}

/// The state of a fraction of the clients.
#[derive(Debug)]
struct ClientShard {
    /// Sessions per client; only clients that have any.
    sessions: HashMap<IpAddr, usize>,
    rates: ClientRates,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// The total number of sessions has reached its limit.
    Full,
    /// The client has reached its limit of sessions.
    ClientFull,
    /// The client connects too often.
    ClientTooOften,
}

/// The permission for one session.
#[derive(Debug)]
pub struct SessionPermit {
    limiter: Arc<ConnectionLimiter>,
    /// None for a client without a limit of its own.
    client: Option<IpAddr>,
}

impl ConnectionLimiter {
    /// A limiter without sessions.
    pub fn new(limits: ConnectionLimits) -> Arc<ConnectionLimiter> {
        let rates = || {
            let clients_max = limits.rated_clients_max.div_ceil(SHARDS);
            ClientRates::new(limits.connections_per_client, limits.messages_per_client, clients_max)
        };
        let shards = std::array::from_fn(|_| Mutex::new(ClientShard { sessions: HashMap::new(), rates: rates() }));
        let counters = ConnectionCounters { sessions: AtomicUsize::new(0), shards, hasher: RandomState::new() };
        Arc::new(ConnectionLimiter { limits, counters: Arc::new(counters) })
    }

    /// A limiter with other limits on the same sessions: those admitted earlier still count, and
    /// the used part of each rate stays used. From now on both limiters apply the new rates.
    pub fn with_limits(&self, limits: ConnectionLimits) -> Arc<ConnectionLimiter> {
        let clients_max = limits.rated_clients_max.div_ceil(SHARDS);
        for shard in &self.counters.shards {
            let mut shard = shard.lock();
            shard.rates.change(limits.connections_per_client, limits.messages_per_client, clients_max);
        }
        Arc::new(ConnectionLimiter { limits, counters: self.counters.clone() })
    }

    /// Admits a client. `trusted` clients are subject only to the total. A refused connection does
    /// not count towards the rates.
    pub fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        trusted: bool,
        now: Instant,
    ) -> Result<SessionPermit, ConnectionRefusal> {
        let mut permit = self.take_slot().ok_or(ConnectionRefusal::Full)?;
        if !trusted {
            let client = client_key(address);
            self.shard(client).admit(client, self.limits.sessions_per_client_max, now)?;
            permit.client = Some(client);
        }
        Ok(permit)
    }

    /// The current number of sessions.
    pub fn session_count(&self) -> usize {
        self.counters.sessions.load(Relaxed)
    }

    fn take_slot(self: &Arc<Self>) -> Option<SessionPermit> {
        let one_more = |sessions| (sessions < self.limits.sessions_max).then_some(sessions + 1);
        self.counters.sessions.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(SessionPermit { limiter: self.clone(), client: None })
    }

    fn shard(&self, client: IpAddr) -> MutexGuard<'_, ClientShard> {
        let shard = &self.counters.shards[self.counters.hasher.hash_one(client) as usize % SHARDS];
        shard.lock()
    }
}

impl ClientShard {
    fn admit(&mut self, client: IpAddr, sessions_max: usize, now: Instant) -> Result<(), ConnectionRefusal> {
        let sessions = self.sessions.get(&client).copied().unwrap_or(0);
        if sessions >= sessions_max {
            return Err(ConnectionRefusal::ClientFull);
        }
        if !self.rates.take(client, RateKind::Connection, now) {
            return Err(ConnectionRefusal::ClientTooOften);
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

impl SessionPermit {
    /// Transfers the permission to another client, on whose behalf a proxy has connected. If that
    /// client is refused, the session no longer counts for any client, but counts in the total
    /// until the permission is dropped.
    pub fn transfer_to_client(
        &mut self,
        address: IpAddr,
        trusted: bool,
        now: Instant,
    ) -> Result<(), ConnectionRefusal> {
        if let Some(before) = self.client.take() {
            self.limiter.shard(before).leave(before);
        }
        if !trusted {
            let client = client_key(address);
            self.limiter.shard(client).admit(client, self.limiter.limits.sessions_per_client_max, now)?;
            self.client = Some(client);
        }
        Ok(())
    }

    /// Whether the client may send one more message now; if so, it is counted.
    pub fn admit_message(&self, now: Instant) -> bool {
        // No lock is needed without a limit on messages.
        let client = self.client.filter(|_| self.limiter.limits.messages_per_client.is_some());
        client.is_none_or(|client| self.limiter.shard(client).rates.take(client, RateKind::Message, now))
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.limiter.shard(client).leave(client);
        }
        self.limiter.counters.sessions.fetch_sub(1, Relaxed);
    }
}

/// A client typically has a whole IPv6 /64 (RFC 6177), so that is what is counted.
fn client_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        sessions_max: 3,
        sessions_per_client_max: 2,
        connections_per_client: None,
        messages_per_client: None,
        rated_clients_max: 100,
    };
    const TWO_A_MINUTE: Option<Rate> = Some(Rate { count: 2, per: Duration::from_secs(60) });

    fn limiter() -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(LIMITS)
    }

    #[test]
    fn a_client_has_its_share_and_gets_it_back() {
        let limiter = limiter();
        let address = IpAddr::from([192, 0, 2, 1]);
        let first = limiter.admit(address, false, Instant::now()).unwrap();
        let _second = limiter.admit(address, false, Instant::now()).unwrap();
        assert_eq!(limiter.admit(address, false, Instant::now()).unwrap_err(), ConnectionRefusal::ClientFull);
        drop(first);
        let _third = limiter.admit(address, false, Instant::now()).unwrap();
        assert_eq!(limiter.session_count(), 2);
    }

    #[test]
    fn a_trusted_client_is_limited_only_by_the_whole() {
        let limiter = limiter();
        let address = IpAddr::from([127, 0, 0, 1]);
        let _passes: Vec<SessionPermit> =
            (0..3).map(|_| limiter.admit(address, true, Instant::now()).unwrap()).collect();
        assert_eq!(limiter.admit(address, true, Instant::now()).unwrap_err(), ConnectionRefusal::Full);
    }

    #[test]
    fn a_slot_taken_by_a_proxy_is_transferred_to_its_client() {
        let limiter = limiter();
        let (proxy, client) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        let mut passes: Vec<SessionPermit> = (0..3).map(|_| limiter.admit(proxy, true, now).unwrap()).collect();
        assert_eq!(
            passes[0].transfer_to_client(client, false, now),
            Ok(()),
            "the transferred session takes no second slot"
        );
        assert_eq!(passes[1].transfer_to_client(client, false, now), Ok(()));
        assert_eq!(passes[2].transfer_to_client(client, false, now), Err(ConnectionRefusal::ClientFull));
        assert_eq!(limiter.session_count(), 3);
        assert_eq!(passes[0].transfer_to_client(IpAddr::from([192, 0, 2, 2]), false, now), Ok(()));
        assert_eq!(
            passes[2].transfer_to_client(client, false, now),
            Ok(()),
            "a transferred session no longer counts for its earlier client"
        );
        drop(passes);
        assert_eq!((limiter.session_count(), limiter.shard(client).sessions.len()), (0, 0));
    }

    #[test]
    fn addresses_in_one_ipv6_network_are_one_client() {
        let limiter = limiter();
        let _a = limiter.admit("2001:db8::1".parse().unwrap(), false, Instant::now()).unwrap();
        let _b = limiter.admit("2001:db8::2".parse().unwrap(), false, Instant::now()).unwrap();
        assert_eq!(
            limiter.admit("2001:db8::3".parse().unwrap(), false, Instant::now()).unwrap_err(),
            ConnectionRefusal::ClientFull
        );
        assert!(limiter.admit("2001:db8:0:1::3".parse().unwrap(), false, Instant::now()).is_ok());
    }

    #[test]
    fn a_client_that_connects_too_often_is_refused_and_holds_no_session() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        let (start, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        drop(limiter.admit(address, false, start).unwrap());
        drop(limiter.admit(address, false, start).unwrap());
        assert_eq!(limiter.admit(address, false, start).unwrap_err(), ConnectionRefusal::ClientTooOften);
        assert!(limiter.admit(address, true, start).is_ok(), "a trusted client was limited");
        assert_eq!(limiter.session_count(), 0);
        assert!(limiter.shard(address).sessions.is_empty());
        assert!(limiter.admit(address, false, start + Duration::from_secs(30)).is_ok());
    }

    #[test]
    fn messages_are_counted_by_client_over_all_its_sessions() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { messages_per_client: TWO_A_MINUTE, ..LIMITS });
        let now = Instant::now();
        let enter = |address: &str, trusted| limiter.admit(address.parse().unwrap(), trusted, now).unwrap();
        let (first, second) = (enter("2001:db8::1", false), enter("2001:db8::2", false));
        assert!(first.admit_message(now) && second.admit_message(now));
        assert!(!first.admit_message(now) && !second.admit_message(now));
        let trusted = enter("2001:db8::3", true);
        assert!((0..10).all(|_| trusted.admit_message(now)));
    }

    #[test]
    fn sessions_admitted_under_earlier_limits_are_still_counted() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        let (now, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let first = limiter.admit(address, false, now).unwrap();
        let narrow = limiter.with_limits(ConnectionLimits { sessions_per_client_max: 1, ..LIMITS });
        assert_eq!(narrow.admit(address, false, now).unwrap_err(), ConnectionRefusal::ClientFull);
        drop(first);
        assert_eq!((limiter.session_count(), narrow.session_count()), (0, 0));
        let wide = narrow.with_limits(ConnectionLimits { connections_per_client: TWO_A_MINUTE, ..LIMITS });
        drop(wide.admit(address, false, now).unwrap());
        assert_eq!(
            wide.admit(address, false, now).unwrap_err(),
            ConnectionRefusal::ClientTooOften,
            "the used part of a rate was forgotten"
        );
    }

    #[test]
    fn uncounted_messages_take_no_lock() {
        let limiter = limiter();
        let address = IpAddr::from([192, 0, 2, 1]);
        let permit = limiter.admit(address, false, Instant::now()).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        let shard = limiter.shard(address);
        std::thread::scope(|scope| {
            scope.spawn(|| told.send(permit.admit_message(Instant::now())).unwrap());
            let taken = heard.recv_timeout(Duration::from_secs(10));
            drop(shard);
            assert_eq!(taken, Ok(true));
        });
    }
}
