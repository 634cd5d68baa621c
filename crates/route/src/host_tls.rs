//! Decides what each host of a set must prove by TLS before mail goes to it.
//!
//! | transport | host | must prove |
//! |---|---|---|
//! | verified | any | a name, by a trusted authority |
//! | dane | name and addresses validated, TLSA records | what the records say; any certificate if none can be used |
//! | the same | name validated, a validated alias of an unsigned name, TLSA records at its own name | the same (RFC 7672 section 2.2.2) |
//! | the same | one of both, but the lookup of the records or aliases fails | left out (RFC 7672 section 2.1.2) |
//! | dane, others | any other, MTA-STS policy `enforce` | its name, by a trusted authority; left out if the policy does not name it |
//! | dane, others | any other, MTA-STS policy `testing` | as the transport requires; what `enforce` would demand is reported |
//! | dane, others | any other | as the transport requires |
//!
//! DANE goes before MTA-STS: a policy never replaces a proof that TLSA records demand (RFC 8461
//! section 2). It is only asked for if the DNS is validated up to there; then a lookup that fails
//! may be an attack, and records that do not exist are known not to exist.

use std::sync::Arc;
use std::time::Instant;

use dns::{CachedAnswer, DnsAnswer, QueryType};
use futures_util::future::join_all;
use mail::{
    DanePolicy, DaneRecord, DomainTlsPolicy, HostTls, StsRule, StsTest, TlsFailure, TlsPolicyFailure, VerifiedBy,
    VerifiedNames,
};
use mta_sts::{Policy, PolicyMode, StsLookup};

use crate::Router;
use crate::candidate_host::{CONCURRENT_HOSTS_MAX, CandidateHost, HostOrigin, HostParams};
use crate::tls_options::{TlsDemand, TlsOptions};

/// What was decided for a set, beside the hosts themselves.
#[derive(Default)]
pub(crate) struct TlsDecision {
    /// For people.
    pub(crate) notes: Vec<Box<str>>,
    /// For reports to the domain: hosts that are left out, and a policy that could not be fetched.
    pub(crate) failures: Vec<TlsPolicyFailure>,
    /// When the first of the answers expires that it depends on.
    pub(crate) expires_at: Option<Instant>,
}

/// The TLSA records of a host.
enum TlsaLookup {
    /// Without DNSSEC up to the records, or without records.
    None,
    /// The records, and when they expire.
    Records { usable: Vec<DaneRecord>, base_domain: Box<str>, expires_at: Instant },
    /// The lookup failed, which lasts until then.
    Failed { why: Box<str>, expires_at: Instant },
}

/// The MTA-STS policy of the domain.
struct StsPolicy<'a> {
    policy: &'a Policy,
    /// Its lines, for reports.
    lines: Arc<[Box<str>]>,
}

/// A host to which no mail goes.
struct LeftOutHost {
    why: Box<str>,
    policy: DomainTlsPolicy,
    failure: TlsFailure,
}

/// It is not known whether a name is an alias, until then.
struct AliasFailure {
    why: Box<str>,
    expires_at: Instant,
}

impl From<AliasFailure> for TlsaLookup {
    fn from(AliasFailure { why, expires_at }: AliasFailure) -> TlsaLookup {
        TlsaLookup::Failed { why: format!("the lookup of its alias failed: {why}").into(), expires_at }
    }
}

impl Router {
    /// The MTA-STS policy of the domain whose mail the hosts take.
    pub(crate) async fn lookup_sts_policy(&self, options: &TlsOptions, origin: HostOrigin<'_>) -> StsLookup {
        match (&self.config.sts_policies, origin.domain) {
            (Some(policies), Some(domain)) if options.mta_sts && options.demand != TlsDemand::Verified => {
                policies.policy(&self.resolver, domain).await
            }
            _ => StsLookup::default(),
        }
    }

