//! The evaluation of SPF records: `check_host()` of RFC 7208 section 4.
//!
//! | what                          | limit                                       | beyond it                   |
//! |-------------------------------|---------------------------------------------|-----------------------------|
//! | terms that need the DNS       | [`LOOKUP_TERMS_MAX`], over all records      | permerror                   |
//! | of these, terms without data  | [`VOID_TERMS_MAX`]                          | permerror                   |
//! | mail hosts of one `mx`        | [`MX_HOSTS_MAX`]                            | permerror                   |
//! | names of the client           | ten                                         | the others do not count     |
//! | time for them                 | [`NAMES_TIME_MAX`]                          | they do not count           |
//!
//! So a check makes at most 123 queries: the record, ten times an `mx` with ten hosts, and an explanation
//! with the names of the client. A term is void if all that it asks the DNS for does
//! not exist (section 4.6.4): a host with IPv4 addresses alone is, for a client with IPv6.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use dns::{DnsAnswer, QueryType};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::SpfResult;
use super::macros::{MacroString, MacroValues};
use super::record::{LookupKind, Mechanism, PrefixLengths, SpfRecord, is_record};
use crate::DnsLookup;
use crate::client_names::{ReverseNames, address_query, has_address, reverse_names};

/// A check, with what it has used of its limits.
pub(super) struct Evaluation<'a> {
    dns: &'a dyn DnsLookup,
    /// Those of the check; `domain` and `validated_name` are set for each expansion.
    values: MacroValues<'a>,
    lookup_terms: usize,
    void_terms: usize,
    /// The names of the client that have its address, once they are needed.
    client_names: Option<ClientNames>,
}

/// The confirmed names of the client.
struct ClientNames {
    confirmed: Vec<Box<str>>,
    /// The client has no PTR records.
    is_unnamed: bool,
}

/// Why there is no result of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvaluationError {
    /// The DNS did not answer.
    Temporary,
    /// A record is invalid, or a limit was exceeded.
    Permanent,
}

/// What the record of a domain, or those that it redirects to, say.
pub(super) struct HostVerdict {
    pub(super) result: SpfResult,
    /// The explanation for a failure.
    pub(super) explanation: Option<ExplanationSource>,
}

/// Where an explanation is.
pub(super) struct ExplanationSource {
    pub(super) target: MacroString,
    /// The domain whose record names it.
    pub(super) domain: Box<str>,
}

type Evaluated<T> = Result<T, EvaluationError>;

impl<'a> Evaluation<'a> {
    pub(super) fn new(dns: &'a dyn DnsLookup, values: MacroValues<'a>) -> Self {
        Evaluation { dns, values, lookup_terms: 0, void_terms: 0, client_names: None }
    }

