//! The validated configuration: every value is checked, every default is filled in, and every
//! reference to another section is resolved. Later code does not check settings again.
//!
//! [`Config::parse`] makes it from a TOML text, or returns [`ConfigErrors`]: everything that is
//! wrong with the text, with lines and columns. The values are plain data in the types of the crates
//! that use them. The types here add what those crates cannot hold: names of other sections, places
//! in the text. `default.toml`, beside this file, has every key with its default; `mailrace serve`
//! uses it if there is no configuration file.

mod access;
mod auth;
mod bounce;
mod certificate_check;
mod cluster_credentials;
mod error;
mod greylist;
mod hint;
mod limits;
mod locate;
mod path;
mod queues;
mod read;
mod retrieval_settings;
mod secret;
mod secret_file;
mod section;
mod signing;
mod srs;
mod table;
mod tls;
mod transport;
mod value_kind;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use mail::{Address, Networks};
use protocol::TlsMode;
use server_log::LogSettings;
use spool::Durability;

pub use access::{AccessRule, DnsblScoreSettings, DnsblZone, EnvelopePattern, NotationError};
pub use auth::{AuthBackend, AuthSettings, Mechanism};
pub use bounce::BounceConfig;
pub use certificate_check::check_certificates;
pub use cluster_credentials::check_cluster_credentials;
pub use error::{ConfigError, ConfigErrors};
pub use filter::content::Pattern;
pub use greylist::GreylistConfig;
pub use limits::{ClientLimits, LoadSettings};
pub use locate::{ConfigSource, DEFAULT_FILES, LoadError, LoadedConfig, load, load_for_injection, machine_name};
pub use path::MaildirPathTemplate;
pub use protocol::smtp::server::NulPolicy;
pub use queues::{QueueRules, QueueSettings};
pub use retrieval_settings::{BackendAccountSettings, BackendTlsMode, HttpServerSettings, Pop3Settings, ProxySettings};
pub use route::DomainPattern;
pub use route::{FixedHop, RouteRule as Route};
pub use secret::without_secrets;
pub use signing::{SigningKeySettings, SigningSettings, check_signing_keys};
pub use srs::{SrsSecretFile, SrsSettings, check_srs_secrets};
pub use table::{
    LdapReplicaConfig, LdapTableConfig, MysqlTableConfig, PostgresTableConfig, RedisTableConfig, SqliteTableConfig,
    TableConfig, TableKind,
};
pub use tls::{CertificateSettings, ServerTlsSettings, TlsVersion};
pub use transport::{
    MailboxPathTableSettings, MaildirTransportSettings, PipeTransportSettings, QuotaSettings, RelayAuthSettings,
    RelayLoginSettings, RelaySecretFile, SmtpTransportSettings, TransportKind, TransportSettings,
};

/// The kernel's limit for the path of a unix socket, without the final NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The built-in configuration, used without a file: every key with its default.
pub const DEFAULT: &str = include_str!("default.toml");

