//! A backend for LDAP servers (RFC 4511).
//!
//! If the filter and the server's schema allow matching entries to keys ([`FilterTemplate`],
//! `schema`), the keys of a request share one search. Otherwise each key has its own search,
//! pipelined on the same connection. A server error that concerns the whole search, such as busy or
//! a missing base, never means that a key does not exist: NotFound requires a search that ended
//! with success.
//!
//! If a server fails, the request is repeated once on the next one; if that fails too, so does the
//! request, with the server's URL and message. A busy server gets a short pause; meanwhile others
//! are asked, then the same one again. A request ends within two operation timeouts plus the
//! connect timeout. Keys without an answer by then are Unavailable.

mod batch_search;
mod ber;
mod connection;
mod key_result;
mod members;
mod message;
mod pool;
pub mod replica;
mod result;
mod schema;
mod search;
mod search_filter;
mod transport;
mod url;

pub use connection::{Connector, LdapBindMethod, LdapConnectionConfig, LdapSession, ResponseStream};
pub use message::{LdapControl, LdapResponse, LdapResult, SearchEntry, SearchRequest, Values};
pub use result::{ResultTemplate, ResultTemplateError};
pub use schema::{EqualityRule, is_printable_ascii};
pub use search_filter::{FilterError, FilterTemplate};
pub use url::{LdapUrl, LdapUrlError};

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use batch_search::BatchSearch;
use lookup::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};
use lookup::{CaCertificatesError, LookupAnswer};
use pool::{ConnectionPool, PooledConnection};
use search::{SearchError, Searcher};

/// The first pause for a busy server; each further pause is twice as long.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Decodes a message and reads all its parts. For fuzzing.
#[doc(hidden)]
pub fn read_message(octets: &[u8]) {
    let Ok((_, Some(response))) = message::decode(octets.into()) else { return };
    if let message::LdapResponse::Entry(entry) = response {
        let octets = entry.attributes().flat_map(|(_, values)| values.map(<[u8]>::len)).sum::<usize>();
        assert!(entry.dn().len() + octets <= entry.octet_count(), "the parts of an entry fit in its message");
    }
}

/// Configuration of an LDAP table.
#[derive(Clone, Debug, PartialEq)]
pub struct LdapConfig {
    /// The servers.
    pub servers: LdapConnectionConfig,
    /// The base DN of searches.
    pub base: Box<str>,
    /// The scope of searches.
    pub scope: SearchScope,
    /// The filter for a key.
    pub filter: FilterTemplate,
    /// The values of an answer. Empty: only the existence of an entry matters.
    pub results: Vec<ResultTemplate>,
    /// Groups whose members contribute values.
    pub members: Option<GroupMembersConfig>,
    /// Maximum values per key; a key with more is Unavailable.
    pub values_max: usize,
    /// Maximum entries that the search may find for a key, without members; a key with more is
    /// Unavailable. None: no limit.
    pub entries_max: Option<usize>,
    /// Whether to follow referrals, with the same credentials. They are never followed from a
    /// private connection (TLS or Unix socket) to one without TLS. If false, search references are
    /// ignored, so entries behind them are NotFound.
    pub referrals: bool,
}

impl LdapConfig {
    /// The default of `values_max`.
    pub const VALUES_MAX: usize = 1000;

    /// The timeout of a whole request: enough for one server that does not answer and a second one
    /// that does.
    fn request_timeout(&self) -> Duration {
        self.servers.timeout * 2 + self.servers.connect_timeout
    }

    /// Maximum entries of one group: its members and nested groups, which are rarely more than the
    /// members.
    fn group_entries_max(&self) -> usize {
        self.values_max.saturating_mul(2)
    }

    /// Whether values matter, and not only that an entry exists.
    pub(crate) fn asks_values(&self) -> bool {
        let of_members = |members: &GroupMembersConfig| members.results().next().is_some();
        !self.results.is_empty() || self.members.as_ref().is_some_and(of_members)
    }

