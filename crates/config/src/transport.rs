//! Transports: to Maildirs, and to other servers by SMTP or LMTP. Plain data with defaults, mostly
//! in the types of the crates that deliver; the fields state what [`Config`](super::Config)
//! guarantees about them.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
