//! A directory that speaks LDAP (RFC 4511), as a backend.
//!
//! Keys are asked together in one search wherever the shape of the filter and the schema of the server let answers find
//! their keys again ([`Filter`], `schema`); otherwise in one search each, pipelined on the same connection. What a server
//! says about a search as a whole (it is busy, it has no such base, it may not be asked) is never taken for the absence
//! of a key: NotFound is said only after a search that the server ended with success.
//!
//! A server that fails is left for the next one of the list, and the question is put once more; only when that fails too
//! does the request fail, with the URL of the server and its own words. One that is busy is left in peace for a moment:
//! others are asked meanwhile, or else the same again. A request ends within twice the time of an operation and the time
//! to connect, by the answers that are there; the other keys are Unavailable.

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

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use crate::Answer;
use crate::backend::{Asked, Backend, Failure, Probed};
use ask::Asking;
use connection::Search;
use pool::{Pool, Pooled};
use search::{Searcher, Trouble};

/// How long a server that is busy is left in peace at first; twice as long each time.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads octets as a message from a server, and all that is in it: whatever they are, it ends. For fuzzing.
#[doc(hidden)]
pub fn read_message(octets: &[u8]) {
    let Ok((_, Some(response))) = message::decode(octets.into()) else { return };
    if let message::Response::Entry(entry) = response {
        let octets = entry.attributes().flat_map(|(_, values)| values.map(<[u8]>::len)).sum::<usize>();
        assert!(entry.dn().len() + octets <= entry.len(), "what is in a message is a part of it");
    }
}

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

    /// How long a request may take, of however many operations it consists: as long as one that a server does not answer
    /// and that the next one does.
    fn request_max(&self) -> Duration {
        self.servers.timeout * 2 + self.servers.connect_timeout
    }

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
    /// A key of the last request that was answered, and else of the last one: what is asked to see whether it works.
    sample: RefCell<Sample>,
}

#[derive(Default)]
struct Sample {
    key: Option<Box<str>>,
    is_answered: bool,
}

impl Ldap {
    /// Asks as `config` says. Of the connections of requests that are under way at once `concurrency` are kept for the
    /// next ones. Connects to nobody yet.
    pub fn new(config: Config, concurrency: usize) -> Result<Ldap, LdapError> {
        let key_names = config.filter.key_attributes().unwrap_or_default();
        let names = config.result_names().chain(key_names).map(Into::into).collect();
        let pool = Pool::new(config.servers.clone(), names, concurrency)?;
        Ok(Ldap { config, pool, sample: RefCell::default() })
    }

    async fn answers(&self, keys: &[Box<str>]) -> Result<Vec<Answer>, Failure> {
        let answered = self.answers_anywhere(keys).await;
        self.take_sample(keys, &answered);
        answered
    }

    /// One that could be answered is better than one that failed: that may have been a matter of the key.
    fn take_sample(&self, keys: &[Box<str>], answered: &Result<Vec<Answer>, Failure>) {
        let is_certain = |answer: &Answer| matches!(answer, Answer::Found(_) | Answer::NotFound);
        let place = answered.as_ref().ok().and_then(|answers| answers.iter().position(is_certain));
        let mut sample = self.sample.borrow_mut();
        if place.is_some() || !sample.is_answered {
            let key = keys.get(place.unwrap_or_default()).cloned();
            *sample = Sample { key, is_answered: place.is_some() };
        }
    }

    /// Answers that are there when the request ends stand, however it does; it failed if there are none.
    async fn answers_anywhere(&self, keys: &[Box<str>]) -> Result<Vec<Answer>, Failure> {
        let answers = RefCell::new(vec![None; keys.len()]);
        let within = self.config.request_max();
        let failure = match tokio::time::timeout(within, self.answer_into(&answers, keys)).await {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) => {
                let what = format!("not all is answered within {} s", within.as_secs_f64());
                Some(Failure::new(self.config.servers.urls[0].to_string(), what))
            }
        };
        let answers = answers.into_inner();
        match failure {
            Some(failure) if answers.iter().all(Option::is_none) => Err(failure),
            failure => {
                let why = failure.map(|failure| failure.to_string()).unwrap_or_default();
                Ok(answers
                    .into_iter()
                    .map(|answer| answer.unwrap_or_else(|| Answer::Unavailable(why.clone())))
                    .collect())
            }
        }
    }

    async fn answer_into(&self, answers: &RefCell<Vec<Option<Answer>>>, keys: &[Box<str>]) -> Result<(), Failure> {
        let (began, mut pause) = (Instant::now(), PAUSE);
        let mut is_second = false;
        let mut pooled = self.pool.take().await?;
        loop {
            let searcher = self.searcher(&pooled);
            let asking = Asking { config: &self.config, searcher, schema: &pooled.schema, answers };
            match asking.answer(keys).await {
                // Its connection may have been closed while nobody used it; and where the server is down there may be
                // others.
                Err(trouble @ (Trouble::Server(_) | Trouble::Late(_))) => {
                    self.pool.give_up(pooled);
                    if is_second {
                        return Err(trouble.into());
                    }
                    is_second = true;
                    pooled = self.pool.open().await?;
                }
                Err(Trouble::Busy(failure)) => {
                    self.pool.give_rest(pooled);
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
                    self.pool.give_back(pooled);
                    return Ok(ended?);
                }
            }
        }
    }

    /// Whether a request would be answered: asks what requests ask, of all servers at once, as the first of them may be
    /// long in failing.
    async fn probe_all(&self) -> Result<(), Failure> {
        let mut probes: FuturesUnordered<_> =
            self.pool.each().map(async |pooled| self.probe_by(pooled.await?).await).collect();
        let mut failure = None;
        while let Some(probed) = probes.next().await {
            match probed {
                Ok(()) => return Ok(()),
                Err(why) => failure = Some(why),
            }
        }
        Err(failure.expect("there is a server, or there would be no connector"))
    }

    /// Where the base is not there, or the key cannot be a value, the server works all the same.
    async fn probe_by(&self, pooled: Pooled) -> Result<(), Failure> {
        let filter = self.sample.borrow().key.as_deref().and_then(|key| self.config.filter.one(key));
        let filter = filter.unwrap_or_else(|| filter::present("objectClass"));
        let search = Search {
            base: &self.config.base,
            scope: self.config.scope,
            filter: &filter,
            attributes: &[],
            controls: &[],
        };
        match self.searcher(&pooled).run(&search, &mut |_| false).await {
            Ok(_) => {
                self.pool.set_up(pooled);
                Ok(())
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    fn searcher<'a>(&'a self, pooled: &'a Pooled) -> Searcher<'a> {
        Searcher { session: &pooled.session, connector: &self.pool.connector, referrals: self.config.referrals }
    }
}

impl Backend for Ldap {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a> {
        Box::pin(self.answers(keys))
    }

    fn probe(&self) -> Probed<'_> {
        Box::pin(self.probe_all())
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
