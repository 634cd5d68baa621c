//! The DNS tree walk (RFC 9989 section 4.10): the policy of a domain, and its organizational domain.

use std::collections::HashMap;

use dns::{DnsAnswer, QueryType};

use super::record::{Alignment, DmarcRecord, Policy, PolicyScope, PublicSuffix, PublishedPolicy};
use crate::DnsLookup;
use crate::dkim::signature::is_or_is_below;

/// The most queries of one walk (RFC 9989 section 4.10).
pub(crate) const WALK_QUERIES_MAX: usize = 8;
/// The most walks for one message, beyond that of the author: each is for a domain below the
/// author's organizational domain.
pub(crate) const WALKS_MAX: usize = 9;

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiscoveredPolicy {
    /// For this author.
    pub(crate) action: Policy,
    pub(crate) dkim_alignment: Alignment,
    pub(crate) spf_alignment: Alignment,
    /// What reports say of it; None: nobody wants any.
    pub(crate) reported: Option<ReportedPolicy>,
}

/// A policy that is reported about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedPolicy {
    /// The domain of the record.
    pub(crate) domain: Box<str>,
    pub(crate) published: PublishedPolicy,
}

/// What the DNS says about the domain in From.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovery {
    pub(crate) author_domain: Box<str>,
    pub(crate) organizational_domain: Box<str>,
    /// None: nobody published one.
    pub(crate) policy: Option<DiscoveredPolicy>,
}

/// The DNS did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered;

/// The records from a domain up to the root.
struct TreeWalk {
    /// Each with the domain that it belongs to, the longest first.
    records: Vec<(Box<str>, DmarcRecord)>,
    organizational_domain: Box<str>,
}

/// Finds the policy for a domain.
///
/// # Errors
///
/// The DNS did not answer.
pub(crate) async fn discover(dns: &dyn DnsLookup, author_domain: &str) -> Result<Discovery, Unanswered> {
    let TreeWalk { records, organizational_domain } = walk(dns, author_domain).await?;
    let of = |domain: &str| records.iter().find(|(own, _)| **own == *domain);
    let is_suffix = |(_, record): &&(Box<str>, DmarcRecord)| record.public_suffix == PublicSuffix::Yes;
    let found = of(author_domain).or_else(|| of(&organizational_domain)).or_else(|| records.iter().find(is_suffix));
    let policy = match found {
        None => None,
        Some((domain, record)) => {
            let scope = match **domain == *author_domain {
                true => PolicyScope::Own,
                false if record.tells_nonexistent_apart() && !exists(dns, author_domain).await? => {
                    PolicyScope::Nonexistent
                }
                false => PolicyScope::Subdomains,
            };
            let (dkim_alignment, spf_alignment) = (record.dkim_alignment, record.spf_alignment);
            let published = record.published(&organizational_domain);
            let reported = published.map(|published| ReportedPolicy { domain: domain.clone(), published });
            Some(DiscoveredPolicy { action: record.policy_for(scope), dkim_alignment, spf_alignment, reported })
        }
    };
    Ok(Discovery { author_domain: author_domain.into(), organizational_domain, policy })
}

/// RFC 9989 section 4.10.
async fn walk(dns: &dyn DnsLookup, domain: &str) -> Result<TreeWalk, Unanswered> {
    let mut records: Vec<(Box<str>, DmarcRecord)> = Vec::new();
    for name in walk_names(domain) {
        let Some(record) = policy_record(dns, name).await? else { continue };
        let suffix = record.public_suffix;
        records.push((name.into(), record));
        match suffix {
            PublicSuffix::No => return Ok(TreeWalk { records, organizational_domain: name.into() }),
            PublicSuffix::Yes if name != domain => {
                let organizational_domain = child_towards(domain, name).into();
                return Ok(TreeWalk { records, organizational_domain });
            }
            PublicSuffix::Yes | PublicSuffix::Unknown => {}
        }
    }
    let shortest = records.last().map_or(domain, |(name, _)| name);
    Ok(TreeWalk { organizational_domain: shortest.into(), records })
}

/// The domain, and those above it: of a domain with many labels only the last seven.
fn walk_names(domain: &str) -> impl Iterator<Item = &str> {
    let dots = domain.matches('.').count();
    let skipped = (dots + 1).saturating_sub(WALK_QUERIES_MAX);
    let parents = std::iter::successors(parent(domain), |name| parent(name));
    std::iter::once(domain).chain(parents.skip(skipped)).take(WALK_QUERIES_MAX)
}

fn parent(domain: &str) -> Option<&str> {
    domain.split_once('.').map(|(_, parent)| parent)
}

/// The domain one label below `parent`, on the way to `domain`.
fn child_towards<'a>(domain: &'a str, parent: &str) -> &'a str {
    let above = domain.len() - parent.len();
    let start = domain[..above].strip_suffix('.').and_then(|above| above.rfind('.')).map_or(0, |dot| dot + 1);
    &domain[start..]
}

/// The only record of a domain; several count as none.
async fn policy_record(dns: &dyn DnsLookup, domain: &str) -> Result<Option<DmarcRecord>, Unanswered> {
    let Some(name) = dns::to_ascii(&format!("_dmarc.{domain}")) else { return Ok(None) };
    match dns.lookup(&name, QueryType::Txt).await.answer {
        DnsAnswer::Texts(texts) => {
            let mut records = texts.iter().filter_map(|text| DmarcRecord::parse(text));
            let first = records.next();
            Ok(first.filter(|_| records.next().is_none()))
        }
        DnsAnswer::Unanswered(_) => Err(Unanswered),
        _ => Ok(None),
    }
}

/// RFC 9989 section 3.2.13: the name itself, whatever its records.
async fn exists(dns: &dyn DnsLookup, domain: &str) -> Result<bool, Unanswered> {
    match dns.lookup(domain, QueryType::A).await.answer {
        DnsAnswer::NoSuchName => Ok(false),
        DnsAnswer::Unanswered(_) => Err(Unanswered),
        _ => Ok(true),
    }
}

/// Compares organizational domains with that of the author, and looks up each once.
pub(crate) struct OrganizationalDomains<'a> {
    dns: &'a dyn DnsLookup,
    author: &'a Discovery,
    known: HashMap<Box<str>, Option<Box<str>>>,
}

impl<'a> OrganizationalDomains<'a> {
    pub(crate) fn new(dns: &'a dyn DnsLookup, author: &'a Discovery) -> OrganizationalDomains<'a> {
        OrganizationalDomains { dns, author, known: HashMap::new() }
    }

    /// Whether a domain has the author's organizational domain. None: the DNS did not answer.
    pub(crate) async fn are_aligned(&mut self, domain: &str) -> Option<bool> {
        let organization = &*self.author.organizational_domain;
        if domain == &*self.author.author_domain || domain == organization {
            return Some(true);
        }
        if !is_or_is_below(domain, organization) {
            return Some(false);
        }
        if let Some(known) = self.known.get(domain) {
            return known.as_deref().map(|own| own == organization);
        }
        if self.known.len() == WALKS_MAX {
            return Some(false);
        }
        let own = walk(self.dns, domain).await.ok().map(|walk| walk.organizational_domain);
        let is_same = own.as_deref().map(|own| own == organization);
        self.known.insert(domain.into(), own);
        is_same
    }
}
