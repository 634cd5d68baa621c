//! A resolver for many threads: it answers from the cache at once, and queries on a thread of its own,
//! to whose runtime its sockets belong.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::thread;

use dns::{QueryType, Resolver};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

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
    fn lookup<'a>(&'a self, name: &'a str, kind: QueryType) -> DnsFuture<'a> {
        if let Some(cached) = self.resolver.cached(name, kind) {
            return Box::pin(ready(cached));
        }
        let (resolver, name) = (self.resolver.clone(), name.to_owned());
        let answer = self.runtime.spawn(async move { resolver.lookup(&name, kind).await });
        Box::pin(async move { answer.await.unwrap_or_else(|_| unanswered("the resolver has stopped")) })
    }
}