    /// Evaluates the record of a domain, which is in lower case and has A-labels.
    pub(super) fn check_host<'b>(
        &'b mut self,
        domain: &'b str,
    ) -> Pin<Box<dyn Future<Output = Evaluated<HostVerdict>> + Send + 'b>> {
        Box::pin(async move {
            let Some(record) = self.record(domain).await? else { return Ok(HostVerdict::without(SpfResult::None)) };
            for directive in &record.directives {
                if self.matches(&directive.mechanism, domain).await? {
                    let explanation = record.explanation.filter(|_| directive.result == SpfResult::Fail);
                    let explanation = explanation.map(|target| ExplanationSource { target, domain: domain.into() });
                    return Ok(HostVerdict { result: directive.result, explanation });
                }
            }
            match &record.redirect {
                Some(target) => self.redirect(target, domain).await,
                None => Ok(HostVerdict::without(SpfResult::Neutral)),
            }
        })
    }

    /// The text that explains a failure (section 6.2): its only TXT record. None: there is not
    /// exactly one.
    pub(super) async fn explanation_text(&mut self, source: &ExplanationSource) -> Option<Box<[u8]>> {
        let name = self.expand(&source.target, &source.domain).await?;
        match self.dns.lookup(&name, QueryType::Txt).await.answer {
            DnsAnswer::Texts(texts) if texts.len() == 1 => texts.first().cloned(),
            _ => None,
        }
    }

    /// The values of the macros in a text of a domain.
    pub(super) async fn values_for<'b>(&'b mut self, text: &MacroString, domain: &'b str) -> MacroValues<'b> {
        let values = self.values;
        let validated_name = match text.has_validated_name() {
            true => self.validated_name(domain).await,
            false => "",
        };
        MacroValues { domain, validated_name, ..values }
    }

    /// The SPF record of a domain (sections 4.4 and 4.5). None: it has none.
    async fn record(&self, domain: &str) -> Evaluated<Option<SpfRecord>> {
        let Some(DnsAnswer::Texts(texts)) = self.lookup(domain, QueryType::Txt).await? else { return Ok(None) };
        let mut records = texts.iter().filter(|text| is_record(text));
        match (records.next(), records.next()) {
            (None, _) => Ok(None),
            (Some(text), None) => SpfRecord::parse(text).map(Some).map_err(|_| EvaluationError::Permanent),
            (Some(_), Some(_)) => Err(EvaluationError::Permanent),
        }
    }

    /// Section 6.1.
    async fn redirect(&mut self, target: &MacroString, domain: &str) -> Evaluated<HostVerdict> {
        self.count_lookup_term()?;
        let target = self.target(Some(target), domain).await?.ok_or(EvaluationError::Permanent)?;
        let verdict = self.check_host(&target).await?;
        if verdict.result == SpfResult::None { Err(EvaluationError::Permanent) } else { Ok(verdict) }
    }

    /// Whether a mechanism matches the client (section 5).
    async fn matches(&mut self, mechanism: &Mechanism, domain: &str) -> Evaluated<bool> {
        let (kind, target) = match mechanism {
            Mechanism::All => return Ok(true),
            Mechanism::Network(network, lengths) => return Ok(lengths.are_equal(self.values.client, *network)),
            Mechanism::Lookup(kind, target) => (*kind, target.as_ref()),
        };
        self.count_lookup_term()?;
        match (kind, self.target(target, domain).await?) {
            (LookupKind::Include, None) => Err(EvaluationError::Permanent),
            (_, None) => Ok(false),
            (LookupKind::Include, Some(target)) => self.matches_include(&target).await,
            (LookupKind::Address(lengths), Some(target)) => self.matches_address(&target, lengths).await,
            (LookupKind::Mx(lengths), Some(target)) => self.matches_mx(&target, lengths).await,
            (LookupKind::Ptr, Some(target)) => self.matches_ptr(&target).await,
            (LookupKind::Exists, Some(target)) => self.matches_exists(&target).await,
        }
    }

    /// Section 5.2.
    async fn matches_include(&mut self, target: &str) -> Evaluated<bool> {
        match self.check_host(target).await?.result {
            SpfResult::Pass => Ok(true),
            SpfResult::Fail | SpfResult::SoftFail | SpfResult::Neutral => Ok(false),
            SpfResult::TempError => Err(EvaluationError::Temporary),
            SpfResult::PermError | SpfResult::None => Err(EvaluationError::Permanent),
        }
    }

    /// Section 5.3.
    async fn matches_address(&mut self, target: &str, lengths: PrefixLengths) -> Evaluated<bool> {
        match self.has_equal_address(target, lengths).await? {
            Some(is_equal) => Ok(is_equal),
            None => self.count_void_term(),
        }
    }

    /// Section 5.4.
    async fn matches_mx(&mut self, target: &str, lengths: PrefixLengths) -> Evaluated<bool> {
        let hosts = match self.lookup(target, QueryType::Mx).await? {
            Some(DnsAnswer::MxHosts(hosts)) => hosts,
            Some(_) => return Ok(false),
            None => return self.count_void_term(),
        };
        if hosts.len() > MX_HOSTS_MAX {
            return Err(EvaluationError::Permanent);
        }
        let mut is_void = !hosts.is_empty();
        for host in hosts.iter() {
            match self.has_equal_address(&host.name, lengths).await? {
                Some(true) => return Ok(true),
                Some(false) => is_void = false,
                None => {}
            }
        }
        if is_void { self.count_void_term() } else { Ok(false) }
    }

    /// Section 5.5.
    async fn matches_ptr(&mut self, target: &str) -> Evaluated<bool> {
        let names = self.client_names().await;
        let is_named = names.confirmed.iter().any(|name| is_within(name, target));
        if names.is_unnamed { self.count_void_term() } else { Ok(is_named) }
    }

    /// Section 5.7: an A record, whatever the client's family.
    async fn matches_exists(&mut self, target: &str) -> Evaluated<bool> {
        match self.lookup(target, QueryType::A).await? {
            Some(_) => Ok(true),
            None => self.count_void_term(),
        }
    }

    /// Whether a host has an address in the client's network. None: it has no address.
    async fn has_equal_address(&self, host: &str, lengths: PrefixLengths) -> Evaluated<Option<bool>> {
        let client = self.values.client;
        match self.lookup(host, address_query(client)).await? {
            Some(DnsAnswer::Addresses(addresses)) => {
                Ok(Some(addresses.iter().any(|address| lengths.are_equal(client, *address))))
            }
            _ => Ok(None),
        }
    }

    /// The domain that a term is about. None: no name that the DNS can have, or a local part that is
    /// not ASCII, with which nothing matches (RFC 8616 section 4).
    async fn target(&mut self, target: Option<&MacroString>, domain: &str) -> Evaluated<Option<Box<str>>> {
        let Some(target) = target else { return Ok(Some(domain.into())) };
        if target.has_validated_name() && self.client_names.is_none() {
            self.count_lookup_term()?;
        }
        Ok(self.expand(target, domain).await)
    }

    async fn expand(&mut self, target: &MacroString, domain: &str) -> Option<Box<str>> {
        if target.has_local_part() && !self.values.local_part.is_ascii() {
            return None;
        }
        target.expand_name(&self.values_for(target, domain).await)
    }

    /// `%{p}` (section 7.3): the domain itself, a name in it, or any name of the client.
    async fn validated_name(&mut self, domain: &str) -> &str {
        let names = &self.client_names().await.confirmed;
        let itself = names.iter().find(|name| ***name == *domain);
        let within = || names.iter().find(|name| is_within(name, domain));
        itself.or_else(within).or_else(|| names.first()).map_or("unknown", |name| &**name)
    }

    /// The names of the client, looked up once in a check.
    async fn client_names(&mut self) -> &ClientNames {
        let names = match self.client_names.take() {
            Some(names) => names,
            None => ClientNames::look_up(self.dns, self.values.client).await,
        };
        self.client_names.insert(names)
    }

    /// The records of a name. None: there are none.
    async fn lookup(&self, name: &str, kind: QueryType) -> Evaluated<Option<DnsAnswer>> {
        match self.dns.lookup(name, kind).await.answer {
            DnsAnswer::Unanswered(_) => Err(EvaluationError::Temporary),
            DnsAnswer::NoRecords | DnsAnswer::NoSuchName => Ok(None),
            answer => Ok(Some(answer)),
        }
    }

    fn count_lookup_term(&mut self) -> Evaluated<()> {
        self.lookup_terms += 1;
        if self.lookup_terms > LOOKUP_TERMS_MAX { Err(EvaluationError::Permanent) } else { Ok(()) }
    }

    /// Counts a term that does not match since its names have no records.
    fn count_void_term(&mut self) -> Evaluated<bool> {
        self.void_terms += 1;
        if self.void_terms > VOID_TERMS_MAX { Err(EvaluationError::Permanent) } else { Ok(false) }
    }
}

