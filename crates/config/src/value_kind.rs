//! The kinds of value that keys accept: how to parse each, and how to describe it in errors.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use delivery::pipe::ArgumentTemplate;
use dispatch::{HeaderRule, SenderRule};
use filter::ServiceAddress;
use filter::content::Pattern;
use mail::{Address, Allowance, Network, Rate, Reply, units};
use toml::de::DeValue;

use super::access::{EnvelopePattern, parse_dnsbl_codes};
use super::{DomainPattern, FixedHop, SOCKET_PATH_BYTES_MAX};

/// A kind of value.
pub(super) struct ValueKind<T> {
    /// Completes the sentence "expected ...".
    pub(super) expected: &'static str,
    /// Parses a value; None if it is invalid.
    pub(super) parse: fn(&DeValue<'_>) -> Option<T>,
}

pub(super) const TEXT: ValueKind<String> =
    ValueKind { expected: "a string in quotes", parse: |v| v.as_str().filter(|t| !t.is_empty()).map(str::to_owned) };

pub(super) const FLAG: ValueKind<bool> = ValueKind { expected: "true or false", parse: |v| v.as_bool() };

impl<T: TryFrom<u32>> ValueKind<T> {
    pub(super) const COUNT: ValueKind<T> = ValueKind {
        expected: "a whole number from 1 to 4294967295",
        parse: |v| count(v).filter(|n| *n > 0).and_then(|n| n.try_into().ok()),
    };

    pub(super) const COUNT_OR_ZERO: ValueKind<T> = ValueKind {
        expected: "a whole number from 0 to 4294967295",
        parse: |v| count(v).and_then(|n| n.try_into().ok()),
    };
}

pub(super) const SIZE: ValueKind<u64> = ValueKind {
    expected: "a size such as \"64KiB\" or \"10MB\", or a number of bytes",
    parse: |v| match v {
        DeValue::String(text) => units::parse_size(text),
        _ => integer(v),
    },
};

pub(super) const DURATION: ValueKind<Duration> = ValueKind {
    expected: "a time such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"5d\"",
    parse: |v| v.as_str().and_then(units::parse_duration).filter(|span| !span.is_zero()),
};

/// RFC 5321 section 4.5.3.2.1 lets a client wait 5 minutes for the greeting.
pub(super) const GREETING_DELAY: ValueKind<Duration> = ValueKind {
    expected: "a time from \"1ms\" to \"1m\"",
    parse: |v| (DURATION.parse)(v).filter(|delay| *delay <= Duration::from_secs(60)),
};

pub(super) const DURATION_OR_ZERO: ValueKind<Duration> = ValueKind {
    expected: "a time such as \"0s\", \"500ms\", \"30s\", \"5m\" or \"2h\"",
    parse: |v| v.as_str().and_then(units::parse_duration),
};

pub(super) const FACTOR: ValueKind<f64> =
    ValueKind { expected: "a number from 1 to 100", parse: |v| number(v).filter(|n| (1.0..=100.0).contains(n)) };

pub(super) const FRACTION: ValueKind<f64> =
    ValueKind { expected: "a number from 0 to 1", parse: |v| number(v).filter(|n| (0.0..=1.0).contains(n)) };

pub(super) const NON_NEGATIVE: ValueKind<f64> =
    ValueKind { expected: "a number from 0 to 1000", parse: |v| number(v).filter(|n| (0.0..=1000.0).contains(n)) };

pub(super) const LOAD_AVERAGE: ValueKind<f64> = ValueKind {
    expected: "a load average such as 8.0, above 0 and up to 10000",
    parse: |v| number(v).filter(|n| *n > 0.0 && *n <= 10_000.0),
};

pub(super) const PERCENT: ValueKind<f64> = ValueKind {
    expected: "a percentage above 0 and up to 100",
    parse: |v| number(v).filter(|n| *n > 0.0 && *n <= 100.0),
};

/// With 1, a limit would apply forever.
pub(super) const HYSTERESIS: ValueKind<f64> =
    ValueKind { expected: "a number from 0 to 0.9", parse: |v| number(v).filter(|n| (0.0..=0.9).contains(n)) };

pub(super) const RATE: ValueKind<Rate> =
    ValueKind { expected: "a rate such as \"100/s\", \"30/m\" or \"1000/h\"", parse: parse_str };

pub(super) const RATE_OR_NONE: ValueKind<Option<Rate>> = ValueKind {
    expected: "a rate such as \"100/s\", \"30/m\" or \"1000/h\", or \"0\" for no limit",
    parse: |v| match v.as_str()? {
        "0" => Some(None),
        _ => parse_str(v).map(Some),
    },
};

pub(super) const COUNT_ALLOWANCE: ValueKind<Allowance> = ValueKind {
    expected: "a number in a time from 1s to 31d, such as \"200/1h\" or \"1000/1d\"",
    parse: |v| v.as_str().and_then(Allowance::parse_count),
};

pub(super) const SIZE_ALLOWANCE: ValueKind<Allowance> = ValueKind {
    expected: "a size in a time from 1s to 31d, such as \"100MB/1h\" or \"1GiB/1d\"",
    parse: |v| v.as_str().and_then(Allowance::parse_size),
};

pub(super) const PREFIX_V4: ValueKind<u8> = ValueKind {
    expected: "the length of a prefix from 1 to 32",
    parse: |v| count_in_range(v, 1, 32).and_then(|n| n.try_into().ok()),
};

pub(super) const PREFIX_V6: ValueKind<u8> = ValueKind {
    expected: "the length of a prefix from 1 to 128",
    parse: |v| count_in_range(v, 1, 128).and_then(|n| n.try_into().ok()),
};

/// Entries of a table that clients fill, of about 100 octets each.
pub(super) const TABLE_SIZE: ValueKind<usize> =
    ValueKind { expected: "a whole number from 1 to 10000000", parse: |v| count_in_range(v, 1, 10_000_000) };

/// A name that clients see in replies.
pub(super) const REPLY_WORD: ValueKind<String> = ValueKind {
    expected: "at most 64 letters, digits and other ASCII characters without spaces",
    parse: |v| {
        v.as_str().filter(|t| (1..=64).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic())).map(str::to_owned)
    },
};

