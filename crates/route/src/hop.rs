//! Next hops that an operator, or the directory, names instead of the MX of a domain.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mail::Reply;

use crate::destination::{literal, to_ascii};

/// A next hop by name: `host[:port]`, `[address][:port]`, `mx:domain` or `unix:/path`, no MX is asked for a host; or a reply
/// such as `550 5.7.1 no mail for us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedHop {
    /// A host, by its addresses in the DNS.
    Host {
        /// Its full name, in lower case and A-labels.
        name: Box<str>,
        /// Its port; None: the transport's.
        port: Option<u16>,
    },
    /// An address.
    Address {
        /// The address.
        address: IpAddr,
        /// Its port; None: the transport's.
        port: Option<u16>,
    },
    /// The MX hosts of this domain, in lower case and A-labels.
    Exchangers(Box<str>),
    /// A socket on this machine; the path is absolute.
    Unix(PathBuf),
    /// Nowhere: with a reply of 5xx mail fails, with one of 4xx it waits.
    Nowhere(Reply),
}

/// Why a text names no next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FixedHopError {
    /// Neither a name that the DNS can hold nor an address.
    #[error("expected a host name, or an address in brackets")]
    Host,
    /// Not a number from 1 to 65535.
    #[error("expected a port from 1 to 65535 after the colon")]
    Port,
    /// A socket is named by its whole path.
    #[error("expected an absolute path after 'unix:'")]
    Path,
    /// A code, and not a reply that ends mail or puts it off.
    #[error("expected a 4xx or 5xx reply such as '550 5.7.1 no mail for us'")]
    Reply,
}

impl FromStr for FixedHop {
    type Err = FixedHopError;

    fn from_str(text: &str) -> Result<Self, FixedHopError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return path.is_absolute().then(|| FixedHop::Unix(path.into())).ok_or(FixedHopError::Path);
        }
        if let Some(domain) = text.strip_prefix("mx:") {
            return to_ascii(domain).map(FixedHop::Exchangers).ok_or(FixedHopError::Host);
        }
        if is_code(text) {
            let reply = text.parse::<Reply>().ok().filter(|reply| reply.is_permanent() || reply.is_transient());
            return reply.map(FixedHop::Nowhere).ok_or(FixedHopError::Reply);
        }
        let (host, port) = split_port(text)?;
        if host.starts_with('[') {
            let address = literal(host).ok_or(FixedHopError::Host)?;
            return Ok(FixedHop::Address { address, port });
        }
        // A bare IPv4 address would pass as a host name, which nobody means.
        match host.parse::<Ipv4Addr>() {
            Ok(address) => Ok(FixedHop::Address { address: address.into(), port }),
            Err(_) => Ok(FixedHop::Host { name: to_ascii(host).ok_or(FixedHopError::Host)?, port }),
        }
    }
}

impl fmt::Display for FixedHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = match self {
            FixedHop::Host { name, port } => f.write_str(name).map(|()| port)?,
            FixedHop::Address { address, port } => write!(f, "[{address}]").map(|()| port)?,
            FixedHop::Exchangers(domain) => return write!(f, "mx:{domain}"),
            FixedHop::Unix(path) => return write!(f, "unix:{}", path.display()),
            FixedHop::Nowhere(reply) => return write!(f, "{reply}"),
        };
        port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Whether a code of three digits stands before a space, as in no name of a host.
fn is_code(text: &str) -> bool {
    text.split_once(' ').is_some_and(|(code, _)| code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Parts `host:port`; the colons of an address are inside brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), FixedHopError> {
    let behind = text.rfind(']').map_or(0, |end| end + 1);
    let Some(colon) = text[behind..].find(':') else { return Ok((text, None)) };
    let (host, port) = (&text[..behind + colon], &text[behind + colon + 1..]);
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && port != 0 => Ok((host, Some(port))),
        _ => Err(FixedHopError::Port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_is_read_and_written() {
        for (text, written) in [
            ("Relay.Example.com", "relay.example.com"),
            ("relay.example.com.:25", "relay.example.com:25"),
            ("müller.example:2525", "xn--mller-kva.example:2525"),
            ("[192.0.2.1]:25", "[192.0.2.1]:25"),
            ("[IPv6:2001:db8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:24", "[2001:db8::1]:24"),
            ("127.0.0.1:2525", "[127.0.0.1]:2525"),
            ("mx:Example.net", "mx:example.net"),
            ("unix:/run/lmtp", "unix:/run/lmtp"),
            ("550 5.7.1 no mail: for us", "550 5.7.1 no mail: for us"),
            ("451 later", "451 later"),
        ] {
            let hop: FixedHop = text.parse().unwrap();
            assert_eq!(hop.to_string(), written);
            assert_eq!(written.parse(), Ok(hop));
        }
    }

    #[test]
    fn what_is_no_next_hop_is_refused_with_the_part_that_is_wrong() {
        for (text, error) in [
            ("", FixedHopError::Host),
            ("a b", FixedHopError::Host),
            ("a..b", FixedHopError::Host),
            ("[relay]", FixedHopError::Host),
            ("[192.0.2.1", FixedHopError::Host),
            ("mx:", FixedHopError::Host),
            ("relay:", FixedHopError::Port),
            ("relay:0", FixedHopError::Port),
            ("relay:+25", FixedHopError::Port),
            ("relay:65536", FixedHopError::Port),
            ("2001:db8::1", FixedHopError::Port),
            ("[::1]x:25", FixedHopError::Host),
            ("unix:run/lmtp", FixedHopError::Path),
            ("250 2.0.0 fine", FixedHopError::Reply),
            ("550 4.7.1 fine", FixedHopError::Reply),
        ] {
            assert_eq!(text.parse::<FixedHop>(), Err(error), "{text}");
        }
    }
}
