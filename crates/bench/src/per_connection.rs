//! How many messages or requests a connection carries before it is replaced.

use std::str::FromStr;

/// How many messages or requests a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagesPerConnection {
    /// No limit.
    All,
    /// This many.
    Fixed(u64),
    /// A random number from 1 to this.
    UpTo(u64),
}

impl MessagesPerConnection {
    /// Draws the number for the next connection.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> u64 {
        match self {
            MessagesPerConnection::All => u64::MAX,
            MessagesPerConnection::Fixed(count) => count,
            MessagesPerConnection::UpTo(most) => random.u64(1..=most),
        }
    }
}

impl FromStr for MessagesPerConnection {
    type Err = String;

    fn from_str(text: &str) -> Result<MessagesPerConnection, String> {
        let count = |text: &str| text.parse().ok().filter(|&count| count > 0);
        let found = match text.strip_prefix("1..") {
            Some(most) => count(most).map(MessagesPerConnection::UpTo),
            None if text == "all" => Some(MessagesPerConnection::All),
            None => count(text).map(MessagesPerConnection::Fixed),
        };
        found.ok_or_else(|| "expected all, N, or 1..N".to_owned())
    }
}
