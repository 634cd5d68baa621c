//! The configuration in its finished form: every value checked, every default filled in, every name that
//! refers to another section known to exist. Nothing later asks whether a setting makes sense.
//!
//! [`Config::parse`] turns a TOML text into it once, or into [`Faults`]: all that is wrong with the text, each
//! fault with its line and column. The types here are plain data; rooms get their own settings from them when
//! the server is put together. `default.toml`, beside this file, states every key with its default and is what
//! `mailrace serve` runs on without a file.

mod access;
mod auth;
mod bounce;
mod examine;
mod fault;
mod key;
mod limits;
mod load;
mod locate;
mod network;
mod path;
mod queue;
mod rate;
mod read;
mod routing;
mod secret;
mod section;
mod table;
mod tls;
mod transport;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mail::Address;

pub use access::{AccessRule, Codes, NotThis, WhoPattern, Zone};
pub use auth::{Auth, AuthSource, Mechanism};
pub use bounce::Bounce;
pub use examine::examine;
pub use fault::{Fault, Faults};
pub use limits::Limits;
pub use load::Load;
pub(crate) use locate::machine_name;
pub use locate::{Loaded, Source, USUAL_FILES, load, load_for_mail};
pub use network::Network;
pub use path::MaildirPath;
pub use queue::{Adopt, HeaderRule, Queue, Retry, Rules, Scheduler, SenderRule};
pub use rate::Rate;
pub use route::Pattern;
pub use route::{FixedHop, Rule as Route};
pub use routing::{Dns, NextHop};
pub use table::{Ldap, Postgres, Replica, Sqlite, Table, TableKind};
pub use tls::{Certificate, ListenerTls, ServerTls, TlsVersion};
pub use transport::{
    Concurrency, Families, Flavor, LineEnds, Maildir, Places, Probe, Quota, QuotaFull, SmtpTransport, Timeouts, Tls,
    Transport, TransportKind,
};

/// A unix socket's path without its final NUL, as the kernel has it.
const SOCKET_PATH_OCTETS_MAX: usize = 107;

/// The text that stands in where there is no file: every key, with its default.
pub const DEFAULT: &str = include_str!("default.toml");

/// The whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What this server calls itself: in its greeting, in Received lines, in bounces.
    pub hostname: Box<str>,
    /// The domain of addresses that local programs write without one. None: that of the server's postmaster.
    pub origin: Option<Box<str>>,
    /// The folder under which everything is kept that has no other place.
    pub data_dir: PathBuf,
    /// Who the process becomes after it has bound its addresses.
    pub user: Option<Box<str>>,
    /// Whether the server may run as root.
    pub allow_root: bool,
    /// Threads that drive sessions; 0 lets the server choose.
    pub threads: usize,
    /// Where clients are awaited; at least one, no address twice.
    pub listeners: Vec<Listener>,
    /// What listeners that use TLS show their clients; the first is for those that name none of the others.
    pub certificates: Vec<Certificate>,
    /// What those listeners share.
    pub tls: ServerTls,
    /// Who may log in; None: nobody, and no listener has AUTH.
    pub auth: Option<Auth>,
    /// What can be looked up; names are unique.
    pub tables: Vec<Table>,
    /// The domains whose mail is kept here; names are unique.
    pub domains: Vec<Domain>,
    /// Those whose names are in tables; no table is there twice.
    pub domain_tables: Vec<DomainTable>,
    /// Ways out of the queue; names are unique. [`Transport::MAILDIR`] and [`Transport::SMTP`] are the first two.
    pub transports: Vec<Transport>,
    /// Where mail goes that leaves. The first that matches counts; the last one matches all. Each has a transport of type
    /// smtp or lmtp, and its own next hop or that of its transport, if there is one.
    pub routes: Vec<Route>,
    /// What single next hops get. The first that matches counts.
    pub next_hops: Vec<NextHop>,
    /// How names are looked up.
    pub dns: Dns,
    /// Who may send to other people's domains.
    pub relay: Relay,
    /// Who is let in, in the order in which they are asked.
    pub access: Vec<AccessRule>,
    /// How SMTP is spoken.
    pub smtp: Smtp,
    /// Everything that is bounded.
    pub limits: Limits,
    /// Where mail waits; names are unique. [`Queue::LOCAL`], [`Queue::STANDARD`] and [`Queue::LAME`] are the first
    /// three. Exactly one adopts.
    pub queues: Vec<Queue>,
    /// What all queues share.
    pub scheduler: Scheduler,
    /// When the machine is busy.
    pub load: Load,
    /// What senders are told of mail that does not arrive.
    pub bounce: Bounce,
    /// The log that keeps mail until it is delivered.
    pub spool: Spool,
    /// Where and how facts are logged.
    pub log: Log,
    /// How a running server is asked questions.
    pub admin: Admin,
}

