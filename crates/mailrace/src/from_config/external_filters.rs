//! The policy services and milters, from `[[policy_service]]` and `[[milter]]`. Each reload makes them
//! anew; sessions keep those they began with.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use filter::milter::Milter;
use filter::policy::PolicyService;
use filter::{CheckFactory, ClientNameFuture, ClientNames};
use mail::OperatorLog;
use sender_auth::{DnsLookup, SenderAuth, iprev};

use super::sender_auth::start_resolver;

/// How long a session waits for the name of its client, which these programs are told.
const CLIENT_NAME_TIME_MAX: Duration = Duration::from_secs(5);

/// The policy services and then the milters, in their order. They find the names of clients by the
/// DNS of `sender_auth`, if it is on.
///
/// # Errors
///
/// The system configures no name server, or cannot create a thread.
pub fn external_filters(
    config: &Config,
    sender_auth: Option<&Arc<SenderAuth>>,
    log: &Arc<dyn OperatorLog>,
) -> anyhow::Result<Vec<Arc<dyn CheckFactory>>> {
    if config.milters.is_empty() && config.policy_services.is_empty() {
        return Ok(Vec::new());
    }
    let dns = match sender_auth {
        Some(check) => check.dns.clone(),
        None => start_resolver(config)?,
    };
    let names: Arc<dyn ClientNames> = Arc::new(ReverseNames(dns));
    let services = config.policy_services.iter().map(|settings| {
        Arc::new(PolicyService::new(settings.clone(), names.clone(), log.clone())) as Arc<dyn CheckFactory>
    });
    let size_max = config.limits.session.message_octets_max;
    let milters = config.milters.iter().map(|settings| {
        let (settings, hostname) = (settings.clone(), config.hostname.clone());
        Arc::new(Milter::new(settings, hostname, size_max, names.clone(), log.clone())) as Arc<dyn CheckFactory>
    });
    Ok(services.chain(milters).collect())
}

/// Names that have the address of the client (RFC 8601 section 3).
struct ReverseNames(Arc<dyn DnsLookup>);

impl ClientNames for ReverseNames {
    fn name(&self, client: IpAddr) -> ClientNameFuture<'_> {
        Box::pin(async move {
            if client.is_loopback() {
                return Some("localhost".into());
            }
            let checked = tokio::time::timeout(CLIENT_NAME_TIME_MAX, iprev::check(&*self.0, client)).await;
            checked.ok().and_then(|check| check.name)
        })
    }
}
