//! Settings of single next hops.

use mail::Rate;
use route::DomainPattern;

/// Settings of a next hop that replace those of its transport. None: keep the transport's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopSettings {
    /// A pattern for the name of any of its hosts.
    pub host: DomainPattern,
    /// Concurrent connections; at least 1.
    pub connections_max: Option<usize>,
    /// Messages per time.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: Option<u32>,
    /// Recipients of one transaction.
    pub recipients_per_message_max: Option<usize>,
}