impl Config {
    /// Reads `text`. `origin` names it in messages; `machine` is the name of this host, for `hostname`.
    pub fn parse(text: &str, origin: &str, machine: &str) -> Result<Config, Faults> {
        read::config(text, origin, machine)
    }

    /// The transport of that name. Names in [`Domain::transport`] and [`Route::transport`] always have one.
    pub fn transport(&self, name: &str) -> Option<&Transport> {
        self.transports.iter().find(|transport| &*transport.name == name)
    }

    /// The queue of that name.
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| &*queue.name == name)
    }

    /// The table of that name. Names in [`Domain::mailboxes`], [`Domain::aliases`] and [`Domain::hosts`] always have
    /// one.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| &*table.name == name)
    }
}

/// A protocol that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 5321.
    Smtp,
    /// RFC 2033.
    Lmtp,
    /// RFC 6409: SMTP for users, whose mail gets what it lacks.
    Submission,
}

/// An address at which clients are awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What is spoken there.
    pub protocol: Protocol,
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
    /// Whether TLS is used there. Where it is, there is a certificate.
    pub tls: ListenerTls,
    /// Balancers, which say for whom they have connected before anything else (PROXY).
    pub proxies: Vec<Network>,
    /// Whether clients may log in. Where they may, there is [`Config::auth`].
    pub auth: bool,
    /// Whether they have to before they send, whoever they are.
    pub require_auth: bool,
}

/// A domain whose mail is kept here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name, in lower case.
    pub name: Box<str>,
    /// The table that says who exists; without one everyone does.
    pub mailboxes: Option<Box<str>>,
    /// The table that says who stands for whom.
    pub aliases: Option<Box<str>>,
    /// The table that says which host stores whose mailbox; those stored elsewhere are reached by
    /// [`Transport::SMTP`].
    pub hosts: Option<Box<str>>,
    /// The transport that delivers to its mailboxes: one into Maildirs, or one with a next hop of its own.
    pub transport: Box<str>,
    /// Who gets the mail of those who do not exist.
    pub catch_all: Option<Address>,
    /// What parts a mailbox from a tag.
    pub delimiter: Option<char>,
}

/// Domains whose mail is kept here and whose names are in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainTable {
    /// The table that has their names.
    pub names: Box<str>,
    /// What holds for each; the name in it is empty.
    pub settings: Domain,
}

/// Who may send to other people's domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Clients of these networks.
    pub networks: Vec<Network>,
}

impl Default for Relay {
    fn default() -> Self {
        Relay { networks: loopback() }
    }
}

/// The machine itself.
fn loopback() -> Vec<Network> {
    let networks =
        [Network::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8), Network::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128)];
    networks.into_iter().flatten().collect()
}

/// How SMTP is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smtp {
    /// Clients whose bare CR or LF is made a CR LF instead of being refused.
    pub normalise_bare_newlines_from: Vec<Network>,
    /// Proxies that may speak for others (XCLIENT).
    pub xclient_from: Vec<Network>,
}

/// What a 250 stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The message is on the disk.
    Commit,
    /// The message was written, and is on the disk after the next sync.
    Relaxed {
        /// The time between syncs: what a power loss may cost.
        sync_every: Duration,
    },
}

/// The log that keeps mail until it is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spool {
    /// The folders of the lanes, at least one, each on a disk of its own if that is to help.
    pub lanes: Vec<PathBuf>,
    /// What a 250 stands for.
    pub durability: Durability,
    /// The size of a segment file.
    pub segment_octets: u64,
    /// Free segments that a lane keeps for reuse.
    pub spare_segments: usize,
    /// Free bytes on a lane's disk below which new mail is told 452.
    pub space_min: u64,
    /// Free inodes on a lane's disk below which new mail is told 452.
    pub inodes_min: u64,
}

impl Spool {
    fn under(data_dir: &Path) -> Self {
        Spool {
            lanes: vec![data_dir.join("spool")],
            durability: Durability::Commit,
            segment_octets: 64 << 20,
            spare_segments: 8,
            space_min: 256 << 20,
            inodes_min: 1000,
        }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `time what key=value ...`
    Text,
    /// One JSON object a line.
    Json,
}

/// Where log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// The standard error output.
    Stderr,
    /// The end of a file.
    File(PathBuf),
}

/// Where and how facts are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How lines are written.
    pub format: LogFormat,
    /// Where lines go.
    pub to: LogTarget,
    /// Lines held for the thread that writes them; those beyond are dropped and counted.
    pub queue: usize,
}

impl Default for Log {
    fn default() -> Self {
        Log { format: LogFormat::Text, to: LogTarget::Stderr, queue: 65_536 }
    }
}

/// How a running server is asked questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// The unix socket where it answers.
    pub socket: PathBuf,
}
