//! Transports: to Maildirs, to other servers by SMTP or LMTP, to programs, and nowhere. Plain data with defaults, mostly
//! in the types of the crates that deliver; the fields state what [`Config`](super::Config)
//! guarantees about them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use delivery::pipe::{AddedFields, ArgumentTemplate, ProgramLineEnds};
use delivery::remote::{ConnectionConfig, LoginSecurity};
use mailbox::LineEnds;
use mailbox::quota::{OverQuotaAction, QuotaLimits};
use protocol::sasl::client::LoginMechanism;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{CommandArgument, SmtpClientConfig};
use queue::{ConcurrencyFeedback, ConcurrencyPolicy, NextHopLimits, QueueConfig};
use route::{EndpointOptions, TlsDemand, TlsOptions};

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
    /// The built-in transport of mail without another route; always [`MailProtocol::Smtp`].
    pub const SMTP: &str = "smtp";

    /// Whether it delivers to Maildirs.
    pub fn is_maildir(&self) -> bool {
        matches!(self.kind, TransportKind::Maildir(_))
    }

    /// Whether it needs no next hop: it delivers on this host, or not at all.
    pub fn is_hostless(&self) -> bool {
        match self.kind {
            TransportKind::Maildir(_) | TransportKind::Pipe(_) | TransportKind::Discard => true,
            TransportKind::Smtp(_) | TransportKind::Error { .. } => false,
        }
    }

    /// Its settings, if it delivers to Maildirs.
    pub fn maildir(&self) -> Option<&MaildirTransportSettings> {
        match &self.kind {
            TransportKind::Maildir(maildir) => Some(maildir),
            _ => None,
        }
    }

    /// Its settings, if it delivers to other servers.
    pub fn smtp(&self) -> Option<&SmtpTransportSettings> {
        match &self.kind {
            TransportKind::Smtp(smtp) => Some(smtp),
            _ => None,
        }
    }

    /// Its settings, if it delivers to a program.
    pub fn pipe(&self) -> Option<&PipeTransportSettings> {
        match &self.kind {
            TransportKind::Pipe(pipe) => Some(pipe),
            _ => None,
        }
    }

    /// The next hop of mail whose route has none.
    pub fn next_hop(&self) -> Option<&FixedHop> {
        match &self.kind {
            TransportKind::Smtp(smtp) => smtp.next_hop.as_ref(),
            TransportKind::Error { reply } => Some(reply),
            TransportKind::Maildir(_) | TransportKind::Pipe(_) | TransportKind::Discard => None,
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
    /// Delivery to a program.
    Pipe(Box<PipeTransportSettings>),
    /// All mail gets this reply: it bounces, or waits.
    Error {
        /// Always [`FixedHop::Reply`].
        reply: FixedHop,
    },
    /// All mail is delivered nowhere.
    Discard,
}

/// Delivery to a program.
#[derive(Clone, Debug, PartialEq)]
pub struct PipeTransportSettings {
    /// The path of the program, and its arguments; at least one.
    pub command: Vec<ArgumentTemplate>,
    /// `user` or `user:group`; None: the user of the server.
    pub user: Option<Box<str>>,
    /// The working folder.
    pub directory: PathBuf,
    /// `${sender}` of the null sender.
    pub null_sender: Box<str>,
    /// Between a mailbox and its tag, for `${user}` and `${extension}`.
    pub delimiter: Option<char>,
    /// The fields before the message.
    pub fields: AddedFields,
    /// The line ends of the message.
    pub line_ends: ProgramLineEnds,
    /// How long a program may take.
    pub time_max: Duration,
    /// How much of the output may become part of a notice.
    pub output_octets_max: usize,
    /// Programs at a time, and recipients of each.
    pub limits: NextHopLimits,
}

impl PipeTransportSettings {
    /// The defaults: one recipient of each program, ten programs at a time.
    pub(super) fn new(command: Vec<ArgumentTemplate>) -> Self {
        PipeTransportSettings {
            command,
            user: None,
            directory: "/".into(),
            null_sender: "MAILER-DAEMON".into(),
            delimiter: Some('+'),
            fields: AddedFields::default(),
            line_ends: ProgramLineEnds::default(),
            time_max: Duration::from_secs(10 * 60),
            output_octets_max: 4 << 10,
            limits: NextHopLimits {
                concurrency: ConcurrencyPolicy { start: 10, max: 10, ..ConcurrencyPolicy::default() },
                recipients_per_attempt_max: Some(1),
                ..NextHopLimits::default()
            },
        }
    }
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
    /// Concurrent attempts: always [`ConcurrencyFeedback::ByLatency`]. `start` is never above
    /// `max`.
    pub concurrency: ConcurrencyPolicy,
}

/// The size limits of mailboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSettings {
    /// The limits of mailboxes that the table does not contain.
    pub limits: QuotaLimits,
    /// The table of limits for single mailboxes.
    pub table: Option<Box<str>>,
    /// What happens to mail for full mailboxes.
    pub full: OverQuotaAction,
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
            line_ends: LineEnds::default(),
            quota: None,
            concurrency: ConcurrencyPolicy {
                start: 100,
                max: 2000,
                adapt: ConcurrencyFeedback::ByLatency { target: Duration::from_secs(1) },
                ..ConcurrencyPolicy::default()
            },
        }
    }
}

