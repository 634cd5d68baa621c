//! Reads what is stored: mailboxes by POP3 and HTTP, files by HTTP, and mailboxes on other hosts
//! through a proxy.
//!
//! Each protocol is a [`RetrievalProtocol`] behind a [`RetrievalListener`], which is a
//! [`net::Service`]: admission, PROXY headers and TLS are the same for all. Users log in with the
//! credentials of submission. This crate does not know tables or the configuration: where a
//! mailbox is, a [`MailboxLocator`] says.
//!
//! | step | checks | the client gets |
//! |---|---|---|
//! | connect | load, sessions, connection rate | a refusal in its protocol's words |
//! | login | credentials, the throttle | the protocol's reply to a failed login |
//! | open | the mailbox's host, its lock | a temporary failure |
//!
//! Nothing here is fatal: a file that cannot be read ends its own request.

mod context;
mod counters;
pub mod http;
mod monitor;
pub mod pop3;
pub mod proxy;
mod service;

pub use context::{MailboxHome, MailboxLocator, RetrievalContext};
pub use counters::RetrievalCounters;
pub use monitor::{RetrievalMonitor, RetrievalStats};
pub use service::{RetrievalListener, RetrievalProtocol};
