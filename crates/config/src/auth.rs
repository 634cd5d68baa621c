//! Login settings: plain data, in the types of the crates that use them where they have such types.

use std::path::PathBuf;

use credentials::CredentialCheckerSettings;

pub use protocol::sasl::Mechanism;

/// Login settings.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthSettings {
    /// Where passwords are verified.
    pub source: AuthBackend,
    /// The SASL mechanisms in the order in which they are advertised: at least one, all usable.
    pub mechanisms: Vec<Mechanism>,
    /// The table of the senders that each user may use; None: any.
    pub senders: Option<Box<str>>,
    /// Whether to allow logins without TLS, where passwords can be intercepted.
    pub clear_text: bool,
    /// Whether to add user names to Received lines.
    pub trace_users: bool,
    /// How passwords are verified and guessing is limited. SCRAM is on if `mechanisms` contains it.
    pub verification: CredentialCheckerSettings,
}

/// Where passwords are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthBackend {
    /// A table of stored passwords by user.
    Passwords(Box<str>),
    /// A table of type ldap: the user binds to its directory.
    Bind(Box<str>),
    /// Dovecot's authentication server at this unix socket.
    Dovecot(PathBuf),
}