/// Delivery to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct SmtpTransportSettings {
    /// The next hop of mail whose route has none; None: the MX of the recipient's domain. Always
    /// set if a [[domain]] or an LMTP route needs it.
    pub next_hop: Option<FixedHop>,
    /// The default port of next hops, and which addresses of a host to use.
    pub endpoints: EndpointOptions,
    /// The protocol: SMTP or LMTP. Its credentials come from `auth`.
    pub client: SmtpClientConfig,
    /// The logins at its next hops, if it needs any.
    pub auth: Option<RelayAuthSettings>,
    /// The table that rewrites the addresses of its mail on the way out.
    pub generic: Option<Box<str>>,
    /// What hosts must prove by TLS. With [`TlsDemand::Dane`] the name servers validate; with
    /// [`TlsDemand::Verified`] the client requires TLS.
    pub tls: TlsOptions,
    /// The authorities that vouch for hosts; None: those of the system.
    pub tls_ca_file: Option<PathBuf>,
    /// How connections are made, and how long they stay open.
    pub connections: ConnectionConfig,
    /// The limits of each next hop. `start` of the concurrency is never above `max`.
    pub limits: NextHopLimits,
}

impl SmtpTransportSettings {
    /// With all defaults.
    pub(super) fn new(flavor: MailProtocol, helo: &str) -> Self {
        SmtpTransportSettings {
            next_hop: None,
            endpoints: EndpointOptions { port: default_port(flavor), ..EndpointOptions::default() },
            auth: None,
            generic: None,
            client: SmtpClientConfig { chunking: true, ..SmtpClientConfig::new(flavor, helo_argument(helo)) },
            tls: TlsOptions { demand: TlsDemand::Nothing, names: Vec::new(), mta_sts: flavor == MailProtocol::Smtp },
            tls_ca_file: None,
            connections: ConnectionConfig::default(),
            limits: NextHopLimits {
                recipients_per_attempt_max: Some(QueueConfig::default().recipients_per_attempt_max),
                ..NextHopLimits::default()
            },
        }
    }
}

/// The logins at the next hops of a transport: `login`, `senders` or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayAuthSettings {
    /// The login for all mail without another one.
    pub login: Option<RelayLoginSettings>,
    /// The table of logins by sender address or domain: `user:password`.
    pub senders: Option<Box<str>>,
    /// The mechanisms for passwords, the preferred one first; at least one.
    pub mechanisms: Vec<LoginMechanism>,
    /// What a connection must be like before a login is sent.
    pub security: LoginSecurity,
}

/// One login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLoginSettings {
    /// The user name.
    pub user: Box<str>,
    /// The file with the password or token.
    pub secret: RelaySecretFile,
}

/// A file with the secret of a login, readable by `user`. It is read again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelaySecretFile {
    /// A password, in its first line.
    Password(PathBuf),
    /// An access token for XOAUTH2, in its first line.
    Token(PathBuf),
}

impl RelaySecretFile {
    /// Where it is.
    pub fn path(&self) -> &PathBuf {
        match self {
            RelaySecretFile::Password(path) | RelaySecretFile::Token(path) => path,
        }
    }
}

/// The default port of next hops.
fn default_port(flavor: MailProtocol) -> u16 {
    match flavor {
        MailProtocol::Smtp => 25,
        MailProtocol::Lmtp => 24,
    }
}

/// A host name as the argument of EHLO.
pub(super) fn helo_argument(host: &str) -> CommandArgument {
    CommandArgument::new(host).expect("host names contain neither white space nor control characters")
}
