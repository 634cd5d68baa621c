//! The kinds of value that keys accept: how to parse each, and how to describe it in errors.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use mail::{Address, Reply, units};
use toml::de::DeValue;

use super::access::{Codes, WhoPattern};
use super::{FixedHop, HeaderRule, Network, Pattern, Rate, SOCKET_PATH_OCTETS_MAX, SenderRule};

/// A kind of value.
pub(super) struct Kind<T> {
    /// Completes the sentence "expected ...".
    pub(super) expected: &'static str,
    /// Parses a value; None if it is invalid.
    pub(super) read: fn(&DeValue<'_>) -> Option<T>,
}

pub(super) const TEXT: Kind<String> =
    Kind { expected: "a string in quotes", read: |v| v.as_str().filter(|t| !t.is_empty()).map(str::to_owned) };

pub(super) const FLAG: Kind<bool> = Kind { expected: "true or false", read: |v| v.as_bool() };

impl<T: TryFrom<u32>> Kind<T> {
    pub(super) const COUNT: Kind<T> = Kind {
        expected: "a whole number from 1 to 4294967295",
        read: |v| count(v).filter(|n| *n > 0).and_then(|n| n.try_into().ok()),
    };

    pub(super) const COUNT_OR_ZERO: Kind<T> =
        Kind { expected: "a whole number from 0 to 4294967295", read: |v| count(v).and_then(|n| n.try_into().ok()) };
}

pub(super) const SIZE: Kind<u64> = Kind {
    expected: "a size such as \"64KiB\" or \"10MB\", or a number of bytes",
    read: |v| match v {
        DeValue::String(text) => units::size(text),
        _ => integer(v),
    },
};

pub(super) const SPAN: Kind<Duration> = Kind {
    expected: "a time such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"5d\"",
    read: |v| v.as_str().and_then(units::span).filter(|span| !span.is_zero()),
};

pub(super) const SPAN_OR_ZERO: Kind<Duration> = Kind {
    expected: "a time such as \"0s\", \"500ms\", \"30s\", \"5m\" or \"2h\"",
    read: |v| v.as_str().and_then(units::span),
};

pub(super) const FACTOR: Kind<f64> =
    Kind { expected: "a number from 1 to 100", read: |v| number(v).filter(|n| (1.0..=100.0).contains(n)) };

pub(super) const SHARE: Kind<f64> =
    Kind { expected: "a number from 0 to 1", read: |v| number(v).filter(|n| (0.0..=1.0).contains(n)) };

pub(super) const GROWTH: Kind<f64> =
    Kind { expected: "a number from 0 to 1000", read: |v| number(v).filter(|n| (0.0..=1000.0).contains(n)) };

pub(super) const AVERAGE: Kind<f64> = Kind {
    expected: "a load average such as 8.0, above 0 and up to 10000",
    read: |v| number(v).filter(|n| *n > 0.0 && *n <= 10_000.0),
};

pub(super) const PERCENT: Kind<f64> =
    Kind { expected: "a percentage above 0 and up to 100", read: |v| number(v).filter(|n| *n > 0.0 && *n <= 100.0) };

/// With 1, a limit would apply forever.
pub(super) const MARGIN: Kind<f64> =
    Kind { expected: "a number from 0 to 0.9", read: |v| number(v).filter(|n| (0.0..=0.9).contains(n)) };

pub(super) const RATE: Kind<Rate> = Kind { expected: "a rate such as \"100/s\", \"30/m\" or \"1000/h\"", read: parsed };

pub(super) const RATE_OR_NONE: Kind<Option<Rate>> = Kind {
    expected: "a rate such as \"100/s\", \"30/m\" or \"1000/h\", or \"0\" for no limit",
    read: |v| match v.as_str()? {
        "0" => Some(None),
        _ => parsed(v).map(Some),
    },
};

pub(super) const PATTERN: Kind<Pattern> = Kind {
    expected: "a name such as \"example.org\", \"*.example.org\" for its subdomains, or \"*\" for all",
    read: parsed,
};

pub(super) const NEXT_HOP: Kind<FixedHop> = Kind {
    expected: "a next hop: \"host\" or \"host:port\", \"[192.0.2.1]:port\", \"mx:domain\", \"unix:/path\" or a reply such as \"550 5.7.1 no\"",
    read: |v| parsed(v).filter(is_within_reach),
};

/// The kernel limits the length of a socket's path.
fn is_within_reach(hop: &FixedHop) -> bool {
    match hop {
        FixedHop::Unix(path) => path.as_os_str().len() <= SOCKET_PATH_OCTETS_MAX,
        FixedHop::Host { .. } | FixedHop::Address { .. } | FixedHop::Exchangers(_) | FixedHop::Nowhere(_) => true,
    }
}

pub(super) const HEADER_RULE: Kind<HeaderRule> =
    Kind { expected: "a header field such as \"Precedence: bulk\", or \"List-Id: *\" for any value", read: parsed };

pub(super) const SENDER_RULE: Kind<SenderRule> = Kind {
    expected: "a mail address such as \"news@example.org\", or \"@example.org\" for a whole domain",
    read: parsed,
};

pub(super) const SENDER_PATTERN: Kind<WhoPattern> = Kind {
    expected: "a mail address, \"@example.org\" or \"@*.example.org\" for a domain or its subdomains, or \"<>\" for no sender",
    read: parsed,
};

pub(super) const RECIPIENT_PATTERN: Kind<WhoPattern> = Kind {
    expected: "a mail address, or \"@example.org\" or \"@*.example.org\" for a domain or its subdomains",
    read: |v| parsed(v).filter(|pattern| *pattern != WhoPattern::Null),
};

pub(super) const CODES: Kind<Codes> =
    Kind { expected: "an answer of the DNS list, such as \"127.0.0.2\" or \"127.0.0.4/30\"", read: parsed };

pub(super) const REPLY: Kind<Reply> =
    Kind { expected: "a reply such as \"550 5.7.1 not from here\", in ASCII", read: parsed };

pub(super) const PORT: Kind<u16> = Kind {
    expected: "a port from 1 to 65535",
    read: |v| integer(v).and_then(|n| u16::try_from(n).ok()).filter(|port| *port > 0),
};

pub(super) const IP_ADDRESS: Kind<IpAddr> =
    Kind { expected: "an address such as \"192.0.2.1\" or \"2001:db8::1\"", read: parsed };

pub(super) const NAME_SERVER: Kind<SocketAddr> = Kind {
    expected: "an address such as \"127.0.0.1\", \"127.0.0.1:53\" or \"[::1]:53\"",
    read: |v| parsed(v).or_else(|| parsed(v).map(|address: IpAddr| SocketAddr::new(address, 53))),
};

pub(super) const NETWORK: Kind<Network> = Kind {
    expected: "a network such as \"10.0.0.0/8\" or \"2001:db8::/32\", with no bits set beyond the prefix",
    read: parsed,
};

/// An element of `names` in a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerName {
    /// A name that clients may send in SNI (RFC 6066 section 3): in lower case and A-labels.
    Host(Box<str>),
    /// An IP address, which clients cannot send.
    Address,
}

