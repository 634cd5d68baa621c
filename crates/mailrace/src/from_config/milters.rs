//! The milters, from `[[milter]]`. Each reload makes them anew; sessions keep those they began with.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use filter::milter::Milter;
use filter::{ClientNameFuture, ClientNames};
use mail::OperatorLog;
use sender_auth::{DnsLookup, SenderAuth, iprev};

use super::sender_auth::start_resolver;

/// How long a session waits for the name of its client, which milters are told.
const CLIENT_NAME_TIME_MAX: Duration = Duration::from_secs(5);

/// The milters, in their order. They find the names of clients by the DNS of `sender_auth`, if it is
/// on.
///
/// # Errors
///
/// The system configures no name server, or cannot create a thread.
pub fn milters(
    config: &Config,
    sender_auth: Option<&Arc<SenderAuth>>,
    log: &Arc<dyn OperatorLog>,
) -> anyhow::Result<Vec<Arc<Milter>>> {
    if config.milters.is_empty() {
        return Ok(Vec::new());
    }
    let dns = match sender_auth {
        Some(check) => check.dns.clone(),
        None => start_resolver(config)?,
    };
    let names: Arc<dyn ClientNames> = Arc::new(ReverseNames(dns));
    let size_max = config.limits.session.message_octets_max;
    let milter = |settings: &filter::milter::MilterSettings| {
        let milter = Milter::new(settings.clone(), config.hostname.clone(), size_max, names.clone(), log.clone());
        Arc::new(milter)
    };
    Ok(config.milters.iter().map(milter).collect())
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
