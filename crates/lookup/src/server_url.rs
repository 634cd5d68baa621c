//! URLs of database servers, of which the first that accepts us is used:
//! `scheme://user:password@host:port,other/path?setting=value`.
//!
//! A host is a name, an IPv4 address, an IPv6 address in brackets, or the path of a Unix socket with
//! its slashes written as `%2F`. User, password, path and values are percent-decoded. Every part but
//! the scheme is optional.

use std::fmt;
use std::path::PathBuf;

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A name or an IP address.
    Tcp {
        /// The name, or the address without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The parts of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    pub(crate) scheme: Box<str>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) password: Option<Box<str>>,
    /// The servers, in the order to try them.
    pub(crate) servers: Vec<ServerAddress>,
    /// The path without its leading slash.
    pub(crate) path: Box<str>,
    /// The settings after the `?`, in order.
    pub(crate) settings: Vec<(Box<str>, Box<str>)>,
}

/// Why a text is not such a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// Another scheme, or none.
    #[error("expected a URL that begins with {0}")]
    Scheme(&'static str),
    /// A host that is empty, or has an unclosed bracket.
    #[error("'{0}' is not a host: expected a name, an address, [an IPv6 address] or %2Fpath%2Fof%2Fa%2Fsocket")]
    Host(Box<str>),
    /// A port out of range.
    #[error("'{0}' is not a port")]
    Port(Box<str>),
    /// A percent sign without two hexadecimal digits, or bytes that are not UTF-8.
    #[error("'%' must be followed by two hexadecimal digits, and what they encode must be UTF-8")]
    Percent,
    /// A socket beside hosts.
    #[error("'socket' replaces the host: with several servers, write a socket as %2Fpath%2Fof%2Fthe%2Fsocket")]
    SocketAndHosts,
    /// An unknown setting.
    #[error("unknown setting '{name}': expected {expected}")]
    Setting {
        /// The setting.
        name: Box<str>,
        /// The settings that are known.
        expected: &'static str,
    },
    /// A setting with an invalid value.
    #[error("invalid value of '{name}': expected {expected}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What its values are.
        expected: &'static str,
    },
}

