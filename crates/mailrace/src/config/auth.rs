//! Who may log in, and what that gives him: plain data, the rooms' own where they have it.

use lookup::credentials::Settings;

use super::Network;

pub use protocol::sasl::Mechanism;

/// Who may log in.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// Where passwords are checked.
    pub source: AuthSource,
    /// What is spoken, in the order in which it is told; at least one, and none that cannot succeed.
    pub mechanisms: Vec<Mechanism>,
    /// The table that says which senders each user may name; None: any.
    pub senders: Option<Box<str>>,
    /// Whether users may log in without TLS, where they can be overheard.
    pub clear_text: bool,
    /// Whether Received lines name users.
    pub trace_users: bool,
    /// How passwords are checked, and who is not listened to. SCRAM is on where `mechanisms` has it.
    pub checking: Settings,
    /// Clients that many users come from; what checks gets them where it is opened.
    pub shared_clients: Vec<Network>,
}

/// Where passwords are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthSource {
    /// A table of stored passwords by user.
    Passwords(Box<str>),
    /// A table of type ldap, in whose directory the user is bound as.
    Bind(Box<str>),
}