pub(super) const PATTERN: ValueKind<DomainPattern> = ValueKind {
    expected: "a name such as \"example.org\", \"*.example.org\" for its subdomains, or \"*\" for all",
    parse: parse_str,
};

pub(super) const NEXT_HOP: ValueKind<FixedHop> = ValueKind {
    expected: "a next hop: \"host\" or \"host:port\", \"[192.0.2.1]:port\", \"mx:domain\", \"unix:/path\" or a reply such as \"550 5.7.1 no\"",
    parse: |v| parse_str(v).filter(is_reachable),
};

/// The kernel limits the length of a socket's path.
fn is_reachable(hop: &FixedHop) -> bool {
    match hop {
        FixedHop::Unix(path) => path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX,
        FixedHop::Host { .. } | FixedHop::Address { .. } | FixedHop::Mx { .. } | FixedHop::Reply(_) => true,
    }
}

pub(super) const UNIX_SOCKET: ValueKind<PathBuf> = ValueKind {
    expected: "a unix socket such as \"unix:/run/dovecot/auth-client\"",
    parse: |v| match parse_str(v).filter(is_reachable)? {
        FixedHop::Unix(path) => Some(path),
        _ => None,
    },
};

pub(super) const HEADER_RULE: ValueKind<HeaderRule> = ValueKind {
    expected: "a header field such as \"Precedence: bulk\", or \"List-Id: *\" for any value",
    parse: parse_str,
};

pub(super) const SENDER_RULE: ValueKind<SenderRule> = ValueKind {
    expected: "a mail address such as \"news@example.org\", or \"@example.org\" for a whole domain",
    parse: parse_str,
};

pub(super) const SENDER_PATTERN: ValueKind<EnvelopePattern> = ValueKind {
    expected: "a mail address, \"@example.org\" or \"@*.example.org\" for a domain or its subdomains, or \"<>\" for no sender",
    parse: parse_str,
};

pub(super) const RECIPIENT_PATTERN: ValueKind<EnvelopePattern> = ValueKind {
    expected: "a mail address, or \"@example.org\" or \"@*.example.org\" for a domain or its subdomains",
    parse: |v| parse_str(v).filter(|pattern| *pattern != EnvelopePattern::Null),
};

