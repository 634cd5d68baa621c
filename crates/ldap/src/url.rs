//! Server URLs: `ldap://host:port`, `ldaps://host:port`, `ldapi://%2Fpath%2Fof%2Fsocket` or
//! `ldapi:///path/of/socket`.
//!
//! Only the connection part of RFC 4516. Search parameters are separate settings, so a URL with a
//! DN is rejected; for referrals the part after the host is removed first.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const PORT: u16 = 389;
const PORT_TLS: u16 = 636;

/// The URL of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LdapUrl {
    /// TCP.
    Tcp {
        /// Host name or address, without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
        /// Whether TLS starts immediately (`ldaps`).
        tls: bool,
    },
    /// A Unix socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
    },
}

/// Why a text is not a server URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LdapUrlError {
    /// Another scheme.
    #[error("'{0}' is not an LDAP URL: expected ldap://, ldaps:// or ldapi://")]
    Scheme(Box<str>),
    /// A missing or invalid host.
    #[error("'{0}' has no valid host: expected ldap://host or ldap://host:port")]
    Host(Box<str>),
    /// An invalid port.
    #[error("'{0}' has no valid port: expected a number from 1 to 65535")]
    Port(Box<str>),
    /// More than host and port.
    #[error("'{0}' has more than host and port: base, scope and filter are separate settings")]
    ExtraParts(Box<str>),
    /// A missing or relative socket path.
    #[error("'{0}' has no socket path: expected ldapi:///path or ldapi://%2Fpath")]
    Socket(Box<str>),
}

impl FromStr for LdapUrl {
    type Err = LdapUrlError;

    fn from_str(text: &str) -> Result<Self, LdapUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| LdapUrlError::Scheme(text.into()))?;
        match scheme.to_ascii_lowercase().as_str() {
            "ldap" => tcp(text, rest, false),
            "ldaps" => tcp(text, rest, true),
            "ldapi" => unix(text, rest),
            _ => Err(LdapUrlError::Scheme(text.into())),
        }
    }
}

fn tcp(text: &str, rest: &str, tls: bool) -> Result<LdapUrl, LdapUrlError> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?']) {
        return Err(LdapUrlError::ExtraParts(text.into()));
    }
    let bad_host = || LdapUrlError::Host(text.into());
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or_else(bad_host)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad_host())?;
            match behind.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if behind.is_empty() => (host, None),
                None => return Err(bad_host()),
            }
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let is_host_char = |c: char| c.is_alphanumeric() || ".-_:".contains(c);
    if host.is_empty() || !host.chars().all(is_host_char) {
        return Err(bad_host());
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or_else(|| LdapUrlError::Port(text.into()))?,
        None if tls => PORT_TLS,
        None => PORT,
    };
    Ok(LdapUrl::Tcp { host: host.into(), port, tls })
}

fn unix(text: &str, rest: &str) -> Result<LdapUrl, LdapUrlError> {
    let bad = || LdapUrlError::Socket(text.into());
    let encoded = if rest.starts_with('/') { rest } else { rest.strip_suffix('/').unwrap_or(rest) };
    let path = percent_decoded(encoded).ok_or_else(bad)?;
    match path.starts_with('/') && path.len() > 1 && !path.contains('\0') {
        true => Ok(LdapUrl::Unix { path: PathBuf::from(path) }),
        false => Err(bad()),
    }
}

/// Replaces each `%XX` by its octet (RFC 3986 section 2.1).
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            octets.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()))?;
        octets.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    String::from_utf8(octets).ok()
}

impl fmt::Display for LdapUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LdapUrl::Tcp { host, port, tls } => {
                let scheme = if *tls { "ldaps" } else { "ldap" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
            LdapUrl::Unix { path } => write!(f, "ldapi://{}", percent_encoded(path)),
        }
    }
}

/// The path for a URL, with reserved and non-ASCII characters encoded.
fn percent_encoded(path: &Path) -> String {
    let mut text = String::new();
    for &octet in path.as_os_str().as_encoded_bytes() {
        match octet {
            b'/' | b'.' | b'-' | b'_' | b'~' => text.push(octet.into()),
            _ if octet.is_ascii_alphanumeric() => text.push(octet.into()),
            _ => text.push_str(&format!("%{octet:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_a_server_is() {
        for (text, shown) in [
            ("ldap://127.0.0.1:3389", "ldap://127.0.0.1:3389"),
            ("LDAP://dir.example.org", "ldap://dir.example.org:389"),
            ("ldaps://dir.example.org/", "ldaps://dir.example.org:636"),
            ("ldap://[::1]:10389", "ldap://[::1]:10389"),
            ("ldap://[::1]", "ldap://[::1]:389"),
            ("ldapi://%2Frun%2Fslapd%2Fldapi", "ldapi:///run/slapd/ldapi"),
            ("ldapi:///run/slapd/ldapi", "ldapi:///run/slapd/ldapi"),
            ("ldapi://%2Frun%2Fldapi/", "ldapi:///run/ldapi"),
            ("ldapi:///run/a%20b", "ldapi:///run/a%20b"),
        ] {
            let url: LdapUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<LdapUrl>().unwrap(), url);
        }
    }

    #[test]
    fn what_is_no_url_says_what_was_expected() {
        for text in ["dir.example.org", "http://dir", "ldap:/dir", ""] {
            assert!(matches!(text.parse::<LdapUrl>(), Err(LdapUrlError::Scheme(_))), "{text}");
        }
        for text in
            ["ldap://", "ldap://:389", "ldap://a b", "ldap://[::1", "ldap://[x]:1", "ldap://[::1]1", "ldap://u@h"]
        {
            assert!(matches!(text.parse::<LdapUrl>(), Err(LdapUrlError::Host(_))), "{text}");
        }
        for text in ["ldap://h:", "ldap://h:0", "ldap://h:65536", "ldap://h:x"] {
            assert!(matches!(text.parse::<LdapUrl>(), Err(LdapUrlError::Port(_))), "{text}");
        }
        for text in ["ldap://h/dc=a", "ldap://h:389/??sub"] {
            assert!(matches!(text.parse::<LdapUrl>(), Err(LdapUrlError::ExtraParts(_))), "{text}");
        }
        for text in
            ["ldapi://", "ldapi:///", "ldapi://run", "ldapi://%2", "ldapi://%zz", "ldapi:///a%00b", "ldapi://%+1"]
        {
            assert!(matches!(text.parse::<LdapUrl>(), Err(LdapUrlError::Socket(_))), "{text}");
        }
    }
}
