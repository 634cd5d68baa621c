//! What the text says of the network beside the routes: what single next hops get, and how names are looked up.

use std::net::SocketAddr;
use std::time::Duration;

use route::Pattern;

use super::Rate;

/// What a next hop gets beside its transport's settings. None leaves these as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The name of any of its hosts.
    pub host: Pattern,
    /// Connections at once; at least 1.
    pub connections_max: Option<usize>,
    /// Messages in a time.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: Option<u32>,
    /// Recipients of one transaction.
    pub recipients_per_message_max: Option<usize>,
}

/// How names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Who is asked; none: those that the system names.
    pub servers: Vec<SocketAddr>,
    /// How long one of them may take.
    pub timeout: Duration,
    /// How often each question is asked.
    pub attempts: usize,
    /// Answers that are remembered.
    pub cache_entries: usize,
    /// The longest that an answer is remembered.
    pub ttl_max: Duration,
    /// The longest that is remembered that there is no answer.
    pub negative_ttl_max: Duration,
    /// After so many lookups without an address for any MX host of a domain, its mail bounces; 0: it waits.
    pub no_address_lookups: u32,
    /// The first and the last of them are so far apart at least.
    pub no_address_time: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            cache_entries: 100_000,
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(300),
            no_address_lookups: 3,
            no_address_time: Duration::from_secs(30 * 60),
        }
    }
}
