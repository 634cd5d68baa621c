//! Ways out of the queue: into Maildirs, and over the network by SMTP or LMTP. Plain data with its defaults; what
//! [`Config`](super::Config) promises of them beside is said at the fields.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{FixedHop, MaildirPath, Rate};

/// A way out of the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Transport {
    /// Its name.
    pub name: Box<str>,
    /// What it does, and how.
    pub kind: TransportKind,
}

impl Transport {
    /// The transport of local mail that every configuration has; always [`TransportKind::Maildir`].
    pub const MAILDIR: &str = "maildir";
    /// The transport that every configuration has of all mail that leaves, where no route says otherwise; always
    /// [`Flavor::Smtp`].
    pub const SMTP: &str = "smtp";

    /// Whether it ends in Maildirs: mail goes no further.
    pub fn is_maildir(&self) -> bool {
        matches!(self.kind, TransportKind::Maildir(_))
    }

    /// Where all its mail goes that no route leads elsewhere.
    pub fn next_hop(&self) -> Option<&FixedHop> {
        match &self.kind {
            TransportKind::Maildir(_) => None,
            TransportKind::Smtp(smtp) => smtp.next_hop.as_ref(),
        }
    }
}

/// What a transport does.
#[derive(Clone, Debug, PartialEq)]
pub enum TransportKind {
    /// Puts mail into Maildirs.
    Maildir(Maildir),
    /// Speaks SMTP or LMTP to other servers.
    Smtp(Box<SmtpTransport>),
}

/// How a Maildir's lines end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnds {
    /// CR LF, as on the wire.
    Crlf,
    /// LF.
    Lf,
}

/// Mail goes into Maildirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Maildir {
    /// Where each mailbox is,
    pub path: MaildirPath,
    /// unless a table says where.
    pub places: Option<Places>,
    /// How lines end there.
    pub line_ends: LineEnds,
    /// What each mailbox may hold; without one whatever the disk takes.
    pub quota: Option<Quota>,
    /// Attempts at once.
    pub concurrency: Concurrency,
    /// Concurrency grows while attempts end sooner than this, and shrinks when they take longer.
    pub latency_target: Duration,
}

/// What each mailbox may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes; 0: as many as there are.
    pub bytes: u64,
    /// Messages; 0: as many as there are.
    pub messages: u64,
    /// The table that says what single mailboxes may hold.
    pub table: Option<Box<str>>,
    /// What becomes of mail for those that are full.
    pub full: QuotaFull,
}

/// What becomes of mail for a full mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaFull {
    /// Clients are told to come again, and what is in the queue waits.
    Defer,
    /// Clients are refused, and what is in the queue fails.
    Refuse,
}

/// A table that says where mailboxes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Its name.
    pub table: Box<str>,
    /// The folder that all places are below.
    pub root: PathBuf,
}

impl Maildir {
    /// With all defaults, under a folder.
    pub(super) fn under(data_dir: &Path) -> Self {
        Maildir {
            path: MaildirPath::under(data_dir),
            places: None,
            line_ends: LineEnds::Crlf,
            quota: None,
            concurrency: Concurrency { start: 100, most: 2000, grow: 1.0, shrink: 0.5 },
            latency_target: Duration::from_secs(1),
        }
    }
}

/// How many at once, as experience has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// At first; never over `most`.
    pub start: usize,
    /// At most, whatever the experience; at least 1.
    pub most: usize,
    /// What a full round of successes adds, once there was a failure; before, every success adds one.
    pub grow: f64,
    /// The share that remains after a failure; from 0 to 1.
    pub shrink: f64,
}

/// The protocol that an [`SmtpTransport`] speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// RFC 5321.
    Smtp,
    /// RFC 2033.
    Lmtp,
}

impl Flavor {
    /// The port where no next hop names one.
    pub fn port(self) -> u16 {
        match self {
            Flavor::Smtp => 25,
            Flavor::Lmtp => 24,
        }
    }
}

/// Whether connections become TLS (RFC 3207).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// They do not.
    Never,
    /// Where the other side offers it.
    Offered,
    /// Always: mail waits rather than go in clear text.
    Required,
}

/// Which addresses of a host are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// All.
    Both,
}

/// Mail goes to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct SmtpTransport {
    /// The protocol.
    pub flavor: Flavor,
    /// Where mail goes that no route leads elsewhere; without it to the hosts that its domain names. Always there
    /// where a [[domain]] or an LMTP route needs it.
    pub next_hop: Option<FixedHop>,
    /// The port where no next hop names one.
    pub port: u16,
    /// The local address of connections over IPv4; without one the system chooses.
    pub source_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub source_v6: Option<Ipv6Addr>,
    /// The name that it gives itself in EHLO or LHLO.
    pub helo: Box<str>,
    /// Whether connections become TLS.
    pub tls: Tls,
    /// Commands go out in groups where that is offered (RFC 2920).
    pub pipelining: bool,
    /// Messages go out by BDAT where that is offered (RFC 3030).
    pub chunking: bool,
    /// Bodies of more bytes leave the spool's files without being copied; None: never.
    pub sendfile_above: Option<u64>,
    /// Which addresses of a host are tried.
    pub families: Families,
    /// Connections to one next hop.
    pub concurrency: Concurrency,
    /// Messages to one next hop.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: u32,
    /// Recipients of one transaction.
    pub recipients_per_message_max: usize,
    /// Addresses that one attempt tries.
    pub addresses_tried_max: usize,
    /// How long an unused connection stays open; zero closes it at once.
    pub idle_time_max: Duration,
    /// Unused connections that one worker keeps.
    pub idle_connections_max: usize,
    /// When a next hop is given up for a while.
    pub probe: Probe,
    /// How long the other side may take.
    pub timeouts: Timeouts,
}

impl SmtpTransport {
    /// With all defaults.
    pub(super) fn new(flavor: Flavor, helo: Box<str>) -> Self {
        SmtpTransport {
            flavor,
            next_hop: None,
            port: flavor.port(),
            source_v4: None,
            source_v6: None,
            helo,
            tls: Tls::Offered,
            pipelining: true,
            chunking: true,
            sendfile_above: Some(SENDFILE_ABOVE),
            families: Families::Both,
            concurrency: Concurrency { start: 2, most: 20, grow: 1.0, shrink: 0.5 },
            rate: None,
            messages_per_connection_max: 1000,
            recipients_per_message_max: 100,
            addresses_tried_max: 8,
            idle_time_max: Duration::from_secs(5),
            idle_connections_max: 2000,
            probe: Probe::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// Smaller bodies are copied: they cost less in the same write as their commands.
pub(super) const SENDFILE_ABOVE: u64 = 32 << 10;

/// When a next hop that cannot be reached is left alone, and when it is tried again: after `first`, and each time
/// `factor` times later, at most `longest`.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// So many failures in a row.
    pub failures: u32,
    /// The first wait.
    pub first: Duration,
    /// How much longer each wait is than the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Probe { failures: 3, first: Duration::from_secs(60), factor: 2.0, longest: Duration::from_secs(600) }
    }
}

/// How long the other side may take (RFC 5321 section 4.5.3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to one address.
    pub connect: Duration,
    /// For the banner.
    pub banner: Duration,
    /// For the reply to a command, and for the TLS handshake.
    pub command: Duration,
    /// For 354.
    pub data: Duration,
    /// For any of the message's bytes to go out.
    pub block: Duration,
    /// For the reply to the message.
    pub message: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Timeouts {
            connect: seconds(30),
            banner: seconds(300),
            command: seconds(300),
            data: seconds(120),
            block: seconds(180),
            message: seconds(600),
        }
    }
}