pub(super) const SERVER_NAME: Kind<ServerName> = Kind {
    expected: "a host name such as \"mx1.example.org\", or \"*.example.org\"",
    read: |v| {
        let name = v.as_str()?;
        let (wildcard, rest) = name.strip_prefix("*.").map_or(("", name), |rest| ("*.", rest));
        let is_literal = rest.starts_with('[') && host(rest).is_some();
        if is_literal || rest.parse::<IpAddr>().is_ok() {
            return Some(ServerName::Address);
        }
        let rest = if rest.is_ascii() { rest.to_owned() } else { idna::domain_to_ascii(rest).ok()? };
        host(&rest).map(|rest| ServerName::Host(format!("{wildcard}{rest}").into()))
    },
};

/// The address of a listener; None for a unix socket.
pub(super) const ENDPOINT: Kind<Option<SocketAddr>> = Kind {
    expected: "an address with a port, such as \"0.0.0.0:25\" or \"[::1]:2525\"",
    read: |v| match v.as_str()?.strip_prefix("unix:") {
        Some(_) => Some(None),
        None => parsed(v).map(Some),
    },
};

pub(super) const SEGMENT: Kind<u64> = Kind {
    expected: "a size from \"1MiB\" to \"4GiB\"",
    read: |v| (SIZE.read)(v).filter(|size| (1 << 20..=4 << 30).contains(size)),
};

