//! Turns DNS answers into a set of hosts: MX hosts in tiers, without this host, with their
//! addresses.
//!
//! The set is built in steps:
//! 1. The MX hosts of the domain, best first; without MX records the domain itself (RFC 5321
//!    section 5.1).
//! 2. Their addresses, with lookups for [`CONCURRENT_HOSTS_MAX`] hosts at a time, best first.
//! 3. If one of them is this host, by name or by address, only the better ones remain (same
//!    section).
//! 4. The next hop is named after all remaining hosts, including those without a known address, so
//!    that the name does not depend on lookup failures.
//! 5. Each host gets its TLS policy ([`crate::host_tls`]); one that cannot meet it is dropped.
//! 6. Hosts without addresses are dropped, as are addresses beyond
//!    [`EndpointOptions::addresses_max`]. `0.0.0.0` and `::` do not count as addresses.
//!
//! If the DNS denies an address for every MX host, mail is deferred for a few lookups and then
//! fails ([`crate::MissingAddressPolicy`]). If the lookup of one of them fails, or none meets its
//! TLS policy, mail is deferred.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use dns::{AddressFamilies, CachedAnswer, DnsAnswer, MxHost, QueryType};
use futures_util::future::join_all;
use mail::{HostTls, TlsPolicyFailure};

use crate::candidate_host::{CONCURRENT_HOSTS_MAX, CandidateHost, HostOrigin, HostParams};
use crate::config::EndpointOptions;
use crate::error::RouteError;
use crate::host_tls::TlsDecision;
use crate::{Endpoint, Host, NextHopHosts, Router};

/// The hosts, or why there are none, and when that expires.
pub(crate) struct HostLookup {
    pub(crate) result: Result<NextHopHosts, RouteError>,
    pub(crate) expires_at: Instant,
    /// Why policies of the domain cannot be met, for reports to its owner.
    pub(crate) tls_failures: Vec<TlsPolicyFailure>,
}

impl HostLookup {
    /// A result that depends on no policy.
    pub(crate) fn new(result: Result<NextHopHosts, RouteError>, expires_at: Instant) -> HostLookup {
        HostLookup { result, expires_at, tls_failures: Vec::new() }
    }

    /// The same for a next hop that the configuration or one of its tables names.
    pub(crate) fn configured(mut self) -> HostLookup {
        if let Ok(hosts) = &mut self.result {
            hosts.is_configured = true;
        }
        // The operator has chosen the hosts.
        self.tls_failures.clear();
        self
    }
}

/// The result for a set of hosts.
struct HostSetLookup {
    /// Expires with the first of the answers.
    lookup: HostLookup,
    /// When the last of the answers expires.
    last_expiry: Instant,
    /// This host was in the set, and was removed with the hosts that are not better.
    is_backup: bool,
}

impl Router {
    /// The MX hosts of a domain.
    pub(crate) async fn lookup_mx(&self, domain: &str, params: &HostParams<'_>) -> HostLookup {
        let CachedAnswer { answer, expires_at, authenticated } = self.resolver.lookup(domain, QueryType::Mx).await;
        let error = match answer {
            DnsAnswer::MxHosts(mx_hosts) => {
                let origin = HostOrigin { domain: Some(domain), authenticated };
                return self.lookup_mx_hosts(&mx_hosts, params, origin, expires_at).await;
            }
            DnsAnswer::NullMx => RouteError::NullMx,
            DnsAnswer::NoSuchName => RouteError::NoSuchDomain,
            DnsAnswer::Unanswered(why) => RouteError::DnsUnavailable(why),
            _ => {
                self.missing_addresses.reset(domain);
                // Without MX records, the host has the name of the domain.
                let origin = HostOrigin { domain: Some(domain), authenticated: true };
                return self.lookup_host(domain, params, origin, expires_at).await;
            }
        };
        self.missing_addresses.reset(domain);
        HostLookup::new(Err(error), expires_at)
    }