    /// Decides for each host that has an address, with lookups for [`CONCURRENT_HOSTS_MAX`] at a time.
    pub(crate) async fn decide_tls(
        &self,
        candidates: &mut [CandidateHost<'_>],
        params: &HostParams<'_>,
        origin: HostOrigin<'_>,
        sts: StsLookup,
    ) -> TlsDecision {
        let found = sts.policy.as_ref().map(|found| &found.policy);
        let policy = found.map(|policy| StsPolicy { policy, lines: policy.reported_lines().into() });
        let mut decision = TlsDecision { expires_at: sts.expires_at, ..TlsDecision::default() };
        decision.notes.extend(origin.domain.and_then(|domain| sts.note(domain)));
        decision.failures.extend(sts.failure.map(|failure| {
            let lines = policy.as_ref().map(|policy| policy.lines.clone());
            TlsPolicyFailure { host: None, policy: DomainTlsPolicy::Sts(lines), failure, reason: sts.problem.clone() }
        }));
        let with_address = candidates.iter_mut().filter(|candidate| !candidate.addresses().is_empty());
        for block in with_address.collect::<Vec<_>>().chunks_mut(CONCURRENT_HOSTS_MAX) {
            let lookups = block.iter().map(|candidate| self.lookup_tlsa(candidate, params, origin));
            let lookups = join_all(lookups).await;
            for (candidate, tlsa) in block.iter_mut().zip(lookups) {
                let expires_at = tlsa.expires_at();
                decision.expires_at = decision.expires_at.into_iter().chain(expires_at).min();
                let decided = host_tls(candidate, params.tls, origin, tlsa, policy.as_ref());
                decision.apply(candidate, decided);
            }
        }
        decision
    }

    /// The TLSA records of a host: at the name that its aliases lead to, else at its own. If only the
    /// alias is validated and not its end, at its own (RFC 7672 section 2.2.2).
    async fn lookup_tlsa(
        &self,
        candidate: &CandidateHost<'_>,
        params: &HostParams<'_>,
        origin: HostOrigin<'_>,
    ) -> TlsaLookup {
        if params.tls.demand != TlsDemand::Dane || !origin.authenticated {
            return TlsaLookup::None;
        }
        let (host, port) = (candidate.name(), params.options.port);
        if !candidate.authenticated {
            return match self.validated_alias(host).await {
                Ok(None) => TlsaLookup::None,
                Ok(Some(_)) => self.lookup_tlsa_at(host, port).await,
                Err(failure) => failure.into(),
            };
        }
        let (own, alias_end) = tokio::join!(self.lookup_tlsa_at(host, port), self.validated_alias_end(host));
        let end = match alias_end {
            Ok(None) => return own,
            Ok(Some(end)) => end,
            Err(failure) => return failure.into(),
        };
        match self.lookup_tlsa_at(&end, port).await {
            TlsaLookup::None => own,
            found => found,
        }
    }

    /// The name that validated aliases of a host lead to, if it is an alias.
    async fn validated_alias_end(&self, host: &str) -> Result<Option<Box<str>>, AliasFailure> {
        let mut end: Option<Box<str>> = None;
        for _ in 0..ALIASES_MAX {
            match self.validated_alias(end.as_deref().unwrap_or(host)).await? {
                Some(next) => end = Some(next),
                None => break,
            }
        }
        Ok(end)
    }

    /// The name of which this one is an alias, if name servers validated that.
    async fn validated_alias(&self, name: &str) -> Result<Option<Box<str>>, AliasFailure> {
        let CachedAnswer { answer, expires_at, authenticated, .. } = self.resolver.lookup(name, QueryType::Cname).await;
        match answer {
            DnsAnswer::Names(names) if authenticated => Ok(names.first().cloned()),
            DnsAnswer::Unanswered(why) => Err(AliasFailure { why, expires_at }),
            _ => Ok(None),
        }
    }

    async fn lookup_tlsa_at(&self, base_domain: &str, port: u16) -> TlsaLookup {
        let name = format!("_{port}._tcp.{base_domain}");
        let CachedAnswer { answer, expires_at, authenticated, .. } = self.resolver.lookup(&name, QueryType::Tlsa).await;
        match answer {
            DnsAnswer::Tlsa(records) if authenticated => {
                let usable = |record: &dns::TlsaRecord| {
                    DaneRecord::new(record.usage, record.selector, record.matching, &record.data)
                };
                let usable = records.iter().filter_map(usable).collect();
                TlsaLookup::Records { usable, base_domain: base_domain.into(), expires_at }
            }
            DnsAnswer::Unanswered(why) => {
                TlsaLookup::Failed { why: format!("the lookup of its TLSA records failed: {why}").into(), expires_at }
            }
            _ => TlsaLookup::None,
        }
    }
}

impl TlsDecision {
    fn apply(&mut self, candidate: &mut CandidateHost<'_>, decided: Result<(HostTls, Option<StsRule>), LeftOutHost>) {
        let host = candidate.name();
        match decided {
            Ok((tls, sts)) => {
                if sts.as_ref().is_some_and(|rule| rule.test == Some(StsTest::NotNamed)) {
                    self.notes.push(format!("{host} is not named by the policy, and would be left out").into());
                }
                (candidate.tls, candidate.sts) = (Ok(tls), sts);
            }
            Err(LeftOutHost { why, policy, failure }) => {
                self.notes.push(format!("{host} is left out: {why}").into());
                let reason = failure.reason_code().map(Into::into);
                self.failures.push(TlsPolicyFailure { host: Some(host.into()), policy, failure, reason });
                candidate.tls = Err(why);
            }
        }
    }
}

/// The maximum number of aliases in a chain.
const ALIASES_MAX: usize = 8;

impl TlsaLookup {
    fn expires_at(&self) -> Option<Instant> {
        match self {
            TlsaLookup::None => None,
            TlsaLookup::Records { expires_at, .. } | TlsaLookup::Failed { expires_at, .. } => Some(*expires_at),
        }
    }
}

/// What the host must prove, and what the MTA-STS policy says of it, or why it cannot be used.
fn host_tls(
    candidate: &CandidateHost<'_>,
    options: &TlsOptions,
    origin: HostOrigin<'_>,
    tlsa: TlsaLookup,
    sts: Option<&StsPolicy<'_>>,
) -> Result<(HostTls, Option<StsRule>), LeftOutHost> {
    let host = candidate.name();
    if options.demand == TlsDemand::Verified {
        return Ok((options.verified_host(host, origin.domain, origin.authenticated), None));
    }
    let without_policy = match tlsa {
        TlsaLookup::Failed { why, .. } => {
            return Err(LeftOutHost { why, policy: DomainTlsPolicy::Tlsa(None), failure: TlsFailure::DnssecInvalid });
        }
        TlsaLookup::Records { usable, base_domain, .. } if !usable.is_empty() => {
            let names = dane_names(&base_domain, host, origin.domain);
            return Ok((HostTls::Dane(Arc::new(DanePolicy { records: usable, base_domain, names })), None));
        }
        TlsaLookup::Records { .. } => HostTls::Encrypted,
        TlsaLookup::None => HostTls::Transport,
    };
    match sts {
        Some(sts) => sts.apply(host, without_policy),
        None => Ok((without_policy, None)),
    }
}

impl StsPolicy<'_> {
    /// What a host must prove that has no usable TLSA records, and what the policy says of it.
    fn apply(&self, host: &str, without_policy: HostTls) -> Result<(HostTls, Option<StsRule>), LeftOutHost> {
        let rule = |test| Some(StsRule { policy: self.lines.clone(), test });
        match (self.policy.mode, self.policy.names(host)) {
            (PolicyMode::None, _) => Ok((without_policy, None)),
            (PolicyMode::Testing, true) => Ok((without_policy, rule(Some(StsTest::Named)))),
            (PolicyMode::Testing, false) => Ok((without_policy, rule(Some(StsTest::NotNamed)))),
            (PolicyMode::Enforce, true) => {
                let names = VerifiedNames { names: vec![host.into()], by: VerifiedBy::MtaSts };
                Ok((HostTls::Verified(Arc::new(names)), rule(None)))
            }
            (PolicyMode::Enforce, false) => Err(LeftOutHost {
                why: "the domain's MTA-STS policy does not name it".into(),
                policy: DomainTlsPolicy::Sts(Some(self.lines.clone())),
                failure: TlsFailure::HostNotNamed,
            }),
        }
    }
}

/// The names of which a certificate must have one that a trust anchor vouches for (RFC 7672 section
/// 3.2.2).
fn dane_names(base_domain: &str, host: &str, domain: Option<&str>) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = vec![base_domain.into()];
    for name in [Some(host), domain].into_iter().flatten() {
        if !names.iter().any(|known| **known == *name) {
            names.push(name.into());
        }
    }
    names
}