/// The whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The server's name in its greeting, in Received lines and in bounces.
    pub hostname: Box<str>,
    /// The domain for addresses without one. None: a domain of [`Config::domains`].
    pub origin: Option<Box<str>>,
    /// The folder for all data that has no other place.
    pub data_dir: PathBuf,
    /// The user to switch to after binding ports.
    pub user: Option<Box<str>>,
    /// Whether the server may run as root.
    pub allow_root: bool,
    /// Threads for sessions; 0 lets the server choose.
    pub threads: usize,
    /// The addresses to listen on: at least one, all different.
    pub listeners: Vec<ListenerSettings>,
    /// The certificates for TLS. Clients that ask for no other name get the first.
    pub certificates: Vec<CertificateSettings>,
    /// How certificates are obtained; None: the operator provides all of them.
    pub acme: Option<acme::AcmeSettings>,
    /// The TLS settings of all listeners.
    pub tls: ServerTlsSettings,
    /// How users log in. None: no listener offers AUTH.
    pub auth: Option<AuthSettings>,
    /// Lookup tables, with unique names.
    pub tables: Vec<TableConfig>,
    /// Local domains, with unique names.
    pub domains: Vec<DomainSettings>,
    /// Local domains whose names are in tables; no table appears twice.
    pub domain_tables: Vec<DomainTableSettings>,
    /// Transports, with unique names. The first two are [`TransportSettings::MAILDIR`] and
    /// [`TransportSettings::SMTP`].
    pub transports: Vec<TransportSettings>,
    /// Routes for mail to other domains. The first match wins; the last one matches everything.
    /// Each has a transport of type smtp or lmtp, and the next hop of its own or of its transport,
    /// if any.
    pub routes: Vec<Route>,
    /// The transport of the content filter: mail goes there first, unless it comes from there.
    pub content_filter: Option<Box<str>>,
    /// Routes by more than the recipient's domain, which are tried before those. The first match wins.
    pub message_routes: Vec<dispatch::MessageRoute>,
    /// Settings of single next hops. The first match wins.
    pub next_hops: Vec<dispatch::NextHopOverride>,
    /// How the DNS is queried and cached.
    pub dns: dns::ResolverConfig,
    /// When mail fails for a domain whose MX hosts have no address.
    pub missing_addresses: route::MissingAddressPolicy,
    /// The clients that may send to other domains.
    pub relay: RelaySettings,
    /// Access rules, in the order in which they are checked.
    pub access: Vec<AccessRule>,
    /// Milters, in the order in which they are asked, with unique names.
    pub milters: Vec<filter::milter::MilterSettings>,
    /// Policy services, in the order in which they are asked, with unique names.
    pub policy_services: Vec<filter::policy::PolicySettings>,
    /// Limits over time, with unique names.
    pub rate_limits: Vec<filter::limits::LimitSettings>,
    /// How unknown senders are deferred; None: they are not.
    pub greylist: Option<GreylistConfig>,
    /// Content rules, in the order in which they are evaluated, with unique names.
    pub content: Vec<filter::content::ContentRule>,
    /// How addresses are rewritten; None: they stay.
    pub rewrite: Option<filter::rewrite::RewriteSettings>,
    /// Who gets blind copies.
    pub bcc: filter::bcc::BccSettings,
    /// How the senders of incoming mail are checked.
    pub sender_auth: sender_auth::VerificationSettings,
    /// Reports to the owners of other domains.
    pub reports: sender_auth::reports::ReportSettings,
    /// Settings of the SMTP protocol.
    pub smtp: SmtpServerSettings,
    /// Settings of POP3.
    pub pop3: Pop3Settings,
    /// Settings of HTTP.
    pub http: HttpServerSettings,
    /// Settings of the proxies.
    pub proxy: ProxySettings,
    /// Limits for clients.
    pub limits: ClientLimits,
    /// The queues, with unique names. The first three are [`QueueSettings::LOCAL`],
    /// [`QueueSettings::STANDARD`] and [`QueueSettings::LAME`]. Exactly one adopts.
    pub queues: Vec<QueueSettings>,
    /// Settings of all queues together.
    pub scheduler: queue::SchedulerPolicy,
    /// Limits on system load.
    pub load: LoadSettings,
    /// Settings of bounces and delay notices.
    pub bounce: BounceConfig,
    /// DKIM signatures.
    pub signing: SigningSettings,
    /// Senders of forwarded mail; None: they stay.
    pub srs: Option<SrsSettings>,
    /// The cluster that this server is a node of; None: it stands alone.
    pub cluster: Option<cluster::ClusterConfig>,
    /// The spool.
    pub spool: SpoolSettings,
    /// The log.
    pub log: LogSettings,
    /// The control socket.
    pub admin: AdminSettings,
    /// The HTTP API.
    pub api: ApiSettings,
}

