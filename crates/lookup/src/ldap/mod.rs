//! A directory that speaks LDAP (RFC 4511), as a backend.
//!
//! Keys are asked together in one search wherever the shape of the filter and the schema of the server let answers find
//! their keys again ([`Filter`], `schema`); otherwise in one search each, pipelined on the same connection. What a server
//! says about a search as a whole (it is busy, it has no such base, it may not be asked) is never taken for the absence
//! of a key: NotFound is said only after a search that the server ended with success.
//!
//! A server that fails is left for the next one of the list, and the question is put once more; only when that fails too
//! does the request fail, with the URL of the server and its own words.

mod ask;
pub(crate) mod ber;
pub(crate) mod connection;
mod filter;
mod members;
mod message;
mod pool;
mod result;
pub(crate) mod schema;
mod search;
mod slot;
mod transport;
mod url;

pub use connection::{Bind, Servers};
pub use filter::{Filter, FilterError};
pub use result::{ResultTemplate, ResultTemplateError};
pub use transport::TrustError;
pub use url::{Url, UrlError};

use std::fmt;
use std::str::FromStr;

use crate::Answer;
use crate::backend::{Asked, Backend, Failure, Probed};
use ask::Asking;
use connection::Search;
use pool::{Pool, Pooled};
use search::{Searcher, Trouble};

/// How one table asks its directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Who is asked.
    pub servers: Servers,
    /// The DN from which searches start.
    pub base: Box<str>,
    /// How far they go.
    pub scope: Scope,
    /// Which entries a key finds.
    pub filter: Filter,
    /// What the values of an answer are made of; none: that there is an entry is all there is to say.
    pub results: Vec<ResultTemplate>,
    /// Groups whose members give values too.
    pub members: Option<Members>,
    /// Values of one answer; a key with more is Unavailable.
    pub values_max: usize,
    /// Whether referrals to other servers are followed, with the same credentials; never from a connection that nobody
    /// can listen to (TLS, a socket of this machine) to one that has no TLS. Otherwise references beside entries are
    /// passed over: what is behind them is NotFound.
    pub referrals: bool,
}

impl Config {
    /// Values of one answer, unless the configuration says otherwise.
    pub const VALUES_MAX: usize = 1000;

    /// Entries of one group. People and the groups among them: of these there are seldom more than of those.
    fn reads_max(&self) -> usize {
        self.values_max.saturating_mul(2)
    }

    /// The attributes that results and members are in; some may be there twice.
    pub(crate) fn result_names(&self) -> impl Iterator<Item = &str> {
        let members = self.members.iter().filter(|_| !self.results.is_empty()).map(|members| &*members.attribute);
        self.results.iter().flat_map(ResultTemplate::attributes).chain(members)
    }
}

/// Groups: entries that name others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The attribute whose values are the DNs of members.
    pub attribute: Box<str>,
    /// Groups within groups: a group that goes deeper is Unavailable.
    pub depth_max: usize,
}

impl Members {
    /// Groups within groups, unless the configuration says otherwise.
    pub const DEPTH_MAX: usize = 5;
}

/// How far a search goes from its base (RFC 4511 section 4.5.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The base alone.
    Base,
    /// What is directly under it.
    One,
    /// It and everything under it.
    #[default]
    Sub,
}

/// A text is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no scope: expected base, one or sub")]
pub struct ScopeError(Box<str>);

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        match text {
            "base" => Ok(Scope::Base),
            "one" => Ok(Scope::One),
            "sub" => Ok(Scope::Sub),
            _ => Err(ScopeError(text.into())),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::Base => "base",
            Scope::One => "one",
            Scope::Sub => "sub",
        })
    }
}

/// The directory as one table sees it.
pub struct Ldap {
    config: Config,
    pool: Pool,
}

impl Ldap {
    /// Asks as `config` says. Of the connections of requests that are under way at once `concurrency` are kept for the
    /// next ones. Connects to nobody yet.
    pub fn new(config: Config, concurrency: usize) -> Result<Ldap, LdapError> {
        let key_names = config.filter.key_attributes().unwrap_or_default();
        let names = config.result_names().chain(key_names).map(Into::into).collect();
        let pool = Pool::new(config.servers.clone(), names, concurrency)?;
        Ok(Ldap { config, pool })
    }

    async fn answers(&self, keys: &[Box<str>]) -> Result<Vec<Answer>, Failure> {
        match self.answers_by(self.pool.take().await?, keys).await {
            // Its connection may have been closed while nobody used it; and where the server is down there may be others.
            Err(Trouble::Server(_)) => Ok(self.answers_by(self.pool.open().await?, keys).await?),
            answered => Ok(answered?),
        }
    }

    async fn answers_by(&self, pooled: Pooled, keys: &[Box<str>]) -> Result<Vec<Answer>, Trouble> {
        let searcher = self.searcher(&pooled);
        let answers = Asking { config: &self.config, searcher, schema: &pooled.schema }.answers(keys).await;
        self.put_away(pooled, &answers);
        answers
    }

    /// Whether the base can be asked for; not whether it is there, which no working server helps.
    async fn probe_base(&self) -> Result<(), Failure> {
        let pooled = self.pool.take().await?;
        let filter = filter::present("objectClass");
        let base = &self.config.base;
        let search = Search { base, scope: Scope::Base, filter: &filter, attributes: &[], controls: &[] };
        let ended = self.searcher(&pooled).run(&search, &mut |_| true).await;
        self.put_away(pooled, &ended);
        Ok(ended.map(drop)?)
    }

    fn searcher<'a>(&'a self, pooled: &'a Pooled) -> Searcher<'a> {
        Searcher { session: &pooled.session, connector: &self.pool.connector, referrals: self.config.referrals }
    }

    fn put_away<T>(&self, pooled: Pooled, ended: &Result<T, Trouble>) {
        match ended {
            Err(Trouble::Server(_)) => self.pool.give_up(pooled),
            _ => self.pool.give_back(pooled),
        }
    }
}

impl Backend for Ldap {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a> {
        Box::pin(self.answers(keys))
    }

    fn probe(&self) -> Probed<'_> {
        Box::pin(self.probe_base())
    }
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LdapError {
    /// Nobody to ask.
    #[error("no URL of a server")]
    NoServer,
    /// A bind that servers would take for a bind as nobody.
    #[error("an empty password, which servers take for a bind as nobody (RFC 4513 section 5.1.2)")]
    EmptyPassword,
    /// TLS without certificates of authorities.
    #[error(transparent)]
    Trust(#[from] TrustError),
}
