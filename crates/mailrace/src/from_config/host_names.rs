//! Names of clients and greetings in the DNS, for access rules, policy services and milters. They share
//! the resolver of `[sender_auth]`, if it is on.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use dns::{DnsAnswer, QueryType};
use filter::access::{HostNameFuture, HostNames, ReverseName};
use filter::{ClientNameFuture, ClientNames};
use sender_auth::iprev::{self, IprevResult};
use sender_auth::{DnsLookup, SenderAuth};

use super::sender_auth::start_resolver;

/// How long a session waits for a name.
const NAME_TIME_MAX: Duration = Duration::from_secs(5);

/// Names in the DNS.
pub struct DnsHostNames {
    /// None: nothing in the configuration needs names.
    dns: Option<Arc<dyn DnsLookup>>,
}

impl DnsHostNames {
    /// Starts a resolver only if the configuration needs one of its own.
    ///
    /// # Errors
    ///
    /// The system configures no name server, or cannot create a thread.
    pub fn open(config: &Config, sender_auth: Option<&Arc<SenderAuth>>) -> anyhow::Result<DnsHostNames> {
        let is_needed = !config.milters.is_empty()
            || !config.policy_services.is_empty()
            || config.access.iter().any(|rule| rule.needs_host_names());
        let dns = match sender_auth {
            Some(check) => Some(check.dns.clone()),
            None => is_needed.then(|| start_resolver(config)).transpose()?,
        };
        Ok(DnsHostNames { dns })
    }
}

impl ClientNames for DnsHostNames {
    fn name(&self, client: IpAddr) -> ClientNameFuture<'_> {
        match client.is_loopback() {
            true => Box::pin(ready(ReverseName::Confirmed("localhost".into()))),
            false => self.reverse_name(client),
        }
    }
}

impl HostNames for DnsHostNames {
    fn reverse_name(&self, client: IpAddr) -> HostNameFuture<'_, ReverseName> {
        Box::pin(async move {
            let Some(dns) = &self.dns else { return ReverseName::Unanswered };
            let checked = tokio::time::timeout(NAME_TIME_MAX, iprev::check(&**dns, client)).await;
            let Ok(check) = checked else { return ReverseName::Unanswered };
            match (check.result, check.name.or(check.unconfirmed)) {
                (IprevResult::Pass, Some(name)) => ReverseName::Confirmed(name),
                (IprevResult::Fail, Some(name)) => ReverseName::Unconfirmed(name),
                (IprevResult::TempError, _) => ReverseName::Unanswered,
                (IprevResult::PermError | IprevResult::Pass | IprevResult::Fail, _) => ReverseName::Missing,
            }
        })
    }

    fn exists<'a>(&'a self, name: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(async move {
            let dns = &**self.dns.as_ref()?;
            let name = if name.is_ascii() { name.to_owned() } else { idna::domain_to_ascii(name).ok()? };
            tokio::time::timeout(NAME_TIME_MAX, exists(dns, &name)).await.ok()?
        })
    }

    fn accepts_mail<'a>(&'a self, domain: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(async move {
            let dns = &**self.dns.as_ref()?;
            let domain = if domain.is_ascii() { domain.to_owned() } else { idna::domain_to_ascii(domain).ok()? };
            tokio::time::timeout(NAME_TIME_MAX, accepts_mail(dns, &domain)).await.ok()?
        })
    }
}

/// Whether a domain has a host for its mail (RFC 5321 section 5.1).
async fn accepts_mail(dns: &dyn DnsLookup, domain: &str) -> Option<bool> {
    match dns.lookup(domain, QueryType::Mx).await.answer {
        DnsAnswer::NullMx => Some(false),
        _ => exists(dns, domain).await,
    }
}

/// Whether a name has an address or an MX. None: it may have, but the DNS does not answer.
async fn exists(dns: &dyn DnsLookup, name: &str) -> Option<bool> {
    let mut result = Some(false);
    for kind in [QueryType::A, QueryType::Aaaa, QueryType::Mx] {
        match dns.lookup(name, kind).await.answer {
            DnsAnswer::Unanswered(_) => result = None,
            DnsAnswer::NoSuchName => return result,
            DnsAnswer::NoRecords => {}
            _ => return Some(true),
        }
    }
    result
}
