//! The part of a destination before `!` that names a transport: `lists>[192.0.2.1]:24` with a next
//! hop, or `lists>` without one.
//!
//! Mail has such a destination if more than its domain decides about the route. No host name contains
//! `>`, so no mailbox host is taken for one.

use std::fmt;

use crate::FixedHop;

/// A transport, and the next hop if it is not that of the transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteKey {
    transport: Box<str>,
    /// In the notation of [`FixedHop`]; empty: that of the transport.
    next_hop: Box<str>,
}

impl RouteKey {
    /// The key of this transport and next hop.
    pub fn new(transport: &str, next_hop: Option<&FixedHop>) -> Self {
        RouteKey { transport: transport.into(), next_hop: next_hop.map(FixedHop::to_string).unwrap_or_default().into() }
    }

    /// None if the text is not a key.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (transport, next_hop) = text.split_once('>')?;
        Some(RouteKey { transport: transport.into(), next_hop: next_hop.into() })
    }

    /// The name of the transport.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// The next hop, if the key has one.
    pub(crate) fn next_hop(&self) -> Option<FixedHop> {
        self.next_hop.parse().ok()
    }

    /// The destination of mail to this domain.
    pub fn destination(&self, domain: &str) -> String {
        format!("{self}!{domain}")
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.transport, self.next_hop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        for hop in [None, Some("[192.0.2.1]:24"), Some("unix:/run/lmtp"), Some("550 5.1.1 no > here! at all")] {
            let hop: Option<FixedHop> = hop.map(|hop| hop.parse().unwrap());
            let key = RouteKey::new("lists", hop.as_ref());
            let destination = key.destination("example.org");
            let (front, domain) = destination.rsplit_once('!').unwrap();
            assert_eq!((RouteKey::parse(front).as_ref(), domain), (Some(&key), "example.org"));
            assert_eq!((key.transport(), key.next_hop()), ("lists", hop));
        }
        assert_eq!(RouteKey::parse("store2.example:24"), None);
    }
}
