//! Sender authentication: whether the client and the message are what they say they are.
//!
//! [`spf`] checks whether a domain lets a client send its mail (RFC 7208); [`iprev`] whether the
//! reverse name of a client leads back to it (RFC 8601 section 3); [`dkim`] which domains signed a
//! message (RFC 6376), [`arc`] who passed it on (RFC 8617), and [`dmarc`] whether all that confirms the
//! domain in From (RFC 9989). [`SenderAuth`] does it for incoming mail, as a check of `filter`.
//! [`signing`] signs mail that goes out (RFC 6376). [`srs`] makes senders of forwarded mail that pass
//! SPF, and finds the real ones again.
//! [`reports`] tells the owners of domains what was found about mail in their name.
//!
//! All questions to the DNS go through [`DnsLookup`], so that tests answer them from a map. An answer
//! that is missing is a temporary error, never a failure. Everything that comes from outside is
//! limited: signatures, sets, queries, sizes, times. Beyond a limit there is a verdict too.

pub mod arc;
mod body_hash;
mod canonical_form;
mod cfws;
mod check;
mod client_names;
mod counters;
pub mod dkim;
pub mod dmarc;
mod dns_lookup;
mod dns_thread;
pub mod fuzzing;
mod header_reader;
pub mod iprev;
mod message_header;
pub mod published_records;
mod query_limits;
pub mod reports;
mod results;
mod sender_check;
mod settings;
mod signatures;
pub mod signing;
pub mod spf;
pub mod srs;
mod tag_list;
mod verdicts;

pub use check::{SenderAuth, VerificationState};
pub use counters::{ReachedLimit, VerdictCounters};
pub use dns_lookup::{DnsFuture, DnsLookup};
pub use dns_thread::DnsThread;
pub use settings::{Method, MethodMode, VerdictAction, VerdictActions, VerificationSettings};