    /// The attributes of results and members, possibly with duplicates.
    pub(crate) fn result_names(&self) -> impl Iterator<Item = &str> {
        let members = || self.members.iter().filter(|_| self.asks_values());
        let results = self.results.iter().chain(members().flat_map(GroupMembersConfig::results));
        let attributes = members().flat_map(|members| members.attributes.iter().map(|name| &**name));
        results.flat_map(ResultTemplate::attributes).chain(attributes)
    }
}

/// Groups, which name their members by DN.
///
/// | entry                     | its values                                                       |
/// |---------------------------|------------------------------------------------------------------|
/// | with a terminal result    | only the terminal results; its members are not read              |
/// | with members              | the results of the table; its members are read                   |
/// | without members           | the results of the table, and the leaf results                   |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembersConfig {
    /// The attributes with the members' DNs.
    pub attributes: Vec<Box<str>>,
    /// Results of entries without members.
    pub leaf_results: Vec<ResultTemplate>,
    /// Results that end the search for others in an entry that has them.
    pub terminal_results: Vec<ResultTemplate>,
    /// Maximum nesting; a key of a deeper group is Unavailable.
    pub depth_max: usize,
}

impl GroupMembersConfig {
    /// The default of `depth_max`.
    pub const DEPTH_MAX: usize = 5;

    /// All its results.
    fn results(&self) -> impl Iterator<Item = &ResultTemplate> {
        self.leaf_results.iter().chain(&self.terminal_results)
    }
}

/// The scope of a search (RFC 4511 section 4.5.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchScope {
    /// The base only.
    Base,
    /// The children of the base.
    One,
    /// The base and everything below it.
    #[default]
    Sub,
}

/// A text that names no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid scope '{0}': expected base, one or sub")]
pub struct SearchScopeError(Box<str>);

impl FromStr for SearchScope {
    type Err = SearchScopeError;

    fn from_str(text: &str) -> Result<Self, SearchScopeError> {
        match text {
            "base" => Ok(SearchScope::Base),
            "one" => Ok(SearchScope::One),
            "sub" => Ok(SearchScope::Sub),
            _ => Err(SearchScopeError(text.into())),
        }
    }
}

impl fmt::Display for SearchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SearchScope::Base => "base",
            SearchScope::One => "one",
            SearchScope::Sub => "sub",
        })
    }
}

/// The LDAP backend of one table.
pub struct Ldap {
    config: LdapConfig,
    pool: ConnectionPool,
    /// The key that probes use: one that was answered, otherwise the last one requested.
    sample: RefCell<ProbeSample>,
}

#[derive(Default)]
struct ProbeSample {
    key: Option<Box<str>>,
    is_answered: bool,
}

impl Ldap {
    /// Creates the backend without connecting. Keeps up to `concurrency` idle connections.
    pub fn new(config: LdapConfig, concurrency: usize) -> Result<Ldap, LdapConfigError> {
        let key_names = config.filter.key_attributes().unwrap_or_default();
        let names = config.result_names().chain(key_names).map(Into::into).collect();
        let pool = ConnectionPool::new(config.servers.clone(), names, concurrency)?;
        Ok(Ldap { config, pool, sample: RefCell::default() })
    }

