//! Mail comes in: a client's questions are answered from the directory and the policy, its message goes to
//! the spool, and the answer that takes charge of it (RFC 5321 section 6.1) waits until it is durable there.
//!
//! | step | asked | answers beside yes |
//! |---|---|---|
//! | connect | load, sessions, how often the client comes, access rules | 421 4.3.2, 421 4.7.0, 554 5.7.1 |
//! | HELO | access rules | 550 5.7.1 |
//! | AUTH | who the client is | 535 5.7.8, 454 4.7.0 |
//! | MAIL | room on the disks, memory, how much the client brings, access rules, whose the sender is | 452 4.3.1, 451 4.7.1, 550 5.7.1, 553 5.7.1, 451 4.3.0 |
//! | RCPT | access rules, whose mail it is, who the recipient stands for, room in the mailbox | 550 5.1.1, 550 5.7.1, 454 4.7.1, 550 5.1.2, 451 4.3.0, 452 4.5.3, 452 4.2.2, 552 5.2.2 |
//! | DATA | memory for a body | 452 4.3.1 |
//! | end of data | the spool | 452 4.3.1, 451 4.3.0, 552 5.3.4, 421 4.3.2 |
//!
//! After the 354 only the spool can say no, and the machine of the protocol to a message that breaks its rules or comes too
//! slowly: load never ends a message under way. Nothing here knows what becomes of a message afterwards, and no recipient
//! elsewhere costs a question to the DNS.

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

/// Tells whether an address is in the networks that the configuration names for some right.
pub type Networks = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Tells whether the configuration names a domain for some purpose.
pub type Domains = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What all sessions share: whom they ask, and the policy.
pub struct Desk {
    /// Where messages are kept.
    pub spool: Arc<Spool>,
    /// Whose mail is ours.
    pub directory: Arc<Directory>,
    /// Where facts are written.
    pub journal: Arc<dyn Journal>,
    /// Whether these have the subjects of messages.
    pub logs_subjects: bool,
    /// Where the operator hears what clients are not told.
    pub troubles: Arc<Troubles>,
    /// What the machine can bear now.
    pub load: Watch,
    /// Counts sessions, and what single clients do.
    pub gate: Arc<Gate>,
    /// Counts those who were told no for want of something.
    pub refusals: Arc<Refusals>,
    /// Counts handshakes of TLS.
    pub handshakes: Arc<Handshakes>,
    /// Who may log in; None: nobody.
    pub logins: Option<Logins>,
    /// Who is let in when the load is too high for everybody.
    pub reserved: Networks,
    /// Who may send to other people's domains, and is not limited as a single client.
    pub relays: Networks,
    /// All others are told 454 there instead of 550, and try again.
    pub relaying_is_deferred: bool,
    /// In whose messages a bare CR or LF becomes CRLF.
    pub normalised: Networks,
    /// Who may speak for others (XCLIENT).
    pub proxies: Networks,
    /// Who is let in, beside all that is said here; None: no rule says anything.
    pub access: Option<Access>,
    /// Memory for bodies under way.
    pub memory: BodyMemory,
    /// Recipients of one message after aliases were replaced by whom they stand for.
    pub expanded_recipients_max: usize,
    /// How long a message waits for memory before it may come.
    pub message_wait_max: Duration,
    /// Who gets mail for `<postmaster>` (RFC 5321 section 4.5.1).
    pub postmaster: Address,
    /// Domains of one label, like `backup`, that are not ours and to which a route of the configuration leads. Mail to
    /// others of their kind is not taken.
    pub routed: Domains,
    /// Whether mailboxes have room; None where no quota is in force.
    pub room: Option<Arc<dyn Room>>,
    /// The name of this server, in Received lines.
    pub hostname: Box<str>,
}

/// What the sessions of one listener have in common on one thread.
#[derive(Clone)]
pub struct Counter {
    /// Whom they ask.
    pub desk: Arc<Desk>,
    /// What they speak.
    pub machine: Arc<Machine>,
    /// By which way the spool answers them.
    pub answers: Answers,
    /// Who makes sessions secure; the machine says when.
    pub acceptor: Option<Arc<Acceptor>>,
    /// Messages get the Date and Message-ID that they lack: users submit them, and no other server (RFC 6409 section 8).
    pub completes: bool,
    /// Who says for whom it has connected before anything else is said (PROXY); None: nobody.
    pub balancers: Option<Networks>,
}

