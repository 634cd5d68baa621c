//! The check of the senders of incoming mail, from `[sender_auth]`.

use std::sync::Arc;
use std::thread;

use anyhow::Context;
use config::Config;
use dns::Resolver;
use sender_auth::reports::ReportCollector;
use sender_auth::{DnsLookup, DnsThread, SenderAuth, VerificationState};

/// The check; None if every method is off. Keeps the cache of the DNS if its settings are the same,
/// and the counters. Adds to `reports` what owners of domains want to know.
///
/// # Errors
///
/// The system configures no name server, or cannot create a thread.
pub fn sender_auth(
    config: &Config,
    before: Option<(&Config, &SenderAuth)>,
    reports: Option<&ReportCollector>,
) -> anyhow::Result<Option<Arc<SenderAuth>>> {
    let settings = config.sender_auth.clone();
    if settings.is_off() {
        return Ok(None);
    }
    let dns = match before {
        Some((old, check)) if old.dns == config.dns => check.dns.clone(),
        _ => start_resolver(config)?,
    };
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    Ok(Some(Arc::new(SenderAuth {
        authserv_id: settings.authserv_id.clone().unwrap_or_else(|| config.hostname.clone()),
        hostname: config.hostname.clone(),
        relay_networks: config.relay.networks.clone(),
        dns,
        state: VerificationState::new(&settings, processors, before.map(|(_, check)| &check.state)),
        settings,
        reports: reports.filter(|_| config.reports.dmarc).cloned(),
    })))
}

/// A resolver for the checks of sessions.
pub(super) fn start_resolver(config: &Config) -> anyhow::Result<Arc<dyn DnsLookup>> {
    let resolver = Resolver::new(&config.dns).context("the DNS of checks")?;
    Ok(Arc::new(DnsThread::start(resolver).context("the DNS of checks: starting its thread")?))
}