/// Reads the signing keys, the secrets of SRS and the credentials of the cluster. Returns errors for files that cannot be used,
/// otherwise warnings about those that others can read. Each warning starts with its place in the text.
pub fn check_secret_files(loaded: &LoadedConfig) -> Result<Vec<String>, ConfigErrors> {
    let mut doubts = check_signing_keys(loaded)?;
    doubts.extend(check_srs_secrets(loaded)?);
    doubts.extend(check_cluster_credentials(loaded)?);
    Ok(doubts)
}

impl Config {
    /// Parses `text`. `origin` is its name in error messages; `machine` is the default `hostname`.
    pub fn parse(text: &str, origin: &str, machine: &str) -> Result<Config, ConfigErrors> {
        read::config(text, origin, machine)
    }

    /// The transport named `name`. [`DomainSettings::transport`] and [`Route::transport`] always
    /// name one that exists.
    pub fn transport(&self, name: &str) -> Option<&TransportSettings> {
        self.transports.iter().find(|transport| &*transport.name == name)
    }

    /// The queue named `name`.
    pub fn queue(&self, name: &str) -> Option<&QueueSettings> {
        self.queues.iter().find(|queue| &*queue.name == name)
    }

    /// The table named `name`. [`DomainSettings::mailboxes`], [`DomainSettings::aliases`] and
    /// [`DomainSettings::hosts`] always name one that exists.
    pub fn table(&self, name: &str) -> Option<&TableConfig> {
        self.tables.iter().find(|table| &*table.name == name)
    }
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// RFC 5321.
    Smtp,
    /// RFC 2033.
    Lmtp,
    /// RFC 6409: SMTP for users. Messages get missing header fields.
    Submission,
    /// RFC 1939: users read the mailboxes on this host.
    Pop3,
    /// Files, mailboxes or the API by HTTP.
    Http,
    /// POP3, passed on to the host of the mailbox.
    Pop3Proxy,
    /// IMAP, passed on to the host of the mailbox.
    ImapProxy,
}

impl ListenerProtocol {
    /// The protocols with their names in the file.
    pub const NAMES: &[(&str, ListenerProtocol)] = &[
        ("smtp", ListenerProtocol::Smtp),
        ("lmtp", ListenerProtocol::Lmtp),
        ("submission", ListenerProtocol::Submission),
        ("pop3", ListenerProtocol::Pop3),
        ("http", ListenerProtocol::Http),
        ("pop3-proxy", ListenerProtocol::Pop3Proxy),
        ("imap-proxy", ListenerProtocol::ImapProxy),
    ];

    /// The name in the file, in metrics and in messages.
    pub fn name(self) -> &'static str {
        let found = ListenerProtocol::NAMES.iter().find(|(_, protocol)| *protocol == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether it reads what is stored, and receives no mail.
    pub fn is_retrieval(self) -> bool {
        !matches!(self, ListenerProtocol::Smtp | ListenerProtocol::Lmtp | ListenerProtocol::Submission)
    }
}

/// An address on which the server accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// The protocol.
    pub protocol: ListenerProtocol,
    /// The address; with port 0 the system chooses a port.
    pub address: SocketAddr,
    /// The TLS mode. Any mode but `Never` has a certificate.
    pub tls: TlsMode,
    /// Load balancers, which must send a PROXY header first.
    pub proxies: Networks,
    /// What clients must do before the greeting.
    pub greeting: intake::GreetingPolicy,
    /// Whether clients may log in. If true, there is [`Config::auth`].
    pub auth: bool,
    /// Whether clients must log in before they send mail, or get files.
    pub require_auth: bool,
    /// Relay networks send here what the content filter has passed.
    pub from_content_filter: bool,
    /// Whether large messages and files leave by sendfile.
    pub sendfile: bool,
    /// What an HTTP listener serves; only with [`ListenerProtocol::Http`], and then always if it does not
    /// serve the API.
    pub http: Option<Box<retrieval::http::HttpSettings>>,
    /// Whether it serves the API; only with [`ListenerProtocol::Http`]. It has TLS from the first byte
    /// unless its address is a loopback address.
    pub api: bool,
}

