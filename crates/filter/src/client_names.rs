//! The names of clients, which programs outside are told.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

/// The name of a client without a confirmed name, as in Postfix.
pub(crate) const UNKNOWN: &str = "unknown";

/// The name of a client to come; None: it has none that is confirmed.
pub type ClientNameFuture<'a> = Pin<Box<dyn Future<Output = Option<Box<str>>> + Send + 'a>>;

/// Finds the names of clients.
pub trait ClientNames: Send + Sync {
    /// The name of an address that has this address (RFC 8601 section 3).
    fn name(&self, client: IpAddr) -> ClientNameFuture<'_>;
}