/// One session of one client, from the banner to the end.
pub async fn serve(counter: Counter, mut stream: TcpStream, client: IpAddr, stop: Stop) {
    let desk = &counter.desk;
    let own_address = stream.local_addr().ok().map(|address| address.ip());
    let mut ends = Ends { client: client.to_canonical(), own_address: own_address.map(|own| own.to_canonical()) };
    let mut place = None;
    if counter.balancers.as_ref().is_some_and(|balancers| balancers(ends.client)) {
        // Whoever waits for a header has a place in the gate, but not as a client: whose it is has yet to be said.
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
            // It keeps its place until then. In a box: sessions should not have room for it.
            return Box::pin(net::close(stream)).await;
        }
        None => return,
    };
    let normalise_bare_newlines = (desk.normalised)(client);
    let peer = Peer { address: Some(client), normalise_bare_newlines, may_relay: trusted };
    let visitor = Visitor { pass, trusted, must_log_in, own_address, connected, greeted: Standing::default() };
    let stream = if counter.machine.tls == Tls::Implicit {
        // Without who makes the handshake there is no session: it must not be one in clear text.
        let Some(acceptor) = counter.acceptor.clone() else { return };
        // In a box: sessions that begin in clear text should not have room for it.
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

/// The handshake before the first byte of a session. A stop ends it.
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

/// A client that was let in.
struct Visitor {
    pass: Pass,
    trusted: bool,
    /// It sends nothing before it has logged in.
    must_log_in: bool,
    /// Under which address of this host it came.
    own_address: Option<IpAddr>,
    /// What access rules said of its address.
    connected: Standing,
    /// What they said of how it calls itself.
    greeted: Standing,
}

/// Who is at the two ends of a connection.
#[derive(Clone, Copy)]
struct Ends {
    client: IpAddr,
    own_address: Option<IpAddr>,
}

/// Hears from a balancer for whom it has connected. A stop ends it; without a header there is no session, since nobody knows
/// whose it would be.
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

/// There is no place for it. So nobody waits for what it may still say, and who says more than is there by now may be
/// cut off before it has seen the reply.
fn turn_away(counter: &Counter, stream: &TcpStream, client: IpAddr, refusal: Refusal) {
    let reply = refusal.reply();
    tell_once(counter, stream, &reply);
    net::discard_input(stream);
    if counter.desk.refusals.count(refusal, Instant::now()) {
        counter.desk.tell_refused(client, None, reply);
    }
}

/// An access rule turned it away. The connection ends with the reply: who stays to be told 503 until it says QUIT (RFC 5321
/// section 3.1) has a session of those that others wait for.
fn refuse(counter: &Counter, stream: &TcpStream, client: IpAddr, denied: Denied) {
    tell_once(counter, stream, &denied.reply);
    counter.desk.tell_refused(client, Some(denied.rule), denied.reply);
}

/// A few bytes into an empty socket never wait. Who awaits TLS is told nothing: a handshake is what there is no room for.
fn tell_once(counter: &Counter, stream: &TcpStream, reply: &Reply) {
    if counter.machine.tls != Tls::Implicit {
        let mut wire = Vec::new();
        reply.write_wire(&mut wire);
        // A client that is gone needs no answer.
        let _ = stream.try_write(&wire);
    }
}

impl Desk {
    /// Connect: the load, which costs a look at an atomic, and then the client's own share. Where a balancer has taken a place
    /// for the client, the client has that one.
    fn let_in(&self, place: Option<Pass>, client: IpAddr, trusted: bool) -> Result<Pass, Refusal> {
        if let Some(mut place) = place {
            return self.pass_on(&mut place, client, trusted).map(|()| place);
        }
        self.bear(client)?;
        Ok(self.gate.enter(client, trusted, Instant::now())?)
    }

    /// The same for a client for whom somebody else has come.
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

    /// MAIL: room for one more message, and whether this client may bring it.
    fn take_message(&self, pass: &Pass) -> Result<(), Refusal> {
        match self.load.measures().shortage {
            Some(Shortage::Disk) => Err(Refusal::DiskShort),
            Some(Shortage::Memory) => Err(Refusal::MemoryShort),
            None if pass.take_message(Instant::now()) => Ok(()),
            None => Err(Refusal::ClientMessages),
        }
    }
}