    async fn answers(&self, keys: &[Box<str>]) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let answered = self.answer_within_deadline(keys).await;
        self.update_sample(keys, &answered);
        answered
    }

    /// Prefers a key that was answered: a failure may be due to the key.
    fn update_sample(&self, keys: &[Box<str>], answered: &Result<Vec<LookupAnswer>, BackendFailure>) {
        let is_certain = |answer: &LookupAnswer| matches!(answer, LookupAnswer::Found(_) | LookupAnswer::NotFound);
        let place = answered.as_ref().ok().and_then(|answers| answers.iter().position(is_certain));
        let mut sample = self.sample.borrow_mut();
        if place.is_some() || !sample.is_answered {
            let key = keys.get(place.unwrap_or_default()).cloned();
            *sample = ProbeSample { key, is_answered: place.is_some() };
        }
    }

    /// Keeps all answers received before an error or timeout. Fails only if there are none.
    async fn answer_within_deadline(&self, keys: &[Box<str>]) -> Result<Vec<LookupAnswer>, BackendFailure> {
        let answers = RefCell::new(vec![None; keys.len()]);
        let within = self.config.request_timeout();
        let failure = match tokio::time::timeout(within, self.answer_with_retry(&answers, keys)).await {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) => {
                let what = format!("not all keys answered within {} s", within.as_secs_f64());
                Some(BackendFailure::new(self.config.servers.urls[0].to_string(), what))
            }
        };
        let answers = answers.into_inner();
        match failure {
            Some(failure) if answers.iter().all(Option::is_none) => Err(failure),
            failure => {
                let why = failure.map(|failure| failure.to_string()).unwrap_or_default();
                Ok(answers
                    .into_iter()
                    .map(|answer| answer.unwrap_or_else(|| LookupAnswer::Unavailable(why.clone())))
                    .collect())
            }
        }
    }

    async fn answer_with_retry(
        &self,
        answers: &RefCell<Vec<Option<LookupAnswer>>>,
        keys: &[Box<str>],
    ) -> Result<(), BackendFailure> {
        let (began, mut pause) = (Instant::now(), BUSY_PAUSE_MIN);
        let mut is_second = false;
        let mut pooled = self.pool.take().await?;
        loop {
            let searcher = self.searcher(&pooled);
            let batch = BatchSearch { config: &self.config, searcher, schema: &pooled.schema, answers };
            match batch.answer(keys).await {
                // An idle connection may have been closed, or the server is down and another one
                // works.
                Err(trouble @ (SearchError::ServerFailed(_) | SearchError::TimedOut(_))) => {
                    self.pool.drop_as_failed(pooled);
                    if is_second {
                        return Err(trouble.into());
                    }
                    is_second = true;
                    pooled = self.pool.open().await?;
                }
                Err(SearchError::Busy(failure)) => {
                    self.pool.put_back_as_busy(pooled);
                    if self.pool.is_all_down() {
                        if began.elapsed() + pause > self.pool.timeout() {
                            return Err(failure);
                        }
                        tokio::time::sleep(pause).await;
                        pause *= 2;
                    }
                    pooled = self.pool.take().await?;
                }
                ended => {
                    self.pool.put_back(pooled);
                    return Ok(ended?);
                }
            }
        }
    }

    /// Probes all servers at once with a search like those of requests, because the first server
    /// may take long to fail.
    async fn probe_all(&self) -> Result<(), BackendFailure> {
        let mut probes: FuturesUnordered<_> =
            self.pool.connect_each().map(async |pooled| self.probe_connection(pooled.await?).await).collect();
        let mut failure = None;
        while let Some(probed) = probes.next().await {
            match probed {
                Ok(()) => return Ok(()),
                Err(why) => failure = Some(why),
            }
        }
        Err(failure.expect("a connector has at least one server"))
    }

    /// A missing base or an unsuitable key does not mean that the server is down.
    async fn probe_connection(&self, pooled: PooledConnection) -> Result<(), BackendFailure> {
        let filter = self.sample.borrow().key.as_deref().and_then(|key| self.config.filter.for_key(key));
        let filter = filter.unwrap_or_else(|| search_filter::present("objectClass"));
        let search = SearchRequest {
            base: &self.config.base,
            scope: self.config.scope,
            filter: &filter,
            attributes: &[],
            controls: &[],
        };
        match self.searcher(&pooled).run(&search, &mut |_| false).await {
            Ok(_) => {
                self.pool.put_back_as_working(pooled);
                Ok(())
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    fn searcher<'a>(&'a self, pooled: &'a PooledConnection) -> Searcher<'a> {
        Searcher { session: &pooled.session, connector: &self.pool.connector, referrals: self.config.referrals }
    }
}

impl Backend for Ldap {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(self.answers(keys))
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(self.probe_all())
    }
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LdapConfigError {
    /// There are no servers.
    #[error("no server URL")]
    NoServer,
    /// A bind that servers would treat as anonymous.
    #[error("empty password: servers treat the bind as anonymous (RFC 4513 section 5.1.2)")]
    EmptyPassword,
    /// CA certificates are missing or invalid.
    #[error(transparent)]
    Trust(#[from] CaCertificatesError),
}
