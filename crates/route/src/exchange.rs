//! Turns DNS answers into a set of hosts: MX hosts in tiers, without this host, with their
//! addresses.
//!
//! The set is built in steps:
//! 1. The MX hosts of the domain, best first; without MX records the domain itself (RFC 5321
//!    section 5.1).
//! 2. Their addresses, with lookups for [`HOSTS_AT_ONCE`] hosts at a time, best first.
//! 3. If one of them is this host, by name or by address, only the better ones remain (same
//!    section).
//! 4. The next hop is named after all remaining hosts, including those without a known address, so
//!    that the name does not depend on lookup failures.
//! 5. Hosts without addresses are dropped, as are addresses beyond [`Reach::addresses_max`].
//!    `0.0.0.0` and `::` do not count as addresses.
//!
//! If the DNS denies an address for every MX host, mail is deferred for a few lookups and then
//! fails ([`crate::Dns::no_address_lookups`]). If the lookup of one of them fails, mail is
//! deferred.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use futures_util::future::join_all;

use crate::config::{Families, Reach};
use crate::dns::Known;
use crate::records::{Exchanger, Kind, Said};
use crate::replies::Obstacle;
use crate::{Endpoint, Host, Hosts, Router};

/// The hosts, or why there are none, and when that expires.
pub(crate) struct Finding {
    pub(crate) result: Result<Hosts, Obstacle>,
    pub(crate) until: Instant,
}

/// The result for a set of hosts.
struct FoundSet {
    /// Expires with the first of the answers.
    finding: Finding,
    /// When the last of the answers expires.
    last: Instant,
    /// This host was in the set, and was removed with the hosts that are not better.
    is_backup: bool,
}

/// How hosts are looked up and reached.
pub(crate) struct Leg<'a> {
    pub(crate) transport: &'a str,
    pub(crate) reach: Reach,
    /// Whether the hosts may include this one; true if a foreign zone names them.
    pub(crate) may_loop: bool,
}

/// A host of the set.
struct Candidate<'a> {
    exchanger: &'a Exchanger,
    /// Its addresses in the DNS; None until they are looked up.
    said: Option<Said>,
}

impl Router {
    /// The MX hosts of a domain.
    pub(crate) async fn by_exchangers(&self, domain: &str, leg: &Leg<'_>) -> Finding {
        let Known { said, until } = self.dns.ask(domain, Kind::Mx).await;
        let obstacle = match said {
            Said::Exchangers(exchangers) => return self.by_mail_hosts(domain, &exchangers, leg, until).await,
            Said::Nothing | Said::Addresses(_) => {
                self.absences.forget(domain);
                return self.by_name(domain, leg, until).await;
            }
            Said::NullMx => Obstacle::NullMx,
            Said::NoSuchName => Obstacle::NoSuchDomain,
            Said::Unanswered(why) => Obstacle::Unanswered(why),
        };
        self.absences.forget(domain);
        Finding { result: Err(obstacle), until }
    }

    /// Fails mail for hosts that stay without addresses.
    async fn by_mail_hosts(&self, domain: &str, exchangers: &[Exchanger], leg: &Leg<'_>, until: Instant) -> Finding {
        let FoundSet { mut finding, last, is_backup } = self.by_set(exchangers, leg, until).await;
        match finding.result {
            // The address of a better host may be missing while it is offline; a backup MX keeps
            // its mail.
            Err(Obstacle::HostsWithoutAddress) if !is_backup => {
                if self.absences.is_final(domain, Instant::now(), last) {
                    finding.result = Err(Obstacle::HostsStayWithoutAddress);
                }
            }
            Ok(_) | Err(_) => self.absences.forget(domain),
        }
        finding
    }

    /// The addresses of one host.
    pub(crate) async fn by_name(&self, name: &str, leg: &Leg<'_>, until: Instant) -> Finding {
        let itself = [Exchanger { preference: 0, name: name.into() }];
        let FoundSet { mut finding, .. } = self.by_set(&itself, leg, until).await;
        if finding.result == Err(Obstacle::HostsWithoutAddress) {
            finding.result = Err(Obstacle::NoAddress);
        }
        finding
    }

    /// The hosts of a list that expires at `until`.
    async fn by_set(&self, exchangers: &[Exchanger], leg: &Leg<'_>, until: Instant) -> FoundSet {
        let mut candidates = in_order(exchangers);
        let (until, last) = self.ask_addresses(&mut candidates, leg.reach.families, until).await;
        let loops = leg.may_loop && self.drop_ourselves(&mut candidates, leg.reach.port);
        let result = match tiers(&candidates, leg.reach) {
            tiers if !tiers.is_empty() => Ok(Hosts {
                transport: leg.transport.into(),
                next_hop: self.names.next_hop(leg.transport, names(&candidates, leg.reach.port)),
                tiers,
            }),
            _ if loops && candidates.is_empty() => Err(Obstacle::Loop),
            _ => Err(obstacle(&candidates)),
        };
        FoundSet { finding: Finding { result, until }, last, is_backup: loops }
    }

