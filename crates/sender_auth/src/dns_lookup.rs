//! The DNS as this crate sees it: one question, one answer. The server has a [`Resolver`]; tests
//! have a map.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use dns::{CachedAnswer, DnsAnswer, QueryType, Resolver};

/// The answer to come.
pub type DnsFuture<'a> = Pin<Box<dyn Future<Output = CachedAnswer> + Send + 'a>>;

/// Who answers questions to the DNS.
pub trait DnsLookup: Send + Sync {
    /// The answer in the cache, if there is one. The name as for [`DnsLookup::lookup`].
    fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer>;

    /// Looks up a name, which is in lower case and has A-labels, without a trailing dot. Nothing is
    /// asked before the future is polled, and it ends the query when it is dropped.
    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a>;
}

impl DnsLookup for Resolver {
    fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer> {
        Resolver::cached(self, name, kind)
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        Box::pin(Resolver::lookup(self, name, kind))
    }
}

/// No answer, for this reason.
pub(crate) fn unanswered(why: &str) -> CachedAnswer {
    CachedAnswer { answer: DnsAnswer::Unanswered(why.into()), expires_at: Instant::now(), authenticated: false }
}
