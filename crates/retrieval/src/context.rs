//! What the sessions of all protocols share.

use std::path::PathBuf;
use std::sync::Arc;

use credentials::CredentialChecker;
use futures_util::future::BoxFuture;
use load::LoadMonitorHandle;
use mail::{EventLog, Networks, OperatorLog};
use net::{ChallengeStore, ConnectionLimiter, TlsHandshakeCounters};

use crate::RetrievalCounters;

/// Services and policy of retrieval.
pub struct RetrievalContext {
    /// The name of this server, for greetings.
    pub hostname: Box<str>,
    /// Checks passwords; None: no one can log in.
    pub credentials: Option<CredentialChecker>,
    /// Where mailboxes are.
    pub mailboxes: Arc<dyn MailboxLocator>,
    /// The current load of the machine.
    pub load: LoadMonitorHandle,
    /// Counts sessions, and enforces the limits of single clients.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// Counts what clients get.
    pub counters: Arc<RetrievalCounters>,
    /// Counts TLS handshakes.
    pub tls_handshakes: Arc<TlsHandshakeCounters>,
    /// The answers to certificate authorities.
    pub challenges: Arc<ChallengeStore>,
    /// Clients admitted even under high load.
    pub reserved_networks: Networks,
    /// Clients that are exempt from the limits of single clients.
    pub trusted_networks: Networks,
    /// Where events are logged.
    pub event_log: Arc<dyn EventLog>,
    /// Logs the causes of failures, which clients are not told.
    pub operator_log: Arc<dyn OperatorLog>,
}

/// Finds the mailboxes of users.
pub trait MailboxLocator: Send + Sync {
    /// Where the mailbox of a user is. The user has logged in, under this name as a table key.
    fn locate<'a>(&'a self, user: &'a str) -> BoxFuture<'a, MailboxHome>;
}

/// Where a mailbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailboxHome {
    /// On this host: the folder of its Maildir, which may not exist yet.
    Here(PathBuf),
    /// On another host: `host`, `host:port`, or the same with an address in brackets.
    OtherHost(Box<str>),
    /// The user has no mailbox.
    Unknown,
    /// A table is unavailable. Holds the reason, for the log.
    Unavailable(String),
}
