//! Mail comes in: a client's questions are answered from the directory and the policy, its message goes to
//! the spool, and the answer that takes charge of it (RFC 5321 section 6.1) waits until it is durable there.
//!
//! | step | asked | answers beside yes |
//! |---|---|---|
//! | MAIL | room on the disk | 452 4.3.1 |
//! | RCPT | whose mail it is, who the recipient stands for | 550 5.1.1, 550 5.7.1, 451 4.3.0, 452 4.5.3 |
//! | DATA | memory for a body | 452 4.3.1 |
//! | end of data | the spool | 452 4.3.1, 451 4.3.0, 552 5.3.4, 421 4.3.2 |
//!
//! Nothing here knows what becomes of a message afterwards.

mod answers;
mod body;
mod conversation;
mod recipients;
mod replies;
mod trace;
mod troubles;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lookup::directory::Directory;
use mail::{Address, Journal};
use net::{Gate, Stop, Turned};
use protocol::smtp::server::{Config as Machine, Peer};
use spool::Spool;
use tokio::net::TcpStream;

pub use answers::Answers;
pub use body::BodyMemory;
use conversation::Intake;
pub use troubles::Troubles;

/// Tells whether an address is in the networks that the configuration names for some right.
pub type Networks = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What all sessions share: whom they ask, and the policy.
pub struct Desk {
    /// Where messages are kept.
    pub spool: Arc<Spool>,
    /// Whose mail is ours.
    pub directory: Arc<Directory>,
    /// Where facts are written.
    pub journal: Arc<dyn Journal>,
    /// Where the operator hears what clients are not told.
    pub troubles: Troubles,
    /// Counts sessions.
    pub gate: Arc<Gate>,
    /// Who may send to other people's domains, and is not limited as a single client.
    pub relays: Networks,
    /// In whose messages a bare CR or LF becomes CRLF.
    pub normalised: Networks,
    /// Memory for bodies under way.
    pub memory: BodyMemory,
    /// Recipients of one message after aliases were replaced by whom they stand for.
    pub expanded_recipients_max: usize,
    /// How long a message waits for memory before it may come.
    pub message_wait_max: Duration,
    /// Set while a disk of the spool is short of room.
    pub disk_is_short: AtomicBool,
    /// Who gets mail for `<postmaster>` (RFC 5321 section 4.5.1).
    pub postmaster: Address,
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
}

/// One session of one client, from the banner to the end.
pub async fn serve(counter: Counter, stream: TcpStream, client: IpAddr, stop: Stop) {
    let desk = &counter.desk;
    let client = client.to_canonical();
    let trusted = (desk.relays)(client);
    let _pass = match desk.gate.enter(client, trusted) {
        Ok(pass) => pass,
        Err(turned) => return turn_away(desk, &stream, client, turned),
    };
    let peer = Peer { address: Some(client), normalise_bare_newlines: (desk.normalised)(client) };
    let mut intake = Intake::new(counter, peer, trusted);
    net::drive(stream, stop, &mut intake).await;
}

/// A few bytes into an empty socket never wait.
fn turn_away(desk: &Desk, stream: &TcpStream, client: IpAddr, turned: Turned) {
    let reply = match turned {
        Turned::Full => replies::SESSIONS_FULL,
        Turned::ClientFull => replies::CLIENT_SESSIONS_FULL,
    };
    let mut wire = Vec::new();
    reply.write_wire(&mut wire);
    // A client that is gone needs no answer.
    let _ = stream.try_write(&wire);
    let fact = mail::Fact::Refused { client: Some(client), helo: "".into(), stage: "connect", address: None, reply };
    desk.journal.write(fact);
}

impl Desk {
    /// Whom an address means: the machine makes `<postmaster>` the postmaster of this host, whose name need not
    /// be a domain of ours.
    fn addressed<'a>(&'a self, address: &'a Address) -> &'a Address {
        let own_name = self.directory.domain(address.domain()).is_none()
            && address.domain().eq_ignore_ascii_case(&self.hostname)
            && address.local().eq_ignore_ascii_case("postmaster");
        if own_name { &self.postmaster } else { address }
    }

    fn has_room(&self) -> bool {
        !self.disk_is_short.load(Relaxed)
    }
}
