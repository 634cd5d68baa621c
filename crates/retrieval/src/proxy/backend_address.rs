//! The names of backends, as tables have them: `host`, `host:port`, `[2001:db8::1]:143`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackendAddress {
    /// A host name in lower case, or an IP address without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
}

/// The text is no host with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host, host:port, or [address]:port")]
pub struct BackendAddressError;

impl BackendAddress {
    /// Reads an address; without a port, it has the default one.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn parse(text: &str, default_port: u16) -> Result<BackendAddress, BackendAddressError> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or(BackendAddressError);
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or(BackendAddressError)?;
            host.parse::<IpAddr>().map_err(|_| BackendAddressError)?;
            match rest.strip_prefix(':') {
                Some(text) => (host, port(text)?),
                None if rest.is_empty() => (host, default_port),
                None => return Err(BackendAddressError),
            }
        } else if text.parse::<Ipv6Addr>().is_ok() {
            (text, default_port)
        } else {
            match text.split_once(':') {
                Some((host, text)) => (host, port(text)?),
                None => (text, default_port),
            }
        };
        let is_part = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || !host.bytes().all(is_part) {
            return Err(BackendAddressError);
        }
        Ok(BackendAddress { host: host.to_ascii_lowercase().into(), port })
    }

    /// The address, if the host is one.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackendAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_tables_have_it() {
        let read = [
            ("Mail1.example.org", "mail1.example.org:143"),
            ("mail1:1143", "mail1:1143"),
            ("192.0.2.1", "192.0.2.1:143"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("2001:db8::1", "[2001:db8::1]:143"),
            ("[2001:db8::1]", "[2001:db8::1]:143"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
            ("[192.0.2.1]:99", "192.0.2.1:99"),
        ];
        for (text, printed) in read {
            assert_eq!(BackendAddress::parse(text, 143).map(|address| address.to_string()), Ok(printed.to_owned()));
        }
        for text in
            ["", ":143", "mail1:", "mail1:0", "mail1:70000", "mail1:1:2", "a b", "[mail1]", "[::1", "[::1]1", "ä"]
        {
            assert_eq!(BackendAddress::parse(text, 143), Err(BackendAddressError), "{text:?}");
        }
    }
}