impl ClientNames {
    const UNKNOWN: ClientNames = ClientNames { confirmed: Vec::new(), is_unnamed: false };

    /// Errors of the DNS only hide names (section 5.5), and so does a late answer: the client chooses its
    /// name servers, which must not use up the time for the domain that it claims.
    async fn look_up(dns: &dyn DnsLookup, client: IpAddr) -> ClientNames {
        let deadline = Instant::now() + NAMES_TIME_MAX;
        let names = match timeout_at(deadline, reverse_names(dns, client)).await {
            Ok(ReverseNames::Named(names)) => names,
            Ok(ReverseNames::Unnamed) => return ClientNames { is_unnamed: true, ..ClientNames::UNKNOWN },
            Ok(ReverseNames::Unanswered) | Err(_) => return ClientNames::UNKNOWN,
        };
        let confirm = |name: Box<str>| async move {
            let has_address = timeout_at(deadline, has_address(dns, &name, client)).await;
            matches!(has_address, Ok(Some(true))).then_some(name)
        };
        let confirmed = join_all(names.into_iter().map(confirm)).await.into_iter().flatten().collect();
        ClientNames { confirmed, is_unnamed: false }
    }
}

impl HostVerdict {
    fn without(result: SpfResult) -> HostVerdict {
        HostVerdict { result, explanation: None }
    }
}

/// Whether a name is a domain or below it.
fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|below| below.is_empty() || below.ends_with('.'))
}

/// The time for the names of the client: a quarter of that for all.
const NAMES_TIME_MAX: Duration = Duration::from_secs(5);
/// RFC 7208 section 4.6.4.
const LOOKUP_TERMS_MAX: usize = 10;
/// RFC 7208 section 4.6.4.
const VOID_TERMS_MAX: usize = 2;
/// RFC 7208 section 4.6.4.
const MX_HOSTS_MAX: usize = 10;
