//! The DNS as a map; names that are not in it do not exist.

use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use dns::{CachedAnswer, DnsAnswer, QueryType};
use sender_auth::{DnsFuture, DnsLookup};

#[derive(Default)]
pub(crate) struct DnsMap {
    records: HashMap<(String, QueryType), DnsAnswer>,
    /// Names whose answers never come from a cache.
    uncached: bool,
    /// The name whose server drops all queries.
    dropped: Option<String>,
    pub(crate) queries: AtomicUsize,
}

impl DnsMap {
    pub(crate) fn txt(mut self, name: &str, record: &str) -> DnsMap {
        let answer = DnsAnswer::Texts([record.as_bytes().into()].into());
        self.records.insert((name.to_owned(), QueryType::Txt), answer);
        self
    }

    pub(crate) fn a(mut self, name: &str) -> DnsMap {
        let address = "192.0.2.7".parse().unwrap();
        self.records.insert((name.to_owned(), QueryType::A), DnsAnswer::Addresses([address].into()));
        self
    }

    /// The DNS does not answer for this name.
    pub(crate) fn silent(mut self, name: &str) -> DnsMap {
        self.records.insert((name.to_owned(), QueryType::Txt), DnsAnswer::Unanswered("silent".into()));
        self
    }

    /// The server of this name drops queries, for longer than anybody waits.
    pub(crate) fn dropping(mut self, name: &str) -> DnsMap {
        self.dropped = Some(name.to_owned());
        self
    }

    /// Each answer takes a moment, as from a name server.
    pub(crate) fn uncached(mut self) -> DnsMap {
        self.uncached = true;
        self
    }

    fn answer(&self, name: &str, kind: QueryType) -> CachedAnswer {
        self.queries.fetch_add(1, Relaxed);
        let answer = self.records.get(&(name.to_owned(), kind)).cloned().unwrap_or(DnsAnswer::NoSuchName);
        CachedAnswer { answer, expires_at: Instant::now(), authenticated: false }
    }
}

impl DnsLookup for DnsMap {
    fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer> {
        let is_cached = !self.uncached && self.dropped.as_deref() != Some(name);
        is_cached.then(|| self.answer(name, kind))
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        if self.dropped.as_deref() == Some(name) {
            self.queries.fetch_add(1, Relaxed);
            return Box::pin(std::future::pending());
        }
        match self.uncached {
            false => Box::pin(ready(self.answer(name, kind))),
            true => Box::pin(async move {
                tokio::task::yield_now().await;
                self.answer(name, kind)
            }),
        }
    }
}
