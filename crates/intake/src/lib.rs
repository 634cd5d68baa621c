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
//! After the 354 reply only the spool can refuse a message, or the protocol if the message breaks
//! its rules or arrives too slowly: load never interrupts a message. This crate does not know how
//! messages are delivered, and makes no DNS lookups for remote recipients.

pub mod access;
mod answers;
mod body;
mod completion;
mod conversation;
mod handshakes;
mod logged_header;
mod logins;
mod recipients;
mod refusals;
mod replies;
mod room;
mod standing;
mod trace;
mod troubles;
mod whom;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use load::{Shortage, Watch};
use lookup::directory::Directory;
use mail::{Address, Fact, Journal, Reply};
use net::{Acceptor, Gate, Pass, Proxied, Stop, Stream};
use protocol::smtp::server::{Config as Machine, Peer, Tls};
use spool::Spool;
use tokio::net::TcpStream;

use access::Access;
pub use answers::Answers;
pub use body::BodyMemory;
use conversation::Intake;
pub use handshakes::Handshakes;
pub use logged_header::logged_header;
pub use logins::Logins;
pub use refusals::{Refusal, Refusals};
pub use room::{Fit, Room};
pub use standing::Tags;
use standing::{Denied, Standing};
pub use troubles::Troubles;

/// Whether an address is in certain networks of the configuration.
pub type Networks = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Whether a domain is one of certain domains of the configuration.
pub type Domains = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What all sessions share: services and policy.
pub struct Desk {
    /// Stores the messages.
    pub spool: Arc<Spool>,
    /// Resolves local addresses.
    pub directory: Arc<Directory>,
    /// Where events are logged.
    pub journal: Arc<dyn Journal>,
    /// Whether the log includes the subjects of messages.
    pub logs_subjects: bool,
    /// Logs the causes of failures, which clients are not told.
    pub troubles: Arc<Troubles>,
    /// The current load of the machine.
    pub load: Watch,
    /// Counts sessions, and enforces the limits of single clients.
    pub gate: Arc<Gate>,
    /// Counts refusals for lack of resources.
    pub refusals: Arc<Refusals>,
    /// Counts TLS handshakes.
    pub handshakes: Arc<Handshakes>,
    /// Users and their credentials; None: no one can log in.
    pub logins: Option<Logins>,
    /// Clients admitted even under high load.
    pub reserved: Networks,
    /// Clients that may relay, and are exempt from the limits of single clients.
    pub relays: Networks,
    /// Relaying is refused with 454 instead of 550, so that clients try again.
    pub relaying_is_deferred: bool,
    /// Clients in whose messages a bare CR or LF becomes CRLF.
    pub normalised: Networks,
    /// Clients that may use XCLIENT.
    pub proxies: Networks,
    /// Access rules, in addition to everything else here; None: there are no rules.
    pub access: Option<Access>,
    /// Memory for bodies being received.
    pub memory: BodyMemory,
    /// The maximum number of recipients of one message after alias expansion.
    pub expanded_recipients_max: usize,
    /// How long a message waits for memory at DATA.
    pub message_wait_max: Duration,
    /// The address for mail to `<postmaster>` (RFC 5321 section 4.5.1).
    pub postmaster: Address,
    /// Single-label domains, like `backup`, that are not local but have a route in the
    /// configuration. Mail to other single-label domains is refused.
    pub routed: Domains,
    /// Checks quotas; None if no quota is configured.
    pub room: Option<Arc<dyn Room>>,
    /// The name of this server, in Received lines.
    pub hostname: Box<str>,
}

/// What the sessions of one listener share on one thread.
#[derive(Clone)]
pub struct Counter {
    /// What all sessions share.
    pub desk: Arc<Desk>,
    /// The protocol settings.
    pub machine: Arc<Machine>,
    /// Passes commit results from the spool to this thread.
    pub answers: Answers,
    /// Performs TLS handshakes, when the protocol asks for one.
    pub acceptor: Option<Arc<Acceptor>>,
    /// Adds missing Date and Message-ID fields: for messages submitted by users, not those from
    /// other servers (RFC 6409 section 8).
    pub completes: bool,
    /// Clients that must send a PROXY header before anything else; None: no one.
    pub balancers: Option<Networks>,
}

