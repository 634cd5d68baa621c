//! Receives mail: answers a client's commands from the directory and the policy, submits the
//! message to the spool, and sends the reply that takes responsibility for it (RFC 5321 section
//! 6.1) once it is durable.
//!
//! | step | checks | negative replies |
//! |---|---|---|
//! | connect | load, sessions, connection rate, access rules | 421 4.3.2, 421 4.7.0, 554 5.7.1 |
//! | HELO | access rules | 550 5.7.1 |
//! | AUTH | credentials | 535 5.7.8, 454 4.7.0 |
//! | MAIL | disk space, memory, message rate | 452 4.3.1, 451 4.7.1 |
//! | | access rules, owner of the sender | 550 5.7.1, 553 5.7.1, 451 4.3.0 |
//! | RCPT | access rules, relaying | 550 5.7.1, 454 4.7.1, 550 5.1.2 |
//! | | directory, alias expansion | 550 5.1.1, 451 4.3.0, 452 4.5.3 |
//! | | quota | 452 4.2.2, 552 5.2.2 |
//! | DATA | memory for the body | 452 4.3.1 |
//! | end of data | the spool | 452 4.3.1, 451 4.3.0, 552 5.3.4, 421 4.3.2 |
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
mod logins;
mod message_check;
mod missing_fields;
mod quota_check;
mod received_line;
mod recipient_lookup;
mod recipients;
mod refusals;
mod replies;
mod session;
mod session_checks;
mod session_stages;
mod throttled_log;
mod tls_handshakes;
mod transaction;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use filter::{CheckChain, Refusal};
use load::{LoadMonitorHandle, Shortage};
use lookup::directory::RecipientDirectory;
use mail::{Address, EventLog, MailEvent, Networks, OperatorLog, QuotaCheck, Reply};
use net::{ConnectionLimiter, ProxyHeader, ServerStream, SessionPermit, StopReceiver, TlsServer};
use protocol::smtp::server::{SmtpPeer, SmtpServerConfig as Machine, TlsMode};
use spool::Spool;
use tokio::net::TcpStream;

pub use body::BodyMemoryBudget;
pub use commit_notifier::CommitNotifier;
pub use logins::LoginPolicy;
pub use refusals::{RefusalCounters, ResourceRefusal};
use session::IntakeSession;
pub use throttled_log::ThrottledLog;
pub use tls_handshakes::TlsHandshakeCounters;

/// Whether a domain is one of certain domains of the configuration.
pub type DomainMatcher = Arc<dyn Fn(&str) -> bool + Send + Sync>;

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
    /// Counts refusals for lack of resources.
    pub refusals: Arc<RefusalCounters>,
    /// Counts TLS handshakes.
    pub tls_handshakes: Arc<TlsHandshakeCounters>,
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
    /// Checks quotas; None if no quota is configured.
    pub quota_check: Option<Arc<dyn QuotaCheck>>,
    /// The name of this server, in Received lines.
    pub hostname: Box<str>,
}

/// What the sessions of one listener share on one thread.
#[derive(Clone)]
pub struct ListenerContext {
    /// What all sessions share.
    pub intake: Arc<IntakeContext>,
    /// The protocol settings.
    pub smtp_config: Arc<Machine>,
    /// Passes commit results from the spool to this thread.
    pub commit_notifier: CommitNotifier,
    /// Performs TLS handshakes, when the protocol asks for one.
    pub acceptor: Option<Arc<TlsServer>>,
    /// Adds missing Date and Message-ID fields: for messages submitted by users, not those from
    /// other servers (RFC 6409 section 8).
    pub adds_missing_headers: bool,
    /// Clients that must send a PROXY header before anything else; None: no one.
    pub proxy_protocol_networks: Networks,
}

