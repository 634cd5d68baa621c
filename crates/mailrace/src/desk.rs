//! Builds the state that SMTP sessions share from the configuration. Counters, what is known about
//! clients, and the memory for bodies carry over when the configuration is reloaded.

use std::sync::Arc;

use intake::access::Access;
use intake::{BodyMemory, Desk, Logins, Room, Troubles};
use lookup::directory::Directory;
use mail::{Address, Journal};
use net::{Gate, GateLimits, RATED_CLIENTS_MAX, Rate};
use spool::Spool;

use crate::config::{self, Config};
use crate::line::Level;
use crate::log::Log;
use crate::plan::{self, networks};

/// The parts of it that can fail, or that depend on the system.
pub struct Policy {
    /// Local domains and mailboxes.
    pub directory: Arc<Directory>,
    /// The address of `<postmaster>`.
    pub postmaster: Address,
    /// The access rules.
    pub access: Option<Access>,
    /// How users log in.
    pub logins: Option<Logins>,
    /// The free space in mailboxes.
    pub room: Option<Arc<dyn Room>>,
    /// Concurrent sessions, as far as file descriptors allow.
    pub sessions_max: usize,
}

/// The state at startup.
pub fn first(config: &Config, policy: Policy, spool: Arc<Spool>, load: load::Watch, log: Arc<Log>) -> Desk {
    let limits = &config.limits;
    Desk {
        spool,
        directory: policy.directory,
        journal: log.clone() as Arc<dyn Journal>,
        logs_subjects: config.log.subject,
        troubles: Arc::new(troubles(log)),
        load,
        gate: Gate::new(gate_limits(config, policy.sessions_max)),
        refusals: Arc::default(),
        handshakes: Arc::default(),
        logins: policy.logins,
        reserved: networks(&config.load.reserve),
        relays: networks(&config.relay.networks),
        relaying_is_deferred: config.relay.is_deferred,
        normalised: networks(&config.smtp.normalise_bare_newlines_from),
        proxies: networks(&config.smtp.xclient_from),
        access: policy.access,
        memory: BodyMemory::new(limits.body_memory_max, limits.spill_above),
        expanded_recipients_max: limits.expanded_recipients_max,
        message_wait_max: limits.message_wait_max,
        postmaster: policy.postmaster,
        routed: plan::routed(config),
        room: policy.room,
        hostname: config.hostname.clone(),
    }
}

/// The state after a reload.
pub fn next(before: &Desk, config: &Config, policy: Policy) -> Desk {
    let limits = &config.limits;
    Desk {
        spool: before.spool.clone(),
        directory: policy.directory,
        journal: before.journal.clone(),
        logs_subjects: config.log.subject,
        troubles: before.troubles.clone(),
        load: before.load.clone(),
        gate: before.gate.under(gate_limits(config, policy.sessions_max)),
        refusals: before.refusals.clone(),
        handshakes: before.handshakes.clone(),
        logins: policy.logins,
        reserved: networks(&config.load.reserve),
        relays: networks(&config.relay.networks),
        relaying_is_deferred: config.relay.is_deferred,
        normalised: networks(&config.smtp.normalise_bare_newlines_from),
        proxies: networks(&config.smtp.xclient_from),
        access: policy.access.map(|access| access.counting_on(before.access.as_ref())),
        memory: before.memory.under(limits.body_memory_max, limits.spill_above),
        expanded_recipients_max: limits.expanded_recipients_max,
        message_wait_max: limits.message_wait_max,
        postmaster: policy.postmaster,
        routed: plan::routed(config),
        room: policy.room,
        hostname: config.hostname.clone(),
    }
}

fn gate_limits(config: &Config, sessions_max: usize) -> GateLimits {
    let limits = &config.limits;
    let rate = |rate: config::Rate| Rate { count: rate.count, per: rate.per };
    GateLimits {
        sessions_max,
        sessions_per_client_max: limits.sessions_per_client_max,
        connections_per_client: limits.connections_per_client.map(rate),
        messages_per_client: limits.messages_per_client.map(rate),
        rated_clients_max: RATED_CLIENTS_MAX,
    }
}

/// Logs problems of clients as warnings.
pub fn troubles(log: Arc<Log>) -> Troubles {
    Troubles::new(move |what, left_out| log.event(Level::Warning, what, &[("left_out", &left_out)]))
}
