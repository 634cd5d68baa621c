//! Sender authentication: whether the client and the message are what they say they are.
//!
//! [`spf`] checks whether a domain lets a client send its mail (RFC 7208); [`iprev`] whether the
//! reverse name of a client leads back to it (RFC 8601 section 3). [`srs`] makes senders of forwarded
//! mail that pass SPF, and finds the real ones again. All questions to the DNS go through
//! [`DnsLookup`], so that tests answer them from a map. An answer that is missing is a temporary
//! error, never a failure.

mod client_names;
mod dns_lookup;
pub mod iprev;
pub mod spf;
pub mod srs;

pub use dns_lookup::{DnsFuture, DnsLookup};