    /// Fails mail for hosts that stay without addresses.
    async fn lookup_mx_hosts(
        &self,
        mx_hosts: &[MxHost],
        params: &HostParams<'_>,
        origin: HostOrigin<'_>,
        expires_at: Instant,
    ) -> HostLookup {
        let HostSetLookup { mut lookup, last_expiry: last, is_backup } =
            self.lookup_host_set(mx_hosts, params, origin, expires_at).await;
        let domain = origin.domain.unwrap_or_default();
        match lookup.result {
            // The address of a better host may be missing while it is offline; a backup MX keeps
            // its mail.
            Err(RouteError::HostsWithoutAddress) if !is_backup => {
                if self.missing_addresses.record_and_check_final(domain, Instant::now(), last) {
                    lookup.result = Err(RouteError::HostsStayWithoutAddress);
                }
            }
            Ok(_) | Err(_) => self.missing_addresses.reset(domain),
        }
        lookup
    }

    /// The addresses of one host.
    pub(crate) async fn lookup_host(
        &self,
        name: &str,
        params: &HostParams<'_>,
        origin: HostOrigin<'_>,
        expires_at: Instant,
    ) -> HostLookup {
        let itself = [MxHost { preference: 0, name: name.into() }];
        let HostSetLookup { mut lookup, .. } = self.lookup_host_set(&itself, params, origin, expires_at).await;
        if lookup.result == Err(RouteError::HostsWithoutAddress) {
            lookup.result = Err(RouteError::NoAddress);
        }
        lookup
    }

    /// The hosts of a list that expires at `expires_at`.
    async fn lookup_host_set(
        &self,
        mx_hosts: &[MxHost],
        params: &HostParams<'_>,
        origin: HostOrigin<'_>,
        expires_at: Instant,
    ) -> HostSetLookup {
        let mut candidates = sorted_by_preference(mx_hosts);
        let (sts, (expires_at, last)) = tokio::join!(
            self.lookup_sts_policy(params.tls, origin),
            self.lookup_addresses(&mut candidates, params.options.families, expires_at)
        );
        let loops = params.may_loop && self.remove_own_host(&mut candidates, params.options.port);
        let TlsDecision { notes, failures, expires_at: tls_expiry } =
            self.decide_tls(&mut candidates, params, origin, sts).await;
        let expires_at = tls_expiry.map_or(expires_at, |at| at.min(expires_at));
        let result = match tiers(&candidates, params.options) {
            tiers if !tiers.is_empty() => Ok(NextHopHosts {
                transport: params.transport.into(),
                is_configured: false,
                next_hop: self.next_hop_names.name_for(params.transport, host_names(&candidates, params.options.port)),
                tiers,
                tls_notes: notes,
            }),
            _ if loops && candidates.is_empty() => Err(RouteError::Loop),
            _ => Err(no_address_error(&candidates)),
        };
        let lookup = HostLookup { result, expires_at, tls_failures: failures };
        HostSetLookup { lookup, last_expiry: last, is_backup: loops }
    }

