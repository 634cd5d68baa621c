//! The DNS for the whole server: one policy for name servers, one reading of their answers.
//!
//! A [`Resolver`] answers from its cache, shares concurrent queries, and bounds their number and
//! time. [`NameServers`] is the same without cache, for callers that keep the answers themselves.
//! Both treat an answer that is invalid, or none, as [`DnsAnswer::Unanswered`], never as a denial.
//! Sockets belong to the tokio runtime of the first query, so each value must stay on one runtime.

mod config;
mod edns;
mod name;
mod name_servers;
mod records;
mod resolver;
mod response;

pub use config::{AddressFamilies, QueryConfig, ResolverConfig};
pub use name::{reverse_name, reversed_labels, to_ascii};
pub use name_servers::{NameServerAnswer, NameServers, NameServersError};
pub use records::{DnsAnswer, MxHost, QueryType, TlsaRecord};
pub use resolver::{CachedAnswer, HostAddresses, Resolver};
pub use response::parse_message;