/// Runs one session, from the banner to the end.
pub async fn serve(counter: Counter, mut stream: TcpStream, client: IpAddr, stop: Stop) {
    let desk = &counter.desk;
    let own_address = stream.local_addr().ok().map(|address| address.ip());
    let mut ends = Ends { client: client.to_canonical(), own_address: own_address.map(|own| own.to_canonical()) };
    let mut place = None;
    if counter.balancers.as_ref().is_some_and(|balancers| balancers(ends.client)) {
        // While waiting for the header, the connection counts as a session, but not as one of its
        // client, which is unknown yet.
        match desk.gate.enter(ends.client, true, Instant::now()) {
            Ok(taken) => place = Some(taken),
            Err(turned) => return turn_away(&counter, &stream, ends.client, turned.into()),
        }
        match Box::pin(introduce(desk.clone(), &mut stream, ends, stop.clone())).await {
            Some(named) => ends = named,
            None => return,
        }
    }
    let Ends { client, own_address } = ends;
    let trusted = (desk.relays)(client);
    let pass = match desk.let_in(place, client, trusted) {
        Ok(pass) => pass,
        Err(refusal) => return turn_away(&counter, &stream, client, refusal),
    };
    let must_log_in = counter.machine.auth.as_ref().is_some_and(|auth| auth.required);
    let connected = match desk.judge_client(client, must_log_in, &stop).await {
        Some(Ok(standing)) => standing,
        Some(Err(denied)) => {
            refuse(&counter, &stream, client, denied);
            // It keeps its permit until then. Boxed, to keep sessions small.
            return Box::pin(net::close(stream)).await;
        }
        None => return,
    };
    let normalise_bare_newlines = (desk.normalised)(client);
    let peer = Peer { address: Some(client), normalise_bare_newlines, may_relay: trusted };
    let visitor = Visitor { pass, trusted, must_log_in, own_address, connected, greeted: Standing::default() };
    let stream = if counter.machine.tls == Tls::Implicit {
        // Without an acceptor the session ends: it must not continue in clear text.
        let Some(acceptor) = counter.acceptor.clone() else { return };
        // Boxed, to keep sessions that begin in clear text small.
        match Box::pin(secure(desk.clone(), acceptor, stream, client, stop.clone())).await {
            Some(secured) => secured,
            None => return,
        }
    } else {
        Stream::from(stream)
    };
    let mut intake = Intake::new(counter, peer, visitor, stream.security());
    net::drive(stream, stop, &mut intake).await;
}

/// Performs the TLS handshake before the first byte of a session. A stop interrupts it.
async fn secure(
    desk: Arc<Desk>,
    acceptor: Arc<Acceptor>,
    stream: TcpStream,
    client: IpAddr,
    mut stop: Stop,
) -> Option<Stream> {
    let made = tokio::select! {
        made = acceptor.accept(stream) => made,
        () = stop.requested() => return None,
    };
    match made {
        Ok(secured) => {
            secured.security().into_iter().for_each(|security| desk.handshakes.count_made(security));
            Some(secured)
        }
        Err(error) => {
            desk.tell_insecure(Some(client), "", &error);
            None
        }
    }
}

/// A client that was admitted.
struct Visitor {
    pass: Pass,
    trusted: bool,
    /// It must log in before it sends anything.
    must_log_in: bool,
    /// The local address it connected to.
    own_address: Option<IpAddr>,
    /// The result of the access rules for its address.
    connected: Standing,
    /// The result of the access rules for its HELO name.
    greeted: Standing,
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy)]
struct Ends {
    client: IpAddr,
    own_address: Option<IpAddr>,
}

