//! The settings of a proxy.

use std::sync::Arc;
use std::time::Duration;

use net::TlsClient;
use protocol::backend_login::BackendLoginMethod;
use protocol::sasl::{Mechanism, Secret};

use super::{BackendAddress, BackendHosts};

/// How the clients of a listener are passed on.
#[derive(Clone)]
pub struct ProxySettings {
    /// The backends of the process: which are down, and how many connections are being made.
    pub hosts: Arc<BackendHosts>,
    /// The port of backends that are named without one.
    pub port: u16,
    /// TLS to the backends.
    pub tls: BackendTls,
    /// Who logs in there.
    pub account: BackendAccount,
    /// How. A master user in the form [`MasterUserForm::Authzid`] needs PLAIN.
    pub method: BackendLoginMethod,
    /// Where mailboxes of this host are served, such as another program on another port. None: their
    /// users are refused.
    pub on_this_host: Option<BackendAddress>,
    /// Whether IMAP backends are told the client's address, as `x-originating-ip` of an ID. They must
    /// trust this host, as Dovecot's `login_trusted_networks`.
    pub tells_client_address: bool,
    /// How long nothing may pass through after the login. IMAP clients that wait for mail are silent
    /// for 29 minutes (RFC 2177).
    pub idle_time_max: Duration,
}

/// TLS to the backends.
#[derive(Clone, Debug)]
pub enum BackendTls {
    /// Clear text.
    Never,
    /// STARTTLS or STLS before the login.
    StartTls(TlsClient),
    /// From the first byte.
    Implicit(TlsClient),
}

/// Who logs in at the backends.
#[derive(Clone, Debug)]
pub enum BackendAccount {
    /// The user, with the password that was right here.
    User,
    /// The user, with a password that only the backend checks. Failures count in the throttle of the
    /// context's credentials; without credentials only those of a session are limited.
    UserUnchecked,
    /// A master user, in the name of the user, who has logged in here. The only one with which users
    /// can log in by SCRAM.
    Master(MasterUser),
}

/// A user who may act for all others. Its name and password must have no control characters.
#[derive(Clone, Debug)]
pub struct MasterUser {
    /// The name.
    pub user: Box<str>,
    /// The password.
    pub password: Secret,
    /// How the backends are told for whom it acts.
    pub form: MasterUserForm,
}

/// How a master user says for whom it acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterUserForm {
    /// By the authorization identity of PLAIN (RFC 4616).
    Authzid,
    /// By a name like `user*master`, with this separator.
    Separator(char),
}

impl ProxySettings {
    /// The mechanisms among these with which clients can log in through the proxy: without a master
    /// user the backend needs the client's password, which SCRAM does not reveal.
    pub(super) fn usable_mechanisms(&self, mechanisms: &[Mechanism]) -> Box<[Mechanism]> {
        let has_master = matches!(self.account, BackendAccount::Master(_));
        mechanisms.iter().copied().filter(|it| has_master || *it != Mechanism::ScramSha256).collect()
    }
}