pub(super) const DNSBL_CODES: ValueKind<RangeInclusive<Ipv4Addr>> = ValueKind {
    expected: "an answer of the DNS list, such as \"127.0.0.2\" or \"127.0.0.4/30\"",
    parse: |v| v.as_str().and_then(parse_dnsbl_codes),
};

pub(super) const REPLY: ValueKind<Reply> =
    ValueKind { expected: "a reply such as \"550 5.7.1 not from here\", in ASCII", parse: parse_str };

pub(super) const FAILURE_REPLY: ValueKind<FixedHop> = ValueKind {
    expected: "a 4xx or 5xx reply such as \"550 5.1.1 no such user\", in ASCII",
    parse: |v| parse_str(v).filter(|hop| matches!(hop, FixedHop::Reply(_))),
};

pub(super) const ARGUMENT: ValueKind<ArgumentTemplate> = ValueKind {
    expected: "an argument of a program, with macros such as \"${recipient}\", and \"$$\" for a dollar sign",
    parse: parse_str,
};

/// All recipients of a run are arguments of its program.
pub(super) const PIPE_RECIPIENTS: ValueKind<usize> = ValueKind {
    expected: "a whole number from 1 to 100",
    parse: |v| count_in_range(v, 1, delivery::pipe::RECIPIENTS_MAX),
};

pub(super) const OUTPUT_SIZE: ValueKind<usize> = ValueKind {
    expected: "a size up to \"1MiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| *size <= 1 << 20).and_then(|size| size.try_into().ok()),
};

pub(super) const PORT: ValueKind<u16> = ValueKind {
    expected: "a port from 1 to 65535",
    parse: |v| integer(v).and_then(|n| u16::try_from(n).ok()).filter(|port| *port > 0),
};

pub(super) const IP_ADDRESS: ValueKind<IpAddr> =
    ValueKind { expected: "an address such as \"192.0.2.1\" or \"2001:db8::1\"", parse: parse_str };

pub(super) const NAME_SERVER: ValueKind<SocketAddr> = ValueKind {
    expected: "an address such as \"127.0.0.1\", \"127.0.0.1:53\" or \"[::1]:53\"",
    parse: |v| parse_str(v).or_else(|| parse_str(v).map(|address: IpAddr| SocketAddr::new(address, 53))),
};

pub(super) const NETWORK: ValueKind<Network> = ValueKind {
    expected: "a network such as \"10.0.0.0/8\" or \"2001:db8::/32\", with no bits set beyond the prefix",
    parse: parse_str,
};

/// An element of `names` in a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerName {
    /// A name that clients may send in SNI (RFC 6066 section 3): in lower case and A-labels.
    Host(Box<str>),
    /// An IP address, which clients cannot send.
    Address,
}

