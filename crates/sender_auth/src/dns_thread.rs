//! A resolver for many threads: it answers from the cache at once, and queries on a thread of its own,
//! to whose runtime its sockets belong.

use std::io;
use std::sync::Arc;
use std::thread;

use dns::{CachedAnswer, QueryType, Resolver};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::dns_lookup::{DnsFuture, DnsLookup, unanswered};

/// A resolver and its thread, which ends when this is dropped.
pub struct DnsThread {
    resolver: Arc<Resolver>,
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl DnsThread {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread or no event queue left.
    pub fn start(resolver: Resolver) -> io::Result<DnsThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            // The sender is dropped, never used.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        thread::Builder::new().name("sender-auth-dns".to_owned()).spawn(run)?;
        Ok(DnsThread { resolver: Arc::new(resolver), runtime: handle, _stop: stop })
    }
}

impl DnsLookup for DnsThread {
    fn cached(&self, name: &str, kind: QueryType) -> Option<CachedAnswer> {
        self.resolver.cached(name, kind)
    }

    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        Box::pin(async move {
            if let Some(cached) = self.resolver.cached(name, kind) {
                return cached;
            }
            let (resolver, name) = (self.resolver.clone(), name.to_owned());
            let mut query = QueryTask(self.runtime.spawn(async move { resolver.lookup(&name, kind).await }));
            (&mut query.0).await.unwrap_or_else(|_| unanswered("the resolver has stopped"))
        })
    }
}

/// A query on the thread; dropping it ends the query, or its wait for others.
struct QueryTask(JoinHandle<CachedAnswer>);

impl Drop for QueryTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use dns::{QueryConfig, ResolverConfig};
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn queries_begin_when_they_are_polled_and_end_when_they_are_dropped() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let servers = vec![silent.local_addr().unwrap()];
        let query = QueryConfig { servers, concurrency_max: 1, ..QueryConfig::default() };
        let resolver = Resolver::new(&ResolverConfig { query, ..ResolverConfig::default() }).unwrap();
        let dns = DnsThread::start(resolver).unwrap();
        let names: Vec<String> = (0..50).map(|number| format!("slow{number}.example")).collect();
        let mut lookups = join_all(names.iter().map(|name| dns.lookup(name, QueryType::Txt)));
        let running = || dns.runtime.metrics().num_alive_tasks();
        assert_eq!(running(), 0);
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut lookups).await.is_err());
        assert!(running() >= 50);
        drop(lookups);
        // The socket of the one that was sent has tasks of its own.
        let ended = async {
            while running() > 5 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(4), ended).await.is_ok(), "{} run", running());
    }
}
