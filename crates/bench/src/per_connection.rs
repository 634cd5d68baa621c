//! How many messages or requests a connection carries before it is replaced.

use std::str::FromStr;

/// How many messages or requests a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerConnection {
    /// No limit.
    All,
    /// This many.
    Fixed(u64),
    /// A random number from 1 to this.
    UpTo(u64),
}

impl PerConnection {
    /// Draws the number for the next connection.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> u64 {
        match self {
            PerConnection::All => u64::MAX,
            PerConnection::Fixed(count) => count,
            PerConnection::UpTo(most) => random.u64(1..=most),
        }
    }
}

impl FromStr for PerConnection {
    type Err = String;

    fn from_str(text: &str) -> Result<PerConnection, String> {
        let count = |text: &str| text.parse().ok().filter(|&count| count > 0);
        let found = match text.strip_prefix("1..") {
            Some(most) => count(most).map(PerConnection::UpTo),
            None if text == "all" => Some(PerConnection::All),
            None => count(text).map(PerConnection::Fixed),
        };
        found.ok_or_else(|| "expected all, N, or 1..N".to_owned())
    }
}