pub(super) const SERVER_NAME: ValueKind<ServerName> = ValueKind {
    expected: "a host name such as \"mx1.example.org\", or \"*.example.org\"",
    parse: |v| {
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

/// A domain in lower case and A-labels.
pub(super) const DOMAIN: ValueKind<Box<str>> = ValueKind {
    expected: "a domain such as \"example.org\"",
    parse: |v| match (SERVER_NAME.parse)(v)? {
        ServerName::Host(name) if !name.starts_with("*.") => Some(name),
        ServerName::Host(_) | ServerName::Address => None,
    },
};

/// The address of a listener; None for a unix socket.
pub(super) const ENDPOINT: ValueKind<Option<SocketAddr>> = ValueKind {
    expected: "an address with a port, such as \"0.0.0.0:25\" or \"[::1]:2525\"",
    parse: |v| match v.as_str()?.strip_prefix("unix:") {
        Some(_) => Some(None),
        None => parse_str(v).map(Some),
    },
};

pub(super) const REGEXP: ValueKind<Pattern> = ValueKind {
    expected: "a regular expression in single quotes, such as '^Subject: .*sale', without back-references and look-around",
    parse: parse_str,
};

/// A name in which `*` stands for any text.
pub(super) const NAME_PATTERN: ValueKind<Pattern> = ValueKind {
    expected: "a name such as \"*.exe\" or \"image/*\", in which * stands for any text and ? for one character",
    parse: |v| v.as_str().filter(|name| !name.is_empty()).and_then(|name| Pattern::from_name(name).ok()),
};

/// A field name (RFC 5322 section 2.2), in lower case.
pub(super) const FIELD_NAME: ValueKind<Box<str>> = ValueKind {
    expected: "the name of a header field, such as \"Subject\"",
    parse: |v| {
        let name = v.as_str()?;
        let is_name = !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic() && octet != b':');
        is_name.then(|| name.to_ascii_lowercase().into())
    },
};

/// The address of a program that decides about mail.
pub(super) const SERVICE: ValueKind<ServiceAddress> = ValueKind {
    expected: "an address such as \"127.0.0.1:11332\", \"localhost:8891\" or \"unix:/run/opendkim/opendkim.sock\"",
    parse: parse_str,
};

pub(super) const SEGMENT_SIZE: ValueKind<u64> = ValueKind {
    expected: "a size from \"1MiB\" to \"4GiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| (1 << 20..=4 << 30).contains(size)),
};

/// Keys in one request. More gain nothing, and servers have limits of their own.
pub(super) const BATCH_SIZE: ValueKind<usize> =
    ValueKind { expected: "a whole number from 1 to 1000", parse: |v| count_in_range(v, 1, 1000) };

pub(super) const CONNECTIONS: ValueKind<usize> =
    ValueKind { expected: "a whole number from 1 to 1000", parse: |v| count_in_range(v, 1, 1000) };

/// Nested groups: each level costs another round of searches.
pub(super) const NESTING_DEPTH: ValueKind<usize> =
    ValueKind { expected: "a whole number from 1 to 100", parse: |v| count_in_range(v, 1, 100) };

/// A message that is read into memory as a whole.
pub(super) const LOADED_SIZE: ValueKind<u32> = ValueKind {
    expected: "a size from 1 to \"1GiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| (1..=1 << 30).contains(size)).and_then(|size| size.try_into().ok()),
};

pub(super) const HEAD_SIZE: ValueKind<usize> = ValueKind {
    expected: "a size from \"1KiB\" to \"1MiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| (1 << 10..=1 << 20).contains(size)).and_then(|size| size.try_into().ok()),
};

pub(super) const SPILL_SIZE: ValueKind<u64> = ValueKind {
    expected: "a size from \"64KiB\" to \"16MiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| (64 << 10..=16 << 20).contains(size)),
};

/// RFC 5321 section 4.5.3.1.4 requires 512; with less, valid commands would fail.
pub(super) const COMMAND_LINE_SIZE: ValueKind<u64> = ValueKind {
    expected: "a size from 512 to \"64KiB\"",
    parse: |v| (SIZE.parse)(v).filter(|size| (512..=64 << 10).contains(size)),
};

pub(super) const ADDRESS: ValueKind<Address> =
    ValueKind { expected: "a mail address such as \"postmaster@example.org\"", parse: parse_str };

pub(super) const ADDRESS_OR_NONE: ValueKind<Option<Address>> = ValueKind {
    expected: "a mail address such as \"postmaster@example.org\", or \"\" for none",
    parse: |v| match v.as_str()? {
        "" => Some(None),
        _ => parse_str(v).map(Some),
    },
};

pub(super) const HOST: ValueKind<Box<str>> =
    ValueKind { expected: "a host name such as \"mx1.example.org\"", parse: |v| v.as_str().and_then(host) };

pub(super) const DELIMITER: ValueKind<Option<char>> = ValueKind {
    expected: "one character, such as \"+\", or \"\" for none",
    parse: |v| {
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
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", truncated(text)),
        DeValue::Integer(number) => truncated(&number.to_string()),
        DeValue::Float(number) => truncated(&number.to_string()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn truncated(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn parse_str<T: FromStr>(value: &DeValue<'_>) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn count(value: &DeValue<'_>) -> Option<u32> {
    integer(value).and_then(|n| u32::try_from(n).ok())
}

fn count_in_range(value: &DeValue<'_>, least: usize, most: usize) -> Option<usize> {
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
        let read = |text: &'static str| (SERVER_NAME.parse)(&DeValue::String(text.into()));
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
