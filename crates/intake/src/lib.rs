//! Receives mail: answers a client's commands from the directory and the policy, submits the
//! message to the spool, and sends the reply that takes responsibility for it (RFC 5321 section
//! 6.1) once it is durable.
//!
//! | step | checks | negative replies |
//! |---|---|---|
//! | connect | load, a drain before a stop, sessions, connection rate | 421 4.3.2, 421 4.7.0 |
//! | | silence before the greeting, access rules | 554 5.5.1, 554 5.7.1 |
//! | HELO | access rules | 550 5.7.1 |
//! | AUTH | credentials | 535 5.7.8, 454 4.7.0 |
//! | MAIL | a drain, disk space, memory, message rate | 421 4.3.2, 452 4.3.1, 451 4.7.1 |
//! | | access rules, owner of the sender | 550 5.7.1, 553 5.7.1, 451 4.3.0 |
//! | RCPT | access rules, relaying | 550 5.7.1, 454 4.7.1, 550 5.1.2 |
//! | | directory, alias expansion | 550 5.1.1, 451 4.3.0, 452 4.5.3 |
//! | | senders of forwarded mail (SRS) | 550 5.1.1, 550 5.7.1 |
//! | | quota | 452 4.2.2, 552 5.2.2 |
//! | DATA | memory for the body | 452 4.3.1 |
//! | end of data | the spool | 452 4.3.1, 451 4.3.0, 552 5.3.4, 421 4.3.2 |
//!
//! Policy services and milters are asked after the access rules of each stage, at RCPT after everything
//! else, and at DATA and the end of data. They may choose any reply, 4xx or 5xx.
//!
//! Mail of local programs, in the [`drop_folder`], takes the same steps from RCPT on, as far as they
//! do not depend on a client: the module `transaction` has them for both.
//!
//! After the 354 reply only the spool or a check can refuse a message, or the protocol if the message
//! breaks its rules or arrives too slowly: load never interrupts a message. This crate does not know how
//! messages are delivered, and makes no DNS lookups for remote recipients.

mod body;
mod commit_notifier;
pub mod drop_folder;
mod listener_counters;
mod logins;
mod message_check;
mod missing_fields;
mod quota_check;
mod received_line;
mod recipient_lookup;
mod recipients;
mod refusals;
mod replies;
mod service;
mod session;
mod session_checks;
mod session_stages;
mod throttled_log;
mod transaction;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use filter::CheckChain;
use filter::greylist::GreylistFile;
use filter::limits::RateLimits;
use filter::rewrite::AddressRewriter;
use listener_counters::CountedSession;
use load::{AllowedClients, LoadMonitorHandle, LoadRestrictions, Shortage};
use lookup::directory::RecipientDirectory;
use mail::{Address, EventLog, HistogramRecorder, MailEvent, Networks, OperatorLog, QuotaCheck};
use net::{ConnectionLimiter, GreetingDelays, SessionPermit, TlsHandshakeCounters, TlsServer};
use protocol::smtp::server::SmtpServerConfig as Machine;
use spool::Spool;

pub use body::BodyMemoryBudget;
pub use commit_notifier::CommitNotifier;
pub use filter::access::DomainMatcher;
pub use listener_counters::{ListenerCounters, ListenerCounts, ListenerMonitor};
pub use logins::LoginPolicy;
pub use refusals::{RefusalCounters, ResourceRefusal};
pub use throttled_log::ThrottledLog;

