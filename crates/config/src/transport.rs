//! Transports: to Maildirs, and to other servers by SMTP or LMTP. Plain data with defaults; the
//! fields state what [`Config`](super::Config) guarantees about them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mail::Rate;

use super::{FixedHop, MaildirPathTemplate};

/// A transport.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportSettings {
    /// Its name.
    pub name: Box<str>,
    /// Its type and settings.
    pub kind: TransportKind,
}

impl TransportSettings {
    /// The built-in transport of local mail; always [`TransportKind::Maildir`].
    pub const MAILDIR: &str = "maildir";
    /// The built-in transport of mail without another route; always [`SmtpFlavor::Smtp`].
    pub const SMTP: &str = "smtp";

    /// Whether it delivers to Maildirs.
    pub fn is_maildir(&self) -> bool {
        matches!(self.kind, TransportKind::Maildir(_))
    }

    /// The next hop of mail whose route has none.
    pub fn next_hop(&self) -> Option<&FixedHop> {
        match &self.kind {
            TransportKind::Maildir(_) => None,
            TransportKind::Smtp(smtp) => smtp.next_hop.as_ref(),
        }
    }
}

/// The type and settings of a transport.
#[derive(Clone, Debug, PartialEq)]
pub enum TransportKind {
    /// Delivery to Maildirs.
    Maildir(MaildirTransportSettings),
    /// SMTP or LMTP to other servers.
    Smtp(Box<SmtpTransportSettings>),
}

/// The line endings in a Maildir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnds {
    /// CR LF, as on the wire.
    Crlf,
    /// LF.
    Lf,
}

/// Delivery to Maildirs.
#[derive(Clone, Debug, PartialEq)]
pub struct MaildirTransportSettings {
    /// The folder of each mailbox,
    pub path: MaildirPathTemplate,
    /// unless it is in this table.
    pub places: Option<MailboxPathTableSettings>,
    /// The line endings of messages.
    pub line_ends: LineEnds,
    /// The size limit of each mailbox; None: no limit.
    pub quota: Option<QuotaSettings>,
    /// Concurrent attempts.
    pub concurrency: Concurrency,
    /// Concurrency grows while attempts take less time than this, and shrinks otherwise.
    pub latency_target: Duration,
}

/// The size limits of mailboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSettings {
    /// Bytes; 0: no limit.
    pub bytes: u64,
    /// Messages; 0: no limit.
    pub messages: u64,
    /// The table of limits for single mailboxes.
    pub table: Option<Box<str>>,
    /// What happens to mail for full mailboxes.
    pub full: QuotaFullAction,
}

/// What happens to mail for a full mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaFullAction {
    /// Clients get 452, and queued mail waits.
    Defer,
    /// Clients get 552, and queued mail bounces.
    Refuse,
}

/// A table of mailbox folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxPathTableSettings {
    /// Its name.
    pub table: Box<str>,
    /// The folder that contains them all.
    pub root: PathBuf,
}

impl MaildirTransportSettings {
    /// All defaults, in this folder.
    pub(super) fn with_data_dir(data_dir: &Path) -> Self {
        MaildirTransportSettings {
            path: MaildirPathTemplate::with_data_dir(data_dir),
            places: None,
            line_ends: LineEnds::Crlf,
            quota: None,
            concurrency: Concurrency { start: 100, max: 2000, grow: 1.0, shrink: 0.5 },
            latency_target: Duration::from_secs(1),
        }
    }
}

/// An adaptive limit on concurrency.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// The initial limit; never above `max`.
    pub start: usize,
    /// The highest limit; at least 1.
    pub max: usize,
    /// What a full round of successes adds after the first failure. Before it, each success adds
    /// one.
    pub grow: f64,
    /// A failure multiplies the limit by this, from 0 to 1.
    pub shrink: f64,
}

/// The protocol of an [`SmtpTransportSettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpFlavor {
    /// RFC 5321.
    Smtp,
    /// RFC 2033.
    Lmtp,
}

impl SmtpFlavor {
    /// The default port of next hops.
    pub fn port(self) -> u16 {
        match self {
            SmtpFlavor::Smtp => 25,
            SmtpFlavor::Lmtp => 24,
        }
    }
}

