//! Settings of retrieval: POP3, files and mailboxes by HTTP, and the proxy to other hosts. Plain data, in the
//! types of the crates that use them.

use std::path::PathBuf;
use std::time::Duration;

use mailbox::maildrop::MaildropSettings;
use protocol::http::server::HttpServerLimits;
use protocol::pop3::server::Pop3Limits;
use retrieval::http::{FileCacheSettings, MailboxLimits};
use retrieval::proxy::{BackendAddress, BackendLimits, MasterUserForm};

/// `[pop3]`. The limits also hold for the POP3 proxy, before the login; the timeout of locks for
/// mailboxes by HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pop3Settings {
    /// The limits of sessions.
    pub limits: Pop3Limits,
    /// How mailboxes are opened.
    pub maildrop: MaildropSettings,
}

/// `[http]`: what all listeners share that serve files or mailboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpServerSettings {
    /// What a client may send, and how long it may take.
    pub limits: HttpServerLimits,
    /// The cache of small files of each listener.
    pub cache: FileCacheSettings,
    /// What is read of mailboxes.
    pub mailboxes: MailboxLimits,
}

/// `[proxy]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// The POP3 port of hosts that are named without one.
    pub pop3_port: u16,
    /// The IMAP port of hosts that are named without one.
    pub imap_port: u16,
    /// TLS to the hosts. Their certificates are not verified.
    pub tls: BackendTlsMode,
    /// Who logs in there.
    pub account: BackendAccountSettings,
    /// Where POP3 of mailboxes on this host is served; None: their users are refused.
    pub local_pop3: Option<BackendAddress>,
    /// The same for IMAP.
    pub local_imap: Option<BackendAddress>,
    /// Whether IMAP hosts are told the address of the client.
    pub tells_client_address: bool,
    /// How long nothing may pass through after the login.
    pub idle_time_max: Duration,
    /// Limits on connections to the hosts.
    pub backends: BackendLimits,
}

impl Default for ProxySettings {
    /// The standard ports, clear text, the user's own password, and half an hour of silence: IMAP
    /// clients that wait for mail are silent for 29 minutes (RFC 2177).
    fn default() -> Self {
        ProxySettings {
            pop3_port: 110,
            imap_port: 143,
            tls: BackendTlsMode::Never,
            account: BackendAccountSettings::User,
            local_pop3: None,
            local_imap: None,
            tells_client_address: false,
            idle_time_max: Duration::from_secs(30 * 60),
            backends: BackendLimits::default(),
        }
    }
}

/// TLS to the hosts behind a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendTlsMode {
    /// Clear text.
    Never,
    /// STARTTLS or STLS before the login.
    StartTls,
    /// From the first byte.
    Implicit,
}

/// Who logs in at the hosts behind a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAccountSettings {
    /// The user, with the password that was right here.
    User,
    /// The user, with a password that only the other host verifies.
    UserUnchecked,
    /// A master user, in the name of the user.
    Master {
        /// Its name.
        user: Box<str>,
        /// A file with its password, readable by `user`.
        password_file: PathBuf,
        /// How the host is told for whom it acts.
        form: MasterUserForm,
    },
}