/// What all sessions share: services and policy.
pub struct IntakeContext {
    /// Stores the messages.
    pub spool: Arc<Spool>,
    /// Resolves local addresses.
    pub directory: Arc<RecipientDirectory>,
    /// Where events are logged.
    pub event_log: Arc<dyn EventLog>,
    /// Whether the log includes the subjects of messages.
    pub logs_subjects: bool,
    /// Logs the causes of failures, which clients are not told.
    pub operator_log: Arc<dyn OperatorLog>,
    /// The current load of the machine.
    pub load: LoadMonitorHandle,
    /// Counts sessions, and enforces the limits of single clients.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// Clients that wait before the greeting.
    pub greeting_delays: Arc<GreetingDelays>,
    /// Counts refusals for lack of resources.
    pub refusals: Arc<RefusalCounters>,
    /// How long successful commits take, in microseconds: what a client waits for after the checks of its message.
    pub commit_micros: Arc<HistogramRecorder>,
    /// Counts TLS handshakes.
    pub tls_handshakes: Arc<TlsHandshakeCounters>,
    /// Counts what each listener does.
    pub listeners: Arc<ListenerMonitor>,
    /// Users and their credentials; None: no one can log in.
    pub logins: Option<LoginPolicy>,
    /// Clients admitted even under high load.
    pub reserved_networks: Networks,
    /// Clients that may relay, and are exempt from the limits of single clients.
    pub relay_networks: Networks,
    /// Relaying is refused with 454 instead of 550, so that clients try again.
    pub relaying_is_deferred: bool,
    /// Clients in whose messages a bare CR or LF becomes CRLF.
    pub normalized_networks: Networks,
    /// Clients that may use XCLIENT.
    pub proxy_networks: Networks,
    /// The checks of sessions and messages, in addition to everything else here.
    pub checks: CheckChain,
    /// Those of them that limit over time.
    pub rate_limits: Option<Arc<RateLimits>>,
    /// What the greylist knows; None: unknown senders are not deferred.
    pub greylist: Option<Arc<GreylistFile>>,
    /// Memory for bodies being received.
    pub body_memory: BodyMemoryBudget,
    /// The maximum number of recipients of one message after alias expansion.
    pub expanded_recipients_max: usize,
    /// How long a message waits for memory at DATA.
    pub message_wait_max: Duration,
    /// The address for mail to `<postmaster>` (RFC 5321 section 4.5.1).
    pub postmaster: Address,
    /// Single-label domains, like `backup`, that are not local but have a route in the
    /// configuration. Mail to other single-label domains is refused.
    pub routed_domains: DomainMatcher,
    /// The domains of strangers whose address as the sender is rewritten when an alias or a check sends
    /// their mail on to another domain, unless they are local ones; None: no sender is rewritten.
    pub rewritten_senders: Option<DomainMatcher>,
    /// Rewrites recipients before they are looked up; None: they stay.
    pub rewriter: Option<Arc<AddressRewriter>>,
    /// Checks quotas; None if no quota is configured.
    pub quota_check: Option<Arc<dyn QuotaCheck>>,
    /// The name of this server, in Received lines.
    pub hostname: Box<str>,
}

/// What the sessions of one listener share on one thread: a [`net::Service`].
#[derive(Clone)]
pub struct ListenerContext {
    /// What all sessions share.
    pub intake: Arc<IntakeContext>,
    /// Its address, as configured.
    pub address: SocketAddr,
    /// Counts what it does.
    pub counters: Arc<ListenerCounters>,
    /// The protocol settings.
    pub smtp_config: Arc<Machine>,
    /// Passes commit results from the spool to this thread.
    pub commit_notifier: CommitNotifier,
    /// Performs TLS handshakes, when the protocol asks for one.
    pub acceptor: Option<Arc<TlsServer>>,
    /// Adds missing Date and Message-ID fields: for messages submitted by users, not those from
    /// other servers (RFC 6409 section 8).
    pub adds_missing_headers: bool,
    /// Relay networks send what the content filter has passed: no check looks at it again.
    pub is_from_content_filter: bool,
    /// What clients must do before the greeting.
    pub greeting: GreetingPolicy,
    /// Clients that must send a PROXY header before anything else; None: no one.
    pub proxy_protocol_networks: Networks,
}

/// What clients must do before the greeting. Those that may relay are exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreetingPolicy {
    /// How long they must be silent; None: they need not.
    pub delay: Option<Duration>,
    /// Clients that need not.
    pub exempt: Networks,
    /// Clients that talk earlier are refused. If not, access rules decide about them.
    pub refuses_early_talkers: bool,
}

impl Default for GreetingPolicy {
    /// No delay; who talked earlier would be refused.
    fn default() -> Self {
        GreetingPolicy { delay: None, exempt: Networks::default(), refuses_early_talkers: true }
    }
}

/// A client that was admitted.
struct ClientState {
    permit: SessionPermit,
    /// Counts the session while it is open, and its verdicts.
    counted: CountedSession,
    trusted: bool,
    /// It must log in before it sends anything.
    must_log_in: bool,
    /// What it sends comes from the content filter.
    is_content_filter: bool,
    /// It talked before the greeting.
    is_early_talker: bool,
    /// The port that it connected from; 0: unknown.
    port: u16,
    /// The listener it connected to, by its address in the configuration.
    listener: SocketAddr,
    /// The local address it connected to.
    local_address: Option<IpAddr>,
    /// The mechanism by which it has logged in.
    login_mechanism: Option<&'static str>,
}

impl IntakeContext {
    fn log_tls_failure(&self, client: Option<IpAddr>, helo: &str, error: &io::Error) {
        self.tls_handshakes.count_failed();
        self.event_log.write(MailEvent::TlsFailed { client, helo: helo.into(), reason: error.to_string().into() });
    }

    /// MAIL: checks the resources for one more message, and the client's rate limit.
    fn admit_message(&self, permit: &SessionPermit) -> Result<(), ResourceRefusal> {
        let LoadRestrictions { intake, shortage, .. } = self.load.restrictions();
        match shortage {
            _ if intake == AllowedClients::None => Err(ResourceRefusal::Stopping),
            Some(Shortage::Disk) => Err(ResourceRefusal::DiskShort),
            Some(Shortage::Memory) => Err(ResourceRefusal::MemoryShort),
            None if permit.admit_message(Instant::now()) => Ok(()),
            None => Err(ResourceRefusal::ClientMessages),
        }
    }
}
