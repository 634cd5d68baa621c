//! The hosts that store mailboxes: which are down, and how many connections to each are being made.
//!
//! | state of a host | ends by                            | clients meanwhile                          |
//! |-----------------|------------------------------------|--------------------------------------------|
//! | up              | no connection, or no greeting      | wait for their turn to connect, then for the greeting |
//! | down            | a greeting to a probe              | are refused at once                        |
//!
//! A host that is down is probed by a task of the runtime that found it down, after delays that grow
//! to [`PROBE_DELAY_MAX`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use mail::OperatorLog;
use net::OutboundConnection;
use parking_lot::Mutex;
use protocol::backend_login::BackendProtocol;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::{BackendAddress, BackendTls};

/// The delay before the first probe.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(500);
/// The longest delay between two probes.
const PROBE_DELAY_MAX: Duration = Duration::from_secs(30);
/// Addresses of a host that are tried, one after another.
const ADDRESSES_MAX: usize = 4;

/// Finds the addresses of backends.
pub trait BackendResolver: Send + Sync {
    /// The addresses of a host name, the preferred ones first; none if it does not exist. The error
    /// is for the log.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>>;
}

/// Limits on connections to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Time until the greeting, including the wait for one's turn. After: the host is down.
    pub connect_time_max: Duration,
    /// Time from the greeting to the reply to the login.
    pub login_time_max: Duration,
    /// Connections to one host that are being made at once. More wait for their turn.
    pub connects_max: usize,
    /// Hosts that are remembered. If so many are down or being connected to, users on others are
    /// refused.
    pub hosts_max: usize,
}

impl Default for BackendLimits {
    /// 5 s to connect, a minute to log in, 64 connections at once, 1024 hosts.
    fn default() -> Self {
        BackendLimits {
            connect_time_max: Duration::from_secs(5),
            login_time_max: Duration::from_secs(60),
            connects_max: 64,
            hosts_max: 1024,
        }
    }
}

/// The hosts. Shared by all listeners.
pub struct BackendHosts {
    resolver: Arc<dyn BackendResolver>,
    pub(super) limits: BackendLimits,
    log: Arc<dyn OperatorLog>,
    states: Mutex<HashMap<BackendAddress, Arc<HostState>>>,
}

/// What is remembered of a host.
#[derive(Debug)]
pub(super) struct HostState {
    connects: Semaphore,
    is_down: AtomicBool,
}

/// A host, and how to speak to it.
#[derive(Clone, Debug)]
pub(super) struct BackendTarget {
    pub(super) address: BackendAddress,
    pub(super) protocol: BackendProtocol,
    pub(super) tls: BackendTls,
}

impl HostState {
    /// Permission to connect. None: the host is down, or the turn does not come in time.
    pub(super) async fn permit(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        let is_up = || !self.is_down.load(Relaxed);
        if !is_up() {
            return None;
        }
        let permit = match self.connects.try_acquire() {
            Ok(permit) => permit,
            Err(_) => timeout_at(deadline, self.connects.acquire()).await.ok()?.ok()?,
        };
        // Others may have found it down meanwhile.
        is_up().then_some(permit)
    }
}

impl BackendHosts {
    /// Without hosts that are down.
    pub fn new(
        resolver: Arc<dyn BackendResolver>,
        limits: BackendLimits,
        log: Arc<dyn OperatorLog>,
    ) -> Arc<BackendHosts> {
        Arc::new(BackendHosts { resolver, limits, log, states: Mutex::default() })
    }

    /// The hosts that are down now, for the operator.
    pub fn down(&self) -> Vec<BackendAddress> {
        let states = self.states.lock();
        states.iter().filter(|(_, state)| state.is_down.load(Relaxed)).map(|(address, _)| address.clone()).collect()
    }

    /// What is known of a host. None if too many others are in use.
    pub(super) fn state(&self, address: &BackendAddress) -> Option<Arc<HostState>> {
        let mut states = self.states.lock();
        if let Some(state) = states.get(address) {
            return Some(state.clone());
        }
        if states.len() >= self.limits.hosts_max {
            // Nobody else gets a state while the lock is held.
            states.retain(|_, state| state.is_down.load(Relaxed) || Arc::strong_count(state) > 1);
        }
        if states.len() >= self.limits.hosts_max {
            return None;
        }
        let connects = Semaphore::new(self.limits.connects_max);
        let state = Arc::new(HostState { connects, is_down: AtomicBool::new(false) });
        states.insert(address.clone(), state.clone());
        Some(state)
    }

    /// The host does not answer: its clients are refused until it does.
    pub(super) fn mark_down(self: &Arc<Self>, state: &Arc<HostState>, target: &BackendTarget, why: &str) {
        if !state.is_down.swap(true, Relaxed) {
            let address = &target.address;
            self.log.log_line(format_args!("backend {address} is down, users on it cannot log in: {why}"));
            drop(tokio::spawn(probe(Arc::downgrade(self), state.clone(), target.clone())));
        }
    }

    /// Connects, up to the greeting, which is not read.
    pub(super) async fn connect(&self, target: &BackendTarget, deadline: Instant) -> io::Result<OutboundConnection> {
        let addresses = timeout_at(deadline, self.addresses(&target.address)).await??;
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        let count = addresses.len().min(ADDRESSES_MAX) as u32;
        for (address, left) in addresses.into_iter().zip((1..=count).rev()) {
            // Each gets its share of the time that is left.
            let now = Instant::now();
            let until = now + deadline.saturating_duration_since(now) / left;
            match OutboundConnection::connect(SocketAddr::new(address, target.address.port), None, until).await {
                Ok(connection) => {
                    return match &target.tls {
                        BackendTls::Implicit(client) => {
                            connection.start_tls(client, &target.address.host, deadline).await
                        }
                        BackendTls::Never | BackendTls::StartTls(_) => Ok(connection),
                    };
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn addresses(&self, backend: &BackendAddress) -> io::Result<Vec<IpAddr>> {
        match backend.ip() {
            Some(ip) => Ok(vec![ip]),
            None => self.resolver.resolve(&backend.host).await.map_err(io::Error::other),
        }
    }

    /// Connects and waits for the greeting.
    async fn check(&self, target: &BackendTarget) -> io::Result<()> {
        let deadline = Instant::now() + self.limits.connect_time_max;
        let mut connection = self.connect(target, deadline).await?;
        let is_greeting = connection.receive(deadline, |input| target.protocol.is_greeting(input)).await?;
        if is_greeting { Ok(()) } else { Err(io::Error::other("it does not greet")) }
    }
}

/// Waits until the host answers. Ends when its hosts are dropped, by a reload.
async fn probe(hosts: Weak<BackendHosts>, state: Arc<HostState>, target: BackendTarget) {
    let mut delay = PROBE_DELAY_MIN;
    loop {
        sleep(delay).await;
        let Some(hosts) = hosts.upgrade() else { return };
        if hosts.check(&target).await.is_ok() {
            state.is_down.store(false, Relaxed);
            return hosts.log.log_line(format_args!("backend {} is up again", target.address));
        }
        delay = (delay * 2).min(PROBE_DELAY_MAX);
    }
}