/// When to use STARTTLS (RFC 3207).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundTls {
    /// Never.
    Never,
    /// If the server offers it.
    Offered,
    /// Always: otherwise mail waits.
    Required,
}

/// Which addresses of a host to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamilies {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Both.
    Both,
}

/// Delivery to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct SmtpTransportSettings {
    /// The protocol.
    pub flavor: SmtpFlavor,
    /// The next hop of mail whose route has none; None: the MX of the recipient's domain. Always
    /// set if a [[domain]] or an LMTP route needs it.
    pub next_hop: Option<FixedHop>,
    /// The default port of next hops.
    pub port: u16,
    /// The local IPv4 address of connections; None: the system chooses.
    pub source_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub source_v6: Option<Ipv6Addr>,
    /// The name in EHLO or LHLO.
    pub helo: Box<str>,
    /// When to use STARTTLS.
    pub tls: OutboundTls,
    /// Use PIPELINING if the server offers it (RFC 2920).
    pub pipelining: bool,
    /// Use BDAT if the server offers it (RFC 3030).
    pub chunking: bool,
    /// Bodies with more bytes are sent with sendfile(2); None: never.
    pub sendfile_above: Option<u64>,
    /// Which addresses of a host to use.
    pub families: IpFamilies,
    /// Connections to one next hop.
    pub concurrency: Concurrency,
    /// Messages to one next hop.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: u32,
    /// Recipients in one transaction.
    pub recipients_per_message_max: usize,
    /// Addresses to try in one attempt.
    pub addresses_tried_max: usize,
    /// How long an unused connection stays open; zero: close it.
    pub idle_time_max: Duration,
    /// Unused connections that one worker keeps.
    pub idle_connections_max: usize,
    /// When a next hop counts as dead.
    pub probe: ProbeSettings,
    /// Time limits for replies.
    pub timeouts: SmtpTimeouts,
}

impl SmtpTransportSettings {
    /// With all defaults.
    pub(super) fn new(flavor: SmtpFlavor, helo: Box<str>) -> Self {
        SmtpTransportSettings {
            flavor,
            next_hop: None,
            port: flavor.port(),
            source_v4: None,
            source_v6: None,
            helo,
            tls: OutboundTls::Offered,
            pipelining: true,
            chunking: true,
            sendfile_above: Some(SENDFILE_ABOVE),
            families: IpFamilies::Both,
            concurrency: Concurrency { start: 2, max: 20, grow: 1.0, shrink: 0.5 },
            rate: None,
            messages_per_connection_max: 1000,
            recipients_per_message_max: 100,
            addresses_tried_max: 8,
            idle_time_max: Duration::from_secs(5),
            idle_connections_max: 2000,
            probe: ProbeSettings::default(),
            timeouts: SmtpTimeouts::default(),
        }
    }
}

/// Smaller bodies are copied: one write together with their commands costs less.
pub(super) const SENDFILE_ABOVE: u64 = 32 << 10;

/// When a next hop that cannot be reached is dead, and when it is probed: after `first`, then each
/// time `factor` times later, at most `longest`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSettings {
    /// The number of failures in a row.
    pub failures: u32,
    /// The first wait.
    pub first: Duration,
    /// Each wait is this many times the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        ProbeSettings { failures: 3, first: Duration::from_secs(60), factor: 2.0, longest: Duration::from_secs(600) }
    }
}

/// Time limits for the other server (RFC 5321 section 4.5.3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpTimeouts {
    /// Connecting to one address.
    pub connect: Duration,
    /// The banner.
    pub banner: Duration,
    /// The reply to a command; also the TLS handshake.
    pub command: Duration,
    /// The 354 reply.
    pub data: Duration,
    /// Sending any block of message data.
    pub block: Duration,
    /// The reply to the message.
    pub message: Duration,
}

impl Default for SmtpTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        SmtpTimeouts {
            connect: seconds(30),
            banner: seconds(300),
            command: seconds(300),
            data: seconds(120),
            block: seconds(180),
            message: seconds(600),
        }
    }
}
