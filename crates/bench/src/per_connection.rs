//! How much one connection carries before it is ended and another one is opened: messages, or requests.

use std::str::FromStr;

/// How many a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerConnection {
    /// As many as there are.
    All,
    /// Exactly so many.
    Fixed(u64),
    /// From 1 to so many, each as likely.
    UpTo(u64),
}

impl PerConnection {
    /// For the next connection.
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
