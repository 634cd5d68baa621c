//! How many sessions there may be, in all and of one client. A [`Pass`] is the right to one session and gives
//! it back when it is dropped.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The limits of a [`Gate`].
#[derive(Clone, Debug)]
pub struct GateLimits {
    /// Sessions of all clients together.
    pub sessions_max: usize,
    /// Sessions of one client: an IPv4 address, or a /64 of IPv6.
    pub sessions_per_client_max: usize,
}

/// Counts sessions.
#[derive(Debug)]
pub struct Gate {
    limits: GateLimits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    clients: HashMap<IpAddr, usize>,
}

/// Why a client may not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// There are as many sessions as there may be.
    Full,
    /// This client has as many as it may have.
    ClientFull,
}

/// The right to a session.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    /// None for a client that is not counted by itself.
    client: Option<IpAddr>,
}

impl Gate {
    /// A gate through which nobody has come yet.
    pub fn new(limits: GateLimits) -> Arc<Gate> {
        Arc::new(Gate { limits, counts: Mutex::default() })
    }

    /// Lets a client in. Those that are `trusted` are not limited by themselves, only all together.
    pub fn enter(self: &Arc<Self>, address: IpAddr, trusted: bool) -> Result<Pass, Turned> {
        let client = (!trusted).then(|| client_of(address));
        let mut counts = self.counts();
        if counts.all >= self.limits.sessions_max {
            return Err(Turned::Full);
        }
        if let Some(client) = client {
            let count = counts.clients.entry(client).or_default();
            if *count >= self.limits.sessions_per_client_max {
                return Err(Turned::ClientFull);
            }
            *count += 1;
        }
        counts.all += 1;
        Ok(Pass { gate: self.clone(), client })
    }

    /// Sessions now.
    pub fn sessions(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        // Counting cannot panic half-way.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut counts = self.gate.counts();
        counts.all -= 1;
        let Some(client) = self.client else { return };
        if let Some(count) = counts.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                counts.clients.remove(&client);
            }
        }
    }
}

/// One client has a whole /64 of IPv6 (RFC 6177), so that is what is counted.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Arc<Gate> {
        Gate::new(GateLimits { sessions_max: 3, sessions_per_client_max: 2 })
    }

    #[test]
    fn a_client_has_its_share_and_gets_it_back() {
        let gate = gate();
        let address = IpAddr::from([192, 0, 2, 1]);
        let first = gate.enter(address, false).unwrap();
        let _second = gate.enter(address, false).unwrap();
        assert_eq!(gate.enter(address, false).unwrap_err(), Turned::ClientFull);
        drop(first);
        let _third = gate.enter(address, false).unwrap();
        assert_eq!(gate.sessions(), 2);
    }

    #[test]
    fn a_trusted_client_is_limited_only_by_the_whole() {
        let gate = gate();
        let address = IpAddr::from([127, 0, 0, 1]);
        let _passes: Vec<Pass> = (0..3).map(|_| gate.enter(address, true).unwrap()).collect();
        assert_eq!(gate.enter(address, true).unwrap_err(), Turned::Full);
    }

    #[test]
    fn neighbours_in_one_ipv6_network_are_one_client() {
        let gate = gate();
        let _a = gate.enter("2001:db8::1".parse().unwrap(), false).unwrap();
        let _b = gate.enter("2001:db8::2".parse().unwrap(), false).unwrap();
        assert_eq!(gate.enter("2001:db8::3".parse().unwrap(), false).unwrap_err(), Turned::ClientFull);
        assert!(gate.enter("2001:db8:0:1::3".parse().unwrap(), false).is_ok());
    }
}