/// Reads the PROXY header. A stop interrupts it. Without a header there is no session, since the
/// client is unknown.
async fn introduce(desk: Arc<Desk>, stream: &mut TcpStream, ends: Ends, mut stop: Stop) -> Option<Ends> {
    let received = tokio::select! {
        received = net::receive_proxy_header(stream) => received,
        () = stop.requested() => return None,
    };
    match received {
        Ok(Proxied::Itself) => Some(ends),
        Ok(Proxied::For { client, own }) => {
            Some(Ends { client: client.ip().to_canonical(), own_address: Some(own.ip().to_canonical()) })
        }
        Err(error) => {
            desk.troubles.report(format_args!("closed a connection from {}: {error}", ends.client));
            None
        }
    }
}

/// Rejects a connection for lack of resources. It is closed without waiting for input, so a client
/// that has sent more than has arrived by now may be reset before it sees the reply.
fn turn_away(counter: &Counter, stream: &TcpStream, client: IpAddr, refusal: Refusal) {
    let reply = refusal.reply();
    tell_once(counter, stream, &reply);
    net::discard_input(stream);
    if counter.desk.refusals.count(refusal, Instant::now()) {
        counter.desk.tell_refused(client, None, reply);
    }
}

/// Refuses a connection because of an access rule. The reply closes the connection: a client that
/// stays to get 503 until QUIT (RFC 5321 section 3.1) would occupy a session others wait for.
fn refuse(counter: &Counter, stream: &TcpStream, client: IpAddr, denied: Denied) {
    tell_once(counter, stream, &denied.reply);
    counter.desk.tell_refused(client, Some(denied.rule), denied.reply);
}

/// Writing a few bytes to an empty socket never blocks. With implicit TLS nothing is sent: there
/// are no resources for a handshake.
fn tell_once(counter: &Counter, stream: &TcpStream, reply: &Reply) {
    if counter.machine.tls != Tls::Implicit {
        let mut wire = Vec::new();
        reply.write_wire(&mut wire);
        // If the client is gone, the reply is not needed.
        let _ = stream.try_write(&wire);
    }
}

impl Desk {
    /// Connect: checks the load, which costs one atomic read, and then the limits of the client. A
    /// permit from waiting for a PROXY header is transferred to the client.
    fn let_in(&self, place: Option<Pass>, client: IpAddr, trusted: bool) -> Result<Pass, Refusal> {
        if let Some(mut place) = place {
            return self.pass_on(&mut place, client, trusted).map(|()| place);
        }
        self.bear(client)?;
        Ok(self.gate.enter(client, trusted, Instant::now())?)
    }

    /// The same for a client named by a proxy.
    fn pass_on(&self, place: &mut Pass, client: IpAddr, trusted: bool) -> Result<(), Refusal> {
        self.bear(client)?;
        Ok(place.pass_on(client, trusted, Instant::now())?)
    }

    fn bear(&self, client: IpAddr) -> Result<(), Refusal> {
        let is_reserved = self.load.measures().intake == load::Intake::ReservedOnly;
        if is_reserved && !(self.reserved)(client) { Err(Refusal::Load) } else { Ok(()) }
    }

    fn tell_refused(&self, client: IpAddr, rule: Option<Box<str>>, reply: Reply) {
        let client = Some(client);
        self.journal.write(Fact::Refused { client, helo: "".into(), stage: "connect", address: None, rule, reply });
    }

    fn tell_insecure(&self, client: Option<IpAddr>, helo: &str, error: &io::Error) {
        self.handshakes.count_failed();
        self.journal.write(Fact::Insecure { client, helo: helo.into(), reason: error.to_string().into() });
    }

    /// MAIL: checks the resources for one more message, and the client's rate limit.
    fn take_message(&self, pass: &Pass) -> Result<(), Refusal> {
        match self.load.measures().shortage {
            Some(Shortage::Disk) => Err(Refusal::DiskShort),
            Some(Shortage::Memory) => Err(Refusal::MemoryShort),
            None if pass.take_message(Instant::now()) => Ok(()),
            None => Err(Refusal::ClientMessages),
        }
    }
}
