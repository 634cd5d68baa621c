//! From what the DNS says to a set of hosts: mail hosts in tiers, without ourselves, and with addresses.
//!
//! The set is made in steps; each narrows what the one before it left.
//! 1. The MX hosts of the domain, best first; where it has none the domain itself (RFC 5321 section 5.1).
//! 2. Their addresses, asked for [`HOSTS_AT_ONCE`] at once, the best first.
//! 3. Where one of them is this host, by name or by address, only those that are better than it (the same section).
//! 4. The next hop gets its name: from all hosts that are left, also those whose addresses are unknown at the moment,
//!    so that it does not change with them.
//! 5. Hosts without addresses are left out, and so are addresses beyond [`Reach::addresses_max`]. `0.0.0.0` and `::` are
//!    none.
//!
//! Where no MX host has an address, the DNS denying each for certain, mail waits for a few lookups and fails then
//! ([`crate::Dns::no_address_lookups`]). What the DNS cannot say of one of them puts mail off.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use futures_util::future::join_all;

use crate::config::{Families, Reach};
use crate::dns::Known;
use crate::records::{Exchanger, Kind, Said};
use crate::replies::Obstacle;
use crate::{Endpoint, Host, Hosts, Router};

/// A way, or why there is none, and until when that holds.
pub(crate) struct Finding {
    pub(crate) result: Result<Hosts, Obstacle>,
    pub(crate) until: Instant,
}

/// What a set of hosts comes to.
struct FoundSet {
    /// Ends with the first of the answers.
    finding: Finding,
    /// When the last of the answers has had its time.
    last: Instant,
    /// This host, and those that are no better, were left out.
    is_backup: bool,
}

/// How hosts are reached.
pub(crate) struct Leg<'a> {
    pub(crate) transport: &'a str,
    pub(crate) reach: Reach,
    /// Whether mail may come back from there: it may where a stranger's zone names the hosts.
    pub(crate) may_loop: bool,
}

/// A host of the set.
struct Candidate<'a> {
    exchanger: &'a Exchanger,
    /// What the DNS says of its addresses; None until it was asked.
    said: Option<Said>,
}

impl Router {
    /// The mail hosts of a domain.
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

    /// Hosts that stay without addresses make it fail.
    async fn by_mail_hosts(&self, domain: &str, exchangers: &[Exchanger], leg: &Leg<'_>, until: Instant) -> Finding {
        let FoundSet { mut finding, last, is_backup } = self.by_set(exchangers, leg, until).await;
        match finding.result {
            // The address of a better host may be gone while it is offline: a backup holds its mail.
            Err(Obstacle::HostsWithoutAddress) if !is_backup => {
                if self.absences.is_final(domain, Instant::now(), last) {
                    finding.result = Err(Obstacle::HostsStayWithoutAddress);
                }
            }
            Ok(_) | Err(_) => self.absences.forget(domain),
        }
        finding
    }

    /// One host, by its addresses.
    pub(crate) async fn by_name(&self, name: &str, leg: &Leg<'_>, until: Instant) -> Finding {
        let itself = [Exchanger { preference: 0, name: name.into() }];
        let FoundSet { mut finding, .. } = self.by_set(&itself, leg, until).await;
        if finding.result == Err(Obstacle::HostsWithoutAddress) {
            finding.result = Err(Obstacle::NoAddress);
        }
        finding
    }

    /// The hosts of a list that holds until then.
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

    /// Finds out what the DNS says of the addresses of each. Until when the first and the last of these answers and the
    /// list itself hold.
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

    /// Drops this host and those that are no better than it. Whether there were any.
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

    /// Whether a stranger who names this address means us. Each machine is its own loopback, and what the system
    /// makes of no address is that too; there, what does not listen at a port of ours is somebody else.
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

/// The best first, each name once; equal ones stay as the server turned them.
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

/// Whether it stands for none (RFC 1122 section 3.2.1.3, RFC 4291 section 2.5.2).
pub(crate) fn is_no_address(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

/// Why none of these has an address. One that could not be asked for may have some.
fn obstacle(candidates: &[Candidate<'_>]) -> Obstacle {
    let unanswered = candidates.iter().find_map(|candidate| match &candidate.said {
        Some(Said::Unanswered(why)) => Some(Obstacle::Unanswered(why.clone())),
        _ => None,
    });
    unanswered.unwrap_or(Obstacle::HostsWithoutAddress)
}

/// Hosts of one set whose addresses are asked for at once, so that one domain does not take all questions under way.
const HOSTS_AT_ONCE: usize = 32;