impl ServerUrl {
    /// Parses a URL with one of these schemes; `port` is for hosts that have none.
    pub(crate) fn parse(
        text: &str,
        schemes: &[&str],
        expected: &'static str,
        port: u16,
    ) -> Result<ServerUrl, ServerUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(ServerUrlError::Scheme(expected))?;
        if !schemes.contains(&scheme) {
            return Err(ServerUrlError::Scheme(expected));
        }
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let (user, password) = login.map_or((None, None), |login| match login.split_once(':') {
            Some((user, password)) => (Some(user), Some(password)),
            None => (Some(login), None),
        });
        let hosts = hosts.split(',').filter(|_| !hosts.is_empty());
        Ok(ServerUrl {
            scheme: scheme.into(),
            user: user.filter(|user| !user.is_empty()).map(decode).transpose()?,
            password: password.map(decode).transpose()?,
            servers: hosts.map(|host| server_address(host, port)).collect::<Result<_, _>>()?,
            path: decode(path)?,
            settings: settings
                .split('&')
                .filter(|setting| !setting.is_empty())
                .map(setting)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl ServerUrl {
    /// Puts a socket in place of the host, which may only be `localhost`, as for other clients.
    pub(crate) fn replace_host_by_socket(&mut self, path: &str) -> Result<(), ServerUrlError> {
        let is_localhost = |server: &ServerAddress| match server {
            ServerAddress::Tcp { host, .. } => &**host == "localhost",
            ServerAddress::Unix(_) => false,
        };
        if !path.starts_with('/') {
            return Err(ServerUrlError::Value { name: "socket", expected: "an absolute path" });
        }
        if self.servers.len() > 1 || !self.servers.iter().all(is_localhost) {
            return Err(ServerUrlError::SocketAndHosts);
        }
        self.servers = vec![ServerAddress::Unix(path.into())];
        Ok(())
    }

    /// The paths of the Unix sockets among the servers.
    pub(crate) fn unix_socket_paths(&self) -> Vec<PathBuf> {
        let path = |server: &ServerAddress| match server {
            ServerAddress::Unix(path) => Some(path.clone()),
            ServerAddress::Tcp { .. } => None,
        };
        self.servers.iter().filter_map(path).collect()
    }
}

fn setting(text: &str) -> Result<(Box<str>, Box<str>), ServerUrlError> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    Ok((decode(name)?, decode(value)?))
}

fn server_address(text: &str, default_port: u16) -> Result<ServerAddress, ServerUrlError> {
    let invalid = || ServerUrlError::Host(text.into());
    let path = decode(text)?;
    if path.starts_with('/') {
        return Ok(ServerAddress::Unix(PathBuf::from(&*path)));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or_else(invalid)?;
            let port = match behind.strip_prefix(':') {
                None if !behind.is_empty() => return Err(invalid()),
                port => port,
            };
            (host, port)
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(invalid());
    }
    let number = |port: &str| port.parse().ok().filter(|port| *port != 0).ok_or(ServerUrlError::Port(port.into()));
    Ok(ServerAddress::Tcp { host: host.into(), port: port.map_or(Ok(default_port), number)? })
}

fn decode(text: &str) -> Result<Box<str>, ServerUrlError> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        (octets, rest) = match (first, behind) {
            (b'%', [high, low, behind @ ..]) => {
                let digit = |octet: &u8| char::from(*octet).to_digit(16).ok_or(ServerUrlError::Percent);
                octets.push((digit(high)? << 4 | digit(low)?) as u8);
                (octets, behind)
            }
            (b'%', _) => return Err(ServerUrlError::Percent),
            (octet, behind) => {
                octets.push(*octet);
                (octets, behind)
            }
        };
    }
    String::from_utf8(octets).map(Into::into).map_err(|_| ServerUrlError::Percent)
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Without user, password and settings.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        write!(f, "{}://{}/{}", self.scheme, servers.join(","), self.path)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ServerUrl, ServerUrlError> {
        ServerUrl::parse(text, &["db", "dbs"], "db://", 77)
    }

    #[test]
    fn every_part_is_read() {
        let url = parse("dbs://m%40il:p:%2fw@a,b:78,[::1]:79,[::2],%2Frun%2Fdb.s,1.2.3.4/ma%20il?a=%26&b&").unwrap();
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("m@il"), Some("p:/w")));
        assert_eq!((&*url.scheme, &*url.path), ("dbs", "ma il"));
        let servers: Vec<String> = url.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["a:77", "b:78", "[::1]:79", "[::2]:77", "/run/db.s", "1.2.3.4:77"]);
        assert_eq!(url.settings, [("a".into(), "&".into()), ("b".into(), "".into())]);
        let least = parse("db://").unwrap();
        assert!(least.servers.is_empty() && least.user.is_none() && least.settings.is_empty());
    }

    #[test]
    fn what_is_shown_has_no_password() {
        let url = parse("db://mail:s3cret@a/people?password=s3cret").unwrap();
        assert_eq!(url.to_string(), "db://a:77/people");
        assert_eq!(format!("{url:?}"), "ServerUrl(db://a:77/people)");
    }

    #[test]
    fn what_is_no_url_is_told() {
        for (text, expected) in [
            ("a", "begins with db://"),
            ("http://a", "begins with db://"),
            ("db://a,,b", "'' is not a host"),
            ("db://[::1", "'[::1' is not a host"),
            ("db://[::1]x", "'[::1]x' is not a host"),
            ("db://:77", "':77' is not a host"),
            ("db://a:0", "'0' is not a port"),
            ("db://a:b", "'b' is not a port"),
            ("db://a/%2", "two hexadecimal digits"),
            ("db://a/%gg", "two hexadecimal digits"),
            ("db://a/%ff", "must be UTF-8"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(db://)?[a:@/?&=%2,\\[\\]ü]{0,24}") {
            let _ = parse(&text);
        }
    }
}
