//! Builds the state that SMTP sessions share from the configuration. Counters, what is known about
//! clients, and the memory for bodies carry over when the configuration is reloaded.

use std::sync::Arc;

use filter::access::{AccessCheck, AccessRules, VerdictRules};
use filter::greylist::GreylistFile;
use filter::limits::RateLimits;
use filter::rewrite::AddressRewriter;
use filter::{CheckChain, CheckFactory};
use intake::{BodyMemoryBudget, IntakeContext, LoginPolicy};
use lookup::directory::RecipientDirectory;
use mail::{Address, EventLog, OperatorLog, QuotaCheck};
use net::{ConnectionLimiter, ConnectionLimits, GreetingDelays};
use sender_auth::SenderAuth;
use spool::Spool;

use crate::from_config;
use crate::signing::SigningParts;
use config::{self, Config};
use server_log::Log;

/// The parts of it that can fail, or that depend on the system.
pub struct IntakeContextParts {
    /// Local domains and mailboxes.
    pub directory: Arc<RecipientDirectory>,
    /// The address of `<postmaster>`.
    pub postmaster: Address,
    /// The access rules.
    pub access_rules: Option<Arc<AccessRules>>,
    /// The check of senders; None if it is off.
    pub sender_auth: Option<Arc<SenderAuth>>,
    /// The limits over time.
    pub rate_limits: Option<Arc<RateLimits>>,
    /// What the greylist knows; None if it is off.
    pub greylist: Option<Arc<GreylistFile>>,
    /// The policy services and milters.
    pub external_filters: Vec<Arc<dyn CheckFactory>>,
    /// The content rules, address rewriting and blind copies, in this order.
    pub content_checks: Vec<Arc<dyn CheckFactory>>,
    /// Rewrites recipients.
    pub rewriter: Option<Arc<AddressRewriter>>,
    /// What signs.
    pub signing: SigningParts,
    /// How users log in.
    pub logins: Option<LoginPolicy>,
    /// The free space in mailboxes.
    pub quota: Option<Arc<dyn QuotaCheck>>,
    /// Concurrent sessions, as far as file descriptors allow.
    pub sessions_max: usize,
}

/// The state at startup.
pub fn create(
    config: &Config,
    policy: IntakeContextParts,
    spool: Arc<Spool>,
    load: load::LoadMonitorHandle,
    log: Arc<Log>,
) -> IntakeContext {
    let limits = &config.limits;
    let operator_log: Arc<dyn OperatorLog> = Arc::new(from_config::throttled_log(log.clone()));
    IntakeContext {
        spool,
        checks: check_chain(config, &policy, &operator_log),
        rate_limits: policy.rate_limits,
        greylist: policy.greylist,
        directory: policy.directory,
        event_log: log as Arc<dyn EventLog>,
        logs_subjects: config.log.subject,
        operator_log,
        load,
        connection_limiter: ConnectionLimiter::new(connection_limits(config, policy.sessions_max)),
        greeting_delays: Arc::new(GreetingDelays::new(limits.delayed_greetings_max)),
        refusals: Arc::default(),
        commit_micros: Arc::default(),
        tls_handshakes: Arc::default(),
        listeners: Arc::default(),
        logins: policy.logins,
        reserved_networks: config.load.reserve.clone(),
        relay_networks: config.relay.networks.clone(),
        relaying_is_deferred: config.relay.is_deferred,
        normalized_networks: config.smtp.normalise_bare_newlines_from.clone(),
        proxy_networks: config.smtp.xclient_from.clone(),
        body_memory: BodyMemoryBudget::new(limits.body_memory_max, limits.spill_above),
        expanded_recipients_max: limits.expanded_recipients_max,
        message_wait_max: limits.message_wait_max,
        postmaster: policy.postmaster,
        routed_domains: from_config::routed_domains(config),
        rewritten_senders: from_config::rewritten_senders(config),
        rewriter: policy.rewriter,
        quota_check: policy.quota,
        hostname: config.hostname.clone(),
    }
}

/// The state after a reload.
pub fn reload(previous: &IntakeContext, config: &Config, policy: IntakeContextParts) -> IntakeContext {
    let limits = &config.limits;
    IntakeContext {
        spool: previous.spool.clone(),
        checks: check_chain(config, &policy, &previous.operator_log),
        rate_limits: policy.rate_limits,
        greylist: policy.greylist,
        directory: policy.directory,
        event_log: previous.event_log.clone(),
        logs_subjects: config.log.subject,
        operator_log: previous.operator_log.clone(),
        load: previous.load.clone(),
        connection_limiter: previous.connection_limiter.with_limits(connection_limits(config, policy.sessions_max)),
        greeting_delays: Arc::new(previous.greeting_delays.with_limit(limits.delayed_greetings_max)),
        refusals: previous.refusals.clone(),
        commit_micros: previous.commit_micros.clone(),
        tls_handshakes: previous.tls_handshakes.clone(),
        listeners: previous.listeners.clone(),
        logins: policy.logins,
        reserved_networks: config.load.reserve.clone(),
        relay_networks: config.relay.networks.clone(),
        relaying_is_deferred: config.relay.is_deferred,
        normalized_networks: config.smtp.normalise_bare_newlines_from.clone(),
        proxy_networks: config.smtp.xclient_from.clone(),
        body_memory: previous.body_memory.resized(limits.body_memory_max, limits.spill_above),
        expanded_recipients_max: limits.expanded_recipients_max,
        message_wait_max: limits.message_wait_max,
        postmaster: policy.postmaster,
        routed_domains: from_config::routed_domains(config),
        rewritten_senders: from_config::rewritten_senders(config),
        rewriter: policy.rewriter,
        quota_check: policy.quota,
        hostname: config.hostname.clone(),
    }
}

/// The checks of sessions.
fn check_chain(config: &Config, policy: &IntakeContextParts, log: &Arc<dyn OperatorLog>) -> CheckChain {
    let access = policy.access_rules.iter().flat_map(|rules| {
        let (rules, directory) = (rules.clone(), policy.directory.clone());
        let check = Arc::new(AccessCheck { rules, directory, log: log.clone() });
        [check.clone() as Arc<dyn CheckFactory>, Arc::new(VerdictRules(check))]
    });
    let senders = policy.sender_auth.clone().map(|check| check as Arc<dyn CheckFactory>);
    let limits = policy.rate_limits.clone().map(|limits| limits as Arc<dyn CheckFactory>);
    let greylist = from_config::greylist_check(config, policy.greylist.as_deref());
    let external = policy.external_filters.iter().cloned();
    let content = policy.content_checks.iter().cloned();
    let signing = policy.signing.checks(config, policy.logins.as_ref(), log);
    let before_content = access.chain(senders).chain(greylist).chain(limits).chain(external);
    CheckChain::new(before_content.chain(content).chain(signing).collect())
}

fn connection_limits(config: &Config, sessions_max: usize) -> ConnectionLimits {
    ConnectionLimits { sessions_max, ..config.limits.connections.clone() }
}
