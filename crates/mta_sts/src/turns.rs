//! Turns to fetch policies: few at a time, and fewer from one network, so that slow policy hosts of
//! one domain owner do not keep others from being fetched.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Connections to policy hosts at the same time. A slow one holds its turn for a minute.
pub(crate) const FETCHES_MAX: usize = 64;
/// Those of them to one network: the first 24 bits of an IPv4 address, 48 of an IPv6 address.
pub const FETCHES_PER_NETWORK_MAX: usize = 16;

/// Whose turn it is.
pub(crate) struct FetchTurns {
    all: Arc<Semaphore>,
    networks: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// A turn, until it is dropped.
pub(crate) struct FetchTurn {
    _network: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl FetchTurns {
    pub(crate) fn new() -> FetchTurns {
        FetchTurns { all: Arc::new(Semaphore::new(FETCHES_MAX)), networks: Mutex::default() }
    }

    /// Waits for a turn to connect to this address. Who waits for others of the network takes no turn
    /// from anybody else.
    pub(crate) async fn wait_for(&self, address: IpAddr) -> Result<FetchTurn, AcquireError> {
        let of_network = self.of_network(network(address));
        let _network = of_network.acquire_owned().await?;
        let _all = self.all.clone().acquire_owned().await?;
        Ok(FetchTurn { _network, _all })
    }

    fn of_network(&self, network: IpAddr) -> Arc<Semaphore> {
        let mut networks = self.networks.lock();
        // Each turn, and each wait for one, holds another reference.
        networks.retain(|_, turns| Arc::strong_count(turns) > 1);
        networks.entry(network).or_insert_with(|| Arc::new(Semaphore::new(FETCHES_PER_NETWORK_MAX))).clone()
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !0 << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !0 << 80).into(),
    }
}
