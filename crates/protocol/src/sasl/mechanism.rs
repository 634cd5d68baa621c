//! The mechanisms, by their registered names.

use std::fmt;

/// A mechanism that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// RFC 4616: the password, in one message.
    Plain,
    /// draft-murchison-sasl-login: the password, in two messages. Old clients know no other.
    Login,
    /// RFC 7677: the password is proven and never sent. Without channel binding.
    ScramSha256,
}

impl Mechanism {
    /// All, the best one first, as they are advertised.
    pub const ADVERTISED: [Mechanism; 3] = [Mechanism::ScramSha256, Mechanism::Plain, Mechanism::Login];

    /// The mechanism of this name, in any case of letters (RFC 4954 section 4: the names are not case-sensitive there).
    pub fn from_name(name: &str) -> Option<Mechanism> {
        Mechanism::ADVERTISED.into_iter().find(|it| it.name().eq_ignore_ascii_case(name))
    }

    /// Its registered name (RFC 4422 section 3.1).
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
