//! Where mail goes that leaves: patterns of names, fixed next hops, routes, what single next hops get, and DNS. Each
//! kind of text has its notation, and reads as it is shown.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::{Rate, SOCKET_PATH_OCTETS_MAX, key};

/// Which names are meant: those of domains, or those of hosts.
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

/// A next hop that does not depend on the recipient's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedHop {
    /// `relay.example.org`, `relay.example.org:2525`: this host, by its addresses.
    Host {
        /// Its name, in lower case.
        name: Box<str>,
        /// None: the transport's.
        port: Option<u16>,
    },
    /// `[192.0.2.1]`, `[2001:db8::1]:2525`: this address.
    Address {
        /// The address.
        address: IpAddr,
        /// None: the transport's.
        port: Option<u16>,
    },
    /// `mx:example.org`: the hosts that this domain names for its mail.
    Mx(Box<str>),
    /// `unix:/run/lmtp`: a socket of this machine.
    Unix(PathBuf),
}

/// The text is not a [`FixedHop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a next hop")]
pub struct NotANextHop;

impl FromStr for FixedHop {
    type Err = NotANextHop;

    fn from_str(text: &str) -> Result<Self, NotANextHop> {
        let hop = if let Some(domain) = text.strip_prefix("mx:") {
            key::host(domain).filter(|domain| !domain.starts_with('[')).map(FixedHop::Mx)
        } else if let Some(path) = text.strip_prefix("unix:") {
            socket(path).map(FixedHop::Unix)
        } else if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            address_and_port(address, port)
        } else {
            host_and_port(text)
        };
        hop.ok_or(NotANextHop)
    }
}

fn socket(path: &str) -> Option<PathBuf> {
    let sound = path.len() <= SOCKET_PATH_OCTETS_MAX && !path.contains(char::is_control);
    (sound && Path::new(path).is_absolute()).then(|| PathBuf::from(path))
}

/// RFC 5321 section 4.1.3 puts `IPv6:` before such addresses; here they may do without.
fn address_and_port(address: &str, port: &str) -> Option<FixedHop> {
    let tagged = address.get(..5).filter(|tag| tag.eq_ignore_ascii_case("IPv6:"));
    let address = match tagged {
        Some(_) => IpAddr::V6(address[5..].parse::<Ipv6Addr>().ok()?),
        None => address.parse().ok()?,
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => Some(port_of(digits)?),
        None if port.is_empty() => None,
        None => return None,
    };
    Some(FixedHop::Address { address, port })
}

fn host_and_port(text: &str) -> Option<FixedHop> {
    let (name, port) = match text.split_once(':') {
        Some((name, digits)) => (name, Some(port_of(digits)?)),
        None => (text, None),
    };
    match name.parse() {
        Ok(address) => Some(FixedHop::Address { address: IpAddr::V4(address), port }),
        Err(_) => key::host(name).map(|name| FixedHop::Host { name, port }),
    }
}

fn port_of(digits: &str) -> Option<u16> {
    let all_digits = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|port| all_digits && *port > 0)
}

impl fmt::Display for FixedHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = match self {
            FixedHop::Host { name, port } => write!(f, "{name}").map(|()| port)?,
            FixedHop::Address { address, port } => write!(f, "[{address}]").map(|()| port)?,
            FixedHop::Mx(domain) => return write!(f, "mx:{domain}"),
            FixedHop::Unix(path) => return write!(f, "unix:{}", path.display()),
        };
        port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The way of some domains' mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The recipients' domains; never one of ours.
    pub domain: Pattern,
    /// The name of a transport, never of one into Maildirs.
    pub transport: Box<str>,
    /// The next hop: the route's own, else the transport's; None for the hosts that the recipient's domain names.
    pub next_hop: Option<FixedHop>,
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

    #[test]
    fn a_next_hop_is_shown_as_it_is_read() {
        for text in [
            "relay.example.org",
            "relay.example.org:2525",
            "[192.0.2.1]",
            "[192.0.2.1]:65535",
            "[2001:db8::1]:25",
            "mx:example.net",
            "unix:/run/dovecot/lmtp",
        ] {
            assert_eq!(text.parse::<FixedHop>().unwrap().to_string(), text);
        }
        for (text, shown) in
            [("Relay.Example.ORG", "relay.example.org"), ("192.0.2.1:25", "[192.0.2.1]:25"), ("[IPv6:::1]", "[::1]")]
        {
            assert_eq!(text.parse::<FixedHop>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_next_hop_is_refused() {
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_OCTETS_MAX));
        for text in [
            "",
            "a b",
            "host:",
            "host:0",
            "host:65536",
            "host:+25",
            "host:smtp",
            "::1",
            "[::1",
            "[::1]25",
            "[host]",
            "mx:",
            "mx:example.net:25",
            "mx:[192.0.2.1]",
            "unix:",
            "unix:lmtp",
            "unix:/a\nb",
            &long,
        ] {
            assert_eq!(text.parse::<FixedHop>(), Err(NotANextHop), "{text}");
        }
    }
}
