//! The desk that sessions ask, made of a configuration. What counts, what is remembered of clients, and the memory for
//! bodies go on from one desk to the next.

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

/// What a desk is made of that may be wrong, or has to be asked of the system.
pub struct Policy {
    /// Whose mail is ours.
    pub directory: Arc<Directory>,
    /// Who gets mail for `<postmaster>`.
    pub postmaster: Address,
    /// Who is let in.
    pub access: Option<Access>,
    /// Who may log in.
    pub logins: Option<Logins>,
    /// What mailboxes have room for.
    pub room: Option<Arc<dyn Room>>,
    /// Sessions at once, as far as files suffice.
    pub sessions_max: usize,
}

/// The first desk.
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

/// The one that follows on another.
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

/// Tells of what went wrong for clients as warnings.
pub fn troubles(log: Arc<Log>) -> Troubles {
    Troubles::new(move |what, left_out| log.event(Level::Warning, what, &[("left_out", &left_out)]))
}
