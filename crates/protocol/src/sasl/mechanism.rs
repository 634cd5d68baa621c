//! The supported mechanisms and their registered names.

use std::fmt;

/// A supported mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// RFC 4616: the password in one message.
    Plain,
    /// draft-murchison-sasl-login: user name and password in two messages. Some old clients support
    /// nothing else.
    Login,
    /// RFC 7677: the client proves that it knows the password without sending it. Without channel
    /// binding.
    ScramSha256,
}

impl Mechanism {
    /// All mechanisms in the order in which they are advertised, the best first.
    pub const ADVERTISED: [Mechanism; 3] = [Mechanism::ScramSha256, Mechanism::Plain, Mechanism::Login];

    /// The mechanism with this name, in any case (names are not case-sensitive in RFC 4954 section
    /// 4).
    pub fn from_name(name: &str) -> Option<Mechanism> {
        Mechanism::ADVERTISED.into_iter().find(|it| it.name().eq_ignore_ascii_case(name))
    }

    /// The registered name (RFC 4422 section 3.1).
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Login => "LOGIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
