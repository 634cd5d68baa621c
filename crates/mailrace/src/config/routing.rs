//! What the text says of names on the network beside the routes: patterns of names, what single next hops get, and how
//! names are looked up.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::{Rate, key};

/// Which names are meant, as they stand in addresses and in host sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// `example.org`: this one, in lower case.
    Name(Box<str>),
    /// `*.example.org`: all below it, not itself; kept without the `*.`.
    Below(Box<str>),
    /// `*`: all.
    Any,
}

impl Pattern {
    /// Whether `name`, in lower case, is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Name(own) => **own == *name,
            Pattern::Below(above) => {
                name.strip_suffix(&**above).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            Pattern::Any => true,
        }
    }
}

/// The text is not a [`Pattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a pattern of names")]
pub struct NotAPattern;

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        match text.strip_prefix("*.") {
            Some(above) if !above.starts_with('[') => key::host(above).map(Pattern::Below),
            None if text == "*" => Some(Pattern::Any),
            None => key::host(text).map(Pattern::Name),
            Some(_) => None,
        }
        .ok_or(NotAPattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Name(name) => f.write_str(name),
            Pattern::Below(name) => write!(f, "*.{name}"),
            Pattern::Any => f.write_str("*"),
        }
    }
}

/// What a next hop gets beside its transport's settings. None leaves these as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The name of any of its hosts.
    pub host: Pattern,
    /// Connections at once; at least 1.
    pub connections_max: Option<usize>,
    /// Messages in a time.
    pub rate: Option<Rate>,
    /// Messages over one connection.
    pub messages_per_connection_max: Option<u32>,
    /// Recipients of one transaction.
    pub recipients_per_message_max: Option<usize>,
}

/// How names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Who is asked; none: those that the system names.
    pub servers: Vec<SocketAddr>,
    /// How long one of them may take.
    pub timeout: Duration,
    /// How often each question is asked.
    pub attempts: usize,
    /// Answers that are remembered.
    pub cache_entries: usize,
    /// The longest that an answer is remembered.
    pub ttl_max: Duration,
    /// The longest that is remembered that there is no answer.
    pub negative_ttl_max: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            cache_entries: 100_000,
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(300),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_all_below_one_or_all() {
        for (pattern, name, meant) in [
            ("example.org", "example.org", true),
            ("Example.ORG", "example.org", true),
            ("example.org", "a.example.org", false),
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "b.a.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "anexample.org", false),
            ("*.example.org", ".example.org", false),
            ("*", "example.org", true),
            ("[192.0.2.1]", "[192.0.2.1]", true),
        ] {
            let read: Pattern = pattern.parse().unwrap();
            assert_eq!(read.matches(name), meant, "{pattern} {name}");
            assert_eq!(read.to_string(), pattern.to_lowercase());
        }
        for text in ["", "**", "*.", "*.*", "a.*", "*example.org", "*.*.org", "a b", ".example.org", "*.[192.0.2.1]"] {
            assert_eq!(text.parse::<Pattern>(), Err(NotAPattern), "{text}");
        }
    }
}