/// Runs one session, from the banner to the end.
pub async fn serve_session(listener: ListenerContext, mut stream: TcpStream, client: IpAddr, stop: StopReceiver) {
    let context = &listener.intake;
    let local_address = stream.local_addr().ok().map(|address| address.ip());
    let mut addresses = ConnectionAddresses {
        client: client.to_canonical(),
        local_address: local_address.map(|own| own.to_canonical()),
    };
    let mut permit = None;
    if listener.proxy_protocol_networks.contains(addresses.client) {
        // While waiting for the header, the connection counts as a session, but not as one of its
        // client, which is unknown yet.
        match context.connection_limiter.admit(addresses.client, true, Instant::now()) {
            Ok(taken) => permit = Some(taken),
            Err(refused) => return reject_connection(&listener, &stream, addresses.client, refused.into()),
        }
        match Box::pin(read_proxy_header(context.clone(), &mut stream, addresses, stop.clone())).await {
            Some(named) => addresses = named,
            None => return,
        }
    }
    let ConnectionAddresses { client, local_address } = addresses;
    let trusted = context.relay_networks.contains(client);
    let permit = match context.admit(permit, client, trusted) {
        Ok(permit) => permit,
        Err(refusal) => return reject_connection(&listener, &stream, client, refusal),
    };
    let must_log_in = listener.smtp_config.auth.as_ref().is_some_and(|auth| auth.required);
    let checks = match context.check_client(client, must_log_in, &stop).await {
        Some(Ok(checks)) => checks,
        Some(Err(denied)) => {
            deny_connection(&listener, &stream, client, denied);
            // It keeps its permit until then. Boxed, to keep sessions small.
            return Box::pin(net::close_gracefully(stream)).await;
        }
        None => return,
    };
    let normalise_bare_newlines = context.normalized_networks.contains(client);
    let peer = SmtpPeer { address: Some(client), normalise_bare_newlines, may_relay: trusted };
    let client_state = ClientState { permit, trusted, must_log_in, local_address };
    let stream = if listener.smtp_config.tls == TlsMode::Implicit {
        // Without an acceptor the session ends: it must not continue in clear text.
        let Some(acceptor) = listener.acceptor.clone() else { return };
        // Boxed, to keep sessions that begin in clear text small.
        match Box::pin(accept_tls(context.clone(), acceptor, stream, client, stop.clone())).await {
            Some(secured) => secured,
            None => return,
        }
    } else {
        ServerStream::from(stream)
    };
    let mut intake = IntakeSession::new(listener, peer, client_state, checks, stream.tls_info());
    net::drive_connection(stream, stop, &mut intake).await;
}

/// Performs the TLS handshake before the first byte of a session. A stop interrupts it.
async fn accept_tls(
    context: Arc<IntakeContext>,
    acceptor: Arc<TlsServer>,
    stream: TcpStream,
    client: IpAddr,
    mut stop: StopReceiver,
) -> Option<ServerStream> {
    let made = tokio::select! {
        made = acceptor.accept(stream) => made,
        () = stop.wait_for_stop() => return None,
    };
    match made {
        Ok(secured) => {
            secured.tls_info().into_iter().for_each(|security| context.tls_handshakes.count_made(security));
            Some(secured)
        }
        Err(error) => {
            context.log_tls_failure(Some(client), "", &error);
            None
        }
    }
}

/// A client that was admitted.
struct ClientState {
    permit: SessionPermit,
    trusted: bool,
    /// It must log in before it sends anything.
    must_log_in: bool,
    /// The local address it connected to.
    local_address: Option<IpAddr>,
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy)]
struct ConnectionAddresses {
    client: IpAddr,
    local_address: Option<IpAddr>,
}

/// Reads the PROXY header. A stop interrupts it. Without a header there is no session, since the
/// client is unknown.
async fn read_proxy_header(
    context: Arc<IntakeContext>,
    stream: &mut TcpStream,
    addresses: ConnectionAddresses,
    mut stop: StopReceiver,
) -> Option<ConnectionAddresses> {
    let received = tokio::select! {
        received = net::receive_proxy_header(stream) => received,
        () = stop.wait_for_stop() => return None,
    };
    match received {
        Ok(ProxyHeader::Local) => Some(addresses),
        Ok(ProxyHeader::Proxied { client, own }) => Some(ConnectionAddresses {
            client: client.ip().to_canonical(),
            local_address: Some(own.ip().to_canonical()),
        }),
        Err(error) => {
            context.operator_log.log_line(format_args!("closed a connection from {}: {error}", addresses.client));
            None
        }
    }
}