    /// Looks up the addresses of each host. Returns when the first and the last of the answers and
    /// of the list expire.
    async fn ask_addresses(
        &self,
        candidates: &mut [Candidate<'_>],
        families: Families,
        until: Instant,
    ) -> (Instant, Instant) {
        let (mut first, mut last) = (until, until);
        for block in candidates.chunks_mut(HOSTS_AT_ONCE) {
            let questions = block.iter().map(|candidate| self.dns.addresses(&candidate.exchanger.name, families));
            let answers = join_all(questions).await;
            for (candidate, known) in block.iter_mut().zip(answers) {
                (first, last) = (first.min(known.until), last.max(known.last));
                candidate.said = Some(known.said);
            }
        }
        (first, last)
    }

    /// Removes this host and those that are not better. Returns whether it was there.
    fn drop_ourselves(&self, candidates: &mut Vec<Candidate<'_>>, port: u16) -> bool {
        let ours = candidates.iter().filter(|candidate| self.is_this_host(candidate, port));
        let Some(preference) = ours.map(|candidate| candidate.exchanger.preference).min() else { return false };
        candidates.retain(|candidate| candidate.exchanger.preference < preference);
        true
    }

    fn is_this_host(&self, candidate: &Candidate<'_>, port: u16) -> bool {
        candidate.exchanger.name == self.config.hostname
            || candidate.addresses().iter().any(|&address| self.is_own_address(address, port))
    }

    /// Whether an address in a foreign zone means this host. Loopback addresses lead to the host
    /// itself, and so do unspecified ones; on ports without a listener of ours, they belong to
    /// other software.
    pub(crate) fn is_own_address(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        let leads_back = address.is_loopback() || is_no_address(address);
        self.config.own_addresses.iter().any(|own| own.to_canonical() == address)
            || leads_back && self.config.own_ports.contains(&port)
    }
}

impl Candidate<'_> {
    fn addresses(&self) -> &[IpAddr] {
        match &self.said {
            Some(Said::Addresses(addresses)) => addresses,
            _ => &[],
        }
    }
}

/// Best first, each name once; equal hosts in the order of the answer.
fn in_order(exchangers: &[Exchanger]) -> Vec<Candidate<'_>> {
    let mut sorted: Vec<&Exchanger> = exchangers.iter().collect();
    sorted.sort_by_key(|exchanger| exchanger.preference);
    let mut seen = HashSet::new();
    sorted.retain(|exchanger| seen.insert(&exchanger.name));
    sorted.into_iter().map(|exchanger| Candidate { exchanger, said: None }).collect()
}

fn names(candidates: &[Candidate<'_>], port: u16) -> Vec<String> {
    candidates.iter().map(|candidate| format!("{}:{port}", candidate.exchanger.name)).collect()
}

fn tiers(candidates: &[Candidate<'_>], reach: Reach) -> Vec<Vec<Host>> {
    let mut left = reach.addresses_max;
    let tier = |equals: &[Candidate<'_>]| -> Vec<Host> {
        equals.iter().filter_map(|candidate| host(candidate, reach.port, &mut left)).collect()
    };
    let equal = |one: &Candidate<'_>, other: &Candidate<'_>| one.exchanger.preference == other.exchanger.preference;
    candidates.chunk_by(equal).map(tier).filter(|tier| !tier.is_empty()).collect()
}

fn host(candidate: &Candidate<'_>, port: u16, left: &mut usize) -> Option<Host> {
    let addresses = candidate.addresses().iter().filter(|address| !is_no_address(**address)).take(*left);
    let endpoints: Vec<_> = addresses.map(|&address| Endpoint::Tcp(SocketAddr::new(address, port))).collect();
    *left -= endpoints.len();
    (!endpoints.is_empty()).then(|| Host { name: candidate.exchanger.name.clone(), endpoints })
}

/// Whether it is the unspecified address (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.2).
pub(crate) fn is_no_address(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

/// Why no host has an address. If a lookup failed, there may still be one.
fn obstacle(candidates: &[Candidate<'_>]) -> Obstacle {
    let unanswered = candidates.iter().find_map(|candidate| match &candidate.said {
        Some(Said::Unanswered(why)) => Some(Obstacle::Unanswered(why.clone())),
        _ => None,
    });
    unanswered.unwrap_or(Obstacle::HostsWithoutAddress)
}

/// How many hosts of one set are looked up concurrently, so that one domain does not use up all
/// queries.
const HOSTS_AT_ONCE: usize = 32;