    /// Looks up the addresses of each host. Returns when the first and the last of the answers and
    /// of the list expire.
    async fn lookup_addresses(
        &self,
        candidates: &mut [CandidateHost<'_>],
        families: AddressFamilies,
        expires_at: Instant,
    ) -> (Instant, Instant) {
        let (mut first, mut last) = (expires_at, expires_at);
        for block in candidates.chunks_mut(CONCURRENT_HOSTS_MAX) {
            let questions = block.iter().map(|candidate| self.resolver.addresses(&candidate.mx_host.name, families));
            let answers = join_all(questions).await;
            for (candidate, addresses) in block.iter_mut().zip(answers) {
                (first, last) = (first.min(addresses.first_expiry), last.max(addresses.last_expiry));
                candidate.answer = Some(addresses.answer);
                candidate.authenticated = addresses.authenticated;
            }
        }
        (first, last)
    }

    /// Removes this host and those that are not better. Returns whether it was there.
    fn remove_own_host(&self, candidates: &mut Vec<CandidateHost<'_>>, port: u16) -> bool {
        let ours = candidates.iter().filter(|candidate| self.is_own_host(candidate, port));
        let Some(preference) = ours.map(|candidate| candidate.mx_host.preference).min() else { return false };
        candidates.retain(|candidate| candidate.mx_host.preference < preference);
        true
    }

    fn is_own_host(&self, candidate: &CandidateHost<'_>, port: u16) -> bool {
        candidate.mx_host.name == self.config.hostname
            || candidate.addresses().iter().any(|&address| self.is_own_address(address, port))
    }

    /// Whether an address in a foreign zone means this host. Loopback addresses lead to the host
    /// itself, and so do unspecified ones; on ports without a listener of ours, they belong to
    /// other software.
    pub(crate) fn is_own_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        let leads_back = address.is_loopback() || is_unspecified(address);
        self.config.own_addresses.iter().any(|own| own.to_canonical() == address)
            || leads_back && self.config.own_ports.contains(&port)
    }
}

/// Best first, each name once; equal hosts in the order of the answer.
fn sorted_by_preference(mx_hosts: &[MxHost]) -> Vec<CandidateHost<'_>> {
    let mut sorted: Vec<&MxHost> = mx_hosts.iter().collect();
    sorted.sort_by_key(|exchanger| exchanger.preference);
    let mut seen = HashSet::new();
    sorted.retain(|exchanger| seen.insert(&exchanger.name));
    let candidate =
        |mx_host| CandidateHost { mx_host, answer: None, authenticated: false, tls: Ok(HostTls::Transport), sts: None };
    sorted.into_iter().map(candidate).collect()
}

fn host_names(candidates: &[CandidateHost<'_>], port: u16) -> Vec<String> {
    candidates.iter().map(|candidate| format!("{}:{port}", candidate.mx_host.name)).collect()
}

fn tiers(candidates: &[CandidateHost<'_>], reach: EndpointOptions) -> Vec<Vec<Host>> {
    let mut remaining = reach.addresses_max;
    let tier = |equals: &[CandidateHost<'_>]| -> Vec<Host> {
        equals.iter().filter_map(|candidate| host(candidate, reach.port, &mut remaining)).collect()
    };
    let equal = |one: &CandidateHost<'_>, other: &CandidateHost<'_>| one.mx_host.preference == other.mx_host.preference;
    candidates.chunk_by(equal).map(tier).filter(|tier| !tier.is_empty()).collect()
}

fn host(candidate: &CandidateHost<'_>, port: u16, remaining: &mut usize) -> Option<Host> {
    let addresses = candidate.addresses().iter().filter(|address| !is_unspecified(**address)).take(*remaining);
    let endpoints: Vec<_> = addresses.map(|&address| Endpoint::Tcp(SocketAddr::new(address, port))).collect();
    let tls = candidate.tls.clone().ok()?;
    *remaining -= endpoints.len();
    let sts = candidate.sts.clone();
    (!endpoints.is_empty()).then(|| Host { name: candidate.mx_host.name.clone(), endpoints, tls, sts })
}

/// Whether it is the unspecified address (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.2).
pub(crate) fn is_unspecified(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

/// Why no host can be used: none meets its TLS policy, or none has an address. If a lookup failed,
/// there may still be one.
fn no_address_error(candidates: &[CandidateHost<'_>]) -> RouteError {
    let excluded = candidates.iter().find_map(|candidate| Some((candidate.name(), candidate.tls.as_ref().err()?)));
    if let Some((host, why)) = excluded {
        return RouteError::TlsPolicy(format!("{host}: {why}").into());
    }
    let unanswered = candidates.iter().find_map(|candidate| match &candidate.answer {
        Some(DnsAnswer::Unanswered(why)) => Some(RouteError::DnsUnavailable(why.clone())),
        _ => None,
    });
    unanswered.unwrap_or(RouteError::HostsWithoutAddress)
}
