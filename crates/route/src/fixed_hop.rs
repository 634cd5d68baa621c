//! Next hops set by the operator or the directory instead of the MX of a domain.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use mail::Reply;

use dns::to_ascii;

use crate::destination::parse_literal;

/// A next hop: `host[:port]` or `[address][:port]` without MX lookup, `mx:domain[:port]`, `unix:/path`,
/// or a reply such as `550 5.7.1 no mail for us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedHop {
    /// A host, by its addresses in the DNS.
    Host {
        /// The full name, in lower case and with A-labels.
        name: Box<str>,
        /// The port; None: that of the transport.
        port: Option<u16>,
    },
    /// An address.
    Address {
        /// The address.
        address: IpAddr,
        /// The port; None: that of the transport.
        port: Option<u16>,
    },
    /// The MX hosts of a domain.
    Mx {
        /// The domain, in lower case and with A-labels.
        domain: Box<str>,
        /// The port; None: that of the transport.
        port: Option<u16>,
    },
    /// A unix socket; the path is absolute.
    Unix(PathBuf),
    /// No host: with a 5xx reply mail fails, with a 4xx reply it is deferred.
    Reply(Reply),
}

/// Why a text is not a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FixedHopError {
    /// Neither a valid host name nor an address.
    #[error("expected a host name, or an address in brackets")]
    Host,
    /// Not a number from 1 to 65535.
    #[error("expected a port from 1 to 65535 after the colon")]
    Port,
    /// The path is not absolute.
    #[error("expected an absolute path after 'unix:'")]
    Path,
    /// Starts with a code, but is not a 4xx or 5xx reply.
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
            let (domain, port) = split_port(domain)?;
            return to_ascii(domain).map(|domain| FixedHop::Mx { domain, port }).ok_or(FixedHopError::Host);
        }
        if starts_with_code(text) {
            let reply = text.parse::<Reply>().ok().filter(|reply| reply.is_permanent() || reply.is_transient());
            return reply.map(FixedHop::Reply).ok_or(FixedHopError::Reply);
        }
        let (host, port) = split_port(text)?;
        if host.starts_with('[') {
            let address = parse_literal(host).ok_or(FixedHopError::Host)?;
            return Ok(FixedHop::Address { address, port });
        }
        // A bare IPv4 address would otherwise be read as a host name.
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
            FixedHop::Mx { domain, port } => write!(f, "mx:{domain}").map(|()| port)?,
            FixedHop::Unix(path) => return write!(f, "unix:{}", path.display()),
            FixedHop::Reply(reply) => return write!(f, "{reply}"),
        };
        port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Whether the text starts with a three-digit code and a space, which no host name does.
fn starts_with_code(text: &str) -> bool {
    text.split_once(' ').is_some_and(|(code, _)| code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Splits `host:port`; the colons of an address are inside brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), FixedHopError> {
    let after_bracket = text.rfind(']').map_or(0, |end| end + 1);
    let Some(colon) = text[after_bracket..].find(':') else { return Ok((text, None)) };
    let (host, port) = (&text[..after_bracket + colon], &text[after_bracket + colon + 1..]);
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
            ("mx:example.net:587", "mx:example.net:587"),
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
            ("mx:example.net:0", FixedHopError::Port),
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