/// Rejects a connection for lack of resources. It is closed without waiting for input, so a client
/// that has sent more than has arrived by now may be reset before it sees the reply.
fn reject_connection(listener: &ListenerContext, stream: &TcpStream, client: IpAddr, refusal: ResourceRefusal) {
    let reply = refusal.reply();
    send_single_reply(listener, stream, &reply);
    net::discard_input(stream);
    if listener.intake.refusals.count(refusal, Instant::now()) {
        listener.intake.log_refused(client, None, reply);
    }
}

/// Refuses a connection because of a check. The reply closes the connection: a client that
/// stays to get 503 until QUIT (RFC 5321 section 3.1) would occupy a session others wait for.
fn deny_connection(listener: &ListenerContext, stream: &TcpStream, client: IpAddr, denied: Refusal) {
    send_single_reply(listener, stream, &denied.reply);
    listener.intake.log_refused(client, Some(denied.by), denied.reply);
}

/// Writing a few bytes to an empty socket never blocks. With implicit TLS nothing is sent: there
/// are no resources for a handshake.
fn send_single_reply(listener: &ListenerContext, stream: &TcpStream, reply: &Reply) {
    if listener.smtp_config.tls != TlsMode::Implicit {
        let mut wire = Vec::new();
        reply.write_wire(&mut wire);
        // If the client is gone, the reply is not needed.
        let _ = stream.try_write(&wire);
    }
}

impl IntakeContext {
    /// Connect: checks the load, which costs one atomic read, and then the limits of the client. A
    /// permit from waiting for a PROXY header is transferred to the client.
    fn admit(
        &self,
        permit: Option<SessionPermit>,
        client: IpAddr,
        trusted: bool,
    ) -> Result<SessionPermit, ResourceRefusal> {
        if let Some(mut permit) = permit {
            return self.transfer_permit(&mut permit, client, trusted).map(|()| permit);
        }
        self.check_load(client)?;
        Ok(self.connection_limiter.admit(client, trusted, Instant::now())?)
    }

    /// The same for a client named by a proxy.
    fn transfer_permit(
        &self,
        permit: &mut SessionPermit,
        client: IpAddr,
        trusted: bool,
    ) -> Result<(), ResourceRefusal> {
        self.check_load(client)?;
        Ok(permit.transfer_to_client(client, trusted, Instant::now())?)
    }

    fn check_load(&self, client: IpAddr) -> Result<(), ResourceRefusal> {
        let is_reserved = self.load.restrictions().intake == load::AllowedClients::ReservedOnly;
        if is_reserved && !self.reserved_networks.contains(client) { Err(ResourceRefusal::Load) } else { Ok(()) }
    }

    fn log_refused(&self, client: IpAddr, rule: Option<Box<str>>, reply: Reply) {
        let client = Some(client);
        self.event_log.write(MailEvent::Refused {
            client,
            helo: "".into(),
            stage: "connect",
            address: None,
            rule,
            reply,
        });
    }

    fn log_tls_failure(&self, client: Option<IpAddr>, helo: &str, error: &io::Error) {
        self.tls_handshakes.count_failed();
        self.event_log.write(MailEvent::TlsFailed { client, helo: helo.into(), reason: error.to_string().into() });
    }

    /// MAIL: checks the resources for one more message, and the client's rate limit.
    fn admit_message(&self, permit: &SessionPermit) -> Result<(), ResourceRefusal> {
        match self.load.restrictions().shortage {
            Some(Shortage::Disk) => Err(ResourceRefusal::DiskShort),
            Some(Shortage::Memory) => Err(ResourceRefusal::MemoryShort),
            None if permit.admit_message(Instant::now()) => Ok(()),
            None => Err(ResourceRefusal::ClientMessages),
        }
    }
}