impl ListenerSettings {
    /// Whether its clients read what is stored, and so count as sessions of readers.
    pub fn is_for_readers(&self) -> bool {
        self.protocol.is_retrieval() && !self.api
    }
}

/// A local domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSettings {
    /// Its name, in lower case.
    pub name: Box<str>,
    /// The table of existing mailboxes; None: all exist.
    pub mailboxes: Option<Box<str>>,
    /// Whether `@domain` in that table stands for all addresses that are not known otherwise.
    pub wildcard_mailbox: bool,
    /// The table of aliases.
    pub aliases: Option<Box<str>>,
    /// The table of the hosts that store mailboxes. Mail for other hosts leaves by
    /// [`TransportSettings::SMTP`].
    pub hosts: Option<Box<str>>,
    /// The transport to its mailboxes: of type maildir, or with a next hop of its own.
    pub transport: Box<str>,
    /// The address that gets mail for unknown mailboxes.
    pub catch_all: Option<Address>,
    /// The character between mailbox and tag.
    pub delimiter: Option<char>,
}

/// Local domains whose names are in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainTableSettings {
    /// The table of names.
    pub names: Box<str>,
    /// The settings of each domain; the name in it is empty.
    pub settings: DomainSettings,
}

/// Which clients may send to other domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelaySettings {
    /// These networks may.
    pub networks: Networks,
    /// All other clients get 454 and may try again, rather than 550.
    pub is_deferred: bool,
}

impl Default for RelaySettings {
    fn default() -> Self {
        RelaySettings { networks: Networks::loopback(), is_deferred: false }
    }
}

/// Settings of the SMTP protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpServerSettings {
    /// Clients whose bare CR and LF become CRLF instead of an error.
    pub normalise_bare_newlines_from: Networks,
    /// Proxies that may use XCLIENT.
    pub xclient_from: Networks,
    /// Accept only addresses in the syntax of RFC 5321.
    pub strict_addresses: bool,
    /// What to do with NUL bytes in a message.
    pub nul: NulPolicy,
    /// Untrusted clients must wait for 354 before they send a message.
    pub enforces_sync: bool,
}

impl Default for SmtpServerSettings {
    fn default() -> Self {
        SmtpServerSettings {
            normalise_bare_newlines_from: Networks::default(),
            xclient_from: Networks::default(),
            strict_addresses: false,
            nul: NulPolicy::Keep,
            enforces_sync: true,
        }
    }
}

/// The spool, which keeps messages until they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolSettings {
    /// The folders of the lanes, at least one. More lanes help only on disks of their own.
    pub lanes: Vec<PathBuf>,
    /// What a 250 reply guarantees.
    pub durability: Durability,
    /// The size of a segment file.
    pub segment_octets: u64,
    /// Free segments that each lane keeps for reuse.
    pub spare_segments: usize,
}

impl SpoolSettings {
    fn with_data_dir(data_dir: &Path) -> Self {
        let spool::Config { segment_bytes, durability, spare_segments, .. } = spool::Config::default();
        SpoolSettings { lanes: vec![data_dir.join("spool")], durability, segment_octets: segment_bytes, spare_segments }
    }

    /// Whether a message is synced before it is answered with 250.
    pub fn syncs_each_commit(&self) -> bool {
        self.durability == Durability::Commit
    }
}

/// Settings of the HTTP API. Its times and the number of requests on a connection are those of
/// [`Config::http`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// The names by which clients may call it, beside those of this machine.
    pub hosts: Vec<Box<str>>,
    /// Concurrent connections of all its listeners.
    pub connections_max: usize,
    /// The most entries of a page.
    pub page_entries_max: usize,
    /// Next hops with metrics of their own: those with the most recipients.
    pub metrics_next_hops_max: usize,
}

impl Default for ApiSettings {
    fn default() -> Self {
        ApiSettings { hosts: Vec::new(), connections_max: 64, page_entries_max: 1000, metrics_next_hops_max: 20 }
    }
}

/// Settings of the control interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// The path of its unix socket.
    pub socket: PathBuf,
}
