//! A DNS for the targets of SPF: texts of two domains, one text for all other names, and a few hosts.
//! It refuses names that cannot be queried.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dns::{CachedAnswer, DnsAnswer, MxHost, QueryType};
use sender_auth::{DnsFuture, DnsLookup};

/// The answers, and how many queries there were.
pub(crate) struct Answers {
    records: [(&'static str, Vec<u8>); 2],
    other_text: Vec<u8>,
    queries: AtomicUsize,
}

impl Answers {
    /// The texts of two domains, and that of all others.
    pub(crate) fn new(records: [(&'static str, Vec<u8>); 2], other_text: Vec<u8>) -> Self {
        Answers { records, other_text, queries: AtomicUsize::new(0) }
    }

    /// The number of queries since the last call.
    #[allow(dead_code, reason = "not all targets count")]
    pub(crate) fn take_query_count(&self) -> usize {
        self.queries.swap(0, Ordering::Relaxed)
    }

    fn answer(&self, name: &str, kind: QueryType) -> DnsAnswer {
        let text = || self.records.iter().find(|(owner, _)| *owner == name).map_or(&self.other_text, |(_, text)| text);
        let host = |number: usize| MxHost { preference: 0, name: format!("mx{number}.example").into() };
        match kind {
            _ if name.starts_with("broken") => DnsAnswer::Unanswered("a fault".into()),
            _ if name.starts_with("no") => DnsAnswer::NoSuchName,
            QueryType::Txt => DnsAnswer::Texts([text().as_slice().into()].into()),
            QueryType::A => DnsAnswer::Addresses([[192, 0, 2, name.len() as u8].into()].into()),
            QueryType::Aaaa => DnsAnswer::NoRecords,
            QueryType::Mx => DnsAnswer::MxHosts((0..name.len() % 13).map(host).collect()),
            _ => DnsAnswer::Names((0..20).map(|number| host(number).name).collect()),
        }
    }
}

impl DnsLookup for Answers {
    fn cached(&self, _: &str, _: QueryType) -> Option<CachedAnswer> {
        None
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        assert!(name.is_ascii() && name.len() <= 253 && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
        assert!(name.split('.').all(|label| (1..=63).contains(&label.len())));
        self.queries.fetch_add(1, Ordering::Relaxed);
        let answer = self.answer(name, kind);
        Box::pin(async move { CachedAnswer { answer, expires_at: Instant::now(), authenticated: false } })
    }
}

/// Runs a check on a runtime of its own.
pub(crate) fn run<T>(check: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without sockets").block_on(check)
}