/// Keys in one request. More gain nothing, and servers have limits of their own.
pub(super) const BATCH: Kind<usize> = Kind { expected: "a whole number from 1 to 1000", read: |v| within(v, 1, 1000) };

pub(super) const CONNECTIONS: Kind<usize> =
    Kind { expected: "a whole number from 1 to 1000", read: |v| within(v, 1, 1000) };

/// Nested groups: each level costs another round of searches.
pub(super) const DEPTH: Kind<usize> = Kind { expected: "a whole number from 1 to 100", read: |v| within(v, 1, 100) };

pub(super) const SPILL: Kind<u64> = Kind {
    expected: "a size from \"64KiB\" to \"16MiB\"",
    read: |v| (SIZE.read)(v).filter(|size| (64 << 10..=16 << 20).contains(size)),
};

/// RFC 5321 section 4.5.3.1.4 requires 512; with less, valid commands would fail.
pub(super) const COMMAND_LINE: Kind<u64> = Kind {
    expected: "a size from 512 to \"64KiB\"",
    read: |v| (SIZE.read)(v).filter(|size| (512..=64 << 10).contains(size)),
};

pub(super) const ADDRESS: Kind<Address> =
    Kind { expected: "a mail address such as \"postmaster@example.org\"", read: parsed };

pub(super) const ADDRESS_OR_NONE: Kind<Option<Address>> = Kind {
    expected: "a mail address such as \"postmaster@example.org\", or \"\" for none",
    read: |v| match v.as_str()? {
        "" => Some(None),
        _ => parsed(v).map(Some),
    },
};

pub(super) const HOST: Kind<Box<str>> =
    Kind { expected: "a host name such as \"mx1.example.org\"", read: |v| v.as_str().and_then(host) };

pub(super) const DELIMITER: Kind<Option<char>> = Kind {
    expected: "one character, such as \"+\", or \"\" for none",
    read: |v| {
        let mut chars = v.as_str()?.chars();
        let first = chars.next();
        (chars.next().is_none() && first.is_none_or(|c| !c.is_whitespace() && !c.is_control() && c != '@'))
            .then_some(first)
    },
};

/// The host name in lower case, if mail can be sent to it.
pub(super) fn host(name: &str) -> Option<Box<str>> {
    Some(Address::new("postmaster", name).ok()?.domain().into())
}

/// Describes a value, for "found ...".
pub(super) fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", shortened(text)),
        DeValue::Integer(number) => shortened(&number.to_string()),
        DeValue::Float(number) => shortened(&number.to_string()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn parsed<T: FromStr>(value: &DeValue<'_>) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn count(value: &DeValue<'_>) -> Option<u32> {
    integer(value).and_then(|n| u32::try_from(n).ok())
}

fn within(value: &DeValue<'_>, least: usize, most: usize) -> Option<usize> {
    integer(value).and_then(|n| usize::try_from(n).ok()).filter(|n| (least..=most).contains(n))
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => integer(value).and_then(|n| u32::try_from(n).ok()).map(f64::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_names_as_clients_send_them() {
        let read = |text: &'static str| (SERVER_NAME.read)(&DeValue::String(text.into()));
        for (text, name) in [
            ("MX.Example.ORG", "mx.example.org"),
            ("*.example.org", "*.example.org"),
            ("M\u{fc}nchen.example", "xn--mnchen-3ya.example"),
            ("*.B\u{dc}CHER.example", "*.xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("b\u{fc}cher\u{3002}example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(read(text), Some(ServerName::Host(name.into())), "{text}");
        }
        for text in ["192.0.2.1", "2001:db8::1", "[192.0.2.1]", "[IPv6:2001:db8::1]"] {
            assert_eq!(read(text), Some(ServerName::Address), "{text}");
        }
        for text in ["", "*", "*.", "a b", "a.*.example", "[192.0.2]", "b\u{fc}cher..example", "xn--\u{fc}.example"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
