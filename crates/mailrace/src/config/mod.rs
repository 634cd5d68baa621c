//! The configuration in its finished form: every value checked, every default filled in, every name that
//! refers to another section known to exist. Nothing later asks whether a setting makes sense.
//!
//! [`Config::parse`] turns a TOML text into it once, or into [`Faults`]: all that is wrong with the text, each
//! fault with its line and column. The types here are plain data; rooms get their own settings from them when
//! the server is put together. `default.toml`, beside this file, states every key with its default and is what
//! `mailrace serve` runs on without a file.

mod fault;
mod key;
mod locate;
mod network;
mod path;
mod read;
mod section;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mail::Address;

pub use fault::{Fault, Faults};
pub use locate::{Loaded, Source, USUAL_FILES, load};
pub use network::Network;
pub use path::MaildirPath;

/// The text that stands in where there is no file: every key, with its default.
pub const DEFAULT: &str = include_str!("default.toml");

/// The whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What this server calls itself: in its greeting, in Received lines, in bounces.
    pub hostname: Box<str>,
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
    /// What can be looked up; names are unique.
    pub tables: Vec<Table>,
    /// The domains whose mail is kept here; names are unique.
    pub domains: Vec<Domain>,
    /// Ways out of the queue; names are unique.
    pub transports: Vec<Transport>,
    /// Who may send to other people's domains.
    pub relay: Relay,
    /// How SMTP is spoken.
    pub smtp: Smtp,
    /// Everything that is bounded.
    pub limits: Limits,
    /// The one queue.
    pub queue: Queue,
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
        read::config(text, machine).map_err(|faults| Faults::new(origin, text, faults))
    }

    /// The transport of that name. Names in [`Domain::transport`] always have one.
    pub fn transport(&self, name: &str) -> Option<&Transport> {
        self.transports.iter().find(|transport| &*transport.name == name)
    }

    /// The table of that name. Names in [`Domain::mailboxes`] and [`Domain::aliases`] always have one.
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
}

/// An address at which clients are awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What is spoken there.
    pub protocol: Protocol,
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
}

/// How a table is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Lines of `key value`, read into memory.
    Text,
    /// D. J. Bernstein's constant database.
    Cdb,
}

/// Something that can be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: Box<str>,
    /// How it is stored.
    pub kind: TableKind,
    /// Where it is stored.
    pub path: PathBuf,
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
    /// The transport that delivers to its mailboxes.
    pub transport: Box<str>,
    /// Who gets the mail of those who do not exist.
    pub catch_all: Option<Address>,
    /// What parts a mailbox from a tag.
    pub delimiter: Option<char>,
}

/// How a Maildir's lines end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnds {
    /// CR LF, as on the wire.
    Crlf,
    /// LF.
    Lf,
}

/// A way out of the queue: for now always into Maildirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Its name.
    pub name: Box<str>,
    /// Where each mailbox is.
    pub path: MaildirPath,
    /// How lines end there.
    pub line_ends: LineEnds,
}

/// Who may send to other people's domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Clients of these networks.
    pub networks: Vec<Network>,
}

impl Default for Relay {
    fn default() -> Self {
        let networks = [
            Network::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
            Network::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        ];
        Relay { networks: networks.into_iter().flatten().collect() }
    }
}

/// How SMTP is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smtp {
    /// Clients whose bare CR or LF is made a CR LF instead of being refused.
    pub normalise_bare_newlines_from: Vec<Network>,
}

/// Everything that is bounded, and what a client is told at the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A command with its line end (500).
    pub command_line_octets_max: usize,
    /// Commands since the last accepted message that brought no mail forward (421).
    pub commands_max: u32,
    /// Commands of a session that were refused (421).
    pub errors_max: u32,
    /// Recipients of a message (452).
    pub recipients_max: usize,
    /// Recipients of a message after aliases were replaced by whom they stand for (452).
    pub expanded_recipients_max: usize,
    /// A message (552).
    pub message_octets_max: u64,
    /// The header of a message (552).
    pub header_octets_max: u64,
    /// Received lines of a message (554).
    pub received_max: u32,
    /// A session, from greeting to end (421).
    pub session_time_max: Duration,
    /// Silence of a client (421).
    pub idle_time_max: Duration,
    /// Sessions at once (421).
    pub sessions_max: usize,
    /// Sessions at once from one address outside the relay networks (421).
    pub sessions_per_client_max: usize,
    /// Memory for message bodies on their way to the spool.
    pub body_memory_max: u64,
    /// A body that grows beyond this goes to a file of its own.
    pub spill_above: u64,
    /// How long a new message waits for body memory (452).
    pub message_wait_max: Duration,
    /// Connections that the system holds before they are accepted.
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            command_line_octets_max: 4096,
            commands_max: 100,
            errors_max: 20,
            recipients_max: 1000,
            expanded_recipients_max: 10_000,
            message_octets_max: 50 << 20,
            header_octets_max: 256 << 10,
            received_max: 100,
            session_time_max: Duration::from_secs(2 * 3600),
            idle_time_max: Duration::from_secs(5 * 60),
            sessions_max: 10_000,
            sessions_per_client_max: 100,
            body_memory_max: 128 << 20,
            spill_above: 1 << 20,
            message_wait_max: Duration::from_secs(10),
            backlog: 1024,
        }
    }
}

/// The one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Its name: always [`Queue::STANDARD`].
    pub name: Box<str>,
    /// Recipients in flight at once; 0 holds the queue.
    pub concurrency: usize,
    /// When a deferred recipient is tried again.
    pub retry: Retry,
}

impl Queue {
    /// The name of the queue that every configuration has.
    pub const STANDARD: &str = "standard";
}

impl Default for Queue {
    fn default() -> Self {
        Queue { name: Queue::STANDARD.into(), concurrency: 2000, retry: Retry::default() }
    }
}

/// When a deferred recipient is tried again: `first * factor^n`, at most `longest`, give or take `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The wait after the first attempt.
    pub first: Duration,
    /// How much longer each wait is than the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
    /// The share by which a wait is made longer or shorter at random; from 0 to 1.
    pub jitter: f64,
    /// From acceptance to the bounce.
    pub lifetime: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            first: Duration::from_secs(60),
            factor: 2.0,
            longest: Duration::from_secs(4 * 3600),
            jitter: 0.2,
            lifetime: Duration::from_secs(5 * 86_400),
        }
    }
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
