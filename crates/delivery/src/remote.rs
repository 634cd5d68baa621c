//! Delivery to other hosts by SMTP and LMTP. [`Remote`] carries tasks, each a message for some recipients of one next
//! hop, over connections that it opens, uses again and closes. It promises one report of the end for every task, with an
//! outcome for every recipient, whatever the server does: what may have been accepted is deferred, never taken for lost
//! or done. Nothing here is fatal.
//!
//! A task takes a connection that waits, the last used first; only where none waits it opens one. A connection that is
//! left is closed with the QUIT, whose answer nobody awaits. So there are never more connections to a next hop than it
//! had tasks at one time. Each connection is a task of the runtime ([`runner`]) that lives through these states:
//!
//! | state   | has a task | ends with                                                                              |
//! |---------|------------|----------------------------------------------------------------------------------------|
//! | Opening | yes        | Sending; every host refused or silent: reported, the end                               |
//! | Sending | yes        | Idle, or QUIT, reported; lost before the message was seen, on a used connection: Opening, once |
//! | Idle    | no         | a task: Sending; the time is over, [`Remote::close`], or a word of the server: QUIT    |
//! | QUIT    | no         | at once, the end                                                                       |
//!
//! At worst a message comes twice: where the connection was lost, or our patience ended, after the last byte went out
//! and before the answer came. The next attempt then sends it again.

mod content;
mod dialogue;
mod opening;
mod pool;
mod rotation;
mod runner;
mod verdict;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mail::{Body, Envelope, QueueId, Reply};
use net::{Endpoint, Trust};
use protocol::smtp::client;

use crate::Ending;
use pool::Pool;

/// How one transport delivers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The protocol, and how long it waits for what.
    pub client: Arc<client::Config>,
    /// Whose certificates are believed. Without it there is no TLS.
    pub trust: Option<Trust>,
    /// The address to connect from, to IPv4 addresses.
    pub source_v4: Option<Ipv4Addr>,
    /// The address to connect from, to IPv6 addresses.
    pub source_v6: Option<Ipv6Addr>,
    /// For each address.
    pub connect_timeout: Duration,
    /// How long a connection stays without a task.
    pub idle_time_max: Duration,
    /// Connections without a task, of one [`Remote`]; one more is closed at once.
    pub idle_connections_max: usize,
    /// Bodies over so many octets go out by sendfile; None: none does.
    pub sendfile_above: Option<u64>,
    /// Whoever takes longer for one answer is slow: [`Report::Slow`].
    pub slower_than: Duration,
    /// Then a connection is closed.
    pub messages_per_connection_max: u32,
    /// Addresses that one task tries. Of a next hop with more of them later tasks try others, beside the best.
    pub addresses_tried_max: usize,
}

impl Config {
    /// The usual numbers.
    pub fn new(client: client::Config) -> Self {
        Config {
            client: Arc::new(client),
            trust: None,
            source_v4: None,
            source_v6: None,
            connect_timeout: Duration::from_secs(30),
            idle_time_max: Duration::from_secs(5),
            idle_connections_max: 2000,
            sendfile_above: Some(32 << 10),
            slower_than: Duration::from_secs(10),
            messages_per_connection_max: 1000,
            addresses_tried_max: 8,
        }
    }
}

/// A set of hosts any of which may take a message.
#[derive(Clone, Debug)]
pub struct NextHop {
    /// By it connections are kept: what has the same name and edition is the same next hop, with the same hosts and
    /// settings.
    pub name: Arc<str>,
    /// Counts changes of the settings: a connection that was opened by others is not used again.
    pub edition: u32,
    /// Hosts by preference. Those of one tier are tried in any order.
    pub tiers: Vec<Vec<Target>>,
    /// Of its transport.
    pub config: Arc<Config>,
}

/// One address of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The host's name, for TLS and for people.
    pub host: Box<str>,
    /// Where it listens.
    pub endpoint: Endpoint,
}

/// A message for some recipients of one next hop.
#[derive(Clone, Debug)]
pub struct Task<T> {
    /// The caller's, given back with the report.
    pub ticket: T,
    /// The message.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Arc<Envelope>,
    /// Ordinals of the recipients that this is about, one at least.
    pub recipients: Vec<u32>,
    /// Its bytes.
    pub body: Body,
    /// Where it goes.
    pub next_hop: Arc<NextHop>,
    /// The sender's address names the recipient ([`crate::verp`]), of whom there is then only one.
    pub verp: bool,
}

/// What [`Remote`] tells, in the order in which it happened.
#[derive(Clone, Debug)]
pub enum Report<T> {
    /// A task is over.
    Ended(Ended<T>),
    /// A task has waited for one answer longer than [`Config::slower_than`], and goes on. Once for a task.
    Slow {
        /// Where it waits.
        next_hop: Arc<NextHop>,
    },
}

/// A task that is over.
#[derive(Clone, Debug)]
pub struct Ended<T> {
    /// From the task.
    pub ticket: T,
    /// From the task.
    pub envelope: Arc<Envelope>,
    /// What became of it.
    pub ending: Ending,
    /// How it went with the next hop.
    pub contact: Contact,
    /// Who answered, if anybody did.
    pub peer: Option<Peer>,
}

/// What an attempt tells of its next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It answered to the end.
    Answered {
        /// The longest that it took for a reply.
        slowest: Duration,
    },
    /// It has enough of us for now: 421 (RFC 5321 section 3.8, whenever it comes), or the session was refused.
    Busy,
    /// No session: no connection, or before the session was ready it was lost, silent, or not SMTP.
    Failed(Reply),
    /// The session was ready, and broke off in the middle of this message: lost, silent, or not SMTP. The message may be
    /// to blame.
    Interrupted(Reply),
    /// Nothing was said: the message cannot be sent there, or at all.
    None,
}

/// A host that answered. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer(Arc<Target>);

impl Peer {
    /// The host's name.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }
}

/// `mx1.example.org[192.0.2.1]:25`, `mx1.example.org[2001:db8::1]:25` or `host[/path]`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.endpoint {
            Endpoint::Tcp(address) => write!(f, "{}[{}]:{}", self.0.host, address.ip(), address.port()),
            Endpoint::Unix(path) => write!(f, "{}[{}]", self.0.host, path.display()),
        }
    }
}

/// Delivers to other hosts, on the thread that it was made on. Dropping it lets what is under way come to its end.
pub struct Remote<T> {
    pool: Rc<Pool<T>>,
}

impl<T: 'static> Remote<T> {
    /// Without connections yet. `reports` hears of every task; it may call [`start`](Remote::start).
    pub fn new(reports: impl Fn(Report<T>) + 'static) -> Self {
        Remote { pool: Rc::new(Pool::new(Box::new(reports))) }
    }

    /// Takes a task up. Must be called where tasks of the thread can be spawned ([`tokio::task::spawn_local`]).
    pub fn start(&self, task: Task<T>) {
        runner::start(&self.pool, task);
    }

    /// Takes leave of every server: at once where no task is under way, elsewhere when it is over. Returns when no
    /// connection is left.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
